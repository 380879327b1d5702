"""A signature holds for every byte of a model directory and for one key; all else is named."""

import json
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from cryptography.hazmat.primitives.asymmetric.types import PrivateKeyTypes
from model_signing import signing

from stages.attestation.keys import PASSWORD
from stages.commands.signing import objections, sign, signature_of
from stages.config import Refusal, UserError
from stages.models.record import ModelRecord
from stages.provenance.environment import compute_environment

from .hardening.outcome import assert_refused, holdshort, inside

Change = Callable[[Path], object]


def write_key(path: Path, key: PrivateKeyTypes, password: bytes | None = None) -> Path:
    """The private key, and the public one beside it with the suffix .pub."""
    encryption = (
        serialization.BestAvailableEncryption(password)
        if password
        else serialization.NoEncryption()
    )
    pem, pkcs8 = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8
    path.write_bytes(key.private_bytes(pem, pkcs8, encryption))
    info = serialization.PublicFormat.SubjectPublicKeyInfo
    path.with_suffix(".pub").write_bytes(key.public_key().public_bytes(pem, info))
    return path


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with keys of many kinds, and with what is none."""
    keys = tmp_path_factory.mktemp("keys")
    write_key(keys / "mine.key", ec.generate_private_key(ec.SECP256R1()))
    write_key(keys / "other.key", ec.generate_private_key(ec.SECP384R1()))
    write_key(keys / "locked.key", ec.generate_private_key(ec.SECP521R1()), b"open sesame")
    write_key(keys / "bitcoin.key", ec.generate_private_key(ec.SECP256K1()))
    write_key(keys / "ed25519.key", ed25519.Ed25519PrivateKey.generate())
    write_key(keys / "rsa.key", rsa.generate_private_key(65537, 2048))
    (keys / "text.key").write_text("no key")
    (keys / "binary.key").write_bytes(b"\x00\xff")
    return keys


@pytest.fixture
def model(tmp_path: Path) -> Iterator[Path]:
    """models/final below the current directory, with a file in a directory of its own."""
    directory = tmp_path / "models/final"
    (directory / "merged").mkdir(parents=True)
    (directory / "model.safetensors").write_bytes(b"weights")
    (directory / "merged/config.json").write_bytes(b"{}")
    environment = compute_environment("cpu", "fp32", 1)
    ModelRecord.of(
        directory, manifest="ab", clearance={}, environment=environment, params={}
    ).write(directory)
    with inside(tmp_path):
        yield Path("models/final")


@pytest.fixture
def signed(model: Path, keys: Path) -> Path:
    sign(model, keys / "mine.key", signature_of(model))
    return model


def test_a_model_is_signed_beside_the_directory_and_not_in_it(model: Path, keys: Path) -> None:
    before = {path: path.read_bytes() for path in model.rglob("*") if path.is_file()}
    done = holdshort("sign", "--key", keys / "mine.key")
    assert (done.code, "models/final.sig" in done.output) == (0, True), str(done)
    assert {path: path.read_bytes() for path in model.rglob("*") if path.is_file()} == before
    done = holdshort("verify", model, "--key", keys / "mine.pub")
    assert done.code == 0, str(done)
    assert "signature: every file of models/final is as signed" in done.output
    assert "everything is as recorded" in done.output


def test_a_signature_that_nobody_checks_is_mentioned(signed: Path) -> None:
    done = holdshort("verify", signed)
    assert (done.code, "models/final.sig is not checked" in done.output) == (0, True), str(done)


def test_a_copy_of_both_is_verified_elsewhere(signed: Path, keys: Path, tmp_path: Path) -> None:
    copy = tmp_path / "elsewhere/model"
    shutil.copytree(signed, copy)
    shutil.copy(signature_of(signed), signature_of(copy))
    assert objections(copy, keys / "mine.pub", signature_of(copy)) == []
    with inside(copy):
        assert objections(Path(), keys / "mine.pub", signature_of(Path())) == []


def test_links_to_a_cache_count_as_what_they_link_to(
    model: Path, keys: Path, tmp_path: Path
) -> None:
    weights, cached = model / "model.safetensors", tmp_path / "cached"
    weights.rename(cached)
    weights.symlink_to(cached)
    sign(model, keys / "mine.key", Path("links.sig"))
    shutil.copytree(model, "copy")  # copies what the links lead to
    assert not (Path("copy") / weights.name).is_symlink()
    assert objections(Path("copy"), keys / "mine.pub", Path("links.sig")) == []
    assert objections(model, keys / "mine.pub", Path("links.sig")) == []


def test_model_signing_itself_accepts_the_signature(signed: Path, keys: Path) -> None:
    command = [sys.executable, "-m", "model_signing", "verify", "key", str(signed)]
    options = ["--signature", str(signature_of(signed)), "--public_key", str(keys / "mine.pub")]
    done = subprocess.run([*command, *options], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_signature_of_model_signing_itself_is_accepted(model: Path, keys: Path) -> None:
    config = signing.Config().use_elliptic_key_signer(private_key=keys / "mine.key")
    config.sign(model, "its.sig")
    assert objections(model, keys / "mine.pub", Path("its.sig")) == []


def link_directory(model: Path) -> None:
    Path("outside").mkdir()
    (model / "linked").symlink_to(Path("outside").absolute())


CHANGES: dict[str, tuple[Change, str]] = {
    "a file": (
        lambda model: (model / "model.safetensors").write_bytes(b"other"),
        "model.safetensors was changed",
    ),
    "a file below": (
        lambda model: (model / "merged/config.json").write_text("[]"),
        "merged/config.json was changed",
    ),
    "the record": (
        lambda model: (model / "provenance.json").write_text("{}"),
        "provenance.json was changed",
    ),
    "one more": (lambda model: (model / "evil.py").write_text(""), "evil.py was added"),
    "one more, hidden": (
        lambda model: (model / ".gitattributes").write_text(""),
        ".gitattributes was added",
    ),
    "one less": (
        lambda model: (model / "merged/config.json").unlink(),
        "merged/config.json is missing",
    ),
    "a link to nothing": (lambda model: (model / "dead").symlink_to("nowhere"), "dead"),
    "a link to a directory": (link_directory, "linked links to a directory"),
}


@pytest.mark.parametrize("name", CHANGES)
def test_whatever_was_changed_is_named(signed: Path, keys: Path, name: str) -> None:
    change, word = CHANGES[name]
    change(signed)
    (found,) = objections(signed, keys / "mine.pub", signature_of(signed))
    assert word in found


def test_each_file_has_a_line_of_its_own(signed: Path, keys: Path) -> None:
    for name in ("one more", "a file", "one less"):
        CHANGES[name][0](signed)
    done = holdshort("verify", signed, "--key", keys / "mine.pub")
    lines = done.output.splitlines()
    assert "  model models/final/evil.py: new file; another run" in lines
    assert [line for line in lines if "models/final/merged/config.json: missing (" in line]
    refused = "signature: models/final is not what was signed: "
    assert lines[-3:] == [
        refused + "evil.py was added",
        refused + "merged/config.json is missing",
        refused + "model.safetensors was changed",
    ]


@pytest.mark.parametrize("name", [name for name in CHANGES if name != "one less"])
def test_what_was_not_recorded_is_not_signed(model: Path, keys: Path, name: str) -> None:
    change, word = CHANGES[name]
    change(model)
    with pytest.raises((Refusal, UserError), match=word.partition(" ")[0]):
        sign(model, keys / "mine.key", signature_of(model))
    assert not signature_of(model).exists()


def test_a_file_that_is_no_signature_is_not_overwritten(model: Path, keys: Path) -> None:
    Path("README.md").write_text("text", encoding="utf-8")
    done = holdshort("sign", "--key", keys / "mine.key", "--signature", "README.md")
    assert_refused(done, "README.md exists and is no signature")
    assert Path("README.md").read_text(encoding="utf-8") == "text"
    for _ in range(2):
        assert holdshort("sign", "--key", keys / "mine.key").code == 0


def test_a_refusal_to_sign_says_what_is_done_about_it(model: Path, keys: Path) -> None:
    (model / "model.safetensors").write_bytes(b"other")
    done = holdshort("sign", "--key", keys / "mine.key")
    assert done.code == 1
    assert "is not signed" in done.errors and "`dvc checkout`" in done.errors


def test_attestations_are_signed_by_what_writes_them(model: Path, keys: Path) -> None:
    Path("attestations").mkdir()
    Path("attestations/gates.intoto.json").write_text("{}", encoding="utf-8")
    done = holdshort("sign", "attestations", "--key", keys / "mine.key")
    assert_refused(done, "holds attestations", "`holdshort attest --output attestations --key KEY`")


def test_a_changed_model_makes_verify_fail(signed: Path, keys: Path) -> None:
    (signed / "model.safetensors").write_bytes(b"other")
    done = holdshort("verify", signed, "--key", keys / "mine.pub")
    assert done.code == 1
    assert "signature: models/final is not what was signed" in done.output
    assert "model models/final/model.safetensors" in done.output


def test_a_rewritten_record_is_caught_by_the_signature_alone(signed: Path, keys: Path) -> None:
    (signed / "model.safetensors").write_bytes(b"other")
    (signed / "provenance.json").unlink()
    ModelRecord.of(
        signed,
        manifest="ab",
        clearance={},
        environment=compute_environment("cpu", "fp32", 1),
        params={},
    ).write(signed)
    assert holdshort("verify", signed).code == 0
    done = holdshort("verify", signed, "--key", keys / "mine.pub")
    assert (done.code, "not what was signed" in done.output) == (1, True), str(done)


def test_another_key_is_refused(signed: Path, keys: Path) -> None:
    done = holdshort("verify", signed, "--key", keys / "other.pub")
    last = done.output.splitlines()[-1]
    assert (done.code, "made with another key" in last) == (1, True), str(done)


def edit(path: Path, change: Callable[[Any], object]) -> None:
    content = json.loads(path.read_text())
    change(content)
    path.write_text(json.dumps(content))


def test_a_signature_that_claims_a_key_is_not_believed(signed: Path, keys: Path) -> None:
    signature = signature_of(signed)
    sign(signed, keys / "other.key", Path("other.sig"))
    hint = json.loads(Path("other.sig").read_text())["verificationMaterial"]["publicKey"]["hint"]
    edit(signature, lambda bundle: bundle["verificationMaterial"]["publicKey"].update(hint=hint))
    (found,) = objections(signed, keys / "other.pub", signature)
    assert "was changed, or made with another key" in found


def test_a_changed_payload_is_refused(signed: Path, keys: Path) -> None:
    signature = signature_of(signed)
    edit(signature, lambda bundle: bundle["dsseEnvelope"].update(payload="e30="))
    (found,) = objections(signed, keys / "mine.pub", signature)
    assert "was changed, or made with another key" in found


@pytest.mark.parametrize(
    "content",
    [b"", b"{}", b"[]", b"null", b"\xff", b"[" * 100_000, b'{"verificationMaterial": {}}'],
    ids=["nothing", "object", "list", "null", "no text", "deep", "half"],
)
def test_what_is_no_signature_is_refused_in_a_sentence(
    signed: Path, keys: Path, content: bytes
) -> None:
    signature_of(signed).write_bytes(content)
    done = holdshort("verify", signed, "--key", keys / "mine.pub")
    assert_refused(done, "models/final.sig cannot be read as a signature")


def test_an_empty_envelope_is_refused_in_a_sentence(signed: Path, keys: Path) -> None:
    edit(signature_of(signed), lambda bundle: bundle["dsseEnvelope"].update(signatures=[]))
    done = holdshort("verify", signed, "--key", keys / "mine.pub")
    assert_refused(done, "models/final.sig cannot be read as a signature")


def test_a_missing_signature_is_named(model: Path, keys: Path) -> None:
    done = holdshort("verify", model, "--key", keys / "mine.pub")
    assert_refused(done, "models/final.sig is missing", "holdshort sign models/final")


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("missing.key", ("missing.key does not exist", "openssl ecparam")),
        ("text.key", ("text.key holds no private key in PEM", "openssl ecparam")),
        ("binary.key", ("binary.key holds no private key in PEM",)),
        ("mine.pub", ("mine.pub holds a public key",)),
        ("rsa.key", ("another kind than elliptic curve", "secp256r1")),
        ("ed25519.key", ("another kind than elliptic curve", "secp256r1")),
        ("bitcoin.key", ("on the curve secp256k1", "secp256r1")),
        ("locked.key", ("locked.key is encrypted", PASSWORD)),
    ],
)
def test_a_key_that_cannot_sign_is_refused_in_a_sentence(
    model: Path, keys: Path, name: str, words: tuple[str, ...]
) -> None:
    assert_refused(holdshort("sign", model, "--key", keys / name), *words)
    assert not signature_of(model).exists()


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("missing.pub", ("missing.pub does not exist",)),
        ("text.key", ("text.key holds no public key in PEM", "openssl ec")),
        ("mine.key", ("mine.key holds a private key", "openssl ec")),
        ("locked.key", ("locked.key holds a private key", "openssl ec")),
        ("rsa.pub", ("another kind than elliptic curve",)),
        ("bitcoin.pub", ("on the curve secp256k1",)),
    ],
)
def test_a_key_that_cannot_verify_is_refused_in_a_sentence(
    signed: Path, keys: Path, name: str, words: tuple[str, ...]
) -> None:
    assert_refused(holdshort("verify", signed, "--key", keys / name), *words)


def test_an_encrypted_key_signs_with_its_password(
    model: Path, keys: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(PASSWORD, "open sesame")
    sign(model, keys / "locked.key", signature_of(model))
    assert objections(model, keys / "locked.pub", signature_of(model)) == []
    sign(model, keys / "mine.key", signature_of(model))  # which needs none
    monkeypatch.setenv(PASSWORD, "wrong")
    done = holdshort("sign", model, "--key", keys / "locked.key")
    assert_refused(done, f"the password in {PASSWORD} does not open")


def test_a_signature_in_the_directory_would_change_it(model: Path, keys: Path) -> None:
    done = holdshort("sign", model, "--key", keys / "mine.key", "--signature", model / "model.sig")
    assert_refused(done, "models/final/model.sig would lie in models/final")


def test_a_signature_may_lie_elsewhere(model: Path, keys: Path) -> None:
    options = ("--signature", "model.sig")
    assert holdshort("sign", model, "--key", keys / "mine.key", *options).code == 0
    assert holdshort("verify", model, "--key", keys / "mine.pub", *options).code == 0
    assert_refused(holdshort("verify", model, *options), "give --key too")


@pytest.mark.parametrize("command", ["sign", "verify"])
def test_a_model_that_is_not_here_is_told_with_what_brings_it(
    model: Path, keys: Path, command: str
) -> None:
    shutil.rmtree(model)
    done = holdshort(
        command, model, "--key", keys / f"mine.{'key' if command == 'sign' else 'pub'}"
    )
    assert_refused(done, "the model models/final is not here", "`dvc pull`", "`dvc repro`")


def test_attestations_that_are_not_here_are_told_with_what_writes_them(keys: Path) -> None:
    done = holdshort("verify", "nowhere", "--key", keys / "mine.pub")
    assert_refused(done, "nowhere is no directory here", "`holdshort attest --key KEY`")


@pytest.mark.parametrize("command", ["sign", "verify"])
def test_only_a_model_directory_is_signed(model: Path, keys: Path, command: str) -> None:
    key = keys / ("mine.key" if command == "sign" else "mine.pub")
    done = holdshort(command, "HEAD", "--key", key)
    assert_refused(done, "HEAD")


def test_a_missing_package_is_named_with_what_brings_it(
    signed: Path, keys: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in [name for name in sys.modules if name.partition(".")[0] == "model_signing"]:
        monkeypatch.delitem(sys.modules, module)
    monkeypatch.setitem(sys.modules, "model_signing", None)
    for command, key in (("sign", "mine.key"), ("verify", "mine.pub")):
        done = holdshort(command, signed, "--key", keys / key)
        assert_refused(done, 'pip install "holdshort[sign]"')
