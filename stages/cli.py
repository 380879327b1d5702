"""The `holdshort` command: what DVC itself does not offer.

holdshort compose [OVERRIDE ...]   write params.yaml from conf/, as `dvc exp run -S` does
holdshort compose --check          say whether params.yaml is what conf/ composes
holdshort budget [OVERRIDE ...]    say what a run needs and costs, before it is started
holdshort compare NAME             train arms that differ in one thing, side by side
holdshort selftest [OVERRIDE ...]  plant faults in this run, and see that the gates refuse them
holdshort lr-range [OVERRIDE ...]  say whether the learning rate fits this run
holdshort audit-labels ...         judge the labels that another trainer made
holdshort keep DIRECTORY NAME      keep a base model where every project on this machine finds it
holdshort diagnose LOG             name the failures that the curves of a run show
holdshort seeds SEED ...            run the committed params under other seeds, and say what varies
holdshort verify [REV | DIRECTORY] say what differs from what a manifest or a model records
holdshort attest [DIRECTORY]       write what is recorded of a model as in-toto, SLSA and CycloneDX
holdshort sign [DIRECTORY]         sign a model directory with a key
holdshort reproduce REV            run a revision again, and say whether its bits are the same
holdshort explain A B              say why two revisions or models differ, cause before effect
holdshort replay [DIRECTORY]       take a training step that went wrong again, watched
holdshort lab [--seed 42]          have a tiny model learn eight sequences by heart, by itself
"""

import argparse
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from .compose import Change, drift, write_params
from .config import Params, UserError, load_params
from .config.launch import guarded, restart_pinned
from .models.record import MODEL
from .provenance.base_model import keep, kept_path


def build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="holdshort", description="Pre-flight gates for training.")
    commands = parser.add_subparsers(dest="command", required=True)
    compose = commands.add_parser(
        "compose",
        help="write params.yaml from conf/",
        description="Compose conf/ into params.yaml, byte for byte as `dvc exp run -S` does.",
    )
    add_overrides(compose, "Hydra overrides: train.learning_rate=1e-4, model=..., +experiment=...")
    compose.add_argument(
        "--check",
        action="store_true",
        help="write nothing; exit with 1 when params.yaml differs from what conf/ composes",
    )
    add_budget(commands)
    add_compare(commands)
    add_selftest(commands)
    add_lr_range(commands)
    add_audit_labels(commands)
    add_diagnose(commands)
    keeping = commands.add_parser(
        "keep",
        help="keep a base model by its sha256",
        description="Copy a directory with a model and its tokenizer into the store, and print the "
        "values for model.name_or_path and model.revision.",
    )
    keeping.add_argument("directory", type=Path)
    keeping.add_argument("name", help="letters, digits, '.', '_' and '-'")
    lab = commands.add_parser(
        "lab",
        help="have a tiny LoRA model learn eight sequences by heart",
        description="The protocol's diagnostic by itself: a known model learns known sequences. It "
        "needs no project. Exit code: 0 passed, 1 failed, 2 bad input.",
    )
    lab.add_argument("--seed", type=int, default=42, help="of the weights (default: %(default)s)")
    add_verify(commands)
    add_attest(commands)
    add_sign(commands)
    add_reproduce(commands)
    explain = commands.add_parser(
        "explain",
        help="say why two runs differ, cause before effect",
        description="Compare what two revisions record: data, params, code, environment, then "
        "verdicts, metrics, steps and weights; or two model directories, or one of each, by what "
        "the models record. Exit code: 0 nothing differs, 1 something does, 2 it could not be "
        "told.",
    )
    for name in ("one", "other"):
        explain.add_argument(
            name,
            metavar="REV|DIR",
            help="a commit, tag or branch with dvc.lock; or a copy of models/final",
        )
    explain.add_argument("--report", type=Path, metavar="DIR", help="write a page with all there")
    seeds = commands.add_parser(
        "seeds",
        help="run the committed params under other seeds, and say what varies",
        description="One DVC experiment a seed, through every gate. Exit code: 0 every seed "
        "trained, 1 one was refused, 2 bad input.",
    )
    seeds.add_argument("seeds", nargs="+", type=int, metavar="SEED")
    add_report(seeds, "reports/seeds", "seeds.csv")
    replay = commands.add_parser(
        "replay",
        help="take a training step that went wrong again, watched",
        description="Go back to a step that train.on_anomaly kept, and name rows and module. Exit "
        "code: 0 reproduced to the bit, 1 not, 2 bad input.",
    )
    replay.add_argument(
        "directory", nargs="?", type=Path, help="below anomalies/ (default: the latest)"
    )
    return parser


