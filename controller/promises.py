"""What models' margins promise: learned from outcomes, and turned into bars for the next drafts."""

from __future__ import annotations

from controller.contract import Bar, Margins, RequestOutcome
from controller.margins import MarginModel

WHOLE_EVERY = 16
"""In every sixteenth step no draft has to promise anything: what a bar always keeps out would never
be seen, and nobody would notice that it has become worth its row."""


class Promises:
    """A logistic for each drafter that reports margins, and for sampled and greedy requests.

    Memory is bounded by the drafters that there are; `forget` drops one."""

    def __init__(self) -> None:
        self._models: dict[tuple[str, bool], MarginModel] = {}

    def learn(self, result: RequestOutcome, margins: Margins) -> float | None:
        """Take in a model's draft. Returns the chance of its first token that was reached and not
        verified, since a bar kept it out; None when there is none. Without it acceptance would be
        learned from the promising tokens alone."""
        key = margins.drafter, margins.sampled
        model = self._models.get(key)
        if model is None:
            model = self._models[key] = MarginModel()
        values, chances = margins.values, result.chances
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

    def forget(self, drafter: str) -> None:
        for key in [key for key in self._models if key[0] == drafter]:
            del self._models[key]

    def report(self) -> dict[str, object]:
        return {
            f"{drafter} (sampled)" if sampled else drafter: model.report()
            for (drafter, sampled), model in self._models.items()
        }
