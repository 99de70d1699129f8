"""The passes of a model drafter: one over all pending rows, then one row a request at a time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from engine.attention import Attention
from engine.batch import Batch, Chunk
from engine.device import Device, Event
from engine.draft_models.law import Drawing, carries
from engine.drafts import Draft
from engine.draw import Draw
from engine.request import Request
from engine.shape import Attend
from engine.vocabulary import VocabularyMap

Forward = Callable[[Tensor, Tensor, Tensor, Attend], Tensor]
"""(target ids int64 [T], hidden [T, d], positions int64 [T], attend) -> output [T, d]. hidden is
the output of the pass before; in the first pass what `Passes.draft` is given."""

Logits = Callable[[Tensor], Tensor]
"""Output rows [R, d] -> float32 logits [R, W] of the drafter's vocabulary."""


@dataclass(frozen=True, slots=True)
class Lane:
    """A request in a call. ids: tokens of its committed text from slot `begin` on; with length
    >= 1 up to its last. length: tokens to draft. first: see Chunk."""

    request: Request
    pages: Sequence[int]
    begin: int
    ids: Sequence[int]
    length: int
    first: int = 0

    @property
    def end(self) -> int:
        return self.begin + len(self.ids)


class Drawn:
    """Drafts on their way to the host. `result` waits for the device, as Step.result does: the
    target's batch is packed on the host, ids included. Besides, FlashInferAttention.plan waits for
    the plan before its own to be copied."""

    def __init__(
        self,
        lanes: Sequence[Lane],
        ids: Tensor,
        margins: Tensor,
        laws: Sequence[Tensor | None],
        done: Event,
    ) -> None:
        """ids and margins: of all drafted tokens, depth by depth; laws: by lane."""
        self._lanes = lanes
        self._ids = ids
        self._margins = margins
        self._laws = laws
        self._done = done

    def result(self) -> list[Draft]:
        """Wait for the device; one draft per lane."""
        self._done.synchronize()
        drawn = zip(self._ids.tolist(), self._margins.tolist(), strict=True)
        found: list[list[tuple[int, float]]] = [[] for _ in self._lanes]
        for depth in range(max((lane.length for lane in self._lanes), default=0)):
            for place, lane in enumerate(self._lanes):
                if depth < lane.length:
                    found[place].append(next(drawn))
        return [
            Draft(
                [token for token, _ in some],
                law,
                margins=tuple([margin / _sharpness(lane.request.draw) for _, margin in some]),
            )
            for lane, some, law in zip(self._lanes, found, self._laws, strict=True)
        ]


