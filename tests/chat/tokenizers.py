"""A throw-away tokenizer on disk: one token a byte, ChatML, so that masks can be written out."""

import datetime
from pathlib import Path

from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from stages.chat.tokenizer import ChatTokenizer

TODAY = datetime.date(2026, 1, 1)
SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
CHATML = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


def byte_tokenizer(directory: Path, template: str = CHATML, pad: str = SPECIAL[0]) -> Path:
    """Save a tokenizer whose base tokens are single bytes; ids 0 to 2 are the special ones."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {token: number for number, token in enumerate((*SPECIAL, *alphabet))}
    core = Tokenizer(models.BPE(vocabulary, []))
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    core.decoder = decoders.ByteLevel()
    core.add_special_tokens(list(SPECIAL))
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=core, eos_token=SPECIAL[2], pad_token=pad)
    tokenizer.chat_template = template
    tokenizer.save_pretrained(directory)
    return directory


def chat_tokenizer(directory: Path, template: str = CHATML) -> ChatTokenizer:
    return ChatTokenizer(str(byte_tokenizer(directory, template)), TODAY)
