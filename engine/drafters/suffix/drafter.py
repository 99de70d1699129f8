"""Suffix drafter (SuffixDecoding, arXiv 2411.04975): what followed most often where the end of the
text occurred before, in the request itself, in past answers, and in corpora."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Literal

import numpy as np
from numpy.typing import NDArray

from controller.contract import Offer, ShadowScore
from engine.config import EngineConfig
from engine.drafters.base import Committed, TextMemory
from engine.drafters.corpus import CorpusState
from engine.drafters.parameters import Parameter, Value
from engine.drafters.shadow import Scores
from engine.drafters.suffix import loops
from engine.drafters.suffix.answers import Answers
from engine.drafters.suffix.corpora import Corpora
from engine.drafters.suffix.forest import MAX_DRAFT, ForestStats, SuffixForest
from engine.drafters.suffix.loops import Rules
from engine.drafters.suffix.tail import tails as tails_of
from engine.drafters.suffix.texts import SuffixText, SuffixTexts
from engine.drafters.texts import COUNT
from engine.drafts import Draft

if TYPE_CHECKING:
    from engine.request import Request

PARAMETERS = (
    Parameter("factor", "float", 0.0, 64.0, 4.0, "Drafted tokens per matched token, at most"),
    Parameter("offset", "float", -64.0, 64.0, 0.0, "Drafted tokens added to that, at most"),
    Parameter("min_token_prob", "float", 0.0, 1.0, 0.1, "Least probability of a drafted path"),
    Parameter("half_life_s", "int", 0, 10**8, 0, "Seconds that halve an answer's weight; 0: none"),
    Parameter(
        "max_age_s", "int", 0, 10**8, 86_400, "Seconds after which answers are dropped; 0: never"
    ),
)

# Budgets count suffixes moved (memory.VISITS) and nodes freed: each takes 0.2 to 0.5 µs.
UPKEEP, IDLE_UPKEEP = 1000, 6000
"""For freeing, evicting, fading and corpora together: per step, where as much is added as the step
put in, so that memory cannot fill faster than it is freed, and per call of `work`."""
COMMIT_BUDGET = 16_000
"""For taking in what a step commits, some milliseconds, which only text that repeats itself in all
requests of a large batch reaches. What is beyond it is taken in like a prompt."""
_MOST_UPKEEP = 8000
"""Added to a step's upkeep at most."""


