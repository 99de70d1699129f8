"""What models' margins promise: learned from outcomes, and turned into bars for the next drafts."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from controller.contract import Bar, Margins, RequestOutcome
from controller.margins import Kept, MarginModel

WHOLE_EVERY = 16
"""In every sixteenth step no draft has to promise anything: what a bar always keeps out would never
be seen, and nobody would notice that it has become worth its row."""

LEVEL = 0.1
"""Bars stand at whole multiples of this in the logarithm, so that what they leave is found once."""
RENEWED_EVERY = 128
"""And again after so many drafts."""

ByKind = Mapping[tuple[str, bool], "Promise"]
"""By drafter, and whether the request's tokens are drawn at random."""


class Promise(NamedTuple):
    """A bar and what it leaves of the drafter's drafts."""

    bar: Bar
    kept: Kept


class Promises:
    """A logistic for each drafter that reports margins, and for sampled and greedy requests.

    Memory is bounded by the drafters that there are; `forget` drops one."""

    def __init__(self) -> None:
        self._models: dict[tuple[str, bool], MarginModel] = {}
        self._found: dict[tuple[str, bool], tuple[tuple[int, int, int], Promise]] = {}

    def learn(self, result: RequestOutcome, margins: Margins) -> float | None:
        """Take in a model's draft. Returns the chance of its first token that was reached and not
        verified, since a bar kept it out; None when there is none. Without it acceptance would be
        learned from the promising tokens alone."""
        key = margins.drafter, margins.sampled
        model = self._models.get(key)
        if model is None:
            model = self._models[key] = MarginModel()
        values, chances = margins.values, result.chances
        model.drafted(values)
        drafted, accepted = result.drafted, result.accepted
        if result.parts:
            drafted, accepted = result.parts[0].drafted, result.parts[0].accepted
            chances = result.parts[0].chances
        refused = result.refused == margins.drafter and not result.cut
        if refused and accepted == drafted < len(values):  # it counts as rejected
            drafted, chances = drafted + 1, (*chances, 0.0) if chances else ()
        seen = min(accepted + (accepted < drafted and not result.cut), len(values))
        if len(chances) >= seen:
            for place in range(seen):
                model.add(values[place], place == 0, chances[place])
        else:
            for place in range(seen):
                model.add(values[place], place == 0, float(place < accepted))
        if result.cut or accepted < drafted or len(values) <= drafted:
            return None
        return model.chance(values[drafted], drafted == 0)

    def tells(self, drafter: str) -> bool:
        """Whether the drafter's margins can be gone by, for greedy or for sampled requests."""
        keys = (drafter, False), (drafter, True)
        return any(key in self._models and self._models[key].known for key in keys)

    def bars(self, step: int, least: float) -> dict[tuple[str, bool], Bar]:
        """What the drafts of a step must promise to be verified. least: tokens that a row costs, as
        known before the step."""
        if step % WHOLE_EVERY == 0 or least <= 0.0:
            return {}
        return {key: model.bar(least) for key, model in self._models.items() if model.known}

    def promised(self, least: float, drafters: Iterable[str]) -> ByKind:
        """Bars at which a token is worth `least` others, about, for the drafters whose margins can
        be gone by, and what these leave."""
        if least <= 0.0 or not self._models:
            return {}
        level = round(math.log(least) / LEVEL)
        found: dict[tuple[str, bool], Promise] = {}
        for drafter in drafters:
            for key in ((drafter, False), (drafter, True)):
                model = self._models.get(key)
                if model is not None and model.known:
                    found[key] = self._at(key, model, level)
        return found

    def _at(self, key: tuple[str, bool], model: MarginModel, level: int) -> Promise:
        state = level, model.version, model.drafts // RENEWED_EVERY
        old = self._found.get(key)
        if old is not None and old[0] == state:
            return old[1]
        least = math.exp(level * LEVEL)
        made = Promise(model.bar(least), model.kept(least))
        self._found[key] = state, made
        return made

    def forget(self, drafter: str) -> None:
        for key in [key for key in self._models if key[0] == drafter]:
            del self._models[key]
            self._found.pop(key, None)

    def report(self) -> dict[str, object]:
        return {
            f"{drafter} (sampled)" if sampled else drafter: model.report()
            for (drafter, sampled), model in self._models.items()
        }
