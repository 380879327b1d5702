"""Sound files of every kind that is read from outside, small, to be damaged by the tests."""

import gzip
import io
import json
import math
from collections.abc import Callable

import pyarrow as pa
import pyarrow.parquet as pq

ROWS = 40


def conversation(number: int) -> dict[str, object]:
    return {
        "messages": [
            {"role": "user", "content": f"What is item {number}?"},
            {"role": "assistant", "content": f"It is thing {number * 7}."},
        ]
    }


def jsonl() -> bytes:
    return b"".join(json.dumps(conversation(n)).encode() + b"\n" for n in range(ROWS))


def array() -> bytes:
    return json.dumps([conversation(n) for n in range(ROWS)], indent=1).encode()


def sharegpt() -> bytes:
    rows = (
        {"conversations": [{"from": "human", "value": f"q{n}"}, {"from": "gpt", "value": f"a{n}"}]}
        for n in range(ROWS)
    )
    return b"".join(json.dumps(row).encode() + b"\n" for row in rows)


def alpaca() -> bytes:
    rows = ({"instruction": f"say {n}", "input": "", "output": f"{n}!"} for n in range(ROWS))
    return b"".join(json.dumps(row).encode() + b"\n" for row in rows)


def table() -> bytes:
    lines = (f'"question {n}, please","answer {n}"\n' for n in range(ROWS))
    return "".join(("prompt,completion\n", *lines)).encode()


def parquet() -> bytes:
    buffer = io.BytesIO()
    rows = pa.Table.from_pylist([conversation(n) for n in range(ROWS)])
    pq.write_table(rows, buffer, row_group_size=16, write_page_checksum=True)
    return buffer.getvalue()


DATA: dict[str, Callable[[], bytes]] = {
    "openai.jsonl": jsonl,
    "openai.json": array,
    "sharegpt.jsonl": sharegpt,
    "alpaca.ndjson": alpaca,
    "prompt_completion.csv": table,
    "openai.parquet": parquet,
    "openai.jsonl.gz": lambda: gzip.compress(jsonl(), mtime=0),
    "openai.jsonl.zst": lambda: pa.compress(jsonl(), codec="zstd", asbytes=True),
}
"""File name -> its sound content, of ROWS conversations."""

STEPS = 40
CURVE = [
    {
        "step": step,
        "loss": 3 * math.exp(-step / 10) + 0.5,
        "learning_rate": 1e-3,
        "grad_norm": 1.0,
    }
    for step in range(STEPS)
]


def curve_csv() -> bytes:
    lines = [",".join(CURVE[0]), *(",".join(map(str, line.values())) for line in CURVE)]
    return "".join(f"{line}\n" for line in lines).encode()


LOGS: dict[str, Callable[[], bytes]] = {
    "telemetry.csv": curve_csv,
    "log.jsonl": lambda: b"".join(json.dumps(line).encode() + b"\n" for line in CURVE),
    "trainer_state.json": lambda: json.dumps(
        {"log_history": CURVE, "max_steps": STEPS, "global_step": STEPS}
    ).encode(),
    "history.json": lambda: json.dumps(
        {name: [line[name] for line in CURVE] for name in CURVE[0]}
    ).encode(),
}
