"""Data files that were made to break a reader, each by a name that says what is wrong with it."""

import gzip
import io
import json
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from .corpus import jsonl

DEEP = 100_000
ROW = b'{"messages": [{"role": "user", "content": %s}, {"role": "assistant", "content": "b"}]}\n'
CALL = (
    b'{"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": null, '
    b'"tool_calls": [%s]}]}\n'
)
TOOLS = (
    b'{"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}], '
    b'"tools": %s}\n'
)


def items() -> bytes:
    return b",".join(jsonl().splitlines())


def deep_text(brackets: int = DEEP) -> bytes:
    """JSON text within JSON."""
    return json.dumps("[" * brackets + "]" * brackets).encode()


def parquet_of(columns: Any) -> bytes:
    buffer = io.BytesIO()
    pq.write_table(columns if isinstance(columns, pa.Table) else pa.table(columns), buffer)
    return buffer.getvalue()


def half_a_character() -> bytes:
    texts = pa.StringArray.from_buffers(
        2, pa.py_buffer(np.array([0, 1, 2], np.int32)), pa.py_buffer(b"\xffb")
    )
    return parquet_of({"prompt": texts, "completion": ["a", "b"]})


def names_twice() -> bytes:
    columns = [pa.array([text]) for text in ("a", "b", "c")]
    return parquet_of(pa.Table.from_arrays(columns, names=["prompt", "prompt", "completion"]))


LINES: dict[str, bytes] = {
    "half a surrogate pair": ROW % rb'"\ud800"',
    "half a surrogate pair as a role": ROW.replace(b'"user"', rb'"\ud800"') % b'"a"',
    "raw NUL bytes": b"\0" * 100 + b"\n",
    "a surrogate in UTF-8": ROW % b'"\xed\xa0\x80"',
    "an overlong NUL": ROW % b'"\xc0\x80"',
    "latin-1": ROW % '"Müller"'.encode("latin-1"),
    "a byte order mark in the middle": b"\xef\xbb\xbf" + ROW % b'"a"',
    "brackets without end": b'{"messages": ' + b"[" * DEEP + b"]" * DEEP + b"}\n",
    "brackets without end in tools that are text": TOOLS % deep_text(),
    "tools that are no JSON": TOOLS % b'"{"',
    "tools that are a number": TOOLS % b"5",
    "a tool that is text": TOOLS % b'["a"]',
    "a number of 5000 digits": TOOLS % (b'[{"a": ' + b"9" * 5000 + b"}]"),
    "a number beyond float64": TOOLS % b'[{"a": 1e400}]',
    "NaN": TOOLS % b'[{"a": NaN}]',
    "a content that is a number": ROW % b"5",
    "a content that is an object": ROW % b'{"a": 1}',
    "a content of numbers": ROW % b"[1]",
    "a weight that is a list": ROW.replace(b'"b"}', b'"b", "weight": [0]}') % b'"a"',
    "a weight of 0.5": ROW.replace(b'"b"}', b'"b", "weight": 0.5}') % b'"a"',
    "a call that is text": CALL % b'"f"',
    "a call without a name": CALL % b'{"arguments": {}}',
    "a call whose function is text": CALL % b'{"function": "f"}',
    "calls that are an object": CALL.replace(b"[%s]", b'{"name": "f"}'),
    "a key that paints the terminal": b'{"\\u001b[31m\\nerror: fine": 1}\n',
    "a key of a million characters": b'{"' + b"k" * 1_000_000 + b'": 1}\n',
    "null": b"null\n",
    "a list": b"[1, 2]\n",
    "an object without an end": b'{"messages": [\n',
    "two objects": b"{} {}\n",
    "no message": b'{"messages": []}\n',
    "a message that is text": b'{"messages": ["a"]}\n',
}
"""The last line of a JSONL file of which all others are sound."""

