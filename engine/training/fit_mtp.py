"""The multi-token prediction head as it is trained: whole texts at once, several tokens deep."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from engine.training.fit_batches import Rows
from engine.training.fit_loss import Taught, soft_cross_entropy


@dataclass(frozen=True)
class Sizes:
    """Of the head: one block of the target's own sizes. taps: how many hidden states it reads."""

    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate: int
    epsilon: float
    theta: float
    taps: int


class MtpHead(nn.Module):
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
        """embedding [V, d]; head [n, d]; columns: int64 [V], see soft_cross_entropy. start: values
        of parameters by name; the others begin at random."""
        super().__init__()
        self.sizes, self.norms = sizes, norms
        self.embedding: Tensor
        self.head: Tensor
        self.columns: Tensor
        self.register_buffer("embedding", embedding)
        self.register_buffer("head", head)
        self.register_buffer("columns", columns)
        d = sizes.hidden
        wide = sizes.heads * sizes.head_dim
        narrow = sizes.kv_heads * sizes.head_dim
        shapes: dict[str, tuple[int, ...]] = {
            "project": (d, 2 * d),
            "layer.q_proj": (wide, d),
            "layer.k_proj": (narrow, d),
            "layer.v_proj": (narrow, d),
            "layer.o_proj": (d, wide),
            "layer.gate_proj": (sizes.intermediate, d),
            "layer.up_proj": (sizes.intermediate, d),
            "layer.down_proj": (d, sizes.intermediate),
            "norm": (d,),
        }
        if sizes.taps > 1:
            shapes["fuse"] = (d, sizes.taps * d)
        if norms:
            names = ["embedding_norm", "hidden_norm", "layer.input_norm", "layer.mlp_norm"]
            if sizes.taps > 1:
                names += [f"tap_norms.{index}" for index in range(sizes.taps)]
            shapes.update({name: (d,) for name in names})
        self.weights = nn.ParameterDict()
        for name, shape in shapes.items():
            if name in start:
                value = start[name].float().clone()
            elif len(shape) == 1:
                value = torch.ones(shape)
            else:
                value = torch.randn(shape) * 0.02
            self.weights[name.replace(".", "/")] = nn.Parameter(value)

    def tensors(self) -> dict[str, Tensor]:
        """The parameters under their names in a checkpoint."""
        return {
            f"{name.replace('/', '.')}.weight": value.detach()
            for name, value in self.weights.items()
        }

    def forward(self, rows: Rows, depth: int) -> list[tuple[Taught, Tensor, Tensor]]:
        """For each drafted position: the loss of its rows, the head's outputs [N, d] there, and the
        rows of rows.features flattened that hold what the target saw at the predicted token - 1."""
        sizes, context = self.sizes, rows.context
        width = rows.known.shape[1] - context
        fed = self._fuse(rows.features[:, :-1])
        x = self._input(rows.tokens[:, : context + width], fed)
        normed = self._norm("layer.input_norm", x)
        key = turned(self._heads("layer.k_proj", normed, sizes.kv_heads), 0, sizes.theta)
        value = self._heads("layer.v_proj", normed, sizes.kv_heads)
        x, normed = x[:, context:], normed[:, context:]
        ahead = torch.ones(width, context + width, dtype=torch.bool, device=x.device).tril_(context)
        visible = (ahead & rows.known.unsqueeze(1)) | _diagonal(width, context, x.device)
        found: list[tuple[Taught, Tensor, Tensor]] = []
        extra: list[tuple[Tensor, Tensor]] = []
        out = x
        for step in range(depth):
            if step:
                x = self._input(rows.tokens[:, context + step : context + step + width], out)
                normed = self._norm("layer.input_norm", x)
                own = self._heads("layer.k_proj", normed, sizes.kv_heads)
                own = turned(own, context + step, sizes.theta)
                extra.append((own, self._heads("layer.v_proj", normed, sizes.kv_heads)))
            query = self._heads("layer.q_proj", normed, sizes.heads)
            query = turned(query, context + step, sizes.theta)
            attended = self._attend(query, key, value, visible, extra)
            x = x + F.linear(attended, self.weights["layer/o_proj"])
            normed = self._norm("layer.mlp_norm", x)
            gated = F.silu(F.linear(normed, self.weights["layer/gate_proj"])) * F.linear(
                normed, self.weights["layer/up_proj"]
            )
            out = self._norm("norm", x + F.linear(gated, self.weights["layer/down_proj"]))
            places = rows.teacher[:, step : step + width].reshape(-1)
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
            stride = rows.features.shape[1]
            found.append((taught, outputs, text * stride + context + place + step + 1))
        return found

    def _fuse(self, features: Tensor) -> Tensor:
        if self.sizes.taps == 1:
            return features.to(self.embedding.dtype)
        parts = [
            self._norm(f"tap_norms.{index}", part.to(self.embedding.dtype))
            for index, part in enumerate(features.split(self.sizes.hidden, -1))
        ]
        return F.linear(torch.cat(parts, -1), self.weights["fuse"])

    def _input(self, tokens: Tensor, hidden: Tensor) -> Tensor:
        embedded = self._norm("embedding_norm", F.embedding(tokens, self.embedding))
        pair = torch.cat((embedded, self._norm("hidden_norm", hidden).to(embedded.dtype)), -1)
        return F.linear(pair, self.weights["project"]).float()

    def _norm(self, name: str, x: Tensor) -> Tensor:
        key = name.replace(".", "/")
        if key not in self.weights:
            return x
        return F.rms_norm(x.float(), (x.shape[-1],), self.weights[key], self.sizes.epsilon)

    def _heads(self, name: str, x: Tensor, heads: int) -> Tensor:
        """[B, T, d] -> [B, heads, T, D]."""
        out = F.linear(x, self.weights[name.replace(".", "/")])
        return out.unflatten(-1, (heads, self.sizes.head_dim)).transpose(1, 2)

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


def turned(x: Tensor, first: int, theta: float) -> Tensor:
    """Rotary embedding (by halves, as Llama) of x [B, H, T, D], rows first, first + 1, .."""
    half = x.shape[-1] // 2
    powers = torch.arange(half, device=x.device) / half
    angles = torch.arange(first, first + x.shape[2], device=x.device)[:, None] * theta**-powers
    cos, sin = angles.cos(), angles.sin()
    left, right = x[..., :half], x[..., half:]
    return torch.cat((left * cos - right * sin, right * cos + left * sin), -1).to(x.dtype)
