"""Who vouches for these bytes? Signs a model directory with a key, and checks such a signature.

The signature covers every file of the directory and lies beside it (models/final.sig), not in it:
DVC has hashed the directory, and a copy of both can be checked without the project. It is a
Sigstore bundle as OpenSSF's model-signing writes it, made and checked offline with an elliptic
curve key. Exit code: 0 done, or the signature is valid; 1 refused; 2 it could not be told.

    holdshort sign [DIRECTORY] --key KEY [--signature FILE]
    holdshort verify [DIRECTORY] --key PUBLIC_KEY [--signature FILE]
"""

import base64
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ..attestation.documents import holds_attestations
from ..attestation.keys import password_for, refuse_no_public_key
from ..config import Refusal, UserError
from ..config.errors import visible
from ..models.record import MODEL, NO_MODEL, RECORD, read_record
from ..report.terminal import console
from .verify import compare_model, told
from .verify import run as compare_records


def signature_of(directory: Path) -> Path:
    """models/final.sig for models/final."""
    named = directory if directory.name not in ("", "..") else directory.resolve()
    return named.with_name(f"{named.name}.sig")


def entries(directory: Path) -> dict[str, Path]:
    """Name below a directory -> every file and every link, hidden ones too."""
    return {
        path.relative_to(directory).as_posix(): path
        for path in sorted(directory.rglob("*"))
        if path.is_symlink() or not path.is_dir()
    }


def load_library() -> tuple[Any, Any]:
    """Signing and verifying of model-signing. Raises UserError where it is not installed."""
    try:
        from model_signing import signing, verifying
    except ModuleNotFoundError as error:
        raise UserError(
            f"signatures need packages that are not here ({error.name}); "
            'run `pip install "holdshort[sign]"`'
        ) from None
    return signing, verifying


def every_file() -> Any:
    """What is hashed: all files; model-signing by itself leaves out .gitattributes and the like.

    Links are followed: DVC's `cache.type` makes them, and a copy without them is the same model.
    """
    from model_signing import hashing

    config = hashing.Config().set_ignored_paths(paths=(), ignore_git_paths=False)
    return config.set_allow_symlinks(True)


def refuse_unrecorded(directory: Path) -> None:
    """Raises Refusal where the directory is not what full_train wrote and recorded.

    Raises UserError for attestations, which have no record.
    """
    if holds_attestations(directory) and not (directory / RECORD).exists():
        raise UserError(
            f"{directory} holds attestations, and no model: `{signing_command(directory)}` writes "
            "and signs them"
        )
    record = read_record(directory)
    reasons = [told(drift) for drift in compare_model(directory, record)]
    if not reasons:
        known = {*record.files, RECORD}
        reasons = [f"{name} is not recorded" for name in entries(directory) if name not in known]
    if reasons:
        heading = f"{directory} is not what {RECORD} records, and is not signed"
        remedy = "copy it anew from where it was trained; there `dvc checkout` brings it back"
        raise Refusal("\n".join([heading, *reasons, remedy]))


def signer(key: Path) -> Any:
    """What signs with a private key. Raises UserError for a key that cannot sign."""
    signing, _ = load_library()
    password = password_for(key)
    config = signing.Config().use_elliptic_key_signer(private_key=key, password=password)
    return config.set_hashing_config(every_file())


def sign(directory: Path, key: Path, signature: Path) -> None:
    """Sign a model. Raises Refusal where it is not what full_train wrote and recorded."""
    config = signer(key)
    refuse_unrecorded(directory)
    sign_files(directory, config, signature)


def refuse_other_file(signature: Path) -> None:
    """Raises UserError for a file that exists and is no signature: it would be lost."""
    if signature.exists() and (signature.is_dir() or b"dsseEnvelope" not in signature.read_bytes()):
        raise UserError(f"{signature} exists and is no signature; name another file")


def sign_files(directory: Path, config: Any, signature: Path) -> None:
    """Write the signature of every file of the directory, whatever they are.

    config: of `signer`. Raises UserError for a signature that would lie in the directory, or in the
    place of a file that is none.
    """
    refuse_other_file(signature)
    if signature.resolve().is_relative_to(directory.resolve()):
        raise UserError(f"{signature} would lie in {directory} and change it; name another file")
    staged = signature.with_name(f"{signature.name}.partial")
    config.sign(directory, staged)
    staged.replace(signature)


def signing_command(directory: Path) -> str:
    """What signs this directory."""
    if holds_attestations(directory):
        return f"holdshort attest --output {directory} --key KEY"
    return f"holdshort sign {directory} --key KEY"


