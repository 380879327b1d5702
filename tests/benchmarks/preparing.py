"""Speed of rendering, labelling, auditing and storing chats, over the floor and over TRL's own."""

import datetime
import os
import random
import shutil
import statistics
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
from transformers import AutoTokenizer

from stages.chat.conversation import Conversation
from stages.chat.token_store import TokenWriter
from stages.chat.tokenizer import ChatTokenizer
from stages.config.load import parse_params, read_yaml
from stages.mask_audit.findings import Audit
from stages.mask_audit.prepare import Preparer
from stages.mask_audit.workers import preparing
from stages.reading.dialects import RowParser

from ..conftest import ROOT

ROWS = 20_000
PAIRS = 3
CHUNK = 512
TRL = ("trl==1.16.0", "datasets==5.2.0", "dill", "xxhash", "multiprocess")
MARKED = """\
{%- for message in messages -%}
{%- if message['role'] == 'assistant' -%}
{{- '<|im_start|>assistant\\n' -}}
{%- generation -%}{{- message['content'] ~ '<|im_end|>' -}}{%- endgeneration -%}{{- '\\n' -}}
{%- else -%}
{{- '<|im_start|>' ~ message['role'] ~ '\\n' ~ message['content'] ~ '<|im_end|>\\n' -}}
{%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- '<|im_start|>assistant\\n' -}}{%- endif -%}
"""
WORDS = (
    *("the", "node", "was", "slow", "after", "a", "restart", "and", "its", "log", "shows", "retry"),
    *("storm", "timeout", "on", "disk", "while", "traffic", "moved", "to", "another", "region"),
)


def write_chats(path: Path) -> None:
    """ROWS chats of four turns, each of 20 to 100 words."""
    rng = random.Random(0)
    with path.open("wb") as file:
        for _ in range(ROWS):
            messages = [
                {
                    "role": ("user", "assistant")[turn % 2],
                    "content": " ".join(rng.choices(WORDS, k=rng.randint(20, 100))),
                }
                for turn in range(4)
            ]
            file.write(msgspec.json.encode({"messages": messages}) + b"\n")


def read_chats(path: Path) -> list[Conversation]:
    parser = RowParser("openai")
    with path.open("rb") as file:
        return [
            parser.parse(msgspec.json.decode(line), f"{path.name}:{n}")
            for n, line in enumerate(file, 1)
        ]


def floor_seconds(chats: list[Conversation], tokenizer: Any) -> float:
    """One rendering of every row and one tokenisation with offsets, as transformers does them."""
    began = time.perf_counter()
    for start in range(0, len(chats), CHUNK):
        texts = [
            tokenizer.apply_chat_template(chat.messages, tokenize=False)
            for chat in chats[start : start + CHUNK]
        ]
        tokenizer(texts, add_special_tokens=False, return_offsets_mapping=True)
    return time.perf_counter() - began


def our_seconds(chats: list[Conversation], tokenizer: ChatTokenizer, scratch: Path) -> float:
    """All that mask_report does to every row: render, label, audit, store."""
    params = parse_params(read_yaml(ROOT / "params.yaml"))
    began = time.perf_counter()
    data = replace(params.data, max_length=1 << 20)
    preparer = Preparer(tokenizer, data, params.labels)
    with preparing(preparer, len(chats)) as prepare, TokenWriter("train", scratch) as store:
        for prepared in prepare(chats, Audit()):
            assert prepared.row is not None and not prepared.findings
            store.append(prepared.conversation.source, prepared.row)
    return time.perf_counter() - began


def trl_packages() -> Path:
    """TRL and what it needs beside this environment, installed once into a directory of its own."""
    base = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    directory = Path(base) / "holdshort" / "-".join(TRL[:2])
    if not directory.exists():
        partial = directory.with_suffix(".partial")
        command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", *TRL]
        subprocess.run([*command, "--target", str(partial)], check=True)
        partial.rename(directory)
    return directory


def trl_seconds(chats: Path, tokenizer: Path) -> float:
    environment = {**os.environ, "PYTHONPATH": str(trl_packages())}
    script = Path(__file__).parent / "trl_side.py"
    done = subprocess.run(
        [sys.executable, str(script), str(chats), str(tokenizer)],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    for line in done.stdout.splitlines():
        if line.startswith("SECONDS "):
            return float(line.split()[1])
    raise RuntimeError(f"TRL's preparation failed:\n{done.stderr[-2000:]}")


def bench_preparing(scratch: Path) -> dict[str, float]:
    """Our speed over that of the floor, and over that of TRL, on the same chats and tokenizer."""
    directory = scratch / "tokenizer"
    shutil.copytree(ROOT / "data/tokenizer", directory)
    (directory / "chat_template.jinja").write_text(MARKED, encoding="utf-8")
    file = scratch / "chats.jsonl"
    write_chats(file)
    chats = read_chats(file)
    tokenizer = ChatTokenizer(str(directory), datetime.date(2026, 1, 1))
    plain = AutoTokenizer.from_pretrained(directory)
    floor_ratios, trl_ratios = [], []
    for _ in range(PAIRS):
        ours = our_seconds(chats, tokenizer, scratch)
        floor_ratios.append(floor_seconds(chats, plain) / ours)
        trl_ratios.append(trl_seconds(file, directory) / ours)
    return {
        "mask_vs_floor": statistics.median(floor_ratios),
        "mask_vs_trl": statistics.median(trl_ratios),
    }
