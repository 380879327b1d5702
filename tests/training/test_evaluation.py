"""Held-out loss is a mean over tokens, and greedy answers end where the model ends them."""

from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional

from stages.chat.collator import collate
from stages.chat.token_store import TokenMeta, TokenStore
from stages.models.tiny_gpt import TinyGPT
from stages.training.evaluation import (
    Answer,
    Turn,
    answer_turns,
    generate_greedily,
    mean_loss,
    store_batches,
    supervised_turns,
)
from stages.training.loss import causal_lm_loss, count_targets

from ..parts import (
    PAD,
    STOP,
    VOCABULARY,
    Bigram,
    Output,
    make_batch,
    make_row,
    make_rows,
    write_store,
)

CPU = torch.device("cpu")
META = TokenMeta(VOCABULARY, PAD, STOP, 64, "all", {})


class Chooser(nn.Module):
    """Says what `choose` makes of (last token, its position), and remembers what it was given."""

    def __init__(self, choose: Callable[[int, int], int]) -> None:
        super().__init__()
        self.choose = choose
        self.calls: list[dict[str, Any]] = []

    def forward(
        self, input_ids: torch.Tensor, attention_mask: torch.Tensor, position_ids: torch.Tensor
    ) -> Output:
        self.calls.append(
            {
                "ids": input_ids.tolist(),
                "mask": attention_mask.tolist(),
                "positions": position_ids.tolist(),
                "training": self.training,
            }
        )
        chosen = [
            self.choose(ids[-1], positions[-1])
            for ids, positions in zip(input_ids.tolist(), position_ids.tolist(), strict=True)
        ]
        logits = torch.zeros(*input_ids.shape, VOCABULARY)
        logits[range(len(chosen)), -1, chosen] = 1.0
        return Output(logits)


def count_up(token: int, position: int) -> int:
    return token + 1 if token < 9 else STOP


def generate(model: nn.Module, prompts: list[list[int]], limit: int) -> list[list[int]]:
    return generate_greedily(model, prompts, META, limit, CPU)


def test_the_mean_is_over_tokens_and_not_over_batches() -> None:
    torch.manual_seed(0)
    model = Bigram()
    batches = [make_batch(1, 1), make_batch(7, 2)]
    total, tokens = 0.0, 0
    for batch in batches:
        logits, labels = model(batch["input_ids"]).logits.detach()[:, :-1], batch["labels"][:, 1:]
        total += float(
            functional.cross_entropy(logits.flatten(0, 1), labels.flatten(), reduction="sum")
        )
        tokens += int((labels >= 0).sum())
    loss, counted = mean_loss(model, batches, causal_lm_loss, nullcontext)
    assert loss == pytest.approx(total / tokens, rel=1e-6)
    assert counted == tokens


def test_evaluation_is_without_dropout_and_leaves_the_mode_as_it_was() -> None:
    model = Bigram(dropout=0.5)
    batch = [make_batch(4)]
    one, other = (mean_loss(model, batch, causal_lm_loss, nullcontext) for _ in range(2))
    assert one == other
    assert model.training
    model.eval()
    mean_loss(model, batch, causal_lm_loss, nullcontext)
    assert not model.training


def test_evaluation_leaves_no_gradient() -> None:
    model = Bigram()
    mean_loss(model, [make_batch(4)], causal_lm_loss, nullcontext)
    assert [p.grad for p in model.parameters()] == [None] * 5


def test_a_batch_without_supervised_tokens_adds_nothing() -> None:
    model, batch = Bigram(), make_batch(4)
    masked = {**batch, "labels": torch.full_like(batch["labels"], -100)}
    alone = mean_loss(model, [batch], causal_lm_loss, nullcontext)
    assert mean_loss(model, [masked, batch], causal_lm_loss, nullcontext) == alone


def test_no_tokens_are_no_perfect_loss() -> None:
    loss, tokens = mean_loss(Bigram(), [], causal_lm_loss, nullcontext)
    assert tokens == 0
    assert loss != loss


def test_every_row_of_a_store_is_evaluated_once(tmp_path: Path) -> None:
    rows = make_rows(7)
    write_store(tmp_path, "validation", rows)
    batches = list(store_batches(TokenStore("validation", tmp_path), collate, PAD, 3, CPU))
    assert [len(batch["input_ids"]) for batch in batches] == [3, 3, 1]
    tokens = sum(count_targets(batch["labels"]) for batch in batches)
    assert tokens == sum(int((row.labels[1:] >= 0).sum()) for row in rows)


