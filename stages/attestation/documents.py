"""The names of what `holdshort attest` writes, and how such a directory is told from a model."""

from pathlib import Path

DOCUMENTS = ("gates.intoto.json", "provenance.intoto.json", "model.cdx.json")
GATES, PROVENANCE, MATERIALS = DOCUMENTS


def holds_attestations(directory: Path) -> bool:
    return any((directory / name).is_file() for name in DOCUMENTS)
