"""What will this run cost, before anything is spent? `holdshort budget`.

Reads params.yaml, or composes conf/ with overrides; needs neither weights nor a network, and writes
nothing but what --output names.
"""

from collections.abc import Sequence
from pathlib import Path

from rich.table import Table

from ..chat.token_store import TOKENS, TokenStore
from ..config import Params, Refusal, UserError
from ..config.errors import reading
from ..config.schema import HubModel
from ..estimate.architecture import find_architecture
from ..estimate.budget import (
    ASSUMPTION,
    Budget,
    adapter_training_config,
    make_budget,
    table_of,
    too_large,
)
from ..estimate.hardware import read_hardware
from ..provenance.records import write_json
from ..report.terminal import console
from .overrides import read_params


def vocabulary_of(params: Params) -> int:
    """Ids of the tokenizer. Raises UserError where it is not below the project."""
    from tokenizers import Tokenizer

    path = Path(params.model.tokenizer) / "tokenizer.json"
    if not path.is_file():
        raise UserError(f"params.yaml: 'model.tokenizer': there is no {path}")
    with reading(path, "a tokenizer", "bring the files of the tokenizer again"):
        return int(Tokenizer.from_file(str(path)).get_vocab_size(with_added_tokens=True))


def count_all_steps(params: Params) -> int:
    """Optimizer steps of the training. Raises UserError where only the data would tell."""
    if params.train.max_steps > 0:
        return params.train.max_steps
    if not (TOKENS / "train.arrow").is_file():
        raise UserError(
            "train.max_steps is -1, and how many steps num_train_epochs are is known after "
            "`dvc repro mask_report`; run it, or budget with train.max_steps=N"
        )
    from ..training.batches import BatchPlan
    from ..training.schedule import count_steps

    lengths = TokenStore("train").lengths()
    plan = BatchPlan(lengths, params.data.max_length, params.train, params.run.seed)
    return count_steps(params.train, plan)


def budget_of(params: Params) -> Budget:
    """Count on the meta device, then estimate. Raises UserError for what cannot be budgeted."""
    model, steps = params.model, count_all_steps(params)
    if params.run.hardware:
        read_hardware(params.run.hardware)
    vocabulary = 0 if isinstance(model, HubModel) else vocabulary_of(params)
    architecture = find_architecture(model, vocabulary)
    from ..estimate.parameters import count_on_meta  # torch, which takes seconds

    return make_budget(params, count_on_meta(model, vocabulary), architecture, steps)


def print_budget(budget: Budget, title: str) -> None:
    table = Table(title=title, title_justify="left", show_header=False)
    for row in table_of(budget):
        table.add_row(*row)
    console.print(table)
    console.print(ASSUMPTION)


def run(overrides: Sequence[str], output: Path | None) -> int:
    """Exit code: 0 fits or no hardware is named. Raises Refusal (1) when it does not fit."""
    params = read_params(overrides)
    budget = budget_of(params)
    print_budget(budget, getattr(params.model, "reference", params.model.name))
    if output:
        write_json(output, adapter_training_config(params, budget, weights_sha256=None))
        console.print(f"written: {output}")
    if not budget.fits:
        raise Refusal(too_large(budget, params))
    return 0
