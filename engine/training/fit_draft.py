"""The small draft model as it is trained: a few decoder layers between the target's own ends."""

from __future__ import annotations

from collections.abc import Mapping

import torch
import torch.nn.functional as F
from torch import Tensor

from engine.training.fit_batches import Rows
from engine.training.fit_loss import Taught
from engine.training.fit_module import Sizes, Trained, turned


class DraftModel(Trained):
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
        """As Trained, whose parameters are named as in a checkpoint of the model."""
        d = sizes.hidden
        shapes: dict[str, tuple[int, ...]] = {"norm": (d,)}
        for index in range(layers):
            layer = f"layers.{index}"
            shapes |= {f"{layer}.input_norm": (d,), f"{layer}.mlp_norm": (d,), **sizes.layer(layer)}
        super().__init__(sizes, shapes, embedding, head, columns, start)
        self.layers = layers

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
            normed = self.norm(f"{layer}.input_norm", x)
            q = turned(self.split(f"{layer}.q_proj", normed, sizes.heads), 0, sizes.theta)
            k = turned(self.split(f"{layer}.k_proj", normed, sizes.kv_heads), 0, sizes.theta)
            v = self.split(f"{layer}.v_proj", normed, sizes.kv_heads)
            out = F.scaled_dot_product_attention(
                q,
                k.repeat_interleave(group, 1),
                v.repeat_interleave(group, 1),
                attn_mask=visible,
            )
            x = x + self.linear(f"{layer}.o_proj", out.transpose(1, 2).flatten(2))
            x = x + self.gated(layer, self.norm(f"{layer}.mlp_norm", x))
        return [self.taught(self.norm("norm", x)[:, context:], rows, 0)]
