"""One ragged batch: decode is a chunk of one row, verify of 1 + D, prefill of n."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from engine.device import Device
from engine.draw import Draw
from engine.unseen import Unseen


@dataclass(frozen=True, slots=True)
class Chunk:
    """Rows of one request in a step.

    ids: token ids of the rows; the last `drafted` of them are drafts. unseen: these, where only the
    device has them; `ids` then says nothing of them but how many there are. start: position of the
    first row. wanted: draw target tokens at the last 1 + drafted rows (False while a prefill has
    more chunks to come). pages cover start + len(ids) tokens at least. first: keys before this
    position, which is at most start, are not seen.

    q: float32 [n <= drafted, V], the law that the first n drafts were drawn from; the others, and
    all without it, are one-hot.
    history: the request's committed tokens, the first prompt_length of them its prompt. mask:
    int32 [1 + drafted, ceil(V / 32)], bit t of a wanted row set (lowest first) when its grammar
    allows token t. logprobs and prompt_logprobs: score the wanted rows, or every row whose next
    token is in the prompt, with so many alternatives."""

    request: int
    ids: Sequence[int]
    start: int
    pages: Sequence[int]
    draw: Draw
    drafted: int = 0
    wanted: bool = True
    q: Tensor | None = None
    history: Sequence[int] = ()
    prompt_length: int = 0
    mask: Tensor | None = None
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    first: int = 0
    unseen: Unseen | None = None

    @property
    def kv_length(self) -> int:
        """Keys the last row sees, the rows being written included."""
        return self.start + len(self.ids)

    @property
    def drafts(self) -> Sequence[int]:
        """Its drafted tokens. Unseen ones let whoever looks at them wait for the device."""
        if self.unseen is not None:
            return self.unseen
        return self.ids[len(self.ids) - self.drafted :] if self.drafted else ()


@dataclass(frozen=True, slots=True)
class Batch:
    """chunks packed flat. T rows in all, R of them wanted, C wanted chunks.

    ids, positions, slots: int64 [T]. wanted_rows: int64 [R] rows that need logits.
    next_drafts: int64 [R], the draft each wanted row must reproduce, -1 where there is none.
    groups: the rows in [R] of each wanted chunk.
    leading: int64 [C, 1 + max D] indexes into [R], padded with R (see verify.accept).
    offsets: first row of each chunk."""

    chunks: tuple[Chunk, ...]
    ids: Tensor
    positions: Tensor
    slots: Tensor
    wanted_rows: Tensor
    next_drafts: Tensor
    leading: Tensor
    offsets: tuple[int, ...]
    groups: tuple[range, ...]
    row_draws: tuple[Draw, ...]
    row_positions: tuple[int, ...]

    @property
    def wanted_chunks(self) -> list[Chunk]:
        return [chunk for chunk in self.chunks if chunk.wanted]


def pack(chunks: Sequence[Chunk], device: Device, page_size: int) -> Batch:
    """Build the batch of one step from its chunks, in order."""
    ids: list[int] = []
    positions: list[int] = []
    slots: list[int] = []
    offsets: list[int] = []
    wanted: list[int] = []
    next_drafts: list[int] = []
    groups: list[range] = []
    draws: list[Draw] = []
    places: list[int] = []
    unseen: list[tuple[int, int, Unseen]] = []
    for chunk in chunks:
        first, count = len(ids), len(chunk.ids)
        offsets.append(first)
        ids.extend(chunk.ids)
        span = range(chunk.start, chunk.start + count)
        positions.extend(span)
        slots.extend(chunk.pages[p // page_size] * page_size + p % page_size for p in span)
        if chunk.wanted:
            drafted = chunk.drafted
            if chunk.unseen is not None:
                unseen.append((first + count - drafted, len(wanted), chunk.unseen))
            groups.append(range(len(wanted), len(wanted) + drafted + 1))
            wanted.extend(range(first + count - drafted - 1, first + count))
            next_drafts.extend(chunk.ids[count - drafted :])
            next_drafts.append(-1)
            draws.extend([chunk.draw] * (drafted + 1))
            places.extend(range(chunk.kv_length - drafted, chunk.kv_length + 1))
    width = max((len(group) for group in groups), default=1)
    leading = [
        index for group in groups for index in [*group, *[len(wanted)] * (width - len(group))]
    ]
    rows, following = device.tensor(ids, torch.int64), device.tensor(next_drafts, torch.int64)
    if unseen:
        _fill(rows, following, unseen, device)
    return Batch(
        chunks=tuple(chunks),
        ids=rows,
        positions=device.tensor(positions, torch.int64),
        slots=device.tensor(slots, torch.int64),
        wanted_rows=device.tensor(wanted, torch.int64),
        next_drafts=following,
        leading=device.tensor(leading, torch.int64).view(len(groups), width),
        offsets=tuple(offsets),
        groups=tuple(groups),
        row_draws=tuple(draws),
        row_positions=tuple(places),
    )


def _fill(
    ids: Tensor, next_drafts: Tensor, unseen: Sequence[tuple[int, int, Unseen]], device: Device
) -> None:
    """Put the drafts that only the device has where they are fed and where they are compared, both
    in place. unseen: (first row in ids, first in next_drafts, the drafts)."""
    sources = {id(drafts.ids): drafts.ids for _, _, drafts in unseen}  # one per drafter's call
    for name, source in sources.items():
        theirs = [one for one in unseen if id(one[2].ids) == name]
        rows = [row + ahead for row, _, drafts in theirs for ahead in range(len(drafts))]
        wanted = [row + ahead for _, row, drafts in theirs for ahead in range(len(drafts))]
        places = [place for _, _, drafts in theirs for place in drafts.places]
        where = device.tensor([*rows, *wanted, *places], torch.int64).view(3, -1)
        drawn = source.index_select(0, where[2])
        ids.index_copy_(0, where[0], drawn)
        next_drafts.index_copy_(0, where[1], drawn)
