"""FLOPs follow from the rules of the literature, and torch counts the same."""

import pytest
from torch.utils.flop_counter import FlopCounterMode

from stages.estimate.architecture import architecture_of
from stages.estimate.flops import training_flops
from stages.estimate.memory import Parameters
from stages.models.build import count_parameters
from stages.training.loss import causal_lm_loss

from .measured import CONFIG, batch, built, hub


@pytest.mark.parametrize(
    ("adapter", "checkpointing", "error"),
    # torch's checkpointing stops before the layer's last matrix, which is not computed again
    [("none", False, 0.03), ("none", True, 0.05), ("lora", False, 0.03)],
)
def test_torch_counts_the_same_operations_but_for_a_small_share(
    adapter: str, checkpointing: bool, error: float
) -> None:
    params = hub(adapter, attention="eager", train__gradient_checkpointing=checkpointing)
    model = built(params, CONFIG)
    rows = batch(params)
    with FlopCounterMode(display=False) as counter:
        logits = model(**{name: one for name, one in rows.items() if name != "labels"}).logits
        causal_lm_loss(logits, rows["labels"], 1).backward()  # type: ignore[no-untyped-call]
    counted = count_parameters(model)
    found = training_flops(
        params,
        Parameters(counted["parameters"], counted["trainable_parameters"]),
        architecture_of(CONFIG, "small"),
        rows["input_ids"].numel(),
    )
    assert found == pytest.approx(counter.get_total_flops(), rel=error)


def test_a_frozen_matrix_takes_two_thirds_of_a_trained_one() -> None:
    architecture = architecture_of(CONFIG, "small")
    whole = training_flops(hub(), Parameters(1, 1), architecture, 1)
    frozen = training_flops(hub("lora"), Parameters(1, 1), architecture, 1)
    matrices = architecture.layer_weights + architecture.head_weights
    assert whole - frozen == 2 * matrices - 6
