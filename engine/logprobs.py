"""Log probabilities of tokens in the target's raw distribution, computed on the device.

Raw: the log-softmax of the model's own logits, before temperature, penalties and masks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from engine.batch import Batch, Chunk
from engine.device import Device
from engine.wire import Alternative, Logprob

MAX_LOGPROBS = 20
"""Most alternatives a request may ask for."""

_PIECE_ELEMENTS = 1 << 23
"""Most logits of prompt rows alive at once."""

Spell = Callable[[int], tuple[str, bytes]]
"""Token id -> its text and bytes."""


@dataclass(frozen=True, slots=True)
class TokenScore:
    """A token's log probability and rank (1: the most likely), and the most likely tokens with
    theirs, best first."""

    token: int
    logprob: float
    rank: int
    top: tuple[tuple[int, float], ...]

    def spelled(self, spell: Spell) -> Logprob:
        """As it is sent."""
        chosen = Alternative(self.token, *spell(self.token), self.logprob)
        top = tuple(Alternative(token, *spell(token), value) for token, value in self.top)
        return Logprob(chosen, self.rank, top)


@dataclass(frozen=True, slots=True)
class Scores:
    """Scores of N tokens. tokens, ranks int64 [N]; logprobs float32 [N]; top_tokens int64 [N, K];
    top_logprobs float32 [N, K]."""

    tokens: Tensor
    logprobs: Tensor
    ranks: Tensor
    top_tokens: Tensor
    top_logprobs: Tensor

    def to_host(self, device: Device) -> Scores:
        """Start copying to the host."""
        return Scores(
            device.to_host(self.tokens),
            device.to_host(self.logprobs),
            device.to_host(self.ranks),
            device.to_host(self.top_tokens),
            device.to_host(self.top_logprobs),
        )

    def rows(self, limits: Sequence[int]) -> list[TokenScore]:
        """The scores as plain values, of each as many alternatives as its limit. Waits."""
        columns = zip(
            self.tokens.tolist(),
            self.logprobs.tolist(),
            self.ranks.tolist(),
            self.top_tokens.tolist(),
            self.top_logprobs.tolist(),
            limits,
            strict=True,
        )
        return [
            TokenScore(token, value, rank, tuple(zip(ids[:limit], values[:limit], strict=True)))
            for token, value, rank, ids, values, limit in columns
        ]


def score(logits: Tensor, tokens: Tensor, most: int) -> Scores:
    """Score tokens int64 [N] by raw logits float32 [N, V], with the `most` likely of each row."""
    total = logits.logsumexp(dim=-1)
    chosen = logits.gather(1, tokens.unsqueeze(1))
    ranks = (logits > chosen).sum(dim=-1) + 1
    best, ids = logits.topk(min(most, logits.shape[-1]), dim=-1)
    return Scores(tokens, chosen.squeeze(1) - total, ranks, ids, best - total.unsqueeze(1))


@dataclass(frozen=True, slots=True)
class Span:
    """The rows of one chunk that predict prompt tokens. place: of the chunk in the batch. first:
    its first row. tokens: what its rows predict, the one after the chunk included."""

    place: int
    chunk: Chunk
    first: int
    tokens: Sequence[int]


def prompt_spans(batch: Batch) -> list[Span]:
    """A span for each chunk that wants prompt scores."""
    spans: list[Span] = []
    for place, (chunk, first) in enumerate(zip(batch.chunks, batch.offsets, strict=True)):
        if chunk.prompt_logprobs is not None:
            end = min(chunk.kv_length + 1, chunk.prompt_length)
            spans.append(Span(place, chunk, first, chunk.history[chunk.start + 1 : end]))
    return spans


def score_prompts(
    spans: Sequence[Span],
    hidden: Tensor,
    project: Callable[[Tensor], Tensor],
    vocabulary: int,
    device: Device,
) -> Scores | None:
    """Score the tokens of all spans, in order, from the hidden states [T, d]; None when there are
    none. Logits exist for a bounded piece of the rows at a time."""
    rows = [row for span in spans for row in range(span.first, span.first + len(span.tokens))]
    if not rows:
        return None
    targets = device.tensor([token for span in spans for token in span.tokens], torch.int64)
    places = device.tensor(rows, torch.int64)
    most = max(span.chunk.prompt_logprobs or 0 for span in spans)
    size = max(1, _PIECE_ELEMENTS // vocabulary)
    parts = [
        score(project(hidden.index_select(0, where)), tokens, most)
        for where, tokens in zip(places.split(size), targets.split(size), strict=True)
    ]
    if len(parts) == 1:
        return parts[0]
    return Scores(
        torch.cat([part.tokens for part in parts]),
        torch.cat([part.logprobs for part in parts]),
        torch.cat([part.ranks for part in parts]),
        torch.cat([part.top_tokens for part in parts]),
        torch.cat([part.top_logprobs for part in parts]),
    )
