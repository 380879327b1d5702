"""What is there to attest? The records of one model, each held against the one that pins it.

Only what was recorded when it happened: the manifest pins data, tokens, verdicts and environment,
provenance.json the files of the model, and dvc.lock the requirements and the metrics.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from packaging.requirements import InvalidRequirement, Requirement

from ..config.errors import Refusal, UserError, reading
from ..models.record import RECORD, ModelRecord
from ..provenance.base_model import is_reference
from ..provenance.hashing import sha256_file
from ..provenance.records import metrics_path
from ..revisions.record import LOCK, Record, outputs
from ..verdict.clearance import CLEARANCE, MANIFEST, RULES, read_verdicts
from ..verdict.judging import rejudge
from ..verdict.record import Verdict

REQUIREMENTS = "requirements.lock"
Digests = Mapping[str, str]
"""Name of a file -> sha256."""


@dataclass(frozen=True)
class Facts:
    """What the records hold of a model.

    files: of the model, its record among them; cleared: what the gates have judged; tokenizer,
    base_model: what was read beside it; requirements: of requirements.lock, in its order.
    """

    manifest: Mapping[str, Any]
    model: ModelRecord
    verdicts: Mapping[str, Verdict]
    files: Digests
    records: Digests
    cleared: Digests
    tokenizer: Digests
    base_model: Digests
    requirements: list[Requirement]
    metrics: Mapping[str, Any]

    @property
    def digest(self) -> str:
        """Of what decided the bits of the model."""
        return str(self.manifest["digest"])

    @property
    def name(self) -> str:
        """Of the base model where there is one, else of the model."""
        return str(self.manifest["base_model"]["name"])


def gather(directory: Path, model: ModelRecord, manifest: Mapping[str, Any]) -> Facts:
    """The facts of a model directory, whose files are as recorded, of the manifest in force here.

    Raises Refusal where a verdict does not hold, or a file is another than dvc.lock records.
    """
    verdicts = held_verdicts()
    here = Record.of_directory(Path.cwd(), "the work tree")
    locked = {
        dep["path"]: dep["md5"] for dep in here.lock.get("gradient_probe", {}).get("deps", ())
    }
    locked |= outputs(here.lock, "full_train")
    metrics = metrics_path("full_train").as_posix()
    for path in (REQUIREMENTS, metrics):
        refuse_another(here, path, locked.get(path))
    read, dataset = verdicts["mask_report"].inputs, verdicts["hash_data"].outputs
    probed = verdicts["gradient_probe"].inputs
    return Facts(
        manifest=manifest,
        model=model,
        verdicts=verdicts,
        files={**model.files, RECORD: sha256_file(directory / RECORD)},
        records={
            path: sha256_file(Path(path)) for path in (str(MANIFEST), str(CLEARANCE), REQUIREMENTS)
        },
        cleared={**manifest["data"]["files"], **manifest["tokens"]["files"]},
        tokenizer={path: digest for path, digest in read.items() if path not in dataset},
        base_model={path: digest for path, digest in probed.items() if is_reference(path)},
        requirements=read_requirements(Path(REQUIREMENTS)),
        metrics=here.json(metrics).get("full_train", {}),
    )


def held_verdicts() -> dict[str, Verdict]:
    """Raises Refusal where one is missing, or does not follow from its numbers and limits."""
    verdicts, objections = read_verdicts()
    reasons = [str(objection) for objection in objections]
    for gate, verdict in verdicts.items():
        reasons += [
            f"{gate}: {reason}"
            for reason, _ in rejudge(verdict.checks, RULES[gate], verdict.params)
        ]
    if reasons:
        raise Refusal("\n".join(["the verdicts do not hold, and nothing is attested", *reasons]))
    return verdicts


def refuse_another(here: Record, path: str, md5: str | None) -> None:
    """Raises Refusal where the file is not the one with which the run was made."""
    if here.files(path) != {path: md5}:
        raise Refusal(
            f"{path} is not the one that {LOCK} records of this run, and nothing is attested; "
            f"`git checkout -- {path}` brings it back, or `dvc repro` runs with it"
        )


def read_requirements(path: Path) -> list[Requirement]:
    """Raises UserError for a line that names no package."""
    found = []
    with reading(path, "text", "write it anew with `make lock`"):
        lines = path.read_text(encoding="utf-8").splitlines()
    for number, text in enumerate(lines, 1):
        wanted = text.partition(" #")[0].strip()
        if wanted and not wanted.startswith(("#", "-")):
            try:
                found.append(Requirement(wanted))
            except InvalidRequirement as error:
                reason = str(error).partition("\n")[0]
                raise UserError(f"{path}:{number}: names no package ({reason})") from None
    return found