FILES: dict[str, tuple[str, Callable[[], bytes]]] = {
    "nothing": ("a.jsonl", lambda: b""),
    "line breaks alone": ("a.jsonl", lambda: b"\n" * 50),
    "UTF-16": ("a.jsonl", lambda: jsonl().decode().encode("utf-16")),
    "UTF-16 without a mark": ("a.jsonl", lambda: jsonl().decode().encode("utf-16-le")),
    "UTF-32": ("a.jsonl", lambda: jsonl().decode().encode("utf-32")),
    "carriage returns for line breaks": ("a.jsonl", lambda: jsonl().replace(b"\n", b"\r")),
    "an array with a letter behind it": ("a.json", lambda: b"[" + items() + b"]x"),
    "two arrays": ("a.json", lambda: b"[" + items() + b"][]"),
    "an array without an end": ("a.json", lambda: b"[" + items()),
    "an array that ends in a comma": ("a.json", lambda: b"[" + items() + b",]"),
    "an array of a comma": ("a.json", lambda: b"[,]"),
    "an array of nothing": ("a.json", lambda: b"[]"),
    "an array of nulls": ("a.json", lambda: b"[" + b",".join([b"null"] * 20) + b"]"),
    "a million brackets": ("a.json", lambda: b"[" * 1_000_000),
    "objects in objects without end": ("a.json", lambda: b'[{"a":' * DEEP),
    "a text without an end": ("a.json", lambda: b'["' + b"a" * 3_000_000),
    "backslashes": ("a.json", lambda: b'["' + b"\\" * 99_999),
    "brackets that cross": ("a.json", lambda: b'[{"a": [}], "x"]}'),
    "a number": ("a.json", lambda: b"5"),
    "white space": ("a.json", lambda: b" " * 3_000_000),
    "a table whose quote does not end": ("a.csv", lambda: b'prompt,completion\n"a,b\n'),
    "a table with a quote inside": ("a.csv", lambda: b'prompt,completion\n"a"b,c\n'),
    "a table with a short line": ("a.csv", lambda: b"prompt,completion\na\n"),
    "a table with a long line": ("a.csv", lambda: b"prompt,completion\na,b,c\n"),
    "a table with no lines": ("a.csv", lambda: b"prompt,completion\n"),
    "a table with a name twice": ("a.csv", lambda: b"prompt,prompt\na,b\n"),
    "a table without names": ("a.csv", lambda: b",\na,b\n"),
    "a table in latin-1": ("a.csv", lambda: b"prompt,completion\n\xff,b\n"),
    "a table of carriage returns": ("a.csv", lambda: b"prompt,completion\ra,b\r"),
    "a table with semicolons": ("a.csv", lambda: b"prompt;completion\na;b\n"),
    "a table of messages": ("a.csv", lambda: b"messages\n[]\n"),
    "gzip of nothing": ("a.jsonl.gz", lambda: gzip.compress(b"")),
    "text called gzip": ("a.jsonl.gz", jsonl),
    "gzip with something behind it": ("a.jsonl.gz", lambda: gzip.compress(jsonl()) + b"junk"),
    "gzip with another checksum": (
        "a.jsonl.gz",
        lambda: (z := gzip.compress(jsonl()))[:-8] + b"abcd" + z[-4:],
    ),
    "gzip of gzip": ("a.jsonl.gz", lambda: gzip.compress(gzip.compress(jsonl()))),
    "20 MB of spaces in gzip": ("a.jsonl.gz", lambda: gzip.compress(b" " * 20_000_000)),
    "gzip called zstd": ("a.jsonl.zst", lambda: gzip.compress(jsonl())),
    "text called zstd": ("a.jsonl.zst", jsonl),
    "text called Parquet": ("a.parquet", jsonl),
    "the mark of Parquet alone": ("a.parquet", lambda: b"PAR1"),
    "the mark of Parquet twice": ("a.parquet", lambda: b"PAR1PAR1"),
    "Parquet with a footer of 2 GB": (
        "a.parquet",
        lambda: parquet_of({"a": [1]})[:-8] + b"\xff\xff\xff\x7fPAR1",
    ),
    "Parquet without rows": (
        "a.parquet",
        lambda: parquet_of({"prompt": pa.array([], pa.string())}),
    ),
    "Parquet of another kind": ("a.parquet", lambda: parquet_of({"a": [1, 2]})),
    "Parquet of bytes": (
        "a.parquet",
        lambda: parquet_of({"prompt": [b"\xff"], "completion": [b"a"]}),
    ),
    "Parquet with half a character": ("a.parquet", half_a_character),
    "Parquet with a column twice": ("a.parquet", names_twice),
    "Parquet with the year 300000": (
        "a.parquet",
        lambda: parquet_of(
            {"prompt": ["a"], "completion": ["b"], "at": pa.array([2**62], pa.timestamp("us"))}
        ),
    ),
    "Parquet with a day beyond all calendars": (
        "a.parquet",
        lambda: parquet_of(
            {"prompt": ["a"], "completion": ["b"], "on": pa.array([2**30], pa.date32())}
        ),
    ),
    "Parquet with a zone that is none": (
        "a.parquet",
        lambda: parquet_of(
            {
                "prompt": ["a"],
                "completion": ["b"],
                "at": pa.array([1], pa.timestamp("us", tz="Nowhere/At_all")),
            }
        ),
    ),
}
"""Name -> (file name, content). No row of any of them can be read."""
