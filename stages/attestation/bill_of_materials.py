"""The parts of a model as a CycloneDX ML-BOM: its files, data, base model and libraries.

https://cyclonedx.org/docs/1.6/json/. The libraries that build such documents have no model card.
"""

import json
import uuid
from typing import Any

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from ..provenance.records import digest_of
from .facts import Digests, Facts
from .statements import BUILD_TYPE, package_url, packages

SPEC_VERSION = "1.6"
PERFORMANCE = (
    *("train_loss", "validation_loss", "untrained_validation_loss"),
    *("exact_match", "stop_rate"),
)
"""Of metrics/full_train.json: what says how good the model is."""


def hashes(sha256: str) -> list[dict[str, str]]:
    return [{"alg": "SHA-256", "content": sha256}]


def properties(**values: Any) -> list[dict[str, str]]:
    """CycloneDX properties: names below `holdshort:`, values as text."""
    return [
        {"name": f"holdshort:{name}", "value": value if isinstance(value, str) else dumps(value)}
        for name, value in values.items()
    ]


def dumps(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, sort_keys=True)


def file_components(files: Digests) -> list[dict[str, Any]]:
    return [
        {"type": "file", "name": name, "hashes": hashes(sha256)} for name, sha256 in files.items()
    ]


def data_components(files: Digests, kind: str) -> list[dict[str, Any]]:
    """kind: of CycloneDX's kinds of data."""
    return [
        {
            "type": "data",
            "bom-ref": name,
            "name": name,
            "hashes": hashes(sha256),
            "data": [{"type": kind, "name": name}],
        }
        for name, sha256 in files.items()
    ]


def base_model_components(facts: Facts) -> list[dict[str, Any]]:
    """The model that training started from, `name@revision`; none where it read no weights."""
    if not facts.base_model:
        return []
    name, _, revision = facts.name.rpartition("@")
    return [
        {
            "type": "machine-learning-model",
            "bom-ref": facts.name,
            "name": name,
            "version": revision,
            "components": file_components(facts.base_model),
        }
    ]


def library_components(facts: Facts) -> list[dict[str, Any]]:
    """Packages that were recorded as installed, and those that requirements.lock names beside."""
    installed = {canonicalize_name(name): version for name, version in packages(facts).items()}
    wanted = {canonicalize_name(one.name): pinned_version(one) for one in facts.requirements}
    return [
        library(name, installed[name], "installed")
        if name in installed
        else library(name, wanted[name], "requirements.lock")
        for name in sorted({*installed, *wanted})
    ]


def pinned_version(requirement: Requirement) -> str | None:
    """None where it is no single version."""
    versions = [one.version for one in requirement.specifier if one.operator == "=="]
    return versions[0] if len(versions) == 1 else None


def library(name: str, version: str | None, recorded: str) -> dict[str, Any]:
    """recorded: by what."""
    found: dict[str, Any] = {"type": "library", "bom-ref": f"pkg:pypi/{name}", "name": name}
    if version is not None:
        found |= {"version": version, "purl": package_url(name, version)}
    return found | {"properties": properties(recorded=recorded)}


def model_card(facts: Facts) -> dict[str, Any]:
    measured = [
        {"type": name, "value": dumps(facts.metrics[name])}
        for name in PERFORMANCE
        if name in facts.metrics
    ]
    params = {f"params:{key}": value for key, value in facts.manifest["params"].items()}
    # of a base model only its name is recorded, which is no architecture
    architecture = {} if facts.base_model else {"modelArchitecture": facts.name}
    return {
        "modelParameters": {
            "approach": {"type": "supervised"},
            **architecture,
            "datasets": [{"ref": name} for name in facts.manifest["data"]["files"]],
        },
        "quantitativeAnalysis": {"performanceMetrics": measured},
        "properties": properties(rows=facts.manifest["data"]["rows"], **params),
    }


def bill_of_materials(facts: Facts, attestations: Digests) -> dict[str, Any]:
    """attestations: the statements that lie beside it, by name of the file."""
    parts = [
        *data_components(facts.manifest["data"]["files"], "dataset"),
        *data_components(facts.tokenizer, "definition"),
        *base_model_components(facts),
        *library_components(facts),
    ]
    reference = f"model:{facts.digest}"
    model = {
        "type": "machine-learning-model",
        "bom-ref": reference,
        "name": facts.name.partition("@")[0],
        "version": facts.digest,
        "externalReferences": [
            {"type": "attestation", "url": name, "hashes": hashes(sha256)}
            for name, sha256 in attestations.items()
        ],
        "components": file_components(facts.files),
        "modelCard": model_card(facts),
    }
    content = {
        "metadata": {
            "tools": {"components": [{"type": "application", "name": "holdshort"}]},
            "component": model,
        },
        "components": parts,
        "dependencies": [{"ref": reference, "dependsOn": [part["bom-ref"] for part in parts]}],
    }
    # the same record gives the same bytes, so its digest takes the place of a random number
    serial = uuid.uuid5(uuid.NAMESPACE_URL, f"{BUILD_TYPE}:{digest_of(content)}")
    return {
        "$schema": f"http://cyclonedx.org/schema/bom-{SPEC_VERSION}.schema.json",
        "bomFormat": "CycloneDX",
        "specVersion": SPEC_VERSION,
        "serialNumber": serial.urn,
        "version": 1,
        **content,
    }
