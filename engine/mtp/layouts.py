"""Where the checkpoints of other models' heads keep their tensors, and what they mean."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Layout:
    """Names of a head's tensors. `{layers}` stands for the target's number of layers, `{last}`
    for the head's last block.

    blocks: prefix of each decoder block, `{block}` its number. embedding and head: the head's own,
    used where the checkpoint has them. hidden_first: the order in which the projection takes its
    two inputs."""

    embedding_norm: str
    hidden_norm: str
    project: str
    norm: str
    blocks: str
    embedding: str | None = None
    head: str | None = None
    hidden_first: bool = False


_BEHIND = "model.layers.{layers}."
BEHIND = Layout(
    embedding_norm=_BEHIND + "enorm.weight",
    hidden_norm=_BEHIND + "hnorm.weight",
    project=_BEHIND + "eh_proj.weight",
    norm=_BEHIND + "shared_head.norm.weight",
    blocks=_BEHIND,
    embedding=_BEHIND + "embed_tokens.weight",
    head=_BEHIND + "shared_head.head.weight",
)
"""DeepSeek-V3, GLM-4.5: one more layer behind the last. Of several modules the first is used."""

_MIMO = "model.mtp_layers.0."
MIMO = Layout(
    embedding_norm=_MIMO + "token_layernorm.weight",
    hidden_norm=_MIMO + "hidden_layernorm.weight",
    project=_MIMO + "input_proj.weight",
    norm=_MIMO + "final_layernorm.weight",
    blocks=_MIMO,
    hidden_first=True,
)

QWEN = Layout(
    embedding_norm="mtp.pre_fc_norm_embedding.weight",
    hidden_norm="mtp.pre_fc_norm_hidden.weight",
    project="mtp.fc.weight",
    norm="mtp.norm.weight",
    blocks="mtp.layers.{block}.",
)

NEMOTRON = Layout(
    embedding_norm="mtp.layers.0.enorm.weight",
    hidden_norm="mtp.layers.0.hnorm.weight",
    project="mtp.layers.0.eh_proj.weight",
    norm="mtp.layers.{last}.final_layernorm.weight",
    blocks="mtp.layers.{block}.",
)

LAYOUTS = {
    "deepseek_v3": BEHIND,
    "glm4_moe": BEHIND,
    "mimo": MIMO,
    "qwen2": MIMO,  # MiMo under the model_type that it is served as
    "qwen3_next": QWEN,
    "qwen3_5": QWEN,
    "qwen3_5_text": QWEN,
    "qwen3_5_moe": QWEN,
    "qwen3_5_moe_text": QWEN,
    "nemotron_h": NEMOTRON,
}
"""By the model_type of config.json."""