def add_overrides(command: Any, what: str) -> None:
    command.add_argument("overrides", nargs="*", metavar="OVERRIDE", help=what)


def add_report(command: Any, directory: str, table: str) -> None:
    command.add_argument(
        "--report",
        type=Path,
        metavar="DIR",
        default=Path(directory),
        help=f"where {table} and the page are written (default: %(default)s)",
    )


def add_budget(commands: Any) -> None:
    budget = commands.add_parser(
        "budget",
        help="say what a run needs and costs, before it is started",
        description="Parameters, memory, FLOPs, hours and cost of params.yaml, or of what conf/ "
        "composes with overrides; without weights, a GPU or a network. Exit code: 0 fits, 1 does "
        "not fit run.hardware, 2 could not be told.",
    )
    add_overrides(
        budget, "Hydra overrides: +experiment=qwen3_8b_qlora, run.hardware=h100_80gb, ..."
    )
    budget.add_argument(
        "--output", type=Path, metavar="FILE", help="write adapter_training_config.json there"
    )


def add_compare(commands: Any) -> None:
    compare = commands.add_parser(
        "compare",
        help="train arms that differ in one thing, side by side",
        description="Train the arms of conf/experiment/compare/NAME.yaml on artifacts/tokens/, and "
        "say what each change does. Exit code: 0 done, 2 bad input.",
    )
    compare.add_argument("name", metavar="NAME", help="of a file in conf/experiment/compare/")
    compare.add_argument("--report", type=Path, metavar="DIR", help="default: reports/compare/NAME")


def add_selftest(commands: Any) -> None:
    selftest = commands.add_parser(
        "selftest",
        help="plant faults in this run, and see that the gates refuse them",
        description="Run gates 2 and 3 over this run, sound variations of it and every fault that "
        "can be planted in it, on artifacts/tokens/. Exit code: 0 all caught and no alarm over a "
        "sound run, 1 not so, 2 bad input.",
    )
    add_overrides(selftest, "Hydra overrides, of the model or training")
    selftest.add_argument("--quick", action="store_true", help="one fault of each kind")
    add_report(selftest, "reports/selftest", "matrix.json")


def add_lr_range(commands: Any) -> None:
    sweep = commands.add_parser(
        "lr-range",
        help="say whether the learning rate fits this run",
        description="Train a few steps of the run at growing rates, and say where its own lies. "
        "Exit code: 0 it fits, 1 it is too high or too low, 2 bad input.",
    )
    add_overrides(sweep, "Hydra overrides, of the model or training")
    sweep.add_argument(
        "--steps",
        type=positive,
        metavar="N",
        default=100,
        help="training steps, at a rate each (default: %(default)s)",
    )
    add_report(sweep, "reports/lr_range", "sweep.csv")


