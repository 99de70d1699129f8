"""llama.cpp as a rival of tests.engine.rivals; runs in its own environment with
llama-cpp-python, gguf and numpy: `python rival_llama.py MODEL_FOLDER THREADS [lookup]`.

Reads one JSON request a line, {"prompts": [[id, ..], ..], "max_tokens": n}, and answers with a line
"@@ " + {"seconds": s}. The folder's safetensors are converted once to a bfloat16 GGUF in the
temporary directory."""

# pyright: reportMissingImports=false
from __future__ import annotations

import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from llama_cpp import Llama
from llama_cpp.llama_speculative import LlamaPromptLookupDecoding

NAMES = {
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
}
"""Modules of a Llama layer -> tensors of a GGUF block."""


def convert(folder: Path, target: Path) -> None:
    """Write a Llama model's safetensors as bfloat16 GGUF, without a vocabulary."""
    config = json.loads((folder / "config.json").read_text())
    writer = gguf.GGUFWriter(str(target), "llama")
    heads, kv_heads = config["num_attention_heads"], config["num_key_value_heads"]
    rope = config.get("rope_parameters") or config
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(heads)
    writer.add_head_count_kv(kv_heads)
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_rope_freq_base(rope["rope_theta"])
    writer.add_rope_dimension_count(config["hidden_size"] // heads)
    writer.add_vocab_size(config["vocab_size"])
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_BF16)
    writer.add_tokenizer_model("none")
    for file in sorted(folder.glob("*.safetensors")):
        raw = file.read_bytes()
        size = int.from_bytes(raw[:8], "little")
        header = json.loads(raw[8 : 8 + size])
        header.pop("__metadata__", None)
        for name, entry in header.items():
            begin, end = (8 + size + offset for offset in entry["data_offsets"])
            bits = rounded(raw[begin:end], entry["dtype"]).reshape(entry["shape"])
            add(writer, name, bits, heads, kv_heads)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def rounded(raw: bytes, dtype: str) -> Any:
    """The numbers as the uint16 bits of bfloat16, rounded to the nearest."""
    if dtype == "BF16":
        return np.frombuffer(raw, np.uint16)
    if dtype != "F32":
        raise SystemExit(f"weights are {dtype}, expected BF16 or F32")
    bits = np.frombuffer(raw, np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)


def add(writer: Any, name: str, bits: Any, heads: int, kv_heads: int) -> None:
    if name == "lm_head.weight":
        name = "output.weight"
    elif name == "model.embed_tokens.weight":
        name = "token_embd.weight"
    elif name == "model.norm.weight":
        name = "output_norm.weight"
    else:
        _, _, layer, rest = name.split(".", 3)
        name = f"blk.{layer}.{NAMES[rest.removesuffix('.weight')]}.weight"
    for part, count in (("attn_q.", heads), ("attn_k.", kv_heads)):
        if part in name:  # llama.cpp rotates neighbours, transformers halves
            rows, columns = bits.shape
            bits = bits.reshape(count, 2, rows // count // 2, columns).swapaxes(1, 2)
            bits = bits.reshape(rows, columns)
    if bits.ndim == 1:
        writer.add_tensor(name, (bits.astype(np.uint32) << 16).view(np.float32))
    else:
        packed = np.ascontiguousarray(bits).view(np.uint8)
        writer.add_tensor(name, packed, raw_dtype=gguf.GGMLQuantizationType.BF16)


def main() -> None:
    folder, threads = Path(sys.argv[1]), int(sys.argv[2])
    target = Path(tempfile.gettempdir()) / f"paceline-{folder.name}.bf16.gguf"
    if not target.exists():
        convert(folder, target)
    lookup = LlamaPromptLookupDecoding(num_pred_tokens=10) if "lookup" in sys.argv[3:] else None
    model = Llama(
        str(target),
        n_ctx=4096,
        n_threads=threads,
        n_threads_batch=threads,
        draft_model=lookup,
        verbose=False,
    )
    for line in sys.stdin:
        request = json.loads(line)
        begin = time.perf_counter()
        for prompt in request["prompts"]:  # one after the other: it serves batch 1 only
            model.reset()
            tokens = model.generate(prompt, temp=0.0, top_k=1, reset=True)
            for _ in zip(range(request["max_tokens"]), tokens, strict=False):
                pass
        answer = {"seconds": time.perf_counter() - begin}
        print("@@ " + json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
