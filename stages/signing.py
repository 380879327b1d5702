"""Who vouches for these bytes? Signs a model directory with a key, and checks such a signature.

The signature covers every file of the directory and lies beside it (models/final.sig), not in it:
DVC has hashed the directory, and a copy of both can be checked without the project. It is a
Sigstore bundle as OpenSSF's model-signing writes it, made and checked offline with an elliptic
curve key. Exit code: 0 done, or the signature is valid; 1 refused; 2 it could not be told.

    holdshort sign [DIRECTORY] --key KEY [--signature FILE]
    holdshort verify [DIRECTORY] --key PUBLIC_KEY [--signature FILE]
"""

from pathlib import Path
from typing import Any

from .attestation.keys import password_for, refuse_no_public_key
from .config import Refusal, UserError
from .models.record import RECORD, read_record
from .report.terminal import console
from .revisions.printing import line
from .verify import MODEL, compare_model


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
    """Raises Refusal where the directory is not what full_train wrote and recorded."""
    record = read_record(directory)
    reasons = [line(drift) for drift in compare_model(directory, record)]
    if not reasons:
        known = {*record.files, RECORD}
        reasons = [f"{name} is not recorded" for name in entries(directory) if name not in known]
    if reasons:
        raise Refusal(
            "\n".join([f"{directory} is not what {RECORD} records, and is not signed", *reasons])
        )


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


def sign_files(directory: Path, config: Any, signature: Path) -> None:
    """Write the signature of every file of the directory, whatever they are.

    config: of `signer`. Raises UserError for a signature that would lie in the directory.
    """
    if signature.resolve().is_relative_to(directory.resolve()):
        raise UserError(f"{signature} would lie in {directory} and change it; name another file")
    staged = signature.with_name(f"{signature.name}.partial")
    config.sign(directory, staged)
    staged.replace(signature)


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
            f"it with `holdshort sign {directory} --key KEY`, or say where it is with --signature"
        )
    config = verifying.Config().use_elliptic_key_verifier(public_key=key)
    try:
        config.set_hashing_config(every_file()).verify(directory, signature)
    except InvalidSignature:
        return [f"{signature} was changed, or made with another key than that of {key}"]
    except OSError:
        raise
    except Exception as error:  # of a damaged file it raises what its parsers do
        reason = str(error).strip().partition("\n")[0] or type(error).__name__
        if reason.startswith("Key mismatch"):
            return [f"{signature} was made with another key than that of {key}"]
        if reason.startswith(("Signature mismatch", "Cannot use")):
            return [f"{directory} is not what was signed: {reason.removeprefix('Signature ')}"]
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
    """Say so where a signature lies beside the model, and no key was given to check it with."""
    directory = directory_of(target)
    signature = signature_of(directory)
    if directory.is_dir() and signature.is_file():
        console.print(f"signature: {signature} is not checked; give --key PUBLIC_KEY")


def run_check(target: str | None, key: Path, signature: Path | None) -> int:
    """Exit code: 0 valid, 1 not.

    target: as `holdshort verify` has it; a revision has no signature.
    """
    directory = directory_of(target)
    if not directory.is_dir():
        raise UserError(
            f"{directory} is no directory, and only a model directory is signed; leave out --key, "
            "or name one"
        )
    signature = signature or signature_of(directory)
    with console.status("hashing"):
        found = objections(directory, key, signature)
    for objection in found:
        console.print(f"signature: {objection}")
    if not found:
        console.print(f"signature: every file of {directory} is as signed with the key of {key}")
    return int(bool(found))