def add_audit_labels(commands: Any) -> None:
    audit = commands.add_parser(
        "audit-labels",
        help="judge the labels that another trainer made",
        description="Hold token rows of another trainer against the conversations they were made "
        "from. Exit code: 0 passed, 1 failed, 2 could not be judged.",
    )
    for name, what in (
        (
            "--tokens",
            "token rows: .jsonl (.gz, .zst), .parquet, .arrow, .safetensors, save_to_disk",
        ),
        ("--source", "the conversations, in any dialect and format that data.path may have"),
        ("--tokenizer", "directory of the tokenizer, with its chat template"),
    ):
        audit.add_argument(name, required=True, type=Path, help=what)
    audit.add_argument("--turns", choices=("all", "last"), default="all", help="supervised turns")
    audit.add_argument(
        "--supervise",
        default="content,reasoning,tool_call",
        help="what shall be supervised beside stop tokens (default: %(default)s); also scaffold",
    )
    audit.add_argument(
        "--dialect",
        choices=("auto", "openai", "sharegpt", "alpaca", "prompt_completion"),
        default="auto",
        help="of the source (default: by the keys of its first row)",
    )
    audit.add_argument("--report", type=Path, metavar="DIR", help="write page and findings there")
    audit.add_argument(
        "--pre-shifted",
        choices=("auto", "yes", "no"),
        default="auto",
        help="whether labels[t] is the token after input_ids[t], as torchtune writes it",
    )


def add_verify(commands: Any) -> None:
    verify = commands.add_parser(
        "verify",
        help="say what differs from what a manifest or a model records",
        description="Hash again what training_manifest.json names and compare it field by field. "
        "Exit code: 0 the same bits are expected, 1 they are not, 2 it could not be told.",
    )
    verify.add_argument(
        "target",
        nargs="?",
        help="a git revision with a manifest, or a model directory (default: the work tree's "
        "manifest and models/final)",
    )
    verify.add_argument(
        "--key",
        type=Path,
        metavar="PUBLIC_KEY",
        help="check the signature of the model directory too; the public key in PEM",
    )
    add_signature(verify)
    verify.add_argument(
        "--deep",
        action="store_true",
        help="compute loss and answers of models/final again, and compare them too",
    )


def add_attest(commands: Any) -> None:
    attest = commands.add_parser(
        "attest",
        help="write what is recorded of a model as in-toto, SLSA and CycloneDX",
        description="Write the verdicts of the gates and the provenance of a model as in-toto "
        "statements, and its parts as a CycloneDX ML-BOM. Exit code: 0 done, 1 it is not what the "
        "manifest records, 2 bad input.",
    )
    attest.add_argument(
        "directory",
        nargs="?",
        type=Path,
        default=MODEL,
        help="a model that was trained under the manifest here (default: %(default)s)",
    )
    attest.add_argument(
        "--output",
        type=Path,
        metavar="DIR",
        default=Path("attestations"),
        help="where they are written (default: %(default)s)",
    )
    attest.add_argument(
        "--key", type=Path, help="sign the documents too, as `holdshort sign` does a model"
    )


def add_sign(commands: Any) -> None:
    sign = commands.add_parser(
        "sign",
        help="sign a model directory with a key",
        description="Sign every file of a model directory, offline. Exit code: 0 done, 1 it is not "
        "what its provenance.json records, 2 bad input.",
    )
    sign.add_argument(
        "directory",
        nargs="?",
        type=Path,
        default=MODEL,
        help="default: %(default)s",
    )
    sign.add_argument(
        "--key",
        required=True,
        type=Path,
        help="elliptic curve private key in PEM; the password of an encrypted one is taken from "
        "HOLDSHORT_KEY_PASSWORD",
    )
    add_signature(sign)


def add_signature(command: Any) -> None:
    command.add_argument(
        "--signature",
        type=Path,
        metavar="FILE",
        help="where the signature is (default: beside the directory, models/final.sig)",
    )


def add_reproduce(commands: Any) -> None:
    reproduce = commands.add_parser(
        "reproduce",
        help="run a revision again, and say whether its bits are the same",
        description="Run gates and training of a revision again, beside the work tree, and compare "
        "every output with what it records. Exit code: 0 the same bits, 1 not, 2 it could not be "
        "told.",
    )
    reproduce.add_argument("revision", metavar="REV", help="a commit, tag or branch with dvc.lock")
    reproduce.add_argument(
        "--steps",
        type=positive,
        metavar="K",
        help="run the gates and only the first K training steps, against the recorded telemetry",
    )
    reproduce.add_argument(
        "--keep", action="store_true", help="keep the directory in which it was computed"
    )
    reproduce.add_argument(
        "--venv",
        action="store_true",
        help="run it in an environment of its own, with what its requirements.lock pins",
    )


