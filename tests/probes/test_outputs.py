"""Logits are found in whatever a model returns, and others can be put in their place."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from transformers.modeling_outputs import CausalLMOutput as HubOutput

from stages.models.tiny_gpt import CausalLMOutput
from stages.probes.outputs import logits_of, with_logits

LOGITS, OTHERS = torch.zeros(2, 3), torch.ones(2, 3)
FORMS: dict[str, Any] = {
    "tensor": lambda: LOGITS,
    "tuple after a loss": lambda: (torch.tensor(1.0), LOGITS),
    "mapping": lambda: {"loss": None, "logits": LOGITS},
    "object": lambda: SimpleNamespace(logits=LOGITS),
    "named tuple": lambda: CausalLMOutput(LOGITS),
    "transformers": lambda: HubOutput(loss=torch.tensor(1.0), logits=LOGITS),
}


@pytest.mark.parametrize("form", FORMS)
def test_logits_are_found_and_replaced_in_every_form(form: str) -> None:
    outputs = FORMS[form]()
    assert logits_of(outputs) is LOGITS
    replaced = with_logits(outputs, OTHERS)
    assert logits_of(replaced) is OTHERS
    assert type(replaced) is type(outputs)


def test_what_holds_no_logits_is_refused() -> None:
    with pytest.raises(ValueError, match="no logits"):
        logits_of({"loss": torch.tensor(1.0)})
