"""Draft lengths per request that maximise expected committed tokens per millisecond.

Positions of all requests are admitted in order of survival S = a_1 ... a_k, and the goodput is
evaluated along that order at the cost actually measured for each total. For a cost that depends
on the total only, the best prefix is the exact optimum (the price rule S >= lambda * dT is its
local form), also where the cost is a staircase or falls.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

MIN_GAIN = 0.01
"""Drafting must be predicted to beat plain decoding by this much."""


@dataclass(frozen=True, slots=True)
class Choice:
    """One request's possible draft. survival: S_1 .. S_cap, not increasing, cap >= 1.
    draft_ms: what drafting costs once, whatever the length."""

    request: int
    drafter: str
    survival: Sequence[float]
    draft_ms: float = 0.0


@dataclass(frozen=True, slots=True)
class Allocation:
    """lengths[i] belongs to choices[i]. tokens and ms: expected of the whole step."""

    lengths: list[int]
    tokens: float
    ms: float
    plain_ms: float
    plain_tokens: float

    @property
    def goodput(self) -> float:
        """Tokens per ms."""
        return self.tokens / self.ms


def allocate(
    costs: Sequence[float], tokens: float, choices: Sequence[Choice], room: int
) -> Allocation:
    """The best lengths for the choices, one choice per request.

    costs[m]: ms of the step with m drafted rows among the choices, m = 0..min(room, all
    positions); tokens: what the step commits without any of them. room: most rows to add."""
    positions = [
        (-s, k, i) for i, choice in enumerate(choices) for k, s in enumerate(choice.survival)
    ]
    # k breaks ties, so that a request's positions stay in order.
    positions.sort()
    best_count, best_tokens, best_ms = 0, tokens, costs[0]
    needed = tokens / costs[0] * (1.0 + MIN_GAIN)
    sum_tokens, draft_ms = tokens, 0.0
    for count, (loss, k, i) in enumerate(positions[:room], start=1):
        sum_tokens -= loss
        if k == 0:
            draft_ms += choices[i].draft_ms
        ms = costs[count] + draft_ms
        goodput = sum_tokens / ms
        if goodput > needed:
            needed = goodput
            best_count, best_tokens, best_ms = count, sum_tokens, ms
    lengths = [0] * len(choices)
    for _, _, i in positions[:best_count]:
        lengths[i] += 1
    return Allocation(lengths, best_tokens, best_ms, costs[0], tokens)


def pick(choices: Sequence[Choice], price: float, row_price: float) -> Choice:
    """The request's best drafter at a price: the largest surplus of expected tokens over cost.

    price: tokens per ms that the time is worth; row_price: tokens that a row is worth."""
    if len(choices) == 1:
        return choices[0]

    def surplus(choice: Choice) -> float:
        gain = sum(s - row_price for s in choice.survival if s > row_price)
        return gain - price * choice.draft_ms

    return max(choices, key=surplus)


def uniform(
    costs: Sequence[float], tokens: float, choices: Sequence[Choice], length: int, room: int
) -> tuple[float, float]:
    """Expected tokens and ms of a step in which every choice drafts `length` tokens, as far as it
    and the room go."""
    rows, draft_ms = 0, 0.0
    for choice in choices:
        take = min(length, len(choice.survival), room - rows)
        if take < 1:
            continue
        tokens += sum(choice.survival[:take])
        draft_ms += choice.draft_ms
        rows += take
    return tokens, costs[rows] + draft_ms


def expected(
    costs: Sequence[float], tokens: float, choices: Sequence[Choice], lengths: Sequence[int]
) -> tuple[float, float]:
    """Expected tokens and ms of a step with the given lengths."""
    ms = costs[sum(lengths)]
    for choice, length in zip(choices, lengths, strict=True):
        if length:
            tokens += sum(choice.survival[:length])
            ms += choice.draft_ms
    return tokens, ms
