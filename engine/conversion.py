"""Converts a GGUF file to a plain Hugging Face folder: safetensors weights, config, tokenizer."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import torch
from safetensors.torch import save_file
from tokenizers import pre_tokenizers
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedTokenizerBase

WEIGHTS_NAME = "model.safetensors"
CHECK_TEXT = "<|im_start|>user\nIn 2024 I paid 1 234,50 € — naïve?<|im_end|>\n"


class ConversionError(Exception):
    """The file does not hold the model or tokenizer that was expected."""


def convert_gguf(
    gguf: Path, folder: Path, progress: Callable[[float, str], None] | None = None
) -> None:
    """Write `gguf` into the existing empty `folder`, with the dequantised weights in float32.

    float32 because a 4-bit block is scale * integer + offset: most of these values exist in
    neither bfloat16 nor float16, and the exactness tests compare against this very model.
    Raises ConversionError, and whatever transformers raises on a file that it cannot read."""
    report = progress or (lambda fraction, message: None)
    report(0.0, "Reading the tokenizer")
    tokenizer = load_tokenizer(gguf)
    report(0.3, "Dequantising the weights")
    model = AutoModelForCausalLM.from_pretrained(
        str(gguf.parent), gguf_file=gguf.name, dtype=torch.float32
    )
    config = model.config.to_dict()
    config.pop("quantization_config", None)
    for key in ("_name_or_path", "_model_name_or_path"):
        config.pop(key, None)
    config["architectures"] = [type(model).__name__]
    check_special_tokens(tokenizer, config)
    report(0.6, "Writing safetensors")
    weights = {name: tensor.contiguous() for name, tensor in model.state_dict().items()}
    if config.get("tie_word_embeddings"):
        weights.pop("lm_head.weight", None)
    save_file(weights, folder / WEIGHTS_NAME, metadata={"format": "pt"})
    write_json(folder / "config.json", config)
    write_json(
        folder / "generation_config.json",
        {key: config[key] for key in ("bos_token_id", "eos_token_id", "pad_token_id")},
    )
    tokenizer.model_max_length = config["max_position_embeddings"]
    tokenizer.save_pretrained(str(folder))
    report(0.9, "Checking the written tokenizer")
    check_round_trip(folder, tokenizer)
    report(1.0, "Converted")


def load_tokenizer(gguf: Path) -> PreTrainedTokenizerBase:
    """The GGUF file's tokenizer with the pre-tokenizer its metadata names.

    transformers rebuilds every GPT-2 style tokenizer with a bare byte-level split; SmolLM's
    ("smollm") also splits digits one by one first."""
    tokenizer = AutoTokenizer.from_pretrained(str(gguf.parent), gguf_file=gguf.name)
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None:
        raise ConversionError(f"{gguf.name}: no fast tokenizer could be built from the file")
    if pre_tokenizer_name(gguf) == "smollm":
        backend.pre_tokenizer = pre_tokenizers.Sequence(
            [
                pre_tokenizers.Digits(individual_digits=True),
                pre_tokenizers.ByteLevel(add_prefix_space=False),
            ]
        )
    return tokenizer


def pre_tokenizer_name(gguf: Path) -> str:
    """The GGUF metadata field tokenizer.ggml.pre, or "" when the file has none."""
    from gguf import GGUFReader

    field = GGUFReader(str(gguf)).get_field("tokenizer.ggml.pre")
    return "" if field is None else str(field.contents())


def check_special_tokens(tokenizer: PreTrainedTokenizerBase, config: dict) -> None:
    """Raise ConversionError unless tokenizer and config agree on EOS and the chat format exists."""
    if tokenizer.eos_token_id is None or tokenizer.eos_token_id != config.get("eos_token_id"):
        raise ConversionError(
            f"end token differs: the tokenizer says {tokenizer.eos_token_id}, "
            f"the model says {config.get('eos_token_id')}"
        )
    if not tokenizer.chat_template:
        raise ConversionError("the file has no chat template")


def check_round_trip(folder: Path, tokenizer: PreTrainedTokenizerBase) -> None:
    """Raise ConversionError unless the folder's tokenizer encodes and decodes like the source's."""
    written = AutoTokenizer.from_pretrained(str(folder))
    ids = written.encode(CHECK_TEXT, add_special_tokens=False)
    same = ids == tokenizer.encode(CHECK_TEXT, add_special_tokens=False)
    if not same or written.decode(ids) != CHECK_TEXT or written.eos_token_id not in ids:
        raise ConversionError("the written tokenizer does not reproduce its own text")


def write_json(path: Path, value: dict) -> None:
    path.write_text(json.dumps(value, indent=2, sort_keys=True, default=str) + "\n", "utf-8")
