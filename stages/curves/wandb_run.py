"""The history of an offline run of W&B: run-*.wandb, its messages read by the package wandb.

The file is LevelDB's log format (blocks of 32 KiB, records of 7 bytes of header and a payload, cut
in pieces where a block ends) below 7 bytes of its own; the payloads are protocol buffers.
"""

import json
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ..config.errors import UserError, reading
from .columns import Rows

HEADER = struct.pack("<4sHB", b":W&B", 0xBEE1, 0)
BLOCK = 32 * 1024
RECORD = struct.Struct("<IHB")
"""Checksum, length of the payload, and which piece of a message it is."""
WHOLE, LAST = 1, 4


def read_wandb(path: Path) -> Rows:
    """A row for each call of `log`. Raises UserError without the package wandb."""
    try:
        from wandb.proto import wandb_internal_pb2
    except ImportError:
        raise UserError(
            f"{path}: runs of W&B are read by the package wandb, which is not installed; run "
            "`pip install wandb`, or export the history: `run.history().to_csv(FILE)`"
        ) from None
    content = path.read_bytes()
    if not content.startswith(HEADER):
        raise UserError(
            f"{path} is no run of W&B that this version knows; export the history: "
            "`run.history().to_csv(FILE)`"
        )
    rows, kind = [], None
    with reading(path, "an offline run of W&B", "copy it again"):
        for number, payload in enumerate(messages(content)):
            record = wandb_internal_pb2.Record()
            record.ParseFromString(payload)
            kind = record.WhichOneof("record_type")
            if kind == "history":
                row = {name_of(item): json.loads(item.value_json) for item in record.history.item}
                rows.append((f"{path} record {number}", row))
    if not rows:
        raise UserError(f"{path} holds no history; the run has logged nothing yet")
    remarks = () if kind == "exit" else ("the run did not end, or its file is broken off",)
    return Rows("an offline run of W&B", rows, remarks)


def name_of(item: Any) -> str:
    """Nested names are joined as W&B's own tables join them."""
    return ".".join(item.nested_key) if item.nested_key else str(item.key)


def messages(content: bytes) -> Iterator[bytes]:
    """Payloads put together again; a last one that a killed run has left broken off is left out."""
    place, pieces = len(HEADER), list[bytes]()
    while place + RECORD.size <= len(content):
        left = BLOCK - place % BLOCK
        if left < RECORD.size:
            place += left
            continue
        _, length, piece = RECORD.unpack_from(content, place)
        begin = place + RECORD.size
        if not WHOLE <= piece <= LAST or begin + length > len(content):
            return
        pieces.append(content[begin : begin + length])
        place = begin + length
        if piece in (WHOLE, LAST):
            yield b"".join(pieces)
            pieces.clear()
