"""What a model drafter has drawn: tokens and margins on their way to the host."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from engine.device import Device, Mark
from engine.draft_models.lane import Lane
from engine.draft_models.law import carries
from engine.drafts import Draft
from engine.unseen import Late, Unseen


class Drawn:
    """Drafted tokens on their way to the host. The target's batch takes them where they are, so
    nobody there need look at them before the step is verified. `result` waits for the device: for
    nothing more once Step.result has, and a second time in a step that needs them before that."""

    def __init__(self, ids: Tensor, margins: Tensor, begin: Mark, device: Device) -> None:
        """ids int64 [N] and margins float32 [N]: of all drafted tokens, depth by depth. begin: of
        the call."""
        self.ids = ids
        self._begin = begin
        self._coming = device.to_host(ids), device.to_host(margins)
        self._done = device.mark()
        self._seen: tuple[list[int], list[float]] | None = None

    def result(self) -> tuple[list[int], list[float]]:
        """Wait for the device; the ids and the margins."""
        if self._seen is None:
            self._done.synchronize()
            ids, margins = self._coming
            self._seen = ids.tolist(), margins.tolist()
        return self._seen

    @property
    def seen(self) -> bool:
        return self._seen is not None

    def tokens(self) -> list[int]:
        return self.result()[0]

    def took(self) -> float:
        self.result()
        return self._begin.elapsed_time(self._done)


class Ahead(Late[float]):
    """The margins of one draft. places: theirs among those of the call. sharpness: what the logits
    were divided by before it was drawn from them."""

    __slots__ = ("_drawn", "_places", "_sharpness")

    def __init__(self, drawn: Drawn, places: Sequence[int], sharpness: float) -> None:
        self._drawn = drawn
        self._places = places
        self._sharpness = sharpness

    def __len__(self) -> int:
        return len(self._places)

    def _look(self) -> list[float]:
        margins = self._drawn.result()[1]
        return [margins[place] / self._sharpness for place in self._places]


def drafts_of(
    source: Drawn, lanes: Sequence[Lane], rows: Sequence[int], laws: Sequence[Tensor | None]
) -> list[Draft]:
    """One draft per lane, its tokens and margins still unseen. The longest drafts come first.

    rows: of each depth, how many ids the source has; the first are those of the lanes that are
    drafted so far. laws: of each depth, q of those of them that carry one."""
    starts = [sum(rows[:depth]) for depth in range(len(rows))]
    found: list[Draft] = []
    for place, (lane, law) in enumerate(zip(lanes, _by_lane(lanes, laws), strict=True)):
        own = [start + place for start in starts[: lane.length]]
        margins = Ahead(source, own, _sharpness(lane))
        found.append(Draft(Unseen(source, own), law, margins=margins) if own else Draft())
    return found


def _sharpness(lane: Lane) -> float:
    """What logits are divided by before a draft is drawn from them."""
    draw = lane.request.draw
    return 1.0 if draw.greedy else draw.temperature


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
