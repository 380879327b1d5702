"""What can be shown to others of this model? Its records, as documents that their tools read.

Verifies the model and the manifest first, and attests nothing that is not as recorded. Writes
gates.intoto.json (what the gates found, an in-toto test result), provenance.intoto.json (how the
model was made, SLSA provenance) and model.cdx.json (its parts, a CycloneDX ML-BOM): the same bytes
for the same run. Exit code: 0 done, 1 refused, 2 bad input.

    holdshort attest [DIRECTORY] [--output DIR] [--key KEY]
"""

from pathlib import Path
from typing import Any

from ..attestation.bill_of_materials import bill_of_materials
from ..attestation.documents import DOCUMENTS, GATES, MATERIALS, PROVENANCE
from ..attestation.facts import gather
from ..attestation.statements import gates_statement, provenance_statement
from ..config import Refusal, UserError
from ..config.load import PARAMS_FILE
from ..models.record import read_record
from ..provenance.drift import Drift
from ..provenance.hashing import sha256_file
from ..provenance.records import read_json, write_json
from ..report.terminal import console
from ..verdict.clearance import CLEARANCE, MANIFEST
from .signing import entries, refuse_other_file, sign_files, signature_of, signer
from .verify import NO_MANIFEST, compare_trained, find_drifts, told

KEPT_BY_EITHER = "`git checkout` or `dvc checkout`, whichever keeps the {}"
RESTORES = {
    "params": f"`git checkout -- {PARAMS_FILE}`",
    "code": "`git checkout -- stages`",
    "data": KEPT_BY_EITHER.format("data"),
    "tokenizer": KEPT_BY_EITHER.format("tokenizer"),
    "base model": "the base model of that name",
    "manifest": f"`git checkout -- {MANIFEST} {CLEARANCE}`",
}
"""Kind of drift -> what brings back what was recorded; of all others, `dvc checkout`."""


def forbids(drift: Drift) -> bool:
    """Is this no longer what was recorded, or was the record itself edited?"""
    return drift.meaning == "another run" or drift.kind == "manifest"


def refuse(drifts: list[Drift]) -> None:
    """Raises Refusal, which says what is not as recorded, where it is to be attested."""
    found = [drift for drift in drifts if forbids(drift)]
    if not found:
        return
    if any(one.kind in ("params", "code") for one in found):  # the digest follows from these
        found = [one for one in found if (one.kind, one.name) != ("manifest", "digest")]
    # dictionaries keep the order, and each only once
    kinds = dict.fromkeys("verdict" if one.kind == "check" else one.kind for one in found)
    ways = dict.fromkeys(RESTORES.get(kind, "`dvc checkout`") for kind in kinds)
    heading = f"not as {MANIFEST} records, so nothing is attested: {', '.join(kinds)}"
    remedy = f"bring back what was recorded ({'; '.join(ways)}), or train with this: `dvc repro`"
    raise Refusal("\n".join([heading, *map(told, found), remedy]))


def attest(directory: Path, output: Path) -> None:
    """Write the three documents. Raises Refusal where the model is not what was recorded."""
    if not PARAMS_FILE.is_file():
        raise UserError(
            f"{PARAMS_FILE} is not here; attest a model in its project: a directory alone records "
            "neither its data nor what the gates found"
        )
    model = read_record(directory)
    manifest = read_json(MANIFEST, NO_MANIFEST)
    # a model may be attested where it could not be trained
    drifts = find_drifts(manifest, machine=False)
    drifts += compare_trained(directory, model, manifest)
    refuse(drifts)
    facts = gather(directory, model, manifest)
    write_json(output / GATES, gates_statement(facts))
    write_json(output / PROVENANCE, provenance_statement(facts))
    statements = {name: sha256_file(output / name) for name in (GATES, PROVENANCE)}
    write_json(output / MATERIALS, bill_of_materials(facts, statements))


def refuse_used_directory(output: Path) -> None:
    """Raises UserError for a directory with other files: they would be signed, or be changed by the
    documents, as a model or data would."""
    more = sorted(set(entries(output)) - set(DOCUMENTS)) if output.exists() else []
    if more:
        raise UserError(f"{output} holds {more[0]} too; name a directory for the documents alone")


def sign_documents(output: Path, config: Any) -> Path:
    """Sign the documents; where."""
    signature = signature_of(output)
    sign_files(output, config, signature)
    return signature


def run(directory: Path, output: Path, key: Path | None) -> int:
    """Exit code: 0 done."""
    config = signer(key) if key is not None else None
    refuse_used_directory(output)
    refuse_other_file(signature_of(output))
    with console.status("hashing"):
        attest(directory, output)
        written = [output / name for name in DOCUMENTS]
        if config is not None:
            written.append(sign_documents(output, config))
    for path in written:
        console.print(str(path))
    return 0
