"""Exponential means of planned steps: what goes in, what plans gave, what uniform lengths would."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from controller.contract import Allotment
from controller.limits import Limited, LimitMeans
from controller.mixing import chain_name

MEMORY_STEPS = 64
LOOK_EVERY = 4
"""The uniform lengths are priced in every fourth step; they are only shown."""


@dataclass(slots=True)
class Sample:
    """One planned step. requests: its size; own: how many of them are planned for here. offers and
    drafts: by drafter, requests that it had a draft for, and (requests, tokens) that draft; no
    offers of those that were not asked for all requests. offered: requests with any draft, None
    where nobody was asked. forced, blocked: requests decided by a wish, or stood down. first: mean
    S_1 of the offers, None without any. row_cost: tokens that one drafted row costs, its break-even
    survival. plain_ms, plain_tokens: of a step in which nobody drafts. grid: by drafter, expected
    tokens and ms of each uniform D, empty for drafters without an offer; None in steps that do not
    look. limited: what the operator's constraints did, None without any."""

    requests: int
    own: int
    context: float
    forced: int
    blocked: int
    first: float | None
    row_cost: float
    plain_ms: float
    plain_tokens: float
    tokens: float = 0.0
    ms: float = 0.0
    offers: dict[str, int] = field(default_factory=dict)
    offered: int | None = None
    drafts: dict[str, tuple[int, int]] = field(default_factory=dict)
    grid: dict[str, list[tuple[float, float]]] | None = None
    limited: Limited | None = None

    def count(self, allotments: Sequence[Allotment]) -> None:
        """Take in who drafts how much; a chain counts as one drafter."""
        drafts = self.drafts
        for one in allotments:
            if one.length:
                name = chain_name(one.drafter, one.tail) if one.tail else one.drafter
                count, total = drafts.get(name, (0, 0))
                drafts[name] = (count + 1, total + one.length + one.tail_length)


SCALARS = (
    "batch",
    "context",
    "forced",
    "blocked",
    "row_cost",
    "plain_ms",
    "plain_tokens",
    "tokens",
    "ms",
    "depth",
    "offered",
)
DEPTH = SCALARS.index("depth")


class Averages:
    """Exponential means of samples: plain means at first, then over about 64 steps.

    Kept as one vector, because every step updates all of them and few steps read many."""

    def __init__(self, drafters: tuple[str, ...], lengths: tuple[int, ...]) -> None:
        self._drafters = drafters
        self._lengths = lengths
        self._names = [
            *SCALARS,
            *(f"offered {name}" for name in drafters),
            *(f"share {name}" for name in drafters),
        ]
        self._shares = len(SCALARS) + len(drafters)
        self._values = np.zeros(len(self._names))
        self._grid = np.zeros(2 * len(drafters) * len(lengths))
        self._looks = 0
        self._first: float | None = None
        self._limits: LimitMeans | None = None
        self._started = False
        self.samples = 0

    def relisted(self, drafters: tuple[str, ...]) -> Averages:
        """The same means for other drafters; those of drafters that are new are 0."""
        made = Averages(drafters, self._lengths)
        old = dict(zip(self._names, self._values.tolist(), strict=True))
        made._values = np.array([old.get(name, 0.0) for name in made._names])
        made._first, made._started, made.samples = self._first, self._started, self.samples
        made._limits = self._limits
        return made

    def update(self, sample: Sample) -> None:
        """Take in one planned step."""
        n, offers, drafts, drafters = sample.own, sample.offers, sample.drafts, self._drafters
        values = [
            sample.requests,
            sample.context,
            sample.forced / n,
            sample.blocked / n,
            sample.row_cost,
            sample.plain_ms,
            sample.plain_tokens,
            sample.tokens,
            sample.ms,
            sum(tokens for _, tokens in drafts.values()) / n,
        ]
        # Where nobody asked, what was offered before still stands.
        old = self._values[len(values) : self._shares].tolist()
        values.append(old[0] if sample.offered is None else sample.offered / n)
        values += [
            offers[name] / n if name in offers else kept
            for name, kept in zip(drafters, old[1:], strict=True)
        ]
        values += [drafts[name][0] / n if name in drafts else 0.0 for name in drafters]
        self._started = True
        self.samples += 1
        rate = max(1.0 / MEMORY_STEPS, 1.0 / self.samples)
        change = np.array(values, np.float64)
        change -= self._values
        change *= rate
        self._values += change
        if sample.grid is not None:
            self._look(sample, sample.grid)
        if sample.first is not None:
            old = sample.first if self._first is None else self._first
            self._first = old + rate * (sample.first - old)
        if sample.limited is None:
            self._limits = None
        else:
            self._limits = self._limits or LimitMeans()
            self._limits.update(sample.limited, rate)

    def _look(self, sample: Sample, grid: Mapping[str, list[tuple[float, float]]]) -> None:
        plain = [(sample.plain_tokens, sample.plain_ms)] * len(self._lengths)
        values = [x for name in self._drafters for pair in grid.get(name, plain) for x in pair]
        self._looks = 1 if self.samples == 1 else self._looks + 1
        rate = max(LOOK_EVERY / MEMORY_STEPS, 1.0 / self._looks)
        self._grid += rate * (np.array(values) - self._grid)

    @property
    def depth(self) -> float:
        """Mean D per request; 0 before the first sample."""
        return self._values.item(DEPTH)

    def shares(self) -> list[float]:
        """By drafter, the share of requests that draft with it."""
        return self._values[self._shares : self._shares + len(self._drafters)].tolist()

    def means(self) -> dict[str, float]:
        """The means by name, empty before the first sample; `first` only when it was known, those
        of the operator's constraints only where they are set."""
        if not self._started:
            return {}
        means = dict(zip(self._names, self._values.tolist(), strict=False))
        if self._first is not None:
            means["first"] = self._first
        if self._limits is not None:
            means |= self._limits.means()
        return means

    def grid(self) -> list[tuple[str, int, float, float]]:
        """(drafter, D, expected tokens, ms) of the uniform lengths."""
        if not self._looks:
            return []
        pairs = self._grid.reshape(-1, 2).tolist()
        keys = [(name, length) for name in self._drafters for length in self._lengths]
        return [(*key, pair[0], pair[1]) for key, pair in zip(keys, pairs, strict=True)]
