"""The process settings that a stage would have."""

from collections.abc import Iterator

import pytest

from ..parts import pinned_process


@pytest.fixture
def pinned() -> Iterator[None]:
    with pinned_process():
        yield
