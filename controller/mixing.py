"""Which drafter drafts for which request, how deep a shared model pass goes, and who continues it.

A model drafter runs once per depth for all its requests, so its requests and its depth are chosen
together: at the smoothed price of time, the depth is taken whose tokens beyond the other choices
are worth most more than the pass costs. All of it is decided before anything is drawn.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from controller.acceptance import Acceptance
from controller.contract import Features
from controller.planner import Chain, Choices, Lengths, Table, surplus

LONGEST_TAIL = 8
TAIL = Features(match_length=3)
"""A tail's text is not known when it is planned: all tails of a drafter share one bucket."""


def tail_key(drafter: str) -> str:
    """Under which name the drafter's acceptance as a tail is learned."""
    return f"{drafter} (tail)"


def fill_key(drafter: str) -> str:
    """Under which name it is learned how much of the allotted tail the drafter fills."""
    return f"{drafter} (tail filled)"


def chain_name(head: str, tail: str) -> str:
    """What a chain is called in decisions."""
    return f"{head}+{tail}"


def head_of(name: str) -> str:
    """The drafter of a plan by that name, of a chain its head."""
    return name.partition("+")[0]


@dataclass(slots=True)
class Tail:
    """How a model-free drafter continues drafts. survival: [LONGEST_TAIL], the chance that tail
    position j is accepted, given that the head was and that the position is drafted. filled: the
    chance that it is drafted."""

    drafter: str
    survival: Table
    filled: Table


def read_tails(acceptance: Acceptance, drafters: Sequence[str]) -> list[Tail]:
    """The tails of these drafters as learned so far."""
    found: list[Tail] = []
    for name in drafters:
        keys = (tail_key(name), fill_key(name))
        survival, filled = acceptance.survivals((NOBODY, NOBODY), keys, (TAIL, FULL), LONGEST_TAIL)
        found.append(Tail(name, survival, filled))
    return found


NOBODY = -1
FULL = Features()


@dataclass(slots=True)
class Pass:
    """A model's pass that its requests share: how deep, and who continues its drafts."""

    model: str
    depth: int
    tail: Tail | None


@dataclass(slots=True)
class Mix:
    """picked: one choice per span. shared: the model pass that some of them take part in."""

    picked: list[int]
    shared: Pass | None


def pick(
    choices: Choices, spans: Sequence[tuple[int, int]], price: float, row_price: float
) -> list[int]:
    """For each span (begin, end) of a request's choices the one with the largest surplus."""
    worth = surplus(choices, price, row_price).tolist()
    return [max(range(*span), key=worth.__getitem__) for span in spans]


def mix(
    choices: Choices,
    spans: Sequence[tuple[int, int]],
    caps: Sequence[int],
    models: Sequence[str],
    tails: Sequence[Tail],
    price: float,
    row_price: float,
) -> Mix:
    """One choice for each request; spans: (begin, end) of its choices. caps: by choice, how many
    tokens its request may draft with a tail, 0 where a tail is not allowed. price: tokens per ms;
    row_price: tokens per row."""
    worth = surplus(choices, price, row_price).tolist()
    picked = [max(range(*span), key=worth.__getitem__) for span in spans]
    best: tuple[float, Mix] | None = None
    for model in models:
        found = _with_model(
            model, models, choices, spans, picked, worth, caps, tails, price, row_price
        )
        if found is not None and (best is None or found[0] > best[0]):
            best = found
    return best[1] if best is not None else Mix(picked, None)


def _with_model(
    model: str,
    models: Sequence[str],
    choices: Choices,
    spans: Sequence[tuple[int, int]],
    picked: Sequence[int],
    worth: Sequence[float],
    caps: Sequence[int],
    tails: Sequence[Tail],
    price: float,
    row_price: float,
) -> tuple[float, Mix] | None:
    """What the model adds at its best depth, in tokens, and the mix with it."""
    mine: list[int] = []
    rivals: list[int] = []
    others: list[float] = []
    places: list[int] = []
    for place, (begin, end) in enumerate(spans):
        own = [i for i in range(begin, end) if choices.drafters[i] == model]
        if own:
            rest = [i for i in range(begin, end) if choices.drafters[i] not in models]
            rival = max(rest, key=worth.__getitem__, default=-1)
            mine.append(own[0])
            rivals.append(rival)
            others.append(max(worth[rival], 0.0) if rest else 0.0)
            places.append(place)
    if not mine:
        return None
    cost = choices.prices[model]
    survival = choices.survival[mine]
    room = np.array([caps[i] for i in mine])
    depths = np.arange(1, survival.shape[1] + 1)
    values = np.add.accumulate(np.maximum(survival - row_price, 0.0), axis=1)
    values -= price * cost.per_request
    if choices.charges is not None:
        values -= price * choices.charges[mine][:, None]
    tail, bonus = _best_tail(survival, room, depths, tails, row_price)
    values += bonus
    other = np.array(others)
    gains = np.maximum(values - other[:, None], 0.0)
    total = np.add.reduce(gains, axis=0) - price * (cost.fixed + cost.per_depth * depths)
    depth = int(total.argmax()) + 1
    chosen = list(picked)
    for place, i, rival, gain in zip(places, mine, rivals, gains[:, depth - 1], strict=True):
        chosen[place] = i if rival < 0 or (gain > 0.0 and total[depth - 1] > 0.0) else rival
    return float(total[depth - 1]), Mix(chosen, Pass(model, depth, tail))


def _best_tail(
    survival: Table, room: Lengths, depths: Lengths, tails: Sequence[Tail], row_price: float
) -> tuple[Tail | None, Table]:
    """The tail that adds most, and what it adds after each depth: [n, K] tokens beyond the price
    of its rows. room: [n], how many tokens each may draft in all."""
    best, bonus = None, np.zeros_like(survival)
    most = 0.0
    ends = depths[:, None] + np.arange(1, LONGEST_TAIL + 1)
    fits = (ends <= room[:, None, None]) & (survival > 0.0)[:, :, None]
    for tail in tails:
        gain = survival[:, :, None] * tail.survival - row_price
        found: Table = np.add.reduce(np.maximum(gain, 0.0) * tail.filled * fits, axis=2)
        total = float(np.add.reduce(found, axis=None))
        if total > most:
            best, bonus, most = tail, found, total
    return best, bonus


def chained(choices: Choices, shared: Pass, caps: Sequence[int]) -> Choices:
    """The choices as the shared pass bounds them: the model's end at its depth, and those that get
    there go on with the tail as far as their caps allow."""
    depth, tail = shared.depth, shared.tail
    mine = np.array([name == shared.model for name in choices.drafters])
    before = choices.longest
    longest = np.where(mine, np.minimum(before, depth), before)
    survival = choices.survival.copy()
    survival[mine, depth:] = 0.0
    if tail is None:
        return replace(
            choices, survival=survival, longest=longest, chain=Chain(shared.model, depth)
        )
    more = np.clip(np.array(caps) - depth, 0, LONGEST_TAIL) * (mine & (before >= depth))
    widest = max(survival.shape[1], depth + LONGEST_TAIL)
    survival = np.pad(survival, ((0, 0), (0, widest - survival.shape[1])))
    ends = survival[:, depth - 1 : depth] * tail.survival
    ends *= np.arange(LONGEST_TAIL) < more[:, None]
    survival[:, depth : depth + LONGEST_TAIL] += ends
    chain = Chain(shared.model, depth, tail.drafter, tail.filled)
    return replace(choices, survival=survival, longest=longest + more, chain=chain)
