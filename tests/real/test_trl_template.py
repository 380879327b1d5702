"""TRL's own training template for Qwen2.5 masks wrongly, and the comparison says where."""

import numpy as np
import pytest
from transformers import AutoTokenizer

from stages.chat.labels import IGNORE_INDEX

from .compare import chat_tokenizer, find_faults
from .conversations import CONVERSATIONS
from .fetch import FetchError, tokenizer_directory
from .oracles import qwen2_5

pytestmark = [pytest.mark.network, pytest.mark.slow]


def test_the_newlines_around_an_answer_are_supervised_by_trl() -> None:
    try:
        directory = str(tokenizer_directory("qwen2_5_training"))
    except FetchError as error:
        pytest.fail(str(error))
    messages, _ = CONVERSATIONS["two exchanges"]
    made = AutoTokenizer.from_pretrained(directory).apply_chat_template(
        messages, return_dict=True, return_assistant_tokens_mask=True
    )
    ids, mask = np.array(made["input_ids"], np.int32), np.array(made["assistant_masks"], bool)
    labels = np.where(mask, ids, IGNORE_INDEX).astype(np.int32)
    tokenizer = chat_tokenizer("qwen2_5")
    written = qwen2_5(messages, None)
    encoded = tokenizer.encode([written.text])[0]
    assert encoded.input_ids.tolist() == ids.tolist()
    faults = find_faults(encoded, labels, written.pieces, messages, tokenizer)
    after_header_and_stop = ["supervises 2 of header/scaffold ('\\n\\n')"]
    assert faults.by_turn == {1: after_header_and_stop, 3: after_header_and_stop}
