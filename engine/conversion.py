"""Converts a GGUF file to a plain Hugging Face folder: safetensors weights, config, tokenizer."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import torch
from safetensors.torch import save_file
from tokenizers import Regex, pre_tokenizers
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoTokenizer,
    PretrainedConfig,
    PreTrainedTokenizerBase,
)

from engine.families import refusal
from engine.loading import causal_lm

WEIGHTS_NAME = "model.safetensors"
CHECK_TEXT = "<|im_start|>user\nIn 2024 I paid 1 234,50 € — naïve?<|im_end|>\n"

_WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}%s"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
SPLITS = {
    "llama-bpe": _WORDS % "{1,3}",
    "llama3": _WORDS % "{1,3}",
    "llama-v3": _WORDS % "{1,3}",
    "smaug-bpe": _WORDS % "{1,3}",
    "qwen2": _WORDS % "",
    "deepseek-r1-qwen": _WORDS % "",
}
"""Where byte-level BPE splits text first, by the file's tokenizer.ggml.pre: the pattern of these
models' own tokenizer.json."""

BARE = ("gpt-2", "gpt2", "")
DIGITS = ("smollm", "starcoder", "refact", "command-r")
"""Plain byte-level splits, and those that split digits one by one before."""


class ConversionError(Exception):
    """The file does not hold the model or tokenizer that was expected."""


def convert_gguf(
    gguf: Path,
    folder: Path,
    progress: Callable[[float, str], None] | None = None,
    dtype: torch.dtype = torch.float32,
) -> None:
    """Write `gguf` into the existing empty `folder`, with the dequantised weights in `dtype`.

    float32 keeps every value: a 4-bit block is scale * integer + offset, and most of these exist
    in neither bfloat16 nor float16. The exactness tests compare against this very model.
    Raises ConversionError, and whatever transformers raises on a file that it cannot read."""
    report = progress or (lambda fraction, message: None)
    report(0.0, "Reading the tokenizer")
    check_family(gguf)
    tokenizer = load_tokenizer(gguf)
    report(0.3, "Dequantising the weights")
    model = AutoModelForCausalLM.from_pretrained(
        str(gguf.parent), gguf_file=gguf.name, dtype=dtype, trust_remote_code=False
    )
    config = model.config.to_dict()
    config.pop("quantization_config", None)
    for key in ("_name_or_path", "_model_name_or_path"):
        config.pop(key, None)
    config["architectures"] = [type(model).__name__]
    check_end_token(tokenizer, config)
    report(0.6, "Writing safetensors")
    weights = {name: tensor.contiguous() for name, tensor in model.state_dict().items()}
    if config.get("tie_word_embeddings"):
        weights.pop("lm_head.weight", None)
    save_file(weights, folder / WEIGHTS_NAME, metadata={"format": "pt"})
    write_json(folder / "config.json", config)
    special = ("bos_token_id", "eos_token_id", "pad_token_id")
    write_json(folder / "generation_config.json", {key: config.get(key) for key in special})
    tokenizer.model_max_length = config["max_position_embeddings"]
    tokenizer.save_pretrained(str(folder))
    report(0.9, "Checking the written tokenizer")
    check_round_trip(folder, tokenizer)
    report(1.0, "Converted")


def check_family(gguf: Path) -> None:
    """Raise ConversionError before the long work when the engine does not serve the family."""
    config: PretrainedConfig = AutoConfig.from_pretrained(
        str(gguf.parent), gguf_file=gguf.name, trust_remote_code=False
    )
    config.__dict__.pop("quantization_config", None)  # the file's own, which conversion undoes
    if reason := refusal(config, causal_lm(config)):
        raise ConversionError(f"{gguf.name} is a {config.model_type!r} model: {reason}")


def load_tokenizer(gguf: Path) -> PreTrainedTokenizerBase:
    """The GGUF file's tokenizer with the pre-tokenizer its metadata names.

    transformers rebuilds many byte-level tokenizers with a bare split, whatever the file says.
    Raises ConversionError for a split that is not known here: its text would be cut wrongly."""
    tokenizer = AutoTokenizer.from_pretrained(str(gguf.parent), gguf_file=gguf.name)
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None:
        raise ConversionError(f"{gguf.name}: no fast tokenizer could be built from the file")
    kind, name, end = tokenizer_facts(gguf)
    if end is not None:  # for some families transformers sets the one it knows, whatever this is
        tokenizer.eos_token = tokenizer.convert_ids_to_tokens(end)
    if kind != "gpt2" or name in BARE:
        return tokenizer
    if name in DIGITS:
        first, bytes_split = pre_tokenizers.Digits(individual_digits=True), True
    elif name in SPLITS:
        first = pre_tokenizers.Split(Regex(SPLITS[name]), behavior="isolated")
        bytes_split = False
    else:
        raise ConversionError(
            f"{gguf.name} splits text by the rules {name!r}, which are not known here; take the "
            "model's safetensors release"
        )
    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [first, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=bytes_split)]
    )
    return tokenizer


def tokenizer_facts(gguf: Path) -> tuple[str, str, int | None]:
    """The GGUF metadata fields tokenizer.ggml.model, .pre and .eos_token_id; "" and None where
    the file has none."""
    from gguf import GGUFReader

    reader = GGUFReader(str(gguf))
    names = ("model", "pre", "eos_token_id")
    fields = [reader.get_field(f"tokenizer.ggml.{name}") for name in names]
    model, pre, end = (None if field is None else field.contents() for field in fields)
    return str(model or ""), str(pre or ""), None if end is None else int(end)


def stored_dtype(gguf: Path) -> torch.dtype:
    """The dtype that a converted file is kept in: float32 where most of the file's weights are
    16 or 32-bit floats, bfloat16 where they are quantised, whose own error is far larger."""
    from gguf import GGMLQuantizationType, GGUFReader

    floats = {GGMLQuantizationType.F32, GGMLQuantizationType.F16}
    tensors = GGUFReader(str(gguf)).tensors
    exact = sum(int(tensor.n_elements) for tensor in tensors if tensor.tensor_type in floats)
    most = 2 * exact > sum(int(tensor.n_elements) for tensor in tensors)
    return torch.float32 if most else torch.bfloat16


def check_end_token(tokenizer: PreTrainedTokenizerBase, config: dict) -> None:
    """Raise ConversionError unless tokenizer and config agree on the end token."""
    if tokenizer.eos_token_id is None or tokenizer.eos_token_id != config.get("eos_token_id"):
        raise ConversionError(
            f"end token differs: the tokenizer says {tokenizer.eos_token_id}, "
            f"the model says {config.get('eos_token_id')}"
        )


def check_round_trip(folder: Path, tokenizer: PreTrainedTokenizerBase) -> None:
    """Raise ConversionError unless the folder's tokenizer encodes and decodes like the source's."""
    written = AutoTokenizer.from_pretrained(str(folder))
    ids = written.encode(CHECK_TEXT, add_special_tokens=False)
    same = ids == tokenizer.encode(CHECK_TEXT, add_special_tokens=False)
    if not same or written.decode(ids) != tokenizer.decode(ids):
        raise ConversionError("the written tokenizer does not reproduce its own text")


def write_json(path: Path, value: dict) -> None:
    path.write_text(json.dumps(value, indent=2, sort_keys=True, default=str) + "\n", "utf-8")
