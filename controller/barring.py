"""Bars for a model's drafts in a step, and what they leave of each request's draft.

The model drafts as deep for everybody, and each draft ends where its margins promise less than a
row costs. So a deep pass costs few rows, and only where they are likely to be accepted. Bars are
settled before anything is drawn: what a row costs, and what margins tell, is known from steps
before.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from controller.choices import Barred, Lengths, Table
from controller.contract import Bar, RequestView
from controller.margins import PLACES, Kept
from controller.promises import ByKind

NOTHING_KEPT_OUT = Kept(np.ones(PLACES), np.ones(PLACES))


class Bars:
    """Of one model, for the requests of a batch. by_request: the bar of each, None for none."""

    def __init__(self, model: str, promised: ByKind, requests: Sequence[RequestView]) -> None:
        kinds = [promised.get((model, sampled)) for sampled in (False, True)]
        self._sampled = [one.sampled for one in requests]
        kept = [NOTHING_KEPT_OUT if one is None else one.kept for one in kinds]
        self._rows = np.array([one.rows for one in kept])
        self._tokens = np.array([one.tokens for one in kept])
        bars = [None if one is None else one.bar for one in kinds]
        self.by_request: list[Bar | None] = [bars[sampled] for sampled in self._sampled]

    def of(self, survival: Table, requests: Lengths) -> Barred:
        """What is left of these drafts. survival: [n, K], of whole ones; requests: [n], the places
        of their requests in the batch."""
        kinds = np.array(self._sampled, np.intp)[requests]
        depth = survival.shape[1]
        places = np.minimum(np.arange(depth), PLACES - 1)
        rows = self._rows[:, places][kinds] * (survival > 0.0)
        return Barred(rows, self._tokens[:, places][kinds] * survival)


def bars_of(
    models: Iterable[str], promised: ByKind, requests: Sequence[RequestView]
) -> dict[str, Bars]:
    """The bars of the models that have any."""
    telling = {model for model, _ in promised}
    return {model: Bars(model, promised, requests) for model in models if model in telling}
