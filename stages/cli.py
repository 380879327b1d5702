"""The `holdshort` command: what DVC itself does not offer.

holdshort compose [OVERRIDE ...]   write params.yaml from conf/, as `dvc exp run -S` does
holdshort compose --check          say whether params.yaml is what conf/ composes
"""

import argparse
import sys
from collections.abc import Sequence

from .compose import Change, drift, write_params
from .config.launch import guarded


def build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="holdshort", description="Pre-flight gates for training.")
    commands = parser.add_subparsers(dest="command", required=True)
    compose = commands.add_parser(
        "compose",
        help="write params.yaml from conf/",
        description="Compose conf/ into params.yaml, byte for byte as `dvc exp run -S` does.",
    )
    compose.add_argument(
        "overrides",
        nargs="*",
        metavar="OVERRIDE",
        help="Hydra overrides: train.learning_rate=1e-4, model=..., +experiment=...",
    )
    compose.add_argument(
        "--check",
        action="store_true",
        help="write nothing; exit with 1 when params.yaml differs from what conf/ composes",
    )
    return parser


def print_changes(changes: Sequence[Change], old: str, new: str) -> None:
    for key, before, after in changes:
        print(f"  {key}: {before!r} ({old}) -> {after!r} ({new})")


def run_compose(overrides: Sequence[str], check: bool) -> int:
    """Exit code: 0 done or in step, 1 out of step."""
    if not check:
        changed = write_params(overrides)
        print(
            f"params.yaml: {len(changed) or 'no'} {'key' if len(changed) == 1 else 'keys'} changed"
        )
        print_changes(changed, "before", "now")
        return 0
    different = drift(overrides)
    if not different:
        print("params.yaml is what conf/ composes")
        return 0
    print("params.yaml is not what conf/ composes; `holdshort compose` would undo these:")
    print_changes(different, "conf/", "params.yaml")
    return 1


def main(arguments: Sequence[str] | None = None) -> None:
    options = build_parser().parse_args(arguments)
    sys.exit(guarded(lambda: run_compose(options.overrides, options.check)))


if __name__ == "__main__":
    main()
