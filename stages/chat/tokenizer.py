"""A tokenizer with a chat template: conversations to text, text to tokens with offsets."""

import contextlib
import datetime
import hashlib
import io
import os
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import jinja2
import numpy as np
from numpy.typing import NDArray

from ..config.errors import UserError
from ..provenance.hashing import sha256_tree, total_sha256
from .conversation import ASSISTANT, Message
from .spans import SENTINEL

PROBE: list[Message] = [
    {"role": "user", "content": "question"},
    {"role": ASSISTANT, "content": SENTINEL.format(0)},
]


class TemplateError(ValueError):
    """The chat template refuses a conversation; the text is the template's own reason."""


@dataclass(frozen=True)
class Encoded:
    """Tokens of one text. input_ids: int32 [T]; starts, ends: int64 [T], in characters."""

    input_ids: NDArray[np.int32]
    starts: NDArray[np.int64]
    ends: NDArray[np.int64]


class ChatTokenizer:
    """The tokenizer in a local directory, in transformers' own format.

    today: the date that a template which prints one is given, so that tokens repeat on another day.
    Raises UserError when the directory holds no fast tokenizer with a chat template, a pad token
    and a stop token.
    """

    def __init__(self, directory: str, today: datetime.date) -> None:
        self.directory = Path(directory)
        self._tokenizer = _load(self.directory)
        self._backend = self._tokenizer.backend_tokenizer
        self._pin_clock(today)
        self.stop_token_id = self._find_stop_token()
        if self.pad_token_id is None:
            raise UserError(
                f"the tokenizer in {directory} has no pad token; set 'pad_token' in its "
                "tokenizer_config.json to a token that no text contains, not to the stop token"
            )

    @property
    def vocab_size(self) -> int:
        """Number of ids, added tokens included: the rows that an embedding needs."""
        return len(self._tokenizer)

    @property
    def pad_token_id(self) -> int:
        pad: int = self._tokenizer.pad_token_id
        return pad

    @property
    def bos_token_id(self) -> int | None:
        bos: int | None = self._tokenizer.bos_token_id
        return bos

    @property
    def stop_token(self) -> str:
        return self.decode([self.stop_token_id])

    @cached_property
    def added_token_ids(self) -> NDArray[np.int32]:
        """Sorted ids of the tokens outside the base vocabulary: the candidates for a stop token."""
        return np.array(sorted(self._tokenizer.added_tokens_decoder), np.int32)

    @cached_property
    def header(self) -> str:
        """The text before an answer: what the template appends as generation prompt."""
        question = PROBE[:1]
        closed, opened = self.render(question), self.render(question, generation_prompt=True)
        return opened.removeprefix(closed) if opened.startswith(closed) else ""

    def digests(self) -> dict[str, str]:
        """Path -> sha256 of the tokenizer's files."""
        return sha256_tree([self.directory])

    def identity(self) -> dict[str, Any]:
        """What the manifest records of a tokenizer."""
        vocabulary = sorted(self._tokenizer.get_vocab().items())
        return {
            "sha256": total_sha256(self.digests().values()),
            "vocabulary_sha256": hashlib.sha256(repr(vocabulary).encode()).hexdigest(),
            "chat_template_sha256": hashlib.sha256(self._template().encode()).hexdigest(),
        }

    def render(
        self,
        messages: Sequence[Message],
        tools: list[Any] | None = None,
        *,
        generation_prompt: bool = False,
    ) -> str:
        """The conversation as text, by the chat template. Raises TemplateError with its reason."""
        try:
            text: str = self._tokenizer.apply_chat_template(
                list(messages), tools=tools, tokenize=False, add_generation_prompt=generation_prompt
            )
        except (jinja2.TemplateError, TypeError, ValueError) as error:
            raise TemplateError(" ".join(str(error).split())) from None
        return text

    def encode(self, texts: Sequence[str]) -> list[Encoded]:
        """Tokenise texts that already hold their special tokens; runs on all cores."""
        encodings = self._backend.encode_batch(list(texts), add_special_tokens=False)
        rows = []
        for encoding in encodings:
            offsets = np.array(encoding.offsets, np.int64).reshape(-1, 2)
            ids = np.array(encoding.ids, np.int32)
            rows.append(Encoded(ids, offsets[:, 0], offsets[:, 1]))
        return rows

    def decode(self, ids: Sequence[int]) -> str:
        """The exact text of tokens, special ones included."""
        text: str = self._backend.decode(list(ids), skip_special_tokens=False)
        return text

    def decode_batch(self, rows: Sequence[Sequence[int]]) -> list[str]:
        texts: list[str] = self._backend.decode_batch(list(rows), skip_special_tokens=False)
        return texts

    def vocabulary_entry(self, token: int) -> str | None:
        """A token as the vocabulary spells it; None when it has no such id."""
        entry: str | None = self._backend.id_to_token(token)
        return entry

    def save(self, directory: Path) -> None:
        self._tokenizer.save_pretrained(directory)

    def _template(self) -> str:
        template: str = self._tokenizer.get_chat_template()
        return template

    def _pin_clock(self, today: datetime.date) -> None:
        from transformers.utils.chat_template_utils import _compile_jinja_template

        compiled = _compile_jinja_template(self._template())  # cached: rendering uses this object
        compiled.globals["strftime_now"] = today.strftime

    def _find_stop_token(self) -> int:
        """The first added token that the template writes after an answer."""
        tail = self.render(PROBE).partition(PROBE[1]["content"])[2]
        ids = self.encode([tail])[0].input_ids
        added = ids[np.isin(ids, self.added_token_ids)]
        if not len(added):
            raise UserError(
                f"the chat template of the tokenizer in {self.directory} writes no stop token "
                f"after an answer (it writes {tail!r}): a model trained on it never stops; "
                "let the template end each assistant turn with a special token such as <|im_end|>"
            )
        return int(added[0])


def _load(directory: Path) -> Any:
    if not directory.is_dir():
        raise UserError(f"{directory} (model.tokenizer) does not exist or is not a directory")
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "true")
    from transformers import AutoTokenizer
    from transformers.utils import logging

    logging.set_verbosity_error()
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            tokenizer = AutoTokenizer.from_pretrained(str(directory), local_files_only=True)
    except (OSError, ValueError, KeyError, TypeError) as error:
        reason = str(error).strip().splitlines()[0]
        raise UserError(f"{directory} (model.tokenizer) holds no tokenizer: {reason}") from None
    if not tokenizer.is_fast:
        raise UserError(
            f"the tokenizer in {directory} has no tokenizer.json: character offsets need a fast one"
        )
    if not tokenizer.chat_template:
        raise UserError(
            f"the tokenizer in {directory} has no chat template; add chat_template.jinja to the "
            "directory, as the instruction-tuned variant of the model has it"
        )
    return tokenizer
