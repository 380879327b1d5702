"""Which class does a step really train each position on, and with which weight?

Read off the gradient at the logits, so nothing is believed: not the collator, the model's own
shift, the loss, nor the division by the number of tokens. For the cross-entropy of a position with
weight w, d(loss)/d(logit j) is w (p_j - [j is the target]): one class is raised, all others are
lowered, and the size tells w, which is 1 / (supervised tokens of the step) in a mean over tokens.
What a position should be trained on comes from the token store.
"""

import itertools
from collections import Counter, deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn
from torch.amp import GradScaler

from ..chat.labels import IGNORE_INDEX
from ..chat.token_store import TokenRow
from .outputs import logits_of

LEARNED = 1 - 1e-3
"""A target this likely leaves hardly any gradient to read: its position is counted, not judged."""
POSITIONS_AT_ONCE = 256
"""Positions whose gradients are read together: bounds memory at large vocabularies."""
OFFSETS = range(-2, 4)
"""Distances (target, position) at which a wrong target is looked for; 1 is the right one."""
NOWHERE = -1


@dataclass
class TargetRecord:
    """What one step trained its positions on; lists name places as "source, token 12".

    asked: supervised targets of the step's rows; learned: those that were too likely to judge;
    untrained: supervised targets that left no gradient; unasked: positions with a gradient, though
    not supervised; wrong: trained on another class; raised: positions that raise no class, or
    several; weights: smallest and largest weight of a position, times `asked`; offsets: how often a
    wrong target was the token at each distance from its position; graph: the logits are part of
    one, so that a loss could train them.
    """

    asked: int
    learned: int = 0
    untrained: list[str] = field(default_factory=list)
    unasked: list[str] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)
    raised: list[str] = field(default_factory=list)
    weights: tuple[float, float] = (1.0, 1.0)
    offsets: Counter[int] = field(default_factory=Counter)
    graph: bool = False

    @property
    def loss_is_silent(self) -> bool:
        """No gradient comes from the loss to any position, though it could."""
        return self.graph and len(self.untrained) == self.asked and not self.unasked

    @property
    def weight_error(self) -> float:
        """Largest distance of a weight to that of a mean over the step's tokens, relative."""
        return max(abs(weight - 1) for weight in self.weights)

    @property
    def shift(self) -> int | None:
        """The distance at which most wrong targets are found; None where there is no such one."""
        offset, count = max(self.offsets.items(), key=lambda item: item[1], default=(1, 0))
        return offset if count > len(self.wrong) / 2 else None


@dataclass(frozen=True)
class Pull:
    """Where the gradient at the logits of N positions pulls.

    pulled: bool, any gradient at all; target: int64, the class raised most; raised: int64, how many
    classes are raised; weight: float32, that of a cross-entropy with this target.
    """

    pulled: torch.Tensor
    target: torch.Tensor
    raised: torch.Tensor
    weight: torch.Tensor


def read_pull(probabilities: torch.Tensor, gradient: torch.Tensor) -> Pull:
    """probabilities: softmax of the logits; gradient of the loss at them: both float32 [N, V]."""
    target = gradient.argmin(-1, keepdim=True)
    weight = -gradient.gather(-1, target) / (1 - probabilities.gather(-1, target))
    return Pull(
        pulled=gradient.ne(0).any(-1),
        target=target.squeeze(-1),
        raised=gradient.lt(0).sum(-1),
        weight=weight.squeeze(-1),
    )


def next_targets(row: TokenRow) -> NDArray[np.int64]:
    """The class that each position of a row is trained on, -100 where none: int64 [T]."""
    return np.append(row.labels[1:], IGNORE_INDEX).astype(np.int64)


@contextmanager
def watching_targets(
    model: nn.Module, rows: Sequence[TokenRow], scaler: GradScaler
) -> Iterator[TargetRecord]:
    """Watch one training step, which takes `rows` in any batches; the record is then complete."""
    watcher = _Watcher(rows, scaler)
    handle = model.register_forward_hook(watcher.saw_output, with_kwargs=True)
    try:
        yield watcher.record
    finally:
        handle.remove()
    watcher.finish()


@dataclass(frozen=True)
class _Positions:
    """What is known of the positions of a batch, flattened: int64 [N], NOWHERE in padding."""

    row: torch.Tensor
    token: torch.Tensor
    asked: torch.Tensor