def test_a_turn_is_a_supervised_stretch_and_all_before_it() -> None:
    row = make_row([5, 6, 7, 8, STOP, 9, 10, STOP], 3, "rows.jsonl:4")
    row.labels[5] = -100
    assert supervised_turns(row) == [
        Turn("rows.jsonl:4", [5, 6, 7], [8, STOP]),
        Turn("rows.jsonl:4", [5, 6, 7, 8, STOP, 9], [10, STOP]),
    ]


def test_generation_ends_with_the_stop_token_or_at_the_limit() -> None:
    assert generate(Chooser(count_up), [[7]], 8) == [[8, 9, STOP]]
    assert generate(Chooser(count_up), [[2]], 3) == [[3, 4, 5]]


def test_prompts_of_unequal_length_are_answered_side_by_side() -> None:
    prompts = [[3], [2, 2, 2, 7], [2, 8]]
    alone = [generate(Chooser(count_up), [prompt], 6)[0] for prompt in prompts]
    assert generate(Chooser(count_up), prompts, 6) == alone
    assert alone == [[4, 5, 6, 7, 8, 9], [8, 9, STOP], [9, STOP]]


def test_the_model_is_given_padding_on_the_left_and_true_positions() -> None:
    model = Chooser(lambda token, position: STOP)
    generate(model, [[5], [6, 7, 8]], 4)
    assert model.calls == [
        {
            "ids": [[PAD, PAD, 5], [6, 7, 8]],
            "mask": [[0, 0, 1], [1, 1, 1]],
            "positions": [[0, 0, 0], [0, 1, 2]],
            "training": False,
        }
    ]
    assert model.training


def test_an_answer_that_has_ended_is_padding_for_the_others() -> None:
    model = Chooser(count_up)
    generate(model, [[9], [6]], 3)
    assert model.calls[-1]["ids"] == [[9, STOP, PAD], [6, 7, 8]]
    assert model.calls[-1]["mask"] == [[1, 1, 0], [1, 1, 1]]
    assert len(model.calls) == 3


def test_generation_stops_when_every_answer_has_ended() -> None:
    model = Chooser(count_up)
    generate(model, [[9], [8]], 50)
    assert len(model.calls) == 2


def test_a_real_model_answers_the_same_alone_and_in_a_batch() -> None:
    torch.manual_seed(3)
    model = TinyGPT(vocab_size=VOCABULARY, d_model=16, n_layers=2, n_heads=2, max_length=32)
    prompts = [row.input_ids.tolist()[:-1] for row in make_rows(5)]
    alone = [generate(model, [prompt], 6)[0] for prompt in prompts]
    assert generate(model, prompts, 6) == alone


def test_a_prompt_that_leaves_the_model_no_room_ends_the_answer_and_not_the_run() -> None:
    torch.manual_seed(3)
    model = TinyGPT(vocab_size=VOCABULARY, d_model=16, n_layers=1, n_heads=2, max_length=8)
    answers = generate(model, [[2, 3, 4, 5, 6, 7]], 20)
    assert 1 <= len(answers[0]) <= 20


def test_answers_come_in_the_order_of_the_turns() -> None:
    turns = [Turn(f"rows.jsonl:{start}", [start], [start + 1, STOP]) for start in (8, 5, 9)]
    answers = answer_turns(
        Chooser(count_up), turns, meta=META, max_new_tokens=3, batch_size=2, device=CPU
    )
    assert [answer.turn for answer in answers] == turns
    assert [answer.tokens for answer in answers] == [[9, STOP], [6, 7, 8], [STOP]]
    assert [answer.stopped for answer in answers] == [True, False, True]
    assert [answer.exact for answer in answers] == [True, False, False]


def test_no_turns_have_no_answers() -> None:
    model = Chooser(count_up)
    answers = answer_turns(model, [], meta=META, max_new_tokens=3, batch_size=2, device=CPU)
    assert (answers, model.calls) == ([], [])


def test_an_answer_is_exact_only_with_its_stop_token() -> None:
    turn = Turn("rows.jsonl:1", [2], [3, STOP])
    assert Answer(turn, [3, STOP], True).exact
    assert not Answer(turn, [3], False).exact