def positive(text: str) -> int:
    """A whole number above 0, for argparse."""
    if not text.isdecimal() or not int(text):
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number above 0")
    return int(text)


def add_diagnose(commands: Any) -> None:
    diagnose = commands.add_parser(
        "diagnose",
        help="name the failures that the curves of a run show",
        description="Read the log of a training run and name what its curves show, with likely "
        "causes. Exit code: 0 nothing found, 1 a signature found, 2 not enough evidence.",
    )
    diagnose.add_argument(
        "log",
        type=Path,
        metavar="LOG",
        help="trainer_state.json, .csv, .tsv, .jsonl, .json, an event file of TensorBoard, a run "
        "of W&B, or a directory that holds one",
    )
    diagnose.add_argument("--report", type=Path, metavar="DIR", help="write page and charts there")
    diagnose.add_argument(
        "--map",
        action="append",
        default=[],
        metavar="ROLE=NAME",
        help="the column of a role (loss, validation_loss, learning_rate, ...), where its name is "
        "not a common one",
    )
    diagnose.add_argument("--classes", type=int, metavar="K", help="the model chooses among K")
    diagnose.add_argument(
        "--prior",
        type=float,
        metavar="NATS",
        help="entropy of the labels, where unbalanced",
    )
    diagnose.add_argument("--max-grad-norm", type=float, metavar="X", help="limit of the clipping")


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


def run_budget(overrides: Sequence[str], output: Path | None) -> int:
    """Exit code: 0 fits."""
    from .commands.spend import run  # torch and transformers: not for other commands

    return run(overrides, output)


def run_compare(name: str, report: Path | None) -> int:
    """Exit code: 0 done."""
    from .comparison.declared import params_of, path_of, read_comparison

    comparison = read_comparison(name)
    directory = report or Path("reports/compare") / name
    params = [params_of(arm, path_of(name)) for arm in comparison.arms]
    restart_pinned(params[0].run.cpu_threads)
    # torch: not for other commands, and not before the process is pinned
    from .commands.compare import run, run_scripts

    if comparison.of_scripts:
        return run_scripts(comparison, directory)
    return run(comparison, params, directory)


def pinned_params(overrides: Sequence[str]) -> Params:
    """Params of this run, once the process is pinned as they ask."""
    from .commands.overrides import read_params  # pyarrow: not for other commands

    params = read_params(overrides)
    restart_pinned(params.run.cpu_threads)
    return params


def run_selftest(overrides: Sequence[str], quick: bool, report: Path) -> int:
    """Exit code: 0 all caught and no alarm, 1 not so."""
    params = pinned_params(overrides)
    from .commands.selftest import run  # torch, and only once the process is pinned

    return run(params, overrides, quick, report)


def run_lr_range(overrides: Sequence[str], steps: int, report: Path) -> int:
    """Exit code: 0 the rate fits, 1 it does not."""
    params = pinned_params(overrides)
    from .commands.lr_range import run  # torch, and only once the process is pinned

    return run(params, overrides, steps, report)


def run_audit_labels(arguments: argparse.Namespace) -> int:
    """Exit code: 0 passed, 1 failed."""
    from .commands.audit_labels import options_of, run  # transformers: not for other commands

    return run(options_of(arguments))


def run_diagnose(arguments: argparse.Namespace) -> int:
    """Exit code: 0 nothing found, 1 a signature found."""
    from .commands.diagnose import options_of, run  # numpy: not for other commands

    return run(options_of(arguments))


def run_keep(directory: Path, name: str) -> int:
    """Exit code: 0 done."""
    revision = keep(directory, name)
    print(f"kept in {kept_path(name, revision)}")
    print(f"model.name_or_path: {name}\nmodel.revision: {revision}")
    return 0


