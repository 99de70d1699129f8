"""Suffix drafter (SuffixDecoding, arXiv 2411.04975): what followed most often where the end of the
text occurred before, in the request itself, in past answers, and in corpora."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Literal

import numpy as np
from numpy.typing import NDArray

from controller.contract import Offer, ShadowScore
from engine.config import EngineConfig
from engine.drafters import suffix_loops as loops
from engine.drafters.base import Committed, TextMemory
from engine.drafters.corpus import CorpusState
from engine.drafters.parameters import Parameter, Value
from engine.drafters.shadow import DRAFT, Scores
from engine.drafters.suffix_answers import Answers
from engine.drafters.suffix_corpora import Corpora
from engine.drafters.suffix_forest import MAX_DRAFT, ForestStats, SuffixForest
from engine.drafters.suffix_loops import ENDED, UNSCORED, Held, Rules
from engine.drafters.suffix_memory import VISITS
from engine.drafters.suffix_tail import tails as tails_of
from engine.drafts import Draft

if TYPE_CHECKING:
    from engine.request import Request

PARAMETERS = (
    Parameter("factor", "float", 0.0, 64.0, 4.0, "Drafted tokens per matched token, at most"),
    Parameter("offset", "float", -64.0, 64.0, 0.0, "Drafted tokens added to that, at most"),
    Parameter("min_token_prob", "float", 0.0, 1.0, 0.1, "Least probability of a drafted path"),
    Parameter("half_life_s", "int", 0, 10**8, 0, "Seconds that halve an answer's weight; 0: none"),
    Parameter("max_age_s", "int", 0, 10**8, 0, "Seconds after which answers are dropped; 0: never"),
)

# Budgets count suffixes moved (suffix_memory.VISITS) and nodes freed: each takes 0.2 to 0.5 µs.
PROMPT_BUDGET = 2000
"""For taking texts in, per step and over all requests. Ordinary text costs 5 a token, the same
token again and again as much as the tree is deep."""
UPKEEP, IDLE_UPKEEP = 1000, 6000
"""For freeing, evicting, fading and corpora together: per step, where as much is added as the step
put in, so that memory cannot fill faster than it is freed, and per call of `work`."""
COMMIT_BUDGET = 16_000
"""For taking in what a step commits, some milliseconds, which only text that repeats itself in all
requests of a large batch reaches. What is beyond it is taken in like a prompt."""
_MOST_UPKEEP = 8000
"""Added to a step's upkeep at most."""
_PRICE = 16
"""Of a request whose text is taken in, however short."""
_LONGEST_PART = 1024
"""Tokens of a text that are looked at together."""
_FEWEST_SLOTS = 8


