"""The harm ledger: tokens and seconds, against plain decoding and the best static choice."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from controller.choices import Table
from controller.contract import NONE, HarmTotals
from controller.static_choices import StaticStep

LOOK_STEPS = 32
"""Static choices are priced once in so many steps at most: that takes time."""
BLOCK_LOOKS = 16
"""Steps follow from each other, so errors are taken from blocks of so many looks, 512 steps."""
WINDOW_BLOCKS = 16
"""The window: 8,192 steps."""


@dataclass(slots=True)
class Account:
    """Sums over steps. real_ms: as measured. plain_ms: what plain decoding would have taken for the
    same tokens. drafting_steps, drafting_real_ms, drafting_plain_ms: of those steps that drafted;
    the others tell how exact the clock of plain decoding is, and what looking for drafts takes."""

    steps: int = 0
    tokens: int = 0
    real_ms: float = 0.0
    plain_ms: float = 0.0
    drafting_steps: int = 0
    drafting_real_ms: float = 0.0
    drafting_plain_ms: float = 0.0

    def add(self, tokens: int, real_ms: float, plain_ms: float, drafting: bool) -> None:
        self.steps += 1
        self.tokens += tokens
        self.real_ms += real_ms
        self.plain_ms += plain_ms
        if drafting:
            self.drafting_steps += 1
            self.drafting_real_ms += real_ms
            self.drafting_plain_ms += plain_ms

    def include(self, other: Account) -> None:
        """Add its sums to these."""
        self.steps += other.steps
        self.tokens += other.tokens
        self.real_ms += other.real_ms
        self.plain_ms += other.plain_ms
        self.drafting_steps += other.drafting_steps
        self.drafting_real_ms += other.drafting_real_ms
        self.drafting_plain_ms += other.drafting_plain_ms


class Seen:
    """Sums over the looks at a drafter: of its static steps, [D, 3] in the order of StaticStep, and
    of plain steps."""

    def __init__(self, lengths: int) -> None:
        self.looks = 0
        self.steps: Table = np.zeros((lengths, 3))
        self.plain_tokens = self.plain_ms = 0.0

    def saved(self) -> Table:
        """[D, 2]: the share of plain decoding's time for the same tokens that each D saves, as
        expected and at the low tokens."""
        tokens, ms = self.steps[:, :2], self.steps[:, 2:]
        return 1.0 - ms / tokens * (self.plain_tokens / self.plain_ms)


class Block:
    """Some steps, and what was seen of the drafters in them."""

    def __init__(self) -> None:
        self.account = Account()
        self.looks = 0
        self.seen: dict[str, Seen] = {}

    def saved_ms(self) -> dict[str, Table]:
        """By drafter, [D, 2]: what each D would have saved against plain decoding, as expected and
        at the low tokens. A drafter that was not there at some looks saved nothing then."""
        whole = self.account.plain_ms / max(self.looks, 1)
        return {name: one.saved() * (whole * one.looks) for name, one in self.seen.items()}


@dataclass(slots=True)
class Savings:
    """Sums over blocks, by drafter and D: ms saved as expected, at the low tokens, and the square
    of the latter in each block."""

    blocks: int = 0
    sums: dict[str, Table] = field(default_factory=dict)

    def add(self, saved_ms: Mapping[str, Table]) -> None:
        self.blocks += 1
        for name, saved in saved_ms.items():
            block = np.column_stack([saved, saved[:, 1] ** 2])
            self.sums[name] = self.sums[name] + block if name in self.sums else block

    def bounds(self, lengths: Sequence[int], more: Mapping[str, Table]) -> list[Bound]:
        """Best first, with plain decoding among them. The low sum less its standard error over the
        blocks; none below two of these. more: of a block that goes on."""
        found = [Bound(NONE, 0, 0.0, 0.0)]
        n = self.blocks
        for name, sums in self.sums.items() if n > 1 else ():
            begun = more.get(name, np.zeros((len(lengths), 2))).tolist()
            for length, whole, part in zip(lengths, sums.tolist(), begun, strict=True):
                expected, low, square = whole
                error = math.sqrt(max(square - low * low / n, 0.0) * n / (n - 1))
                found.append(Bound(name, length, expected + part[0], low + part[1] - error))
        return sorted(found, key=lambda one: one.low, reverse=True)


class Bound(NamedTuple):
    """What a static choice saves against plain decoding, in ms: expected, and at least."""

    drafter: str
    draft_length: int
    expected: float
    low: float


class HarmLedger:
    """Sums since the start, and over a window of 8,192 steps. lengths: the D of static choices.

    The steps between two looks count as the look after them. A block's time per token is the ratio
    of its sums, and holds for the tokens that were really committed in it. Memory: the window's
    blocks, each with every drafter at every length."""

    def __init__(self, lengths: Sequence[int]) -> None:
        self._lengths = lengths
        self._total = Account()
        self._savings = Savings()
        self._open = Block()
        self._window: deque[tuple[Account, dict[str, Table]]] = deque(maxlen=WINDOW_BLOCKS)
        self._unlooked = 0

    @property
    def due(self) -> bool:
        """Whether the next step that can look should."""
        return self._unlooked >= LOOK_STEPS

    def add(self, tokens: int, real_ms: float, plain_ms: float, drafting: bool) -> None:
        """A measured step that committed so many tokens; plain_ms: what plain decoding would have
        taken for them."""
        self._total.add(tokens, real_ms, plain_ms, drafting)
        self._open.account.add(tokens, real_ms, plain_ms, drafting)
        self._unlooked += 1

    def look(
        self, plain_tokens: float, plain_ms: float, static: Mapping[str, Sequence[StaticStep]]
    ) -> None:
        """What the step gives and takes where nobody drafts or looks for drafts, and by drafter and
        length with a static choice. Nothing where plain_ms is not positive."""
        if plain_ms <= 0.0:
            return
        self._unlooked = 0
        block = self._open
        block.looks += 1
        for name, steps in static.items():
            seen = block.seen.get(name)
            if seen is None:
                seen = block.seen[name] = Seen(len(self._lengths))
            seen.looks += 1
            seen.steps += np.array(steps)
            seen.plain_tokens += plain_tokens
            seen.plain_ms += plain_ms
        if block.looks >= BLOCK_LOOKS:
            self._close()

    def _close(self) -> None:
        block, self._open = self._open, Block()
        saved_ms = block.saved_ms()
        self._savings.add(saved_ms)
        self._window.append((block.account, saved_ms))

    def forget(self, drafter: str) -> None:
        """The drafter is gone, and its choices with it: the next of its name may be another."""
        self._open.seen.pop(drafter, None)
        self._savings.sums.pop(drafter, None)
        for _, saved_ms in self._window:
            saved_ms.pop(drafter, None)

    def totals(self) -> HarmTotals:
        """Since the start."""
        total = self._total
        best, *_ = self._bounds()
        static_ms = total.plain_ms - best.low
        seconds = (_seconds(ms) for ms in (total.real_ms, total.plain_ms, static_ms))
        return HarmTotals(total.tokens, *seconds)

    def _bounds(self) -> list[Bound]:
        """Since the start, with the block that goes on."""
        return self._savings.bounds(self._lengths, self._open.saved_ms())

    def report(self) -> dict[str, object]:
        """JSON-able, in seconds."""
        window, savings = Account(), Savings()
        for account, saved_ms in self._window:
            window.include(account)
            savings.add(saved_ms)
        return {
            "total": _told(self._total, self._bounds()),
            "window": _told(window, savings.bounds(self._lengths, {})),
        }


def _told(account: Account, bounds: Sequence[Bound]) -> dict[str, object]:
    choices = [
        {
            "drafter": one.drafter,
            "draft_length": one.draft_length,
            "saved_s": _seconds(one.expected),
            "low_s": _seconds(one.low),
        }
        for one in bounds
    ]
    return {
        "steps": account.steps,
        "tokens": account.tokens,
        "real_s": _seconds(account.real_ms),
        "plain_s": _seconds(account.plain_ms),
        "saved_s": _seconds(account.plain_ms - account.real_ms),
        "drafting": {
            "steps": account.drafting_steps,
            "real_s": _seconds(account.drafting_real_ms),
            "plain_s": _seconds(account.drafting_plain_ms),
        },
        "best_static": choices[0],
        "static": choices,
    }


def _seconds(ms: float) -> float:
    return round(ms / 1000.0, 4)