def changes(directory: Path, signature: Path, hashing: Any) -> Iterator[str]:
    """Every file that was changed, added or taken away since a signature that is the key's.

    hashing: the configuration that verified it; it knows what the signature leaves out. The format
    is https://model_signing/signature/v1.0; of an older one nothing is told.
    """
    envelope = json.loads(signature.read_bytes())["dsseEnvelope"]
    predicate = json.loads(base64.b64decode(envelope["payload"]))["predicate"]
    if "resources" not in predicate:
        return
    signed = {one["name"]: one["digest"] for one in predicate["resources"]}
    found = hashing.hash(directory).resource_descriptors()
    here = {one.identifier: one.digest.digest_hex for one in found}
    for name in sorted({*signed, *here}):
        if name not in here:
            yield visible(f"{name} is missing")
        elif name not in signed:
            yield visible(f"{name} was added")
        elif signed[name] != here[name]:
            yield visible(f"{name} was changed")


def objections(directory: Path, key: Path, signature: Path) -> list[str]:
    """What stands against the signature; empty where it is the key's and every file is as signed.

    Raises UserError where the signature is missing or is none, or the key is no public key.
    """
    _, verifying = load_library()
    from cryptography.exceptions import InvalidSignature

    refuse_no_public_key(key)
    if not signature.is_file():
        raise UserError(
            f"{signature} is missing: {directory} was not signed, or was copied without it; sign "
            f"it with `{signing_command(directory)}`, or say where it is with --signature"
        )
    config = verifying.Config().use_elliptic_key_verifier(public_key=key)
    hashing = every_file()
    try:
        config.set_hashing_config(hashing).verify(directory, signature)
    except InvalidSignature:
        return [f"{signature} was changed, or made with another key than that of {key}"]
    except OSError:
        raise
    except Exception as error:  # of a damaged file it raises what its parsers do
        reason = str(error).strip().partition("\n")[0] or type(error).__name__
        if reason.startswith("Key mismatch"):
            return [f"{signature} was made with another key than that of {key}"]
        if reason.startswith("Signature mismatch"):
            heading = f"{directory} is not what was signed"
            found = [f"{heading}: {one}" for one in changes(directory, signature, hashing)]
            return found or [heading]
        if reason.startswith("Cannot use"):
            return [f"{directory} is not what was signed: {reason}"]
        raise UserError(
            f"{signature} cannot be read as a signature ({reason}); copy it anew, or sign again"
        ) from None
    linked = [name for name, path in entries(directory).items() if path.is_dir()]
    return [
        f"{directory}/{name} links to a directory, which no signature covers" for name in linked
    ]


def run_sign(directory: Path, key: Path, signature: Path | None) -> int:
    """Exit code: 0 done."""
    signature = signature or signature_of(directory)
    with console.status("hashing"):
        sign(directory, key, signature)
    console.print(f"{directory}: every file is signed in {signature}")
    return 0


def directory_of(target: str | None) -> Path:
    """What of a target of `holdshort verify` can be signed."""
    return MODEL if target is None else Path(target)


def has_record(target: str | None) -> bool:
    """Is there more to verify than a signature? What `holdshort attest` writes has no record."""
    return target is None or (Path(target) / RECORD).exists()


def mention_unchecked(target: str | None) -> None:
    """Say so where a signature lies beside the model, and no key was given to check it with.

    Raises UserError for attestations, of which nothing else can be checked.
    """
    directory = directory_of(target)
    if not has_record(target) and holds_attestations(directory):
        raise UserError(
            f"{directory} is verified by its signature, and holds no model: give "
            f"--key PUBLIC_KEY (`{signing_command(directory)}` signs it)"
        )
    signature = signature_of(directory)
    if directory.is_dir() and signature.is_file():
        console.print(f"signature: {signature} is not checked; give --key PUBLIC_KEY")


def refuse_no_directory(directory: Path) -> None:
    """Raises UserError, which says what makes one, where there is none to hold a signature of."""
    if directory.is_dir():
        return
    if directory.exists():
        raise UserError(f"{directory} is no directory; only models and attestations are signed")
    if directory == MODEL:
        raise UserError(f"the model {directory} is not here; {NO_MODEL}")
    raise UserError(
        f"{directory} is no directory here, and nothing else is signed; attestations: `holdshort "
        f"attest --key KEY` writes them; a model: {NO_MODEL}"
    )


def run_check(target: str | None, key: Path, signature: Path | None, deep: bool) -> int:
    """Check the signature, and the record where there is one. Exit code: 0 both hold, 1 not.

    target, deep: as `holdshort verify` has them; a revision has no signature.
    """
    directory = directory_of(target)
    refuse_no_directory(directory)
    signature = signature or signature_of(directory)
    with console.status("hashing"):
        found = objections(directory, key, signature)
    if not found:
        console.print(f"signature: every file of {directory} is as signed with the key of {key}")
    try:
        code = compare_records(target, deep) if has_record(target) else 0
    finally:  # last, whatever the record says: it may be the forger's
        for objection in found:
            console.print(f"signature: {objection}")
    return 1 if found else code