class _State:
    """One request: its slot, how much of its text is taken in, and its handles."""

    __slots__ = ("length", "request", "slot", "tree")

    def __init__(self, request: Request, slot: int) -> None:
        self.request = request
        self.slot = slot
        self.length = 0
        self.tree = 0


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
        self._states: dict[int, _State] = {}
        self._pending: dict[int, _State] = {}
        self._answers = Answers(self._forest, config.suffix_tree, limit)
        self._answers.max_age_s = config.suffix_max_age_s
        self._corpora = Corpora(self._forest)
        self._budget = PROMPT_BUDGET
        self._unopened = 0
        self._free: list[int] = []
        self._slots = np.zeros((0, loops.WORDS), dtype=np.int64)
        self._shadows = np.zeros((0, DRAFT + self._max), dtype=np.int64)
        self._held = _held(0, self._max)

    # --- the protocol -------------------------------------------------------------------------

    def admit(self, request: Request) -> None:
        known = self._states.get(request.id)
        if known is not None:
            if known.request is request:
                return
            self.forget(request.id)
        state = _State(request, self._slot())
        self._states[request.id] = self._pending[request.id] = state
        self._open(state)
        self._take_in(state)

    def offer(self, requests: Sequence[Request]) -> list[Offer | None]:
        offers: list[Offer | None] = [None] * len(requests)
        asked, slots = self._ready(requests)
        if not slots:
            return offers
        found = np.empty(len(slots), dtype=np.int64)
        which = np.array(slots)
        loops.offers(
            self._forest.memory, self._slots, self._shadows, which, self._rules(), self._ends,
            self._held, found,
        )  # fmt: skip
        name, features = self.name, self._scores.features
        lengths = self._held.facts[which, 0].tolist()
        for place, packed, length in zip(asked, found.tolist(), lengths, strict=True):
            if packed:
                offers[place] = Offer(requests[place].id, name, length, features(packed))
        return offers

    def propose(self, requests: Sequence[Request], lengths: Sequence[int]) -> list[Draft]:
        drafts: list[Draft] = []
        for request, length in zip(requests, lengths, strict=True):
            state = self._states.get(request.id)
            if state is None or not self._slots[state.slot, loops.FRESH]:
                drafts.append(Draft())
                continue
            count = min(length, int(self._held.facts[state.slot, 0]))
            drafts.append(Draft(self._held.tokens[state.slot, :count].tolist()))
        return drafts

    def extend(
        self, requests: Sequence[Request], drafts: Sequence[Sequence[int]], lengths: Sequence[int]
    ) -> list[Sequence[int]]:
        tails: list[Sequence[int]] = [()] * len(requests)
        asked, slots = self._ready(requests)
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
            self._forest.memory, self._slots, np.array(words, dtype=np.int64), self._rules(),
            self._ends, tokens, np.empty(most, dtype=np.float32), counts,
        )  # fmt: skip
        for place, count, row in zip(asked, counts.tolist(), tokens.tolist(), strict=True):
            tails[place] = row[:count]
        return tails

    def commit(self, commits: Sequence[Committed]) -> list[tuple[ShadowScore, ...]]:
        self._budget, before = PROMPT_BUDGET, self._visits
        try:
            scores = self._commit(commits)
        except Exception:
            for one in commits:
                if (state := self._states.get(one.request.id)) is not None:
                    self._again(state)
            raise
        self._take_turns()
        added = min(self._visits - before, _MOST_UPKEEP)
        self._keep_up(UPKEEP + added, UPKEEP // 2)
        return scores

    def forget(self, request: int) -> None:
        state = self._states.pop(request, None)
        if state is not None:
            self._pending.pop(request, None)
            self._forest.drop_tree(state.tree)
            self._forest.close(int(self._slots[state.slot, loops.RESPONSE]))
            self._slots[state.slot] = 0
            self._free.append(state.slot)

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
        return TextMemory(stats.bytes, stats.limit_bytes, stats.truncations + self._unopened)

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

    def _ready(self, requests: Sequence[Request]) -> tuple[list[int], list[int]]:
        """Places and slots of the requests whose text is taken in."""
        known = [
            (place, self._states[one.id].slot)
            for place, one in enumerate(requests)
            if one.id in self._states and one.id not in self._pending
        ]
        return [place for place, _ in known], [slot for _, slot in known]

    def _commit(self, commits: Sequence[Committed]) -> list[tuple[ShadowScore, ...]]:
        scores: list[tuple[ShadowScore, ...]] = [()] * len(commits)
        words: list[int] = []
        told: list[tuple[_State, int, int]] = []
        for place, one in enumerate(commits):
            request = one.request.id
            state = self._states.get(request)
            if state is None or request in self._pending:
                continue
            if state.length != one.start:  # it missed a commit
                self._again(state)
                continue
            count = len(one.tokens)
            flags = ENDED * one.ended | UNSCORED * (one.prefilled or not one.scored)
            told.append((state, len(words), count))
            words += (state.slot, place, count, one.drafted, one.accepted, flags)
            words += one.tokens
            state.length += count
        if not words:
            return scores
        settled, owners = np.empty((2, len(words)), dtype=np.int64)
        array, before = np.array(words, dtype=np.int64), self._visits
        count = loops.commit(
            self._forest.memory, self._slots, self._shadows, array, self._rules(), self._ends,
            self._held, settled, owners, COMMIT_BUDGET,
        )  # fmt: skip
        if self._visits - before >= COMMIT_BUDGET:
            for state, at, wanted in told:
                missing = wanted - int(array[at + loops.TAKEN])
                if missing:
                    state.length -= missing
                    self._pending[state.request.id] = state
        score = self._scores.score
        for owner, packed in zip(owners[:count].tolist(), settled[:count].tolist(), strict=True):
            scores[owner] += (score(packed),)
        return scores

    # --- texts --------------------------------------------------------------------------------

    def _slot(self) -> int:
        if not self._free:
            count = len(self._slots)
            more = max(count, _FEWEST_SLOTS)
            self._slots = np.pad(self._slots, ((0, more), (0, 0)))
            self._shadows = np.pad(self._shadows, ((0, more), (0, 0)))
            self._held = _held(count + more, self._max)
            self._slots[:, loops.FRESH] = 0
            self._free.extend(range(count + more - 1, count - 1, -1))
        return self._free.pop()

    def _open(self, state: _State) -> None:
        """An empty tree for its text, and an empty answer in the global tree. Where there is no
        memory left the handles are 0, and the request gets no drafts or none from its answer."""
        request, forest = state.request, self._forest
        slot = self._slots[state.slot]
        slot[:] = 0
        self._shadows[state.slot] = 0
        state.length = 0
        state.tree = forest.open_tree("local", request.prompt_length)
        if state.tree:
            expected = len(request.tokens) + 1
            slot[loops.TEXT] = forest.open_sequence(state.tree, expected=expected)
        slot[loops.GLOBAL] = tree = self._answers.tree(request.tenant, request.cache_salt)
        slot[loops.RESPONSE] = self._answers.open(tree)
        self._unopened += bool(slot[loops.TEXT] == 0 or (tree and slot[loops.RESPONSE] == 0))

    def _again(self, state: _State) -> None:
        """Take its text in from the beginning."""
        self._forest.drop_tree(state.tree)
        self._forest.remove(int(self._slots[state.slot, loops.RESPONSE]))
        self._pending[state.request.id] = state
        self._open(state)

    def _take_turns(self) -> None:
        """Take in texts that wait: half of the budget is for the one that waits longest, so that
        none waits for ever, and the rest for those that miss fewest tokens."""
        if self._pending:
            whole, self._budget = self._budget, self._budget // 2
            self._take_in(next(iter(self._pending.values())))
            self._budget += whole - whole // 2
        for state in sorted(self._pending.values(), key=_missing):
            if self._budget <= 0:
                return
            self._take_in(state)

    def _take_in(self, state: _State) -> None:
        """Take in what the budget allows of a text that is not there yet."""
        request, before = state.request, self._visits
        if self._budget <= 0:
            return
        part = request.tokens[state.length : state.length + _LONGEST_PART]
        state.length += loops.take_in(
            self._forest.memory, self._slots, state.slot, np.array(part, dtype=np.int64),
            request.prompt_length - state.length, self._budget,
        )  # fmt: skip
        self._budget -= self._visits - before + _PRICE
        if state.length == len(request.tokens):
            del self._pending[request.id]

    @property
    def _visits(self) -> int:
        return int(self._forest.memory.state[VISITS])

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


def _missing(state: _State) -> int:
    return len(state.request.tokens) - state.length


def _held(slots: int, longest: int) -> Held:
    return Held(
        np.zeros((slots, longest), np.int32),
        np.zeros((slots, longest), np.float32),
        np.zeros((slots, 4), np.int32),
        np.zeros(slots, np.float64),
    )
