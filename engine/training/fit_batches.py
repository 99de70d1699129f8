"""Batches of training rows: texts of similar length from a window of shards, in a seeded order."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from engine.training.shards import Shard, read, texts

WINDOW = 4
"""Shards in memory at once: texts are mixed among them."""


@dataclass(frozen=True)
class Rows:
    """B texts, each as P context rows, padded on the left, and Q query rows, padded on the right.

    Row of slot j has token t_j, the target's features of slot j - 1, and predicts t_{j + 1}.
    tokens: int64 [B, P + Q + depth - 1], the rows' tokens and those that follow the last of them.
    features: bfloat16 [B, P + Q + 1, k * d]: one row more than tokens have, for what the target saw
    at the last row's own slot. known: bool [B, P + Q], False for padding. teacher: int64
    [B, Q + depth - 1], which row of the top arrays tells what follows query row i, -1 where the
    text is over. top_ids int64 [A, K] and top_logprobs float32 [A, K]."""

    context: int
    tokens: Tensor
    features: Tensor
    known: Tensor
    teacher: Tensor
    top_ids: Tensor
    top_logprobs: Tensor

    @property
    def taught(self) -> int:
        """Answer tokens that are predicted from target features."""
        width = self.known.shape[1] - self.context
        return int((self.teacher[:, :width] >= 0).sum())

    def to(self, device: torch.device) -> Rows:
        moved = [getattr(self, name).to(device) for name in list(Rows.__dataclass_fields__)[1:]]
        return Rows(self.context, *moved)


@dataclass(frozen=True)
class _Text:
    shard: Shard
    place: slice
    top: slice
    answer: int

    @property
    def rows(self) -> int:
        """Query rows: from the answer's first token to the last but one."""
        return self.place.stop - self.place.start - 1 - self.answer


def batches(
    paths: Sequence[Path], rows: int, context: int, depth: int, seed: int, epoch: int
) -> Iterator[Rows]:
    """The batches of one epoch, of about `rows` query rows. context: most prompt rows of a text.
    depth: how many tokens are drafted in a row."""
    order = random.Random(f"{seed}/{epoch}")
    shuffled = list(paths)
    order.shuffle(shuffled)
    for first in range(0, len(shuffled), WINDOW):
        # The shards of a window are freed with its generator, before the next are read.
        yield from _window(shuffled[first : first + WINDOW], rows, context, depth, order)


def _window(
    paths: Sequence[Path], rows: int, context: int, depth: int, order: random.Random
) -> Iterator[Rows]:
    shards = [read(path)[0] for path in paths]
    found = [
        text for shard in shards for place in texts(shard) if (text := _Text(shard, *place)).rows
    ]
    if not found:
        return
    order.shuffle(found)
    groups: list[list[_Text]] = []
    # Similar lengths are batched together inside stretches of the shuffled order.
    stretch = max(1, 16 * rows // (1 + sum(one.rows for one in found) // len(found)))
    for begin in range(0, len(found), stretch):
        group: list[_Text] = []
        for one in sorted(found[begin : begin + stretch], key=lambda text: text.rows):
            if group and one.rows * (len(group) + 1) > rows:
                groups.append(group)
                group = []
            group.append(one)
        groups.append(group)
    order.shuffle(groups)
    for group in groups:
        yield _pack(group, context, depth)


def _pack(group: list[_Text], context: int, depth: int) -> Rows:
    before = max(min(one.answer - 1, context) for one in group)
    width = max(one.rows for one in group)
    count, size = len(group), group[0].shard.features.shape[1]
    tokens = torch.zeros(count, before + width + depth - 1, dtype=torch.int64)
    features = torch.zeros(count, before + width + 1, size, dtype=torch.bfloat16)
    known = torch.zeros(count, before + width, dtype=torch.bool)
    teacher = torch.full((count, width + depth - 1), -1)
    ids: list[Tensor] = []
    logprobs: list[Tensor] = []
    used = 0
    for index, one in enumerate(group):
        shard, start = one.shard, one.place.start
        seen = min(one.answer - 1, before)
        begin, first = before - seen, start + one.answer - seen
        own = seen + one.rows
        following = min(own + depth - 1, one.place.stop - first)
        tokens[index, begin : begin + following] = shard.tokens[first : first + following]
        features[index, begin : begin + own + 1] = shard.features[first - 1 : first + own]
        known[index, begin : begin + own] = True
        # Answer token i is told by row i of the answer's top arrays; row 0 tells the first.
        teacher[index, : one.rows] = torch.arange(used, used + one.rows)
        ids.append(shard.top_ids[one.top][1:])
        logprobs.append(shard.top_logprobs[one.top][1:])
        used += one.rows
    return Rows(
        before,
        tokens,
        features,
        known,
        teacher,
        torch.cat(ids).long(),
        torch.cat(logprobs).float(),
    )
