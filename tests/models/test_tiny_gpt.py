"""TinyGPT: causal, blind to padding, and as it says of shapes, windows and limits."""

import math

import pytest
import torch

from stages.models.tiny_gpt import TinyGPT

VOCAB = 50


def gpt(**arguments: object) -> TinyGPT:
    torch.manual_seed(0)
    settings = {"d_model": 16, "n_layers": 2, "n_heads": 2, "max_length": 32, **arguments}
    return TinyGPT(VOCAB, **settings).eval()  # type: ignore[arg-type]


def tokens(rows: int = 2, length: int = 12) -> torch.Tensor:
    return torch.randint(0, VOCAB, (rows, length), generator=torch.Generator().manual_seed(1))


def test_logits_have_a_row_for_every_token() -> None:
    assert gpt()(tokens(3, 7)).logits.shape == (3, 7, VOCAB)


@pytest.mark.parametrize("local_window", [0, 3])
def test_a_later_token_does_not_change_an_earlier_score(local_window: int) -> None:
    model, ids = gpt(local_window=local_window), tokens()
    changed = ids.clone()
    changed[:, 8] = (changed[:, 8] + 1) % VOCAB
    before, after = model(ids).logits, model(changed).logits
    torch.testing.assert_close(before[:, :8], after[:, :8])
    assert not torch.allclose(before[:, 8], after[:, 8])


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("local_window", [0, 3])
def test_padding_on_either_side_changes_no_score(side: str, local_window: int) -> None:
    model, ids = gpt(local_window=local_window), tokens()
    pad = torch.zeros(2, 5, dtype=torch.long)
    real, blank = torch.ones_like(ids), torch.zeros_like(pad)
    order = (pad, ids) if side == "left" else (ids, pad)
    masks = (blank, real) if side == "left" else (real, blank)
    mask = torch.cat(masks, 1)
    positions = (mask.cumsum(-1) - 1).clamp(min=0)
    padded = model(torch.cat(order, 1), mask, positions).logits
    assert padded.isfinite().all()
    torch.testing.assert_close(padded[mask.bool()].view(2, 12, VOCAB), model(ids).logits)


def test_the_first_block_sees_its_window_only() -> None:
    model, ids = gpt(n_layers=1, local_window=3), tokens()
    changed = ids.clone()
    changed[:, 4] = (changed[:, 4] + 1) % VOCAB
    moved = (model(ids).logits != model(changed).logits).any(-1).any(0)
    assert moved.nonzero().flatten().tolist() == [4, 5, 6]


def test_later_blocks_see_everything() -> None:
    model, ids = gpt(n_layers=2, local_window=3), tokens()
    changed = ids.clone()
    changed[:, 0] = (changed[:, 0] + 1) % VOCAB
    assert (model(ids).logits != model(changed).logits).any(-1).all()


def test_untrained_loss_is_near_that_of_guessing() -> None:
    logits = gpt(d_model=64, n_heads=4)(tokens(8, 32)).logits
    loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), tokens(8, 32).flatten())
    assert float(loss.detach()) == pytest.approx(math.log(VOCAB), rel=0.05)


def test_tied_embeddings_are_one_parameter() -> None:
    tied = gpt(tie_word_embeddings=True)
    assert tied.lm_head.weight is tied.embedding.weight
    own = gpt(tie_word_embeddings=False)
    assert own.lm_head.weight is not own.embedding.weight


def test_a_sequence_that_is_too_long_is_refused() -> None:
    with pytest.raises(ValueError, match=r"33 tokens exceed the model's max_length of 32"):
        gpt()(tokens(1, 33))


def test_heads_of_odd_size_are_refused() -> None:
    with pytest.raises(ValueError, match=r"multiple of 2 \* n_heads"):
        gpt(d_model=6)
