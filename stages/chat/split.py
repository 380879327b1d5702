"""Which split does a conversation belong to? Decided by its prompt alone.

So a row stays where it is when others are added, and rows with one prompt share one side.
"""

import hashlib
from pathlib import Path
from typing import Literal

Split = Literal["train", "validation"]
SPLITS: tuple[Split, ...] = ("train", "validation")
DATASET = Path("artifacts/dataset")
"""Where hash_data writes the rows of each split."""


def split_of(prompt_key: bytes, validation_fraction: float, seed: int) -> Split:
    """Place a prompt by a salted hash: `validation` for about `validation_fraction` of prompts."""
    salted = hashlib.blake2b(prompt_key, digest_size=8, salt=seed.to_bytes(8, "big")).digest()
    position = int.from_bytes(salted, "big") / 2**64
    return "validation" if position < validation_fraction else "train"
