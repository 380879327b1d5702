"""What a command that takes overrides runs on: params of its own, and the tokens that are there."""

from collections.abc import Sequence

from ..chat.split import DATASET
from ..chat.token_store import TOKENS
from ..config import Params, UserError, parse_params, read_yaml
from ..config.load import PARAMS_FILE


def read_params(overrides: Sequence[str]) -> Params:
    """params.yaml as it is, or what conf/ composes with overrides."""
    if not overrides:
        return parse_params(read_yaml(PARAMS_FILE))
    from ..compose import composed_params

    return composed_params(overrides)


def name_run(overrides: Sequence[str]) -> str:
    """Of which run a page tells."""
    return f"conf/ with {' '.join(overrides)}" if overrides else str(PARAMS_FILE)


def refuse_other_tokens(params: Params) -> None:
    """Raises UserError without tokens, or where overrides ask for others than there are."""
    for directory in (TOKENS, DATASET):
        if not directory.is_dir():
            raise UserError(f"{directory}/ is missing; run `dvc repro mask_report`")
    made = parse_params(read_yaml(PARAMS_FILE))
    for key, asked, there in (
        ("data", params.data, made.data),
        ("labels", params.labels, made.labels),
        ("model.tokenizer", params.model.tokenizer, made.model.tokenizer),
    ):
        if asked != there:
            raise UserError(
                f"conf/ with these overrides has another '{key}' than params.yaml, of which "
                "artifacts/ are; give the overrides of params.yaml too, or run `holdshort compose` "
                "with all of them and `dvc repro mask_report` first"
            )
