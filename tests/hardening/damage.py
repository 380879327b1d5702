"""Files that were damaged on their way: cut off, or with a bit turned over, at seeded places."""

import random
from collections.abc import Iterator

Damage = tuple[str, bytes]
"""What was done, as the id of a test, and the bytes after it."""


def truncations(content: bytes, seed: int, count: int = 4) -> Iterator[Damage]:
    """The file without its end: empty, one byte, and at places of its own."""
    places = random.Random(seed).sample(range(2, len(content)), min(count, len(content) - 2))
    for place in (0, 1, *sorted(places), len(content) - 1):
        yield f"cut at {place}", content[:place]


def flips(content: bytes, seed: int, count: int = 8) -> Iterator[Damage]:
    """The file with one bit turned over: in its first and last bytes, and at places of its own."""
    draw = random.Random(seed)
    places = sorted({0, 4, len(content) - 1, *(draw.randrange(len(content)) for _ in range(count))})
    for place in places:
        bit = draw.randrange(8)
        spoiled = bytearray(content)
        spoiled[place] ^= 1 << bit
        yield f"bit {bit} of byte {place}", bytes(spoiled)
