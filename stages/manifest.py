"""Is everything that decides this run pinned, and did every gate pass?

Reads the verdicts and judges them again. If one does not hold, it exits with 1, names each failed
check with its remedy, and writes nothing. Otherwise it writes training_manifest.json (the record),
clearance.json (the facts that full training depends on) and reports/manifest/, where the page
shows what the run will cost and adapter_training_config.json says what is trained, and how.

    python -m stages.manifest
"""

from collections.abc import Mapping, Sequence
from typing import Any

from .chat.split import SPLITS
from .chat.token_store import read_meta
from .compose import drift
from .config import Params, Refusal, UserError, declared_values, read_yaml
from .config.launch import run_stage
from .config.load import PIPELINE_FILE
from .estimate.architecture import find_architecture
from .estimate.budget import (
    ASSUMPTION,
    Budget,
    adapter_training_config,
    make_budget,
    table_of,
    too_large,
)
from .estimate.memory import Parameters
from .provenance.code import code_sha256
from .provenance.environment import recorded_facts
from .provenance.git import lineage
from .provenance.hashing import total_sha256
from .provenance.records import read_metrics, sealed, write_json
from .report.page import Section, Table, report_directory, write_page
from .report.terminal import console
from .verdict.clearance import (
    CLEARANCE,
    MANIFEST,
    SCHEMA,
    Objection,
    clearance_of,
    find_objections,
    gate_digests,
    read_verdicts,
    run_digest,
)
from .verdict.record import Verdict, digest_of

ADAPTER_CONFIG = "adapter_training_config.json"


def refusal_text(verdicts: Mapping[str, Verdict], objections: Sequence[Objection]) -> str:
    """One screen: what stands against the run, the likely causes, what to do."""
    lines = ["training is not cleared", "", *map(str, objections)]
    causes = [(v.gate, cause) for v in verdicts.values() for cause in v.causes if not v.passed]
    if causes:
        lines += ["", "likely causes, first things first:"]
        lines += [f"  {gate}: {cause}" for gate, cause in causes]
    pages = [gate for gate, verdict in verdicts.items() if not verdict.passed]
    lines += ["", *(f"evidence: reports/{gate}/index.html" for gate in pages)]
    lines += [
        "No manifest was written. DVC has removed the earlier one: `git checkout -- "
        f"{MANIFEST} {CLEARANCE}` and `dvc checkout` bring the earlier manifest and model back.",
    ]
    return "\n".join(lines)


def budget_of(params: Params) -> Budget:
    """The budget of the model that gradient_probe has counted.

    An architecture that is not known is no reason to refuse a run: less is estimated.
    """
    probed = read_metrics("gradient_probe")
    try:
        architecture = find_architecture(params.model, read_meta().vocab_size)
    except UserError:
        architecture = None
    counted = Parameters(probed.count("parameters"), probed.count("trainable_parameters"))
    return make_budget(params, counted, architecture, probed.count("steps"))


def budget_section(params: Params, budget: Budget) -> Section:
    text = f"{ASSUMPTION[0].upper()}{ASSUMPTION[1:]}."
    if not budget.fits:
        text = f"It does not fit: {too_large(budget, params)}. {text}"
    return Section("Budget", text, table=Table(("what", "how much"), table_of(budget)))


