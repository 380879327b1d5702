"""Time TRL's own preparation of chats: `SFTTrainer`'s constructor with assistant_only_loss.

python trl_side.py CHATS.jsonl TOKENIZER_DIRECTORY
"""

import json
import sys
import tempfile
import time
from pathlib import Path

from datasets import Dataset
from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM
from trl import SFTConfig, SFTTrainer


def main(chats: Path, directory: str) -> None:
    tokenizer = AutoTokenizer.from_pretrained(directory)
    rows = Dataset.from_list([json.loads(line) for line in chats.open(encoding="utf-8")])
    small = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=8,
        intermediate_size=8,
        num_hidden_layers=1,
        num_attention_heads=1,
    )
    with tempfile.TemporaryDirectory() as scratch:
        config = SFTConfig(
            output_dir=scratch,
            assistant_only_loss=True,
            max_length=None,
            use_cpu=True,
            bf16=False,
            report_to=[],
        )
        began = time.perf_counter()
        SFTTrainer(
            LlamaForCausalLM(small), args=config, train_dataset=rows, processing_class=tokenizer
        )
        print(f"SECONDS {time.perf_counter() - began}")


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