def run_verify(target: str | None, key: Path | None, signature: Path | None, deep: bool) -> int:
    """Exit code: 0 as recorded, and as signed where a key is given; 1 not."""
    if deep:
        if target is not None:
            raise UserError("--deep computes with the model of the work tree; name no other target")
        restart_pinned(load_params("full_train").run.cpu_threads)
    from .commands.signing import mention_unchecked, run_check
    from .commands.verify import run  # torch: not for other commands

    if key is None and signature is not None:
        raise UserError("--signature is checked with a public key; give --key too")
    if key is None:
        mention_unchecked(target)
        return run(target, deep)
    return run_check(target, key, signature, deep)


def run_attest(directory: Path, output: Path, key: Path | None) -> int:
    """Exit code: 0 done."""
    from .commands.attest import run  # DVC: not for other commands

    return run(directory, output, key)


def run_sign(directory: Path, key: Path, signature: Path | None) -> int:
    """Exit code: 0 done."""
    from .commands.signing import run_sign as run

    return run(directory, key, signature)


def run_reproduce(revision: str, steps: int | None, keep: bool, venv: bool) -> int:
    """Exit code: 0 the same bits, 1 not."""
    from .commands.reproduce import run  # torch and DVC: not for other commands

    return run(revision, steps, keep, venv)


def run_explain(one: str, other: str, report: Path | None) -> int:
    """Exit code: 0 nothing differs, 1 something does."""
    from .commands.explain import run  # torch and DVC: not for other commands

    return run(one, other, report)


def run_seeds(seeds: Sequence[int], report: Path) -> int:
    """Exit code: 0 every seed trained, 1 one was refused."""
    from .commands.seeds import run  # pandas: not for other commands

    return run(seeds, report)


def run_replay(directory: Path | None) -> int:
    """Exit code: 0 reproduced, 1 not."""
    restart_pinned(load_params("full_train").run.cpu_threads)
    from .commands.replay import run  # torch, and only once the process is pinned

    return run(directory)


def run_lab(seed: int) -> int:
    """Exit code: 0 passed, 1 failed."""
    from .commands.lab import run  # torch: not for other commands

    return run(seed)


def hand_over_to_project() -> None:
    """Go on with the code of the project that this command stands in, as its stages do.

    The installed command is that of one clone; another, or another branch, has gates of its own.
    """
    theirs = Path("stages/cli.py")
    if __package__ == "stages" or not (theirs.is_file() and Path("dvc.yaml").is_file()):
        return
    if not theirs.samefile(__file__):
        os.execv(sys.executable, [sys.executable, "-m", "stages.cli", *sys.argv[1:]])


def main(arguments: Sequence[str] | None = None) -> None:
    if arguments is None:
        hand_over_to_project()
    options = build_parser().parse_args(arguments)
    runs: dict[str, Callable[[], int]] = {
        "compose": lambda: run_compose(options.overrides, options.check),
        "budget": lambda: run_budget(options.overrides, options.output),
        "compare": lambda: run_compare(options.name, options.report),
        "selftest": lambda: run_selftest(options.overrides, options.quick, options.report),
        "lr-range": lambda: run_lr_range(options.overrides, options.steps, options.report),
        "audit-labels": lambda: run_audit_labels(options),
        "keep": lambda: run_keep(options.directory, options.name),
        "diagnose": lambda: run_diagnose(options),
        "verify": lambda: run_verify(options.target, options.key, options.signature, options.deep),
        "attest": lambda: run_attest(options.directory, options.output, options.key),
        "sign": lambda: run_sign(options.directory, options.key, options.signature),
        "reproduce": lambda: run_reproduce(
            options.revision, options.steps, options.keep, options.venv
        ),
        "explain": lambda: run_explain(options.one, options.other, options.report),
        "seeds": lambda: run_seeds(options.seeds, options.report),
        "replay": lambda: run_replay(options.directory),
        "lab": lambda: run_lab(options.seed),
    }
    sys.exit(guarded(runs[options.command]))


if __name__ == "__main__":
    main()
