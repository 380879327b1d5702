"""What can be shown to others of this model? Its records, as documents that their tools read.

Verifies the model and the manifest first, and attests nothing that is not as recorded. Writes
gates.intoto.json (what the gates found, an in-toto test result), provenance.intoto.json (how the
model was made, SLSA provenance) and model.cdx.json (its parts, a CycloneDX ML-BOM): the same bytes
for the same run. Exit code: 0 done, 1 refused, 2 bad input.

    holdshort attest [DIRECTORY] [--output DIR] [--key KEY]
"""

from pathlib import Path
from typing import Any

from .attestation.bill_of_materials import bill_of_materials
from .attestation.facts import gather
from .attestation.statements import gates_statement, provenance_statement
from .config import Refusal, UserError
from .config.load import PARAMS_FILE
from .models.record import read_record
from .provenance.drift import Drift
from .provenance.hashing import sha256_file
from .provenance.records import read_json, write_json
from .report.terminal import console
from .revisions.printing import line
from .signing import entries, sign_files, signature_of, signer
from .verdict.clearance import MANIFEST
from .verify import NO_MANIFEST, compare_trained, find_drifts

DOCUMENTS = ("gates.intoto.json", "provenance.intoto.json", "model.cdx.json")
GATES, PROVENANCE, MATERIALS = DOCUMENTS


def forbids(drift: Drift) -> bool:
    """Is this no longer what was recorded, or was the record itself edited?"""
    return drift.meaning == "another run" or drift.kind == "manifest"


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
    reasons = [line(drift) for drift in drifts if forbids(drift)]
    if reasons:
        heading = f"{directory} is not what {MANIFEST} records, and nothing is attested"
        raise Refusal("\n".join([heading, *reasons]))
    facts = gather(directory, model, manifest)
    write_json(output / GATES, gates_statement(facts))
    write_json(output / PROVENANCE, provenance_statement(facts))
    statements = {name: sha256_file(output / name) for name in (GATES, PROVENANCE)}
    write_json(output / MATERIALS, bill_of_materials(facts, statements))


def sign_documents(output: Path, config: Any) -> Path:
    """Sign the documents; where. Raises UserError where there is more than these to be signed."""
    more = sorted(set(entries(output)) - set(DOCUMENTS))
    if more:
        raise UserError(f"{output}/{more[0]} would be signed too; name a directory for these alone")
    signature = signature_of(output)
    sign_files(output, config, signature)
    return signature


def run(directory: Path, output: Path, key: Path | None) -> int:
    """Exit code: 0 done."""
    config = signer(key) if key is not None else None
    with console.status("hashing"):
        attest(directory, output)
        written = [output / name for name in DOCUMENTS]
        if config is not None:
            written.append(sign_documents(output, config))
    for path in written:
        console.print(str(path))
    return 0
