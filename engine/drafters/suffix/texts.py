"""The texts that the suffix drafter follows: trees and answers of theirs, drafts, their intake."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from engine.drafters.shadow import DRAFT
from engine.drafters.suffix import loops
from engine.drafters.suffix.answers import Answers
from engine.drafters.suffix.forest import SuffixForest
from engine.drafters.suffix.loops import Held
from engine.drafters.suffix.memory import VISITS
from engine.drafters.texts import Text, Texts, missing

if TYPE_CHECKING:
    from engine.request import Request

# Budgets count suffixes moved (memory.VISITS) and nodes freed: each takes 0.2 to 0.5 µs.
PROMPT_BUDGET = 2000
"""For taking texts in, per step and over all requests. Ordinary text costs 5 a token, the same
token again and again as much as the tree is deep."""
_PRICE = 16
"""Of a request whose text is taken in, however short."""
_LONGEST_PART = 1024
"""Tokens of a text that are looked at together."""


class SuffixText(Text):
    """tree: handle of the tree of its own text."""

    __slots__ = ("tree",)

    def __init__(self, request: Request, slot: int) -> None:
        super().__init__(request, slot)
        self.tree = 0


class SuffixTexts(Texts[SuffixText]):
    """rows int64 [S, WORDS], shadows int64 [S, DRAFT + longest draft] and held drafts, by slot.
    unopened: texts for which there was no memory."""

    def __init__(self, forest: SuffixForest, answers: Answers, longest: int) -> None:
        super().__init__()
        self.rows = np.zeros((0, loops.WORDS), dtype=np.int64)
        self.shadows = np.zeros((0, DRAFT + longest), dtype=np.int64)
        self.held = _held(0, longest)
        self.unopened = 0
        self._forest = forest
        self._answers = answers
        self._longest = longest
        self._budget = PROMPT_BUDGET

    def begin_step(self) -> None:
        """Until `take_in`, requests that are added share a whole budget."""
        self._budget = PROMPT_BUDGET

    def take_in(self) -> None:
        """Half of the step's budget is for the text that waits longest, so that none waits for
        ever, and the rest for those that miss fewest tokens."""
        if self.pending:
            whole, self._budget = self._budget, self._budget // 2
            self._take_in(next(iter(self.pending.values())))
            self._budget += whole - whole // 2
        for text in sorted(self.pending.values(), key=missing):
            if self._budget <= 0:
                return
            self._take_in(text)

    def put_back(self, text: SuffixText, count: int) -> None:
        """The last tokens of a commit were not taken in: they wait, as those of a prompt do."""
        text.length -= count
        self.pending[text.request.id] = text

    def remove(self, request: int) -> None:
        """Forget a request. Its answer stays, where others may draft from it."""
        if (text := self.known.get(request)) is not None:
            row = self.rows[text.slot]
            self._forest.drop_tree(text.tree)
            self._forest.close(int(row[loops.RESPONSE]))
            row[:] = 0
        super().remove(request)

    @property
    def visits(self) -> int:
        return int(self._forest.memory.state[VISITS])

    def _make(self, request: Request, slot: int) -> SuffixText:
        return SuffixText(request, slot)

    def _grow(self, slots: int) -> None:
        """Drafts that were held are made again."""
        more = slots - len(self.rows)
        self.rows = np.pad(self.rows, ((0, more), (0, 0)))
        self.shadows = np.pad(self.shadows, ((0, more), (0, 0)))
        self.held = _held(slots, self._longest)
        self.rows[:, loops.FRESH] = 0

    def _open(self, text: SuffixText) -> None:
        """Give it an empty tree for its text, and an empty answer in the global tree. Where there
        is no memory left the handles are 0, and the request gets no drafts or none from its
        answer."""
        request, forest, row = text.request, self._forest, self.rows[text.slot]
        forest.drop_tree(text.tree)
        forest.remove(int(row[loops.RESPONSE]))
        row[:] = 0
        self.shadows[text.slot] = 0
        text.length = 0
        text.tree = forest.open_tree("local", request.prompt_length)
        if text.tree:
            expected = len(request.tokens) + 1
            row[loops.TEXT] = forest.open_sequence(text.tree, expected=expected)
        row[loops.GLOBAL] = tree = self._answers.tree(request.tenant, request.cache_salt)
        row[loops.RESPONSE] = self._answers.open(tree)
        self.unopened += bool(row[loops.TEXT] == 0 or (tree and row[loops.RESPONSE] == 0))

    def _take_in(self, text: SuffixText) -> None:
        request, before = text.request, self.visits
        if self._budget <= 0:
            return
        part = request.tokens[text.length : text.length + _LONGEST_PART]
        text.length += loops.take_in(
            self._forest.memory, self.rows, text.slot, np.array(part, dtype=np.int64),
            request.prompt_length - text.length, self._budget,
        )  # fmt: skip
        self._budget -= self.visits - before + _PRICE
        if text.length == len(request.tokens):
            del self.pending[request.id]


def _held(slots: int, longest: int) -> Held:
    return Held(
        np.zeros((slots, longest), np.int32),
        np.zeros((slots, longest), np.float32),
        np.zeros((slots, 4), np.int32),
        np.zeros(slots, np.float64),
    )
