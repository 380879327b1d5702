"""A small byte-level BPE tokenizer with a ChatML template, trained on the incidents.

Any text can be encoded: what no merge covers falls back to bytes. Numbers are cut into pairs of
digits, so that a clock or a count is not a token of its own.

    python -m stages.demo.tokenizer
"""

import json
from pathlib import Path

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from .incidents import INCIDENTS

DIRECTORY = Path("data/tokenizer")
VOCAB_SIZE = 768
PAD, START, STOP = "<|endoftext|>", "<|im_start|>", "<|im_end|>"
WORDS = r" ?\p{L}+|\p{N}{1,2}| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
CHATML = """\
{%- for message in messages -%}
{%- if message['role'] not in ['system', 'user', 'assistant', 'tool'] -%}
{{- raise_exception('unknown role: ' ~ message['role']) -}}
{%- endif -%}
{{- '<|im_start|>' ~ message['role'] ~ '\\n' ~ message['content'] ~ '<|im_end|>\\n' -}}
{%- endfor -%}
{%- if add_generation_prompt -%}
{{- '<|im_start|>assistant\\n' -}}
{%- endif -%}
"""


def train_tokenizer(texts: list[str]) -> PreTrainedTokenizerFast:
    core = Tokenizer(models.BPE())
    core.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(WORDS), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    core.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB_SIZE,
        special_tokens=[PAD, START, STOP],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    core.train_from_iterator(texts, trainer)
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=core,
        eos_token=STOP,
        pad_token=PAD,
        extra_special_tokens=[START],
        clean_up_tokenization_spaces=False,
    )
    tokenizer.chat_template = CHATML
    return tokenizer


def read_texts(path: Path) -> list[str]:
    """Every role and every content of every message: all that the template writes but markers."""
    with path.open(encoding="utf-8") as file:
        rows = [json.loads(line) for line in file]
    return [text for row in rows for message in row["messages"] for text in message.values()]


if __name__ == "__main__":
    train_tokenizer(read_texts(INCIDENTS)).save_pretrained(DIRECTORY)
