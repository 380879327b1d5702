"""A policy that names nothing the rows hold does not pass."""

from pathlib import Path

import numpy as np

from stages.chat.split import Split
from stages.mask_audit.findings import Audit
from stages.mask_audit.prepare import Accounting, Preparer
from stages.mask_report import stops_alone
from stages.reading.dialects import RowParser

from ..chat.test_labels import TWO_TURNS
from ..chat.tokenizers import chat_tokenizer
from ..settings import make_params


def splits_with_stops_alone(directory: Path, supervise: list[str]) -> object:
    tokenizer = chat_tokenizer(directory)
    params = make_params(labels__supervise=supervise)
    conversation = RowParser("openai").parse({"messages": TWO_TURNS}, "a.jsonl:1")
    account = Accounting(np.zeros(tokenizer.vocab_size, np.int64))
    preparer = Preparer(tokenizer, params.data, params.labels)
    for prepared in preparer.prepare([conversation], Audit()):
        account.add(prepared)
    accounting: dict[Split, Accounting] = {"train": account}
    return stops_alone(accounting, tokenizer).value


def test_reasoning_alone_of_rows_that_have_none_leaves_stop_tokens(tmp_path: Path) -> None:
    assert splits_with_stops_alone(tmp_path / "a", ["reasoning"]) == 1
    assert splits_with_stops_alone(tmp_path / "b", ["content"]) == 0
