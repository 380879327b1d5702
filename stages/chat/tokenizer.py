"""A tokenizer with a chat template: conversations to text, text to tokens with offsets."""

import contextlib
import datetime
import hashlib
import io
import itertools
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..config.errors import UserError, reading
from ..provenance.base_model import WEIGHT_SUFFIXES, find_base_model, is_reference
from ..provenance.hashing import sha256_tree, total_sha256
from .conversation import ASSISTANT, Message
from .inspected import inspected_constants
from .spans import SENTINEL
from .template_at_work import TemplateAtWork, TemplateError

PROBE: list[Message] = [
    {"role": "user", "content": "question"},
    {"role": ASSISTANT, "content": SENTINEL.format(0)},
]

SYSTEM: Message = {"role": "system", "content": "Answer questions."}

REMEDY = "bring the files of the tokenizer again"
TOKENS_A_CHARACTER = 64
"""A character is four bytes at most; a normaliser may write some more for it."""


@dataclass(frozen=True)
class Encoded:
    """Tokens of one text. input_ids: int32 [T]; starts, ends: T of each, in characters.

    Edges are tuples: of a row, some twenty are searched, which bisect does faster than numpy.
    """

    input_ids: NDArray[np.int32]
    starts: tuple[int, ...]
    ends: tuple[int, ...]


