"""Rows that a real model on a CPU takes in seconds."""

import json
from typing import Any

from .project import Project


def _shorten(line: str) -> str:
    """A conversation of the demo data, with the first line of its log, without time and node."""
    messages: list[dict[str, Any]] = json.loads(line)["messages"]
    said = {message["role"]: message["content"] for message in reversed(messages)}
    said["system"], said["user"] = "Triage.", " ".join(said["user"].splitlines()[0].split()[2:])
    roles = ("system", "user", "assistant")
    return json.dumps({"messages": [{"role": role, "content": said[role]} for role in roles]})


def keep_short_rows(project: Project, rows: int) -> None:
    """Leave the first rows of the demo data, each shortened."""
    lines = project.read("data/incidents.jsonl").splitlines()[:rows]
    project.write("data/incidents.jsonl", "".join(f"{_shorten(line)}\n" for line in lines))
