"""The passes of a model drafter: one over all pending rows, then one row a request at a time."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from engine.attention import Attention, Fixes
from engine.batch import Batch, Chunk
from engine.device import Device
from engine.draft_models.drawn import Drawn, drafts_of
from engine.draft_models.lane import Lane
from engine.draft_models.law import Drawing, Drew
from engine.draft_models.repeated import Repeated
from engine.drafts import Draft
from engine.shape import Attend
from engine.vocabulary import VocabularyMap

Forward = Callable[[Tensor, Tensor, Tensor, Attend], Tensor]
"""(target ids int64 [T], hidden [T, d], positions int64 [T], attend) -> output [T, d]. hidden is
the output of the pass before; in the first pass what `Passes.draft` is given."""

Logits = Callable[[Tensor], Tensor]
"""Output rows [R, d] -> float32 logits [R, W] of the drafter's vocabulary."""


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
        repeats: bool = False,
    ) -> None:
        """repeats: the model may run as a graph: it computes on the device alone, the same kernels
        whatever the values."""
        self._forward = forward
        self._logits = logits
        self._attention = attention
        self._device = device
        self._size = page_size
        self._drawing = Drawing(vocabulary, device)
        self._none = torch.empty(0, dtype=torch.int64, device=device.torch_device)
        self._repeated: Repeated | None = None
        if repeats and isinstance(attention, Fixes):
            self._repeated = Repeated(self._greedily, attention, device, page_size)

    def draft(self, lanes: Sequence[Lane], hidden: Tensor) -> list[Draft]:
        """Enqueue the rows of all lanes and the drafts of those that want some; one draft per lane,
        its tokens and margins still unseen. The longest drafts must come first. hidden: [T, d] of
        the rows, for models that take it. Nothing is written but the slots of the rows and of the
        drafted tokens but the last of each lane."""
        begin = self._device.mark()
        batch = self.batch(lanes)
        output = self._run(batch, hidden)
        drafting = [lane for lane in lanes if lane.length]
        if not drafting:
            return [Draft()] * len(lanes)
        if len(output) > len(drafting):
            ends = [batch.offsets[at] + len(lane.ids) - 1 for at, lane in enumerate(drafting)]
            output = output.index_select(0, self._device.tensor(ends, torch.int64))
        drew = [self._draw(output, drafting, 0)]
        rows = [len(drafting)]
        repeated = self._repeated
        more = None
        if drafting[0].length > 1 and repeated is not None:
            more = repeated.run(drafting, output, drew[0].ids)
        if more is not None:
            drew.append(Drew(more.ids, None, more.margins))
            rows += [more.rows] * (drafting[0].length - 1)
        else:
            drew += self._one_by_one(drafting, output, drew[0].ids)
            rows += [len(one.ids) for one in drew[1:]]
        ids, _, margins = drew[0]
        if len(drew) > 1:
            ids = torch.cat([one.ids for one in drew])
            margins = torch.cat([one.margins for one in drew])
        source = Drawn(ids, margins, begin, self._device)
        return drafts_of(source, lanes, rows, [one.q for one in drew])

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
            chunks.append(lane.chunk(lane.ids, lane.begin))
        device = self._device
        return self._batch(
            chunks,
            device.tensor(ids, torch.int64),
            device.tensor(positions, torch.int64),
            device.tensor(slots, torch.int64),
            offsets,
        )

    def close(self) -> None:
        """Give back what the loops hold; they refer back here."""
        self._repeated = None

    # --- the passes after the first ---------------------------------------------------------------

    def _one_by_one(self, lanes: Sequence[Lane], output: Tensor, ids: Tensor) -> list[Drew]:
        """What the lanes draw after their first tokens, depth by depth."""
        found: list[Drew] = []
        for depth, batch in enumerate(self._following(lanes), 1):
            active = lanes[: len(batch.chunks)]
            output = self._run(batch, output[: len(active)], ids[: len(active)])
            found.append(self._draw(output, active, depth))
            ids = found[-1].ids
        return found

    def _greedily(
        self, ids: Tensor, hidden: Tensor, positions: Tensor, attend: Attend
    ) -> tuple[Tensor, Tensor, Tensor]:
        """One pass of lanes that all take the likeliest token: output, ids and margins."""
        output = self._forward(ids, hidden, positions, attend)
        ids, _, margins = self._drawing.greedily(self._logits(output))
        return output, ids, margins

    def _draw(self, output: Tensor, lanes: Sequence[Lane], depth: int) -> Drew:
        return self._drawing.draw(
            self._logits(output),
            [lane.request.draw for lane in lanes],
            [lane.end + depth for lane in lanes],
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
                    places.append(lane.end + depth)
                    slots.append(lane.slot(lane.end + depth, size))
                    counts[depth] += 1
        where = self._device.tensor([*places, *slots], torch.int64)
        positions, stores = where[: len(places)].split(counts), where[len(places) :].split(counts)
        return [
            self._batch(
                [lane.chunk((0,), lane.end + depth) for lane in lanes[:count]],
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
        return self._forward(batch.ids if ids is None else ids, hidden, batch.positions, attend)
