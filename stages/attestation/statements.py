"""The verdicts and the provenance of a model as in-toto statements.

https://github.com/in-toto/attestation/blob/main/spec/v1/statement.md, with the predicates
https://in-toto.io/attestation/test-result/v0.1 and https://slsa.dev/provenance/v1.
"""

from collections.abc import Mapping
from typing import Any

from packaging.utils import canonicalize_name

from ..verdict.clearance import CLEARANCE, MANIFEST
from ..verdict.judging import Status
from .facts import REQUIREMENTS, Digests, Facts

STATEMENT = "https://in-toto.io/Statement/v1"
TEST_RESULT = "https://in-toto.io/attestation/test-result/v0.1"
PROVENANCE = "https://slsa.dev/provenance/v1"
BUILDER = "pkg:generic/holdshort"
"""Who recorded the run: holdshort itself, on a machine of its user. It claims no SLSA level."""
BUILD_TYPE = "pkg:generic/holdshort/full_train@1"
"""How parameters and dependencies are to be read: as those of full_train, in this form."""
LISTS: dict[Status, str] = {
    "pass": "passedTests",
    "warn": "warnedTests",
    "not_judged": "warnedTests",  # only a check that merely warns, or the gate had not passed
}


def descriptor(name: str, sha256: str, **annotations: Any) -> dict[str, Any]:
    """An in-toto ResourceDescriptor."""
    found: dict[str, Any] = {"name": name, "digest": {"sha256": sha256}}
    return found | {"annotations": annotations} if annotations else found


def descriptors(files: Digests) -> list[dict[str, Any]]:
    return [descriptor(name, sha256) for name, sha256 in files.items()]


def package_url(name: str, version: str) -> str:
    """https://github.com/package-url/purl-spec, of a package on PyPI."""
    return f"pkg:pypi/{canonicalize_name(name)}@{version.replace('+', '%2B')}"


def packages(facts: Facts) -> dict[str, str]:
    """Name -> version of the packages that the manifest records as installed."""
    recorded: Mapping[str, str | None] = facts.manifest["recorded"]["packages"]
    return {name: version for name, version in recorded.items() if version is not None}


def statement(
    subject: list[dict[str, Any]], predicate_type: str, predicate: dict[str, Any]
) -> dict[str, Any]:
    return {
        "_type": STATEMENT,
        "subject": subject,
        "predicateType": predicate_type,
        "predicate": predicate,
    }


def gates_statement(facts: Facts) -> dict[str, Any]:
    """What the gates found of data and tokens. The subjects are what they judged and cleared.

    The provenance of the model names the same files among its dependencies.
    """
    tests: dict[str, list[str]] = {"passedTests": [], "warnedTests": [], "failedTests": []}
    for gate, verdict in facts.verdicts.items():
        for check in verdict.checks:
            tests[LISTS[check.status]].append(f"{gate}/{check.id}")
    configuration = [
        descriptor(
            f"params.yaml: what {gate} reads",
            verdict.params_sha256,
            params=verdict.params,
            code_sha256=verdict.code_sha256,
            environment=verdict.environment,
            verdict_sha256=facts.manifest["gates"][gate]["sha256"],
            not_covered=verdict.not_covered,
        )
        for gate, verdict in facts.verdicts.items()
    ]
    cleared = {str(CLEARANCE): facts.records[str(CLEARANCE)], **facts.cleared, **facts.base_model}
    predicate = {
        "result": "WARNED" if tests["warnedTests"] else "PASSED",
        "configuration": configuration,
        **tests,
    }
    return statement(descriptors(cleared), TEST_RESULT, predicate)


def provenance_statement(facts: Facts) -> dict[str, Any]:
    """How the files of the model were made. Times are not recorded, and so not named."""
    manifest = facts.manifest
    read = {
        **facts.cleared,
        **facts.tokenizer,
        **facts.base_model,
        str(CLEARANCE): facts.records[str(CLEARANCE)],
        REQUIREMENTS: facts.records[REQUIREMENTS],
    }
    dependencies = descriptors(read)
    if commit := manifest["git"]["commit"]:
        annotations = {"dirty": manifest["git"]["dirty"]}
        code = {"name": "code", "digest": {"gitCommit": commit}, "annotations": annotations}
        dependencies.append(code)
    dependencies += [
        {"uri": package_url(name, version)} for name, version in packages(facts).items()
    ]
    definition = {
        "buildType": BUILD_TYPE,
        "externalParameters": manifest["params"],
        "internalParameters": {
            "code_sha256": manifest["code"],
            "determinism": manifest["determinism"],
            "environment": facts.model.environment,
        },
        "resolvedDependencies": dependencies,
    }
    details = {
        "builder": {"id": BUILDER},
        "metadata": {"invocationId": facts.digest},
        "byproducts": descriptors({str(MANIFEST): facts.records[str(MANIFEST)]}),
    }
    predicate = {"buildDefinition": definition, "runDetails": details}
    return statement(descriptors(facts.files), PROVENANCE, predicate)