class ChatTokenizer:
    """The tokenizer in a directory, in transformers' own format, or in that of a base model.

    directory: a path, or the `name@revision` of a base model.
    today: the date that a template which prints one is given, so that tokens repeat on another day.
    Raises UserError when the directory holds no fast tokenizer with a chat template, a pad token
    and a stop token.
    """

    def __init__(self, directory: str, today: datetime.date) -> None:
        self._base = (
            find_base_model(directory, "model.tokenizer") if is_reference(directory) else None
        )
        self.directory = self._base.directory if self._base else Path(directory)
        self._tokenizer = _load(self.directory)
        self._backend = self._tokenizer.backend_tokenizer
        self._backend.no_truncation()  # else rows are cut in silence
        self._backend.no_padding()
        self._at_work = TemplateAtWork(self.directory)
        self._pieces: dict[int, str] = {}
        try:
            self._pin_clock(today)
            self.stop_token_id = self._find_stop_token()
            self.pad_token_id = self._find_pad_token()
        except TemplateError as reason:
            raise UserError(
                f"the chat template of the tokenizer in {directory} cannot render a plain question "
                f"and answer: {reason}; mend chat_template.jinja there"
            ) from None

    @property
    def vocab_size(self) -> int:
        """Number of ids, added tokens included: the rows that an embedding needs."""
        return len(self._tokenizer)

    @cached_property
    def bos_token_id(self) -> int | None:
        bos: int | None = self._tokenizer.bos_token_id
        return bos

    @property
    def ending_token_ids(self) -> list[int]:
        """Ids at which generation shall end: the stop token, and the tokenizer's own EOS."""
        ids = (self.stop_token_id, self._tokenizer.eos_token_id)
        return list(dict.fromkeys(token for token in ids if token is not None))

    @cached_property
    def added_token_ids(self) -> NDArray[np.int32]:
        """Sorted ids of the tokens outside the base vocabulary: the candidates for a stop token."""
        return np.array(sorted(self._tokenizer.added_tokens_decoder), np.int32)

    @cached_property
    def _question(self) -> list[Message]:
        """A conversation up to its question, with a system turn if the template demands one."""
        try:
            self.render(PROBE)
        except TemplateError as reason:
            with contextlib.suppress(TemplateError):
                self.render([SYSTEM, *PROBE])
                return [SYSTEM, PROBE[0]]
            raise reason from None
        return PROBE[:1]

    @property
    def _probe(self) -> list[Message]:
        return [*self._question, PROBE[1]]

    @cached_property
    def header(self) -> str:
        """The text before an answer: what both the generation prompt and training text hold.

        Some generation prompts go further than training text does (an open `<think>`), and some
        templates always write one, asked or not.
        """
        prompt = self._generation_prompt()
        lead = self.render(self._probe).partition(PROBE[1]["content"])[0]
        if not prompt:
            between = lead.rpartition(PROBE[0]["content"])[2]
            asked = self.render(self._question).rpartition(PROBE[0]["content"])[2]
            return self._without_stop(between) if asked == between else ""
        return next((prompt[:n] for n in range(len(prompt), 0, -1) if prompt[:n] in lead), "")

    def _without_stop(self, text: str) -> str:
        """A text between two messages without what ends the first."""
        for stop in self.stop_tokens:
            text = text.removeprefix(stop)
        return text

    def _generation_prompt(self) -> str:
        """What the template appends for generation; empty when it appends nothing."""
        question = self._question
        closed, opened = self.encode(
            [self.render(question), self.render(question, generation_prompt=True)]
        )
        pairs = zip(closed.input_ids.tolist(), opened.input_ids.tolist(), strict=False)
        same = len(list(itertools.takewhile(lambda pair: pair[0] == pair[1], pairs)))
        return self.decode(opened.input_ids[same:].tolist())

    @cached_property
    def stop_token_ids(self) -> NDArray[np.int32]:
        """Sorted ids of the tokens that end an answer: in the middle, at the end, after a call.

        Found by rendering answers in these places; a template that refuses one has no such place.
        """
        call = {"name": SENTINEL.format(1), "arguments": {}}
        calling: Message = {
            "role": ASSISTANT,
            "content": "",
            "tool_calls": [{"type": "function", "id": "call00000", "function": call}],
        }
        result: Message = {"role": "tool", "content": "result", "tool_call_id": "call00000"}
        found = {self._first_added(self._probe)}
        for following in (PROBE[0], result):
            with contextlib.suppress(TemplateError):
                found.add(self._first_added([*self._probe, following]))
        if self._first_added(self._probe) is not None:
            with contextlib.suppress(TemplateError):
                _, told, tail = self.render([*self._question, calling]).rpartition(
                    SENTINEL.format(1)
                )
                found.add(self._added(tail)[-1] if told and self._added(tail) else None)
        opening = self._added(self._generation_prompt())  # what opens every answer ends none
        stops = [token for token in found if token is not None and token not in opening]
        return np.array(sorted(stops), np.int32)

    def _first_added(self, messages: Sequence[Message]) -> int | None:
        """The first added token that the template writes after the probe's answer."""
        added = self._added(self.render(messages).partition(PROBE[1]["content"])[2])
        return added[0] if added else None

    def _added(self, text: str) -> list[int]:
        """Added tokens of a text but those of white space, which Gemma's tokenizer has."""
        ids = self.encode([text])[0].input_ids
        added = [int(token) for token in ids[np.isin(ids, self.added_token_ids)]]
        return [token for token in added if self.decode([token]).strip()]

    @cached_property
    def stop_tokens(self) -> list[str]:
        return self.decode_batch([[token] for token in self.stop_token_ids.tolist()])

    def round_trip(self, text: str) -> str:
        """A text as it comes back from its tokens: normalised as this tokenizer does."""
        return self.decode(self.encode([text])[0].input_ids.tolist())

    @cached_property
    def stops(self) -> re.Pattern[str]:
        """Matches the text of any stop token; nothing when there is none."""
        return _any_of(self.stop_tokens)

    @cached_property
    def control_tokens(self) -> re.Pattern[str]:
        """Matches the text of any special token; nothing when there is none."""
        special = [str(one) for one in self._tokenizer.added_tokens_decoder.values() if one.special]
        return _any_of(special)

    @cached_property
    def default_system(self) -> str:
        """What the template tells a model that is given no system turn; empty for nothing.

        Three words or more before the first message, markers and names of roles left out.
        """
        if SYSTEM in self._question:
            return ""
        lead = self.render(self._question).partition(PROBE[0]["content"])[0]
        told = self.control_tokens.sub(" ", lead)
        words = [word for word in told.split() if word not in ("system", "user")]
        return " ".join(words) if len(words) >= 3 else ""

    @cached_property
    def prints_date(self) -> bool:
        """Does the template write today's date, so that tokens would change every day?"""
        today, other = (
            self._compiled.globals["strftime_now"],
            datetime.date(1999, 12, 31).strftime,
        )
        written = self.render(self._probe)
        try:
            self._compiled.globals["strftime_now"] = other
            return self.render(self._probe) != written
        finally:
            self._compiled.globals["strftime_now"] = today

    @cached_property
    def inspected(self) -> tuple[str, ...]:
        """The strings that the template looks for in messages."""
        return inspected_constants(self._template())

    def digests(self) -> dict[str, str]:
        """Path -> sha256 of the tokenizer's files: of all in the directory but weights."""
        if self._base is None:
            return sha256_tree([self.directory])
        return {k: v for k, v in self._base.inputs().items() if not k.endswith(WEIGHT_SUFFIXES)}

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
        with self._at_work:
            if tools is None and all(map(_is_plain, messages)):
                variables = self._variables(messages, generation_prompt=generation_prompt)
                text = str(self._compiled.render(**variables))
            else:
                text = self._tokenizer.apply_chat_template(
                    list(messages),
                    tools=tools,
                    tokenize=False,
                    add_generation_prompt=generation_prompt,
                )
        self._at_work.refuse_endless(text, messages, tools)
        return text

    def _variables(
        self, messages: Sequence[Message], *, generation_prompt: bool = False
    ) -> dict[str, Any]:
        """What apply_chat_template gives a template for plain messages, which need no copies."""
        return {
            "messages": list(messages),
            "tools": None,
            "documents": None,
            "add_generation_prompt": generation_prompt,
            **self._special_tokens,
        }

    @cached_property
    def has_markers(self) -> bool:
        """Does the template say itself what is generated?"""
        return re.search(r"\{%[-+]?\s*generation\s*[-+]?%\}", self._template()) is not None

    def render_marked(
        self, messages: Sequence[Message], tools: list[Any] | None
    ) -> tuple[str, list[tuple[int, int]]]:
        """A conversation as text, and characters [start, end) of its `{% generation %}` blocks.

        Raises TemplateError as render does.
        """
        from transformers.utils import chat_template_utils as rendering

        with self._at_work:
            if tools is None and all(map(_is_plain, messages)):
                text, spans = rendering._render_with_assistant_indices(
                    self._compiled, **self._variables(messages)
                )
            else:
                (text,), (spans,) = rendering.render_jinja_template(
                    [[{k: v for k, v in one.items() if v is not None} for one in messages]],
                    tools=tools,
                    chat_template=self._template(),
                    return_assistant_tokens_mask=True,
                    **self._special_tokens,
                )
        self._at_work.refuse_endless(text, messages, tools)
        return text, spans

    def encode(self, texts: Sequence[str]) -> list[Encoded]:
        """Tokenise texts that already hold their special tokens; runs on all cores."""
        with reading(self.directory, "a tokenizer", REMEDY):
            encodings = self._backend.encode_batch(list(texts), add_special_tokens=False)
        rows = []
        for text, encoding in zip(texts, encodings, strict=True):
            if len(encoding) > TOKENS_A_CHARACTER * (len(text) + 1):
                raise UserError(
                    f"the tokenizer in {self.directory} makes {len(encoding)} tokens of "
                    f"{len(text)} characters; mend the normalizer in its tokenizer.json"
                )
            offsets = encoding.offsets
            starts, ends = zip(*offsets, strict=True) if offsets else ((), ())
            rows.append(Encoded(np.array(encoding.ids, np.int32), starts, ends))
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

    def pieces(self, ids: Sequence[int]) -> list[str]:
        """The text of every token alone; decoded once for each distinct token."""
        unknown = [token for token in dict.fromkeys(ids) if token not in self._pieces]
        texts = self.decode_batch([[token] for token in unknown])
        self._pieces.update(zip(unknown, texts, strict=True))
        return [self._pieces[token] for token in ids]

    def save(self, directory: Path) -> None:
        self._tokenizer.save_pretrained(directory)

    def _template(self) -> str:
        template: str = self._tokenizer.get_chat_template()
        return template

    def _pin_clock(self, today: datetime.date) -> None:
        from transformers.utils.chat_template_utils import _compile_jinja_template

        with self._at_work:
            self._compiled = _compile_jinja_template(self._template())  # cached: rendering uses it
        self._special_tokens = dict(self._tokenizer.special_tokens_map)
        self._compiled.globals["strftime_now"] = today.strftime

    def _find_stop_token(self) -> int:
        """The token after which generation ends: the one behind a last answer, if there is one."""
        last = self._first_added(self._probe)
        if last is None and not len(self.stop_token_ids):
            tail = self.render(self._probe).partition(PROBE[1]["content"])[2]
            raise UserError(
                f"the chat template of the tokenizer in {self.directory} writes no stop token "
                f"after an answer (it writes {tail!r}): a model trained on it never stops; "
                "let the template end each assistant turn with a special token such as <|im_end|>"
            )
        return int(self.stop_token_ids[0]) if last is None else last

    def _find_pad_token(self) -> int:
        """The declared pad token, or else an added token that no conversation holds.

        Padding is masked by its position, so any token serves; one named for padding comes first.
        """
        declared: int | None = self._tokenizer.pad_token_id
        if declared is not None:
            return declared
        used = {self.bos_token_id, self._tokenizer.eos_token_id, *self.stop_token_ids.tolist()}
        free: dict[int, str] = {
            token: str(text)
            for token, text in sorted(self._tokenizer.added_tokens_decoder.items())
            if token not in used and str(text) not in self._template()
        }
        if not free:
            raise UserError(
                f"the tokenizer in {self.directory} has no pad token; set 'pad_token' in its "
                "tokenizer_config.json to a token that no text contains, not to the stop token"
            )
        named = [token for token, text in free.items() if "pad" in text.lower()]
        return min(named or free)


def _is_plain(message: Message) -> bool:
    """Nothing but a role and a text: transformers renders such a message as it is."""
    return message.keys() == {"role", "content"} and type(message["content"]) is str


def _any_of(texts: Sequence[str]) -> re.Pattern[str]:
    return re.compile("|".join(map(re.escape, texts)) if texts else r"(?!)")


def _load(directory: Path) -> Any:
    if not directory.is_dir():
        raise UserError(f"{directory} (model.tokenizer) does not exist or is not a directory")
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "true")
    from transformers import AutoTokenizer
    from transformers.utils import logging

    logging.set_verbosity_error()
    where = f"{directory} (model.tokenizer)"
    with (
        contextlib.redirect_stdout(io.StringIO()),
        reading(where, "a tokenizer of transformers", REMEDY),
    ):
        tokenizer = AutoTokenizer.from_pretrained(
            str(directory), local_files_only=True, trust_remote_code=False
        )
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
