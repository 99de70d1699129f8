"""The small draft model as it is trained: a few decoder layers between the target's own ends."""

from __future__ import annotations

from collections.abc import Mapping

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from engine.training.fit_batches import Rows
from engine.training.fit_loss import Taught, soft_cross_entropy
from engine.training.fit_mtp import Sizes, turned


class DraftModel(nn.Module):
    """The target's embedding -> decoder layers -> norm -> rows of the target's head. Only the
    layers and the norm are trained."""

    def __init__(
        self,
        sizes: Sizes,
        layers: int,
        embedding: Tensor,
        head: Tensor,
        columns: Tensor,
        start: Mapping[str, Tensor],
    ) -> None:
        """embedding [V, d]; head [n, d]; columns: int64 [V], see soft_cross_entropy. start: values
        of parameters by name; the others begin at random."""
        super().__init__()
        self.sizes, self.layers = sizes, layers
        self.embedding: Tensor
        self.head: Tensor
        self.columns: Tensor
        self.register_buffer("embedding", embedding)
        self.register_buffer("head", head)
        self.register_buffer("columns", columns)
        d, wide = sizes.hidden, sizes.heads * sizes.head_dim
        narrow = sizes.kv_heads * sizes.head_dim
        shapes: dict[str, tuple[int, ...]] = {"norm": (d,)}
        for index in range(layers):
            layer = f"layers.{index}"
            shapes |= {
                f"{layer}.input_norm": (d,),
                f"{layer}.q_proj": (wide, d),
                f"{layer}.k_proj": (narrow, d),
                f"{layer}.v_proj": (narrow, d),
                f"{layer}.o_proj": (d, wide),
                f"{layer}.mlp_norm": (d,),
                f"{layer}.gate_proj": (sizes.intermediate, d),
                f"{layer}.up_proj": (sizes.intermediate, d),
                f"{layer}.down_proj": (d, sizes.intermediate),
            }
        self.weights = nn.ParameterDict()
        for name, shape in shapes.items():
            if name in start:
                value = start[name].float().clone()
            else:
                value = torch.ones(shape) if len(shape) == 1 else torch.randn(shape) * 0.02
            self.weights[name.replace(".", "/")] = nn.Parameter(value)

    def tensors(self) -> dict[str, Tensor]:
        """The parameters under their names in a checkpoint."""
        return {
            f"{name.replace('/', '.')}.weight": value.detach()
            for name, value in self.weights.items()
        }

    def forward(self, rows: Rows, depth: int) -> list[tuple[Taught, Tensor, Tensor]]:
        """As MtpHead.forward, for one position: it is fed its own tokens beyond that one."""
        sizes, context = self.sizes, rows.context
        width = rows.known.shape[1] - context
        total = context + width
        ahead = torch.ones(total, total, dtype=torch.bool, device=rows.tokens.device).tril_()
        itself = torch.eye(total, dtype=torch.bool, device=rows.tokens.device)
        visible = ((ahead & rows.known.unsqueeze(1)) | itself).unsqueeze(1)
        x = F.embedding(rows.tokens[:, :total], self.embedding).float()
        group = sizes.heads // sizes.kv_heads
        for index in range(self.layers):
            layer = f"layers.{index}"
            normed = self._norm(f"{layer}.input_norm", x)
            q = turned(self._heads(f"{layer}.q_proj", normed, sizes.heads), 0, sizes.theta)
            k = turned(self._heads(f"{layer}.k_proj", normed, sizes.kv_heads), 0, sizes.theta)
            v = self._heads(f"{layer}.v_proj", normed, sizes.kv_heads)
            out = F.scaled_dot_product_attention(
                q,
                k.repeat_interleave(group, 1),
                v.repeat_interleave(group, 1),
                attn_mask=visible,
            )
            x = x + self._linear(f"{layer}.o_proj", out.transpose(1, 2).flatten(2))
            normed = self._norm(f"{layer}.mlp_norm", x)
            gated = F.silu(self._linear(f"{layer}.gate_proj", normed))
            gated = gated * self._linear(f"{layer}.up_proj", normed)
            x = x + self._linear(f"{layer}.down_proj", gated)
        out = self._norm("norm", x)[:, context:]
        places = rows.teacher[:, :width].reshape(-1)
        kept = (places >= 0).nonzero().squeeze(1)
        told = places.index_select(0, kept)
        outputs = out.reshape(-1, sizes.hidden).index_select(0, kept)
        taught = soft_cross_entropy(
            F.linear(outputs, self.head),
            rows.top_ids.index_select(0, told),
            rows.top_logprobs.index_select(0, told),
            self.columns,
        )
        text, place = kept // width, kept % width
        return [(taught, outputs, text * rows.features.shape[1] + context + place + 1)]

    def _linear(self, name: str, x: Tensor) -> Tensor:
        return F.linear(x, self.weights[name.replace(".", "/")])

    def _norm(self, name: str, x: Tensor) -> Tensor:
        weight = self.weights[name.replace(".", "/")]
        return F.rms_norm(x.float(), (x.shape[-1],), weight, self.sizes.epsilon)

    def _heads(self, name: str, x: Tensor, heads: int) -> Tensor:
        out = self._linear(name, x)
        return out.unflatten(-1, (heads, self.sizes.head_dim)).transpose(1, 2)