class _Watcher:
    def __init__(self, rows: Sequence[TokenRow], scaler: GradScaler) -> None:
        self._rows, self._scaler = rows, scaler
        self._asked = [next_targets(row) for row in rows]
        self._open = [asked != IGNORE_INDEX for asked in self._asked]
        self._weights: list[float] = []
        self._waiting: dict[bytes, deque[int]] = {}
        for number, row in enumerate(rows):
            self._waiting.setdefault(_key(row.input_ids), deque()).append(number)
        self.record = TargetRecord(sum(int(unseen.sum()) for unseen in self._open))

    def saw_output(
        self, _: nn.Module, arguments: Any, inputs: Mapping[str, Any], output: Any
    ) -> None:
        logits = logits_of(output)
        if not logits.requires_grad:
            return
        self.record.graph = True
        ids = inputs["input_ids"] if "input_ids" in inputs else arguments[0]
        positions = self._find(ids, inputs.get("attention_mask"), inputs.get("position_ids"))
        values = logits.detach()
        untyped: Any = logits
        untyped.register_hook(lambda gradient: self._saw_gradient(values, gradient, positions))

    def _find(
        self, ids: torch.Tensor, mask: torch.Tensor | None, places: torch.Tensor | None
    ) -> _Positions:
        """Which position of which row stands where in a batch [B, T]."""
        row, token = (torch.full(ids.shape, NOWHERE, dtype=torch.int64) for _ in range(2))
        asked = torch.full(ids.shape, IGNORE_INDEX, dtype=torch.int64)
        for line in range(len(ids)):
            for where in _documents(line, ids, mask, places):
                waiting = self._waiting.get(_key(ids[line, where].cpu().numpy()))
                if not waiting:
                    continue  # whatever is trained on there is unasked
                number = waiting.popleft()
                row[line, where], token[line, where] = number, torch.arange(len(where))
                asked[line, where] = torch.from_numpy(self._asked[number])
        return _Positions(row.flatten(), token.flatten(), asked.flatten())

    def _saw_gradient(
        self, logits: torch.Tensor, gradient: torch.Tensor, positions: _Positions
    ) -> None:
        flat_logits, flat_gradient = logits.flatten(0, -2), gradient.flatten(0, -2)
        for start in range(0, len(flat_logits), POSITIONS_AT_ONCE):
            part = slice(start, start + POSITIONS_AT_ONCE)
            self._compare(
                flat_logits[part].float().softmax(-1),
                flat_gradient[part].float() / self._scaler.get_scale(),
                _Positions(positions.row[part], positions.token[part], positions.asked[part]),
            )

    def _compare(self, probabilities: torch.Tensor, gradient: torch.Tensor, at: _Positions) -> None:
        record, pull = self.record, read_pull(probabilities, gradient)
        pulled, target, raised = pull.pulled.cpu(), pull.target.cpu(), pull.raised.cpu()
        chosen = at.asked.clamp(min=0).to(probabilities.device).unsqueeze(-1)
        likely = probabilities.gather(-1, chosen).squeeze(-1).cpu()
        supervised = at.asked != IGNORE_INDEX
        learned = supervised & (likely > LEARNED)
        judged = supervised & pulled & ~learned
        for index in (learned | judged).nonzero().flatten().tolist():
            self._open[int(at.row[index])][int(at.token[index])] = False
        record.learned += int(learned.sum())
        record.unasked += self._name(at, pulled & ~supervised)
        record.raised += self._name(at, judged & (raised != 1))
        wrong = judged & (target != at.asked)
        record.wrong += self._name(at, wrong)
        for index in wrong.nonzero().flatten().tolist():
            ids, place = self._rows[int(at.row[index])].input_ids, int(at.token[index])
            record.offsets.update(
                offset
                for offset in OFFSETS
                if 0 <= place + offset < len(ids) and ids[place + offset] == int(target[index])
            )
        self._weights += pull.weight.cpu()[judged].tolist()

    def _name(self, at: _Positions, which: torch.Tensor) -> list[str]:
        return [
            self._place(int(at.row[index]), int(at.token[index]))
            for index in which.nonzero().flatten().tolist()
        ]

    def _place(self, row: int, token: int) -> str:
        if row == NOWHERE:
            return "padding, or a row that is not of this step"
        return f"{self._rows[row].source}, token {token}"

    def finish(self) -> None:
        for number, unseen in enumerate(self._open):
            places = unseen.nonzero()[0].tolist()
            self.record.untrained += [self._place(number, token) for token in places]
        if self._weights:
            scaled = [weight * self.record.asked for weight in self._weights]
            self.record.weights = (min(scaled), max(scaled))


def _key(ids: NDArray[Any]) -> bytes:
    return ids.astype(np.int64).tobytes()


def _documents(
    line: int, ids: torch.Tensor, mask: torch.Tensor | None, places: torch.Tensor | None
) -> list[torch.Tensor]:
    """Indices of the tokens of each document in a line of a batch; positions restart with each."""
    real = torch.arange(ids.shape[1])
    if mask is not None and mask.ndim == 2:
        real = mask[line].nonzero().flatten().cpu()
    if places is None or not len(real):
        return [real]
    starts = (places[line].cpu()[real] == 0).nonzero().flatten()
    bounds = [0, *(start for start in starts.tolist() if start), len(real)]
    return [real[begin:end] for begin, end in itertools.pairwise(bounds)]
