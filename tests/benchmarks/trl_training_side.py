"""Time SFTTrainer's own steps on rows that are tokenised already, but for the first.

python trl_training_side.py SETTINGS.json ROWS.json
"""

import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from peft import LoraConfig
from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback
from trl import SFTConfig, SFTTrainer


class Clock(TrainerCallback):  # type: ignore[misc]
    """When each step ended."""

    def __init__(self) -> None:
        self.ends: list[float] = []

    def on_step_end(self, *arguments: Any, **keywords: Any) -> None:
        self.ends.append(time.perf_counter())


def main(settings: dict[str, Any], rows: list[dict[str, Any]]) -> None:
    torch.set_num_threads(settings["threads"])
    model = AutoModelForCausalLM.from_pretrained(settings["model"], dtype=torch.float32)
    clock = Clock()
    with tempfile.TemporaryDirectory() as scratch:
        config = SFTConfig(
            output_dir=scratch,
            max_length=None,
            per_device_train_batch_size=settings["batch"],
            gradient_accumulation_steps=settings["accumulate"],
            max_steps=settings["steps"],
            learning_rate=settings["learning_rate"],
            train_sampling_strategy="sequential",
            gradient_checkpointing=False,
            use_cpu=True,
            bf16=False,
            save_strategy="no",
            logging_steps=1,
            report_to=[],
        )
        trainer = SFTTrainer(
            model,
            args=config,
            train_dataset=Dataset.from_list(rows),
            processing_class=AutoTokenizer.from_pretrained(settings["model"]),
            peft_config=LoraConfig(**settings["lora"], task_type="CAUSAL_LM"),
            callbacks=[clock],
        )
        trainer.train()
    print(f"SECONDS {clock.ends[-1] - clock.ends[0]}")


if __name__ == "__main__":
    main(*(json.loads(Path(path).read_text(encoding="utf-8")) for path in sys.argv[1:]))
