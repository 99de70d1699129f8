"""N-gram drafter (prompt lookup): continues the latest earlier occurrence of the last tokens."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Literal

import numpy as np

from controller.contract import Offer, ShadowScore
from engine.drafters.base import Committed
from engine.drafters.ngram.index import MAX_N
from engine.drafters.ngram.loops import SOURCES, loops
from engine.drafters.ngram.texts import NgramTexts
from engine.drafters.parameters import Parameter, Value
from engine.drafters.shadow import LONGEST, Scores
from engine.drafts import Draft

if TYPE_CHECKING:
    from engine.request import Request

PARAMETERS = (
    Parameter("min_n", "int", 1, MAX_N, 1, "Shortest n-gram looked up, in tokens"),
    Parameter("max_n", "int", 1, MAX_N, MAX_N, "Longest n-gram looked up, in tokens"),
    Parameter(
        "recycle", "bool", False, True, False, "Draft from rejected rows where nothing matches"
    ),
)


class NgramDrafter:
    """Model-free: every draft is one-hot and costs microseconds on the host."""

    name = "ngram"
    kind: Literal["model_free", "model"] = "model_free"
    parameters: Mapping[str, Parameter] = {p.name: p for p in PARAMETERS}

    def __init__(self, max_draft_length: int, end_ids: frozenset[int]) -> None:
        self.min_n, self.max_n = 1, MAX_N
        self._max = min(max_draft_length, LONGEST)
        self._ends = np.array(sorted(end_ids), dtype=np.int64)
        self._loops = loops()
        self._texts = NgramTexts(self._max, self._loops)
        self._values = Scores(self.name, SOURCES)
        self._scores = np.empty(0, dtype=np.int64)
        self._owners = np.empty(0, dtype=np.int64)

    @property
    def values(self) -> Mapping[str, Value]:
        return {"min_n": self.min_n, "max_n": self.max_n, "recycle": self._texts.recycle}

    def set_parameters(self, changes: Mapping[str, Value]) -> None:
        values = {**self.values, **changes}
        if values["min_n"] > values["max_n"]:
            raise ValueError(
                f"min_n {values['min_n']} is above max_n {values['max_n']}; set both so that min_n "
                "is at most max_n."
            )
        self.min_n, self.max_n = int(values["min_n"]), int(values["max_n"])
        if values["recycle"] != self._texts.recycle:
            self._texts.set_recycle(bool(values["recycle"]))

    # --- the protocol -------------------------------------------------------------------------

    def admit(self, request: Request) -> None:
        self._texts.add(request)

    def offer(self, requests: Sequence[Request]) -> list[Offer | None]:
        offers: list[Offer | None] = [None] * len(requests)
        asked, slots = self._texts.ready(requests)
        if not slots:
            return offers
        found = np.empty(len(slots), dtype=np.int64)
        self._loops.offers(
            self._texts.rows, self._texts.shadows, np.array(slots), self.min_n, self.max_n, found
        )
        name, longest, features = self.name, self._max, self._values.features
        for place, packed in zip(asked, found.tolist(), strict=True):
            if packed:
                offers[place] = Offer(requests[place].id, name, longest, features(packed))
        return offers

    def propose(self, requests: Sequence[Request], lengths: Sequence[int]) -> list[Draft]:
        drafts = [Draft()] * len(requests)
        asked, slots = self._texts.ready(requests)
        if not slots:
            return drafts
        wanted = [min(lengths[place], LONGEST) for place in asked]
        tokens = np.empty((len(slots), max(wanted)), dtype=np.int64)
        counts = np.empty(len(slots), dtype=np.int64)
        self._loops.drafts(
            self._texts.rows, np.array(slots), np.array(wanted), self._ends, tokens, counts
        )
        for place, count, row in zip(asked, counts.tolist(), tokens.tolist(), strict=True):
            drafts[place] = Draft(row[:count])
        return drafts

    def extend(
        self, requests: Sequence[Request], drafts: Sequence[Sequence[int]], lengths: Sequence[int]
    ) -> list[Sequence[int]]:
        tails: list[Sequence[int]] = [()] * len(requests)
        asked, slots = self._texts.ready(requests)
        if not slots:
            return tails
        words: list[int] = []
        for place, slot in zip(asked, slots, strict=True):
            words += (slot, len(drafts[place]), lengths[place])
            words += drafts[place]
        most = max(lengths[place] for place in asked)
        tokens = np.empty((len(slots), most), dtype=np.int64)
        counts = np.empty(len(slots), dtype=np.int64)
        self._loops.tails(
            self._texts.rows, np.array(words), self._ends, self.min_n, self.max_n, self._max,
            tokens, counts,
        )  # fmt: skip
        for place, count, row in zip(asked, counts.tolist(), tokens.tolist(), strict=True):
            tails[place] = row[:count]
        return tails

    def commit(self, commits: Sequence[Committed]) -> list[tuple[ShadowScore, ...]]:
        try:
            scores = self._commit(commits)
        except Exception:
            self._texts.restart_all(commits)
            raise
        finally:
            self._texts.take_in()
        return scores

    def forget(self, request: int) -> None:
        self._texts.remove(request)

    def _commit(self, commits: Sequence[Committed]) -> list[tuple[ShadowScore, ...]]:
        scores: list[tuple[ShadowScore, ...]] = [()] * len(commits)
        words: list[int] = []
        texts = self._texts
        for _, one, head in texts.committed(commits):
            told_all = texts.recycle and len(one.rejected) == len(one.targets)
            guesses = len(one.targets) if told_all else 0
            words += head
            words.append(guesses)
            words += one.tokens
            if guesses:
                words += one.rejected
                words += one.targets
        if len(self._scores) < len(words):  # more than there can be
            self._scores = np.empty(2 * len(words), dtype=np.int64)
            self._owners = np.empty(2 * len(words), dtype=np.int64)
        told = np.array(words, dtype=np.int64)
        at = settled = 0
        while at < len(words):
            at, settled = self._loops.commit(
                texts.rows, texts.shadows, told, at, settled, self._ends,
                self.min_n, self.max_n, self._scores, self._owners,
            )  # fmt: skip
            if at < len(words):
                texts.grow(texts.known[commits[words[at + 1]].request.id], words[at + 2])
        score = self._values.score
        owners = self._owners[:settled].tolist()
        for owner, packed in zip(owners, self._scores[:settled].tolist(), strict=True):
            scores[owner] += (score(packed),)
        return scores
