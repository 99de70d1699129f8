"""How a model drafter draws its tokens: greedy, from a law q, or with the target's own noise."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from engine.device import Device
from engine.draft_models.margin import margins
from engine.draw import Draw
from engine.greedy import greedy
from engine.sampling import coupled, law
from engine.vocabulary import VocabularyMap

_LEAST = torch.finfo(torch.float32).tiny


class Drew(NamedTuple):
    """ids: target ids int64 [R]. q: float32 [S, V], of the rows that `carries` names, in order, the
    laws that they were drawn from; None when there are none. margins: float32 [R], see
    margin.margins."""

    ids: Tensor
    q: Tensor | None
    margins: Tensor


class Drawing:
    """Draws target ids from a drafter's logits.

    A greedy request gets the most likely token; a seeded one the token that the target would draw
    with these logits, from the same noise (see sampling.coupled); any other a fresh draw from q,
    which is handed over with it. That noise comes from a generator of its own: the p/q rule is
    exact only if the target's draws are independent of the drafter's."""

    def __init__(self, vocabulary: VocabularyMap, device: Device) -> None:
        self._vocabulary = vocabulary
        self._device = device
        self._generator = torch.Generator(device=device.torch_device)
        self._generator.seed()

    def greedily(self, logits: Tensor) -> Drew:
        """The most likely of each row, from values that are on the device alone."""
        logits = self._vocabulary.keep(logits)
        return Drew(self._vocabulary.drawn(greedy(logits)[1]), None, margins(logits))

    def draw(self, logits: Tensor, draws: Sequence[Draw], positions: Sequence[int]) -> Drew:
        """Target ids drawn from the drafter's logits float32 [R, W].

        positions: absolute position of the token that each row draws."""
        if all(draw.greedy for draw in draws):
            return self.greedily(logits)
        vocabulary, device = self._vocabulary, self._device
        logits = vocabulary.keep(logits)
        ahead = margins(logits)
        columns = greedy(logits)[1]
        seeded = [row for row, one in enumerate(draws) if not one.greedy and one.seed is not None]
        free = [row for row, one in enumerate(draws) if carries(one)]
        if seeded:
            rows, some = device.tensor(seeded, torch.int64), [draws[row] for row in seeded]
            places = [positions[row] for row in seeded]
            ids = None if vocabulary.whole else vocabulary.to_target
            chosen = coupled(logits.index_select(0, rows), some, places, device, ids)
            columns = columns.index_copy(0, rows, chosen)
        if not free:
            return Drew(vocabulary.drawn(columns), None, ahead)
        rows = device.tensor(free, torch.int64)
        q = law(logits.index_select(0, rows), [draws[row] for row in free], device)
        noise = torch.empty_like(q).exponential_(generator=self._generator).clamp_min_(_LEAST)
        columns = columns.index_copy(0, rows, (q / noise).argmax(dim=-1))
        return Drew(vocabulary.drawn(columns), vocabulary.spread(q), ahead)


def carries(draw: Draw) -> bool:
    """Whether a draft for such a request carries q."""
    return not draw.greedy and draw.seed is None
