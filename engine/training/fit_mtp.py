"""The multi-token prediction head as it is trained: whole texts at once, several tokens deep."""

from __future__ import annotations

from collections.abc import Mapping

import torch
import torch.nn.functional as F
from torch import Tensor

from engine.training.fit_batches import Rows
from engine.training.fit_loss import Taught
from engine.training.fit_module import Sizes, Trained, turned


class MtpHead(Trained):
    """concat(norm(embedding), norm(hidden)) -> linear -> decoder block -> norm -> tied head.

    The embedding and the head's rows are the target's and stay as they are. norms False leaves
    out all norms but the last (the ablation of "Accelerating Sonar Through Speculation", Perplexity
    2025). Positions beyond the first are trained on the head's own output, as they are drafted
    ("training-time test", Li et al., EAGLE-3, 2025)."""

    def __init__(
        self,
        sizes: Sizes,
        embedding: Tensor,
        head: Tensor,
        columns: Tensor,
        start: Mapping[str, Tensor],
        norms: bool,
    ) -> None:
        """As Trained, whose parameters are named as in a checkpoint of the head."""
        d = sizes.hidden
        shapes: dict[str, tuple[int, ...]] = {"project": (d, 2 * d), "norm": (d,)}
        shapes |= sizes.layer("layer")
        if sizes.taps > 1:
            shapes["fuse"] = (d, sizes.taps * d)
        if norms:
            names = ["embedding_norm", "hidden_norm", "layer.input_norm", "layer.mlp_norm"]
            if sizes.taps > 1:
                names += [f"tap_norms.{index}" for index in range(sizes.taps)]
            shapes.update({name: (d,) for name in names})
        super().__init__(sizes, shapes, embedding, head, columns, start)
        self.norms = norms

    def forward(self, rows: Rows, depth: int) -> list[tuple[Taught, Tensor, Tensor]]:
        """For each drafted position: the loss of its rows, the head's outputs [N, d] there, and the
        rows of rows.features flattened that hold what the target saw at the predicted token - 1."""
        sizes, context = self.sizes, rows.context
        width = rows.known.shape[1] - context
        x = self.block_input(rows)
        normed = self.norm("layer.input_norm", x)
        key = turned(self.split("layer.k_proj", normed, sizes.kv_heads), 0, sizes.theta)
        value = self.split("layer.v_proj", normed, sizes.kv_heads)
        x, normed = x[:, context:], normed[:, context:]
        ahead = torch.ones(width, context + width, dtype=torch.bool, device=x.device).tril_(context)
        visible = (ahead & rows.known.unsqueeze(1)) | _diagonal(width, context, x.device)
        found: list[tuple[Taught, Tensor, Tensor]] = []
        extra: list[tuple[Tensor, Tensor]] = []
        out = x
        for step in range(depth):
            if step:
                x = self._input(rows.tokens[:, context + step : context + step + width], out)
                normed = self.norm("layer.input_norm", x)
                own = self.split("layer.k_proj", normed, sizes.kv_heads)
                own = turned(own, context + step, sizes.theta)
                extra.append((own, self.split("layer.v_proj", normed, sizes.kv_heads)))
            query = self.split("layer.q_proj", normed, sizes.heads)
            query = turned(query, context + step, sizes.theta)
            attended = self._attend(query, key, value, visible, extra)
            x = x + self.linear("layer.o_proj", attended)
            out = self.norm("norm", x + self.gated("layer", self.norm("layer.mlp_norm", x)))
            found.append(self.taught(out, rows, step))
        return found

    def block_input(self, rows: Rows) -> Tensor:
        """What the decoder block gets in each row before anything is drafted: [B, P + Q, d]."""
        fed = self._fuse(rows.features[:, :-1])
        return self._input(rows.tokens[:, : rows.known.shape[1]], fed)

    def _fuse(self, features: Tensor) -> Tensor:
        if self.sizes.taps == 1:
            return features.to(self.embedding.dtype)
        parts = [
            self.norm(f"tap_norms.{index}", part.to(self.embedding.dtype))
            for index, part in enumerate(features.split(self.sizes.hidden, -1))
        ]
        return self.linear("fuse", torch.cat(parts, -1))

    def _input(self, tokens: Tensor, hidden: Tensor) -> Tensor:
        embedded = self.norm("embedding_norm", F.embedding(tokens, self.embedding))
        pair = torch.cat((embedded, self.norm("hidden_norm", hidden).to(embedded.dtype)), -1)
        return self.linear("project", pair).float()

    def _attend(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        visible: Tensor,
        extra: list[tuple[Tensor, Tensor]],
    ) -> Tensor:
        """Query rows over the keys of target features, and each over the keys that its own text has
        drafted since: one for each earlier step. -> [B, Q, Hq * D]."""
        sizes = self.sizes
        group = sizes.heads // sizes.kv_heads
        scale = sizes.head_dim**-0.5
        query = query.unflatten(1, (sizes.kv_heads, group))
        scores = (query @ key.unsqueeze(2).transpose(-1, -2)).float() * scale
        scores = scores.masked_fill(~visible[:, None, None], float("-inf"))
        if extra:
            own = [(query * k.unsqueeze(2)).sum(-1, keepdim=True).float() * scale for k, _ in extra]
            scores = torch.cat((scores, *own), -1)
        shares = scores.softmax(-1).to(value.dtype)
        keys = key.shape[2]
        out = shares[..., :keys] @ value.unsqueeze(2)
        for index, (_, v) in enumerate(extra):
            out = out + shares[..., keys + index : keys + index + 1] * v.unsqueeze(2)
        return out.flatten(1, 2).transpose(1, 2).flatten(2)


def _diagonal(width: int, context: int, device: torch.device) -> Tensor:
    """Every row sees itself, padding too: a softmax over nothing has no value."""
    return torch.eye(width, context + width, dtype=torch.bool, device=device).roll(context, 1)