def compose_manifest(
    params: Params,
    verdicts: Mapping[str, Verdict],
    clearance: Mapping[str, Any],
    budget: Budget,
) -> dict[str, Any]:
    """The whole record. Only `git` and `recorded` are informative; all else is checked again."""
    environment = verdicts["gradient_probe"].environment
    hashed = verdicts["hash_data"]
    digests = gate_digests()
    stages = read_yaml(PIPELINE_FILE)["stages"]
    return {
        "schema": SCHEMA,
        "digest": run_digest(clearance),
        "clearance_sha256": digest_of(clearance),
        "data": {
            "sha256": total_sha256(hashed.inputs.values()),
            "files": hashed.inputs,
            "splits": {
                split: hashed.outputs[f"artifacts/dataset/{split}.jsonl"] for split in SPLITS
            },
            "rows": {split: read_metrics("hash_data").count(f"{split}_rows") for split in SPLITS},
        },
        "tokens": {"sha256": clearance["tokens_sha256"], "files": verdicts["mask_report"].outputs},
        "tokenizer": read_meta().tokenizer,
        "base_model": {
            "name": getattr(params.model, "reference", params.model.name),
            "weights_sha256": clearance["base_weights_sha256"],
        },
        "budget": budget.record(),
        "params": declared_values("manifest"),
        "params_edited": [
            {"key": key, "conf": conf, "params": value} for key, conf, value in drift()
        ],
        "seeds": {"run": params.run.seed, "split": params.data.split_seed},
        "determinism": {
            "deterministic_algorithms": True,
            "cudnn_benchmark": False,
            "cublas_workspace_config": ":4096:8",
            "python_hash_seed": 0,
            "cpu_threads": params.run.cpu_threads,
        },
        "environment": environment,
        "environment_sha256": clearance["environment_sha256"],
        "gates": {
            gate: {
                "sha256": digests[gate],
                "status": verdict.status,
                "params_sha256": verdict.params_sha256,
                "code_sha256": verdict.code_sha256,
                "environment_sha256": verdict.environment_sha256,
                "checks": {check.id: check.value for check in verdict.checks},
            }
            for gate, verdict in verdicts.items()
        },
        "code": {stage: code_sha256(stage) for stage in stages},
        "recorded": recorded_facts(),
        "git": lineage(
            [f"{path}.dvc" for path in (params.data.path, params.data.validation_path) if path]
        ),
    }


def describe(manifest: Mapping[str, Any], budget: Section) -> list[Section]:
    """The sections of the page."""
    gates = [(gate, facts["status"], facts["sha256"]) for gate, facts in manifest["gates"].items()]
    edited = [tuple(edit.values()) for edit in manifest["params_edited"]]
    environment = [(fact, str(value)) for fact, value in manifest["environment"].items()]
    return [
        Section("Gates", table=Table(("gate", "status", "sha256 of the verdict"), gates)),
        budget,
        Section("Data", table=Table(("file", "sha256"), list(manifest["data"]["files"].items()))),
        Section("Environment that binds", table=Table(("fact", "value"), environment)),
        Section(
            "Params edited by hand or overridden",
            "Where params.yaml differs from what conf/ composes." if edited else "None.",
            table=Table(("key", "conf/", "params.yaml"), edited),
        ),
        Section("Params", table=Table(("key", "value"), list(manifest["params"].items()))),
    ]


def warnings_of(verdicts: Mapping[str, Verdict]) -> list[str]:
    """A line for each check that only warns: its gate may have come from DVC's cache, unseen."""
    return [
        f"warning: {gate}: {check.message}: {check.rule}"
        for gate, verdict in verdicts.items()
        for check in verdict.checks
        if check.status == "warn"
    ]


def main(params: Params) -> None:
    verdicts, objections = read_verdicts()
    objections += find_objections(verdicts)
    if objections:
        raise Refusal(refusal_text(verdicts, objections))
    clearance = clearance_of(verdicts, read_meta().tokenizer["sha256"], params.run.seed)
    budget = budget_of(params)
    manifest = compose_manifest(params, verdicts, clearance, budget)
    git = manifest["git"]
    summary = {
        "digest": manifest["digest"],
        "data sha256": manifest["data"]["sha256"],
        "commit": git["commit"] or "none",
        "dirty paths": ", ".join(git["dirty"]) or "none",
    }
    sections = describe(manifest, budget_section(params, budget))
    write_page("manifest", __doc__, sections=sections, summary=summary)
    adapter_config = adapter_training_config(
        params, budget, weights_sha256=clearance["base_weights_sha256"]
    )
    write_json(report_directory("manifest") / ADAPTER_CONFIG, adapter_config)
    write_json(MANIFEST, sealed(manifest))
    write_json(CLEARANCE, clearance)
    console.print(f"all {len(verdicts)} gates passed; training is cleared", style="green")
    for line in warnings_of(verdicts):
        console.print(line, style="yellow")
    console.print(f"manifest digest: {manifest['digest']}")
    if not budget.fits:
        console.print(f"warning: {too_large(budget, params)}", style="yellow")


if __name__ == "__main__":
    run_stage("manifest", main)