class SuffixDrafter:
    """Model-free: every draft is one-hot and costs microseconds on the host.

    Every request has a tree of its prompt and output. Answers also go to a global tree, live: one
    per tenant, one for all, or none, as config.suffix_tree says. A draft found there depends on
    other requests' answers, and how fast it is accepted can be seen from outside: that is why
    tenants have their own by default."""

    name = "suffix"
    kind: Literal["model_free", "model"] = "model_free"
    parameters: Mapping[str, Parameter] = {p.name: p for p in PARAMETERS}

    def __init__(self, config: EngineConfig, end_ids: frozenset[int], vocabulary: int) -> None:
        limit = config.suffix_memory_mb << 20
        self._forest = SuffixForest(limit, config.suffix_depth, vocabulary)
        self._values: dict[str, Value] = {p.name: p.default for p in PARAMETERS}
        self._values["max_age_s"] = config.suffix_max_age_s
        self._max = min(config.max_draft_length, MAX_DRAFT)
        self._ends = np.array(sorted(end_ids), dtype=np.int64)
        self._scores = Scores(self.name, loops.SOURCES)
        self._answers = Answers(self._forest, config.suffix_tree, limit)
        self._answers.max_age_s = config.suffix_max_age_s
        self._corpora = Corpora(self._forest)
        self._texts = SuffixTexts(self._forest, self._answers, self._max)

    # --- the protocol -------------------------------------------------------------------------

    def admit(self, request: Request) -> None:
        self._texts.add(request)

    def offer(self, requests: Sequence[Request]) -> list[Offer | None]:
        offers: list[Offer | None] = [None] * len(requests)
        asked, slots = self._texts.ready(requests)
        if not slots:
            return offers
        texts, which = self._texts, np.array(slots)
        found = np.empty(len(slots), dtype=np.int64)
        loops.offers(
            self._forest.memory, texts.rows, texts.shadows, which, self._rules(), self._ends,
            texts.held, found,
        )  # fmt: skip
        name, features = self.name, self._scores.features
        lengths = texts.held.facts[which, 0].tolist()
        for place, packed, length in zip(asked, found.tolist(), lengths, strict=True):
            if packed:
                offers[place] = Offer(requests[place].id, name, length, features(packed))
        return offers

    def propose(self, requests: Sequence[Request], lengths: Sequence[int]) -> list[Draft]:
        drafts: list[Draft] = []
        texts = self._texts
        for request, length in zip(requests, lengths, strict=True):
            text = texts.known.get(request.id)
            if text is None or not texts.rows[text.slot, loops.FRESH]:
                drafts.append(Draft())
                continue
            count = min(length, int(texts.held.facts[text.slot, 0]))
            drafts.append(Draft(texts.held.tokens[text.slot, :count].tolist()))
        return drafts

    def extend(
        self, requests: Sequence[Request], drafts: Sequence[Sequence[int]], lengths: Sequence[int]
    ) -> list[Sequence[int]]:
        tails: list[Sequence[int]] = [()] * len(requests)
        asked, slots = self._texts.ready(requests)
        if not slots:
            return tails
        seen = self._forest.depth - 1
        words: list[int] = []
        for place, slot in zip(asked, slots, strict=True):
            text = [*requests[place].tokens[-seen:], *drafts[place]][-seen:]
            words += (slot, len(text), lengths[place])
            words += text
        most = max(lengths[place] for place in asked)
        tokens = np.empty((len(slots), most), dtype=np.int32)
        counts = np.empty(len(slots), dtype=np.int64)
        tails_of(
            self._forest.memory, self._texts.rows, np.array(words, dtype=np.int64), self._rules(),
            self._ends, tokens, np.empty(most, dtype=np.float32), counts,
        )  # fmt: skip
        for place, count, row in zip(asked, counts.tolist(), tokens.tolist(), strict=True):
            tails[place] = row[:count]
        return tails

    def commit(self, commits: Sequence[Committed]) -> list[tuple[ShadowScore, ...]]:
        texts = self._texts
        before = texts.visits
        texts.begin_step()
        try:
            scores = self._commit(commits)
        except Exception:
            texts.restart_all(commits)
            raise
        texts.take_in()
        added = min(texts.visits - before, _MOST_UPKEEP)
        self._keep_up(UPKEEP + added, UPKEEP // 2)
        return scores

    def forget(self, request: int) -> None:
        self._texts.remove(request)

    def work(self) -> bool:
        """Index, free and evict while nothing else is to be done, for a few milliseconds. False
        when there is nothing left."""
        return self._keep_up(IDLE_UPKEEP, IDLE_UPKEEP // 2)

    # --- operators ----------------------------------------------------------------------------

    @property
    def values(self) -> Mapping[str, Value]:
        return dict(self._values)

    def set_parameters(self, changes: Mapping[str, Value]) -> None:
        self._values.update(changes)
        self._answers.half_life_s = int(self._values["half_life_s"])
        self._answers.max_age_s = int(self._values["max_age_s"])

    def put_corpus(
        self, name: str, tokens: NDArray[np.int32], lengths: NDArray[np.int64], first: bool
    ) -> None:
        self._corpora.put(name, tokens, lengths, first)

    def drop_corpus(self, name: str) -> None:
        self._corpora.drop(name)

    def corpora(self) -> dict[str, CorpusState]:
        return self._corpora.states()

    @property
    def memory(self) -> ForestStats:
        return self._forest.stats()

    def text_memory(self) -> TextMemory:
        stats = self._forest.stats()
        return TextMemory(stats.bytes, stats.limit_bytes, stats.truncations + self._texts.unopened)

    # --- one step -----------------------------------------------------------------------------

    def _rules(self) -> Rules:
        values = self._values
        return Rules(
            self._corpora.tree,
            self._max,
            float(values["factor"]),
            float(values["offset"]),
            float(values["min_token_prob"]),
        )

    def _commit(self, commits: Sequence[Committed]) -> list[tuple[ShadowScore, ...]]:
        scores: list[tuple[ShadowScore, ...]] = [()] * len(commits)
        texts = self._texts
        words: list[int] = []
        told: list[tuple[SuffixText, int, int]] = []
        for text, one, head in texts.committed(commits):
            told.append((text, len(words), len(one.tokens)))
            words += head
            words += one.tokens
        if not words:
            return scores
        settled, owners = np.empty((2, len(words)), dtype=np.int64)
        array, before = np.array(words, dtype=np.int64), texts.visits
        count = loops.commit(
            self._forest.memory, texts.rows, texts.shadows, array, self._rules(), self._ends,
            texts.held, settled, owners, COMMIT_BUDGET,
        )  # fmt: skip
        if texts.visits - before >= COMMIT_BUDGET:
            for text, at, wanted in told:
                if left := wanted - int(array[at + COUNT]):
                    texts.put_back(text, left)
        score = self._scores.score
        for owner, packed in zip(owners[:count].tolist(), settled[:count].tolist(), strict=True):
            scores[owner] += (score(packed),)
        return scores

    def _keep_up(self, budget: int, share: int) -> bool:
        """Free, evict, fade and index, at this cost in all, of which `share` is for corpora that
        wait, and what the others leave. False when there was nothing to do."""
        waiting = self._corpora.waiting
        if waiting:
            budget -= share
        left = self._answers.keep_up(budget)
        if waiting:
            self._corpora.keep_up(share + left)
        return waiting or left == 0
