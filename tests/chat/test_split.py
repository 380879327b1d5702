"""The split is decided by the prompt alone."""

from stages.chat.split import SPLITS, split_of

KEYS = [number.to_bytes(16, "big") for number in range(2000)]


def test_about_the_wanted_fraction_is_held_out() -> None:
    held_out = sum(split_of(key, 0.1, 0) == "validation" for key in KEYS)
    assert held_out == 177


def test_a_prompt_stays_where_it_is_whatever_else_there_is() -> None:
    small = {key: split_of(key, 0.1, 0) for key in KEYS[:100]}
    assert small == {key: split_of(key, 0.1, 0) for key in KEYS[::-1] if key in small}


def test_a_larger_fraction_only_adds_to_what_was_held_out() -> None:
    few = {key for key in KEYS if split_of(key, 0.1, 0) == "validation"}
    more = {key for key in KEYS if split_of(key, 0.2, 0) == "validation"}
    assert few < more


def test_another_seed_holds_out_others() -> None:
    one, other = ([split_of(key, 0.5, seed) for key in KEYS] for seed in (0, 1))
    assert one != other
    assert set(one) == set(SPLITS)
