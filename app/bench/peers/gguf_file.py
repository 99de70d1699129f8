"""Writes a Llama-like model as a bfloat16 GGUF file, for llama.cpp as a peer.

`python -m app.bench.peers.gguf_file FOLDER OUT`. Without a vocabulary: benchmarks send token ids.
Runs in our environment, which has gguf."""

from __future__ import annotations

import json
import re
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

FAMILY = "LlamaForCausalLM"
LAYER = re.compile(r"model\.layers\.(\d+)\.(.+)\.weight")
MODULES = {
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
TOP = {
    "model.embed_tokens.weight": "token_embd.weight",
    "model.norm.weight": "output_norm.weight",
    "lm_head.weight": "output.weight",
}


def main() -> int:
    folder, out = Path(sys.argv[1]), Path(sys.argv[2])
    config = json.loads((folder / "config.json").read_text("utf-8"))
    if FAMILY not in config.get("architectures", ()):
        print(f"{folder} is no {FAMILY}: give llama.cpp a file with --gguf.", file=sys.stderr)
        return 2
    write(folder, config, out)
    return 0


def write(folder: Path, config: dict[str, Any], out: Path) -> None:
    gguf: Any = import_module("gguf")
    writer = gguf.GGUFWriter(str(out), "llama")
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
    writer.add_rope_dimension_count(config.get("head_dim") or config["hidden_size"] // heads)
    writer.add_vocab_size(config["vocab_size"])
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_BF16)
    writer.add_tokenizer_model("none")
    kinds = gguf.GGMLQuantizationType
    for name, tensor in tensors(folder):
        if name.endswith(("q_proj.weight", "k_proj.weight")):
            tensor = interleaved(tensor, heads if "q_proj" in name else kv_heads)
        target = gguf_name(name)
        if tensor.ndim == 1:  # norms stay in float32
            writer.add_tensor(target, tensor.float().numpy())
        else:
            values = gguf.quants.quantize(tensor.float().numpy(), kinds.BF16)
            writer.add_tensor(target, values, raw_dtype=kinds.BF16)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def tensors(folder: Path) -> Any:
    """(name, tensor) of all safetensors files; tied output weights are not there."""
    safetensors: Any = import_module("safetensors")
    for path in sorted(folder.glob("*.safetensors")):
        with safetensors.safe_open(path, framework="pt") as file:
            for name in file.keys():  # noqa: SIM118 (not a dict)
                yield name, file.get_tensor(name)


def interleaved(tensor: Any, heads: int) -> Any:
    """Rows of a rotary projection in llama.cpp's order: pairs side by side instead of by halves."""
    rows, columns = tensor.shape
    return tensor.reshape(heads, 2, rows // heads // 2, columns).swapaxes(1, 2).reshape(rows, -1)


def gguf_name(name: str) -> str:
    if found := LAYER.fullmatch(name):
        return f"blk.{found[1]}.{MODULES[found[2]]}.weight"
    return TOP[name]


if __name__ == "__main__":
    sys.exit(main())
