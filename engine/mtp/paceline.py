"""The checkpoint of Paceline's own multi-token prediction head: config.json and model.safetensors.

With e the embedding of the row's token and t_i the residual stream of the target at tap i:
  hidden = fuse(cat(tap_norm_i(t_i)))           one tap: the tap itself
  x = project(cat(embedding_norm(e), hidden_norm(hidden)))
  x = x + o(attention(q, k, v of layer.input_norm(x)))       rope by halves at the token's position
  x = x + down(silu(gate) * up of layer.mlp_norm(x))
  output = norm(x), which is recycled as the next hidden; logits = head[draft_ids] @ output."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

import msgspec

from engine.trained import DRAFT_IDS, Positive, Size, TargetFacts

FORMAT = "paceline-mtp"


class PacelineConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """config.json. taps: target layers whose input is read, the number of layers meaning the state
    after the final norm. norms: False leaves every norm out but the last, as EAGLE does."""

    FORMAT: ClassVar[str] = FORMAT
    COMMAND: ClassVar[str] = "paceline train mtp"

    format: Literal["paceline-mtp"] = FORMAT
    version: Literal[1] = 1
    hidden_size: Size
    heads: Size
    kv_heads: Size
    head_dim: Size
    intermediate_size: Size
    rms_norm_eps: Positive = 1e-5
    rope_theta: Positive = 10000.0
    taps: Annotated[tuple[int, ...], msgspec.Meta(min_length=1, max_length=16)]
    concat: Literal["embedding_first"] = "embedding_first"
    position: Literal["token"] = "token"
    recycled: Literal["normed"] = "normed"
    norms: bool = True
    target: TargetFacts

    def __post_init__(self) -> None:
        if self.hidden_size != self.target.hidden_size:
            raise ValueError("hidden_size is not target.hidden_size")
        if self.heads % self.kv_heads:
            raise ValueError("heads is no multiple of kv_heads")
        if self.head_dim % 2:
            raise ValueError("head_dim is odd")
        if list(self.taps) != sorted({*self.taps}):
            raise ValueError("taps do not ascend")
        if self.taps[0] < 0 or self.taps[-1] > self.target.layers:
            raise ValueError(f"taps are not within 0..{self.target.layers}")

    def shapes(self, columns: int) -> dict[str, tuple[int, ...]]:
        """Name and shape of every tensor; columns: of the logits, the length of draft_ids."""
        d, f, k = self.hidden_size, self.intermediate_size, len(self.taps)
        q, kv = self.heads * self.head_dim, self.kv_heads * self.head_dim
        shapes: dict[str, tuple[int, ...]] = {
            "project.weight": (d, 2 * d),
            "layer.q_proj.weight": (q, d),
            "layer.k_proj.weight": (kv, d),
            "layer.v_proj.weight": (kv, d),
            "layer.o_proj.weight": (d, q),
            "layer.gate_proj.weight": (f, d),
            "layer.up_proj.weight": (f, d),
            "layer.down_proj.weight": (d, f),
            "norm.weight": (d,),
            DRAFT_IDS: (columns,),
        }
        norms = ["embedding_norm", "hidden_norm", "layer.input_norm", "layer.mlp_norm"]
        if k > 1:
            shapes["fuse.weight"] = (d, k * d)
            norms += [f"tap_norms.{index}" for index in range(k)]
        if self.norms:
            shapes |= {f"{name}.weight": (d,) for name in norms}
        return shapes
