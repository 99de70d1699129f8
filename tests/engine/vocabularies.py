"""Small real tokenizers of the kinds that models come with, trained on the same text."""

from __future__ import annotations

import json
import pydoc_data.topics
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

from tokenizers import (
    AddedToken,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    trainers,
)

TOPICS = pydoc_data.topics.topics
TEXT = "\n".join(TOPICS[name] for name in sorted(TOPICS))[:90_000]
BYTES = [f"<0x{byte:02X}>" for byte in range(256)]


@dataclass(frozen=True)
class Named:
    """A tokenizer with the roles of its special tokens, as transformers gives them."""

    backend_tokenizer: Tokenizer
    bos_token: str | None = None
    eos_token: str | None = None
    unk_token: str | None = None
    chat_template: str | None = None


@cache
def byte_level(size: int = 900, special: Sequence[str] = ("<|end|>", "<|user|>")) -> Named:
    """As GPT-2, Llama 3 and Qwen: byte-level BPE; special tokens come first."""
    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=size,
        special_tokens=list(special),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    made.train_from_iterator([TEXT], trainer)
    return Named(made, eos_token=special[0] if special else None)


@cache
def sentencepiece(size: int = 1_000) -> Named:
    """As Llama 2 and Mistral: BPE over letters with byte fallback, a space written U+2581."""
    made = Tokenizer(models.BPE(byte_fallback=True, unk_token="<unk>", fuse_unk=True))
    made.normalizer = normalizers.Sequence(
        [normalizers.Prepend("\u2581"), normalizers.Replace(" ", "\u2581")]
    )
    made.pre_tokenizer = pre_tokenizers.Split("\u2581", "merged_with_next")
    trainer = trainers.BpeTrainer(
        vocab_size=size, special_tokens=["<unk>", "<s>", "</s>", *BYTES], show_progress=False
    )
    made.train_from_iterator([TEXT], trainer)
    made.pre_tokenizer = None
    state = _without_special(made, BYTES)
    state.decoder = decoders.Sequence(
        [
            decoders.Replace("\u2581", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(" ", 1, 0),
        ]
    )
    return Named(state, bos_token="<s>", eos_token="</s>", unk_token="<unk>")


@cache
def letters() -> Named:
    """A tokenizer of single bytes."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {letter: token for token, letter in enumerate(alphabet)}
    made = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    return Named(made)


def with_added(tokenizer: Named, *texts: str) -> Named:
    """A copy with more special tokens at the end, as a fine-tuned model may bring."""
    made = Tokenizer.from_str(tokenizer.backend_tokenizer.to_str())
    made.add_special_tokens([AddedToken(text, special=True) for text in texts])
    return Named(made, tokenizer.bos_token, tokenizer.eos_token, tokenizer.unk_token)


def _without_special(tokenizer: Tokenizer, texts: Sequence[str]) -> Tokenizer:
    """The tokenizer with these tokens as ordinary ones; a trainer can only put special ones in."""
    state = json.loads(tokenizer.to_str())
    state["added_tokens"] = [one for one in state["added_tokens"] if one["content"] not in texts]
    return Tokenizer.from_str(json.dumps(state))