class Passes:
    """Runs a drafter's model over its own layers of the pages."""

    def __init__(
        self,
        forward: Forward,
        logits: Logits,
        vocabulary: VocabularyMap,
        attention: Attention,
        device: Device,
        page_size: int,
    ) -> None:
        self._forward = forward
        self._logits = logits
        self._attention = attention
        self._device = device
        self._size = page_size
        self._drawing = Drawing(vocabulary, device)
        self._none = torch.empty(0, dtype=torch.int64, device=device.torch_device)

    def draft(self, lanes: Sequence[Lane], hidden: Tensor) -> Drawn:
        """Enqueue the rows of all lanes and the drafts of those that want some. The longest drafts
        must come first. hidden: [T, d] of the rows, for models that take it. Nothing is written
        but the slots of the rows and of the drafted tokens but the last of each lane."""
        batch = self.batch(lanes)
        output = self._run(batch, hidden)
        drafting = [lane for lane in lanes if lane.length]
        if not drafting:
            nothing = [None] * len(lanes)
            return Drawn(lanes, self._none, self._none, nothing, self._device.record())
        if len(output) > len(drafting):
            ends = [batch.offsets[at] + len(lane.ids) - 1 for at, lane in enumerate(drafting)]
            output = output.index_select(0, self._device.tensor(ends, torch.int64))
        drawn: list[Tensor] = []
        margins: list[Tensor] = []
        laws: list[Tensor | None] = []
        following = self._following(drafting)
        for depth in range(drafting[0].length):
            active = [lane for lane in drafting if depth < lane.length]
            if depth:
                output = self._run(following[depth - 1], output[: len(active)], drawn[-1])
            ids, q, ahead = self._drawing.draw(
                self._logits(output),
                [lane.request.draw for lane in active],
                [lane.end + depth for lane in active],
            )
            drawn.append(ids)
            margins.append(ahead)
            laws.append(q)
        ids, ahead = [
            self._device.to_host(some[0] if len(some) == 1 else torch.cat(some))
            for some in (drawn, margins)
        ]
        return Drawn(lanes, ids, ahead, _by_lane(lanes, laws), self._device.record())

    def batch(self, lanes: Sequence[Lane]) -> Batch:
        """The rows of the lanes, of which no target token is wanted."""
        ids: list[int] = []
        positions: list[int] = []
        slots: list[int] = []
        offsets: list[int] = []
        chunks: list[Chunk] = []
        size = self._size
        for lane in lanes:
            offsets.append(len(ids))
            ids.extend(lane.ids)
            span, pages = range(lane.begin, lane.end), lane.pages
            positions.extend(span)
            slots.extend([pages[place // size] * size + place % size for place in span])
            chunks.append(_chunk(lane, lane.ids, lane.begin))
        device = self._device
        return self._batch(
            chunks,
            device.tensor(ids, torch.int64),
            device.tensor(positions, torch.int64),
            device.tensor(slots, torch.int64),
            offsets,
        )

    def _following(self, lanes: Sequence[Lane]) -> list[Batch]:
        """The batches of the passes after the first, their ids still to be drawn."""
        depths = lanes[0].length - 1
        if not depths:
            return []
        size, counts = self._size, [0] * depths
        places: list[int] = []
        slots: list[int] = []
        for depth in range(depths):
            for lane in lanes:
                if depth + 1 < lane.length:
                    place = lane.end + depth
                    places.append(place)
                    slots.append(lane.pages[place // size] * size + place % size)
                    counts[depth] += 1
        where = self._device.tensor([*places, *slots], torch.int64)
        positions, stores = where[: len(places)].split(counts), where[len(places) :].split(counts)
        one = (0,)
        return [
            self._batch(
                [_chunk(lane, one, lane.end + depth) for lane in lanes[:count]],
                self._none,
                positions[depth],
                stores[depth],
                range(count),
            )
            for depth, count in enumerate(counts)
        ]

    def _batch(
        self,
        chunks: Sequence[Chunk],
        ids: Tensor,
        positions: Tensor,
        slots: Tensor,
        offsets: Sequence[int],
    ) -> Batch:
        none = self._none
        return Batch(
            chunks=tuple(chunks),
            ids=ids,
            positions=positions,
            slots=slots,
            wanted_rows=none,
            next_drafts=none,
            leading=none,
            offsets=tuple(offsets),
            groups=(),
            row_draws=(),
            row_positions=(),
        )

    def _run(self, batch: Batch, hidden: Tensor, ids: Tensor | None = None) -> Tensor:
        attend = self._attention.plan(batch)
        ids = batch.ids if ids is None else ids[: len(batch.chunks)]
        return self._forward(ids, hidden, batch.positions, attend)


def _sharpness(draw: Draw) -> float:
    """What logits are divided by before a draft is drawn from them."""
    return 1.0 if draw.greedy else draw.temperature


def _chunk(lane: Lane, ids: Sequence[int], start: int) -> Chunk:
    return Chunk(
        lane.request.id, ids, start, lane.pages, lane.request.draw, wanted=False, first=lane.first
    )


def _by_lane(lanes: Sequence[Lane], laws: Sequence[Tensor | None]) -> list[Tensor | None]:
    """The law [length, V] of each lane's draft. laws: per depth, of the lanes that carry one."""
    rows: list[list[Tensor]] = [[] for _ in lanes]
    for depth, law in enumerate(laws):
        if law is None:
            continue
        carrying = (
            place
            for place, lane in enumerate(lanes)
            if depth < lane.length and carries(lane.request.draw)
        )
        for row, place in enumerate(carrying):
            rows[place].append(law[row])
    return [torch.stack(some) if some else None for some in rows]
