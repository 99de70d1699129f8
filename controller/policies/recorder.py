"""Decisions of a policy: one whenever what it stands for changes, with its reason in words."""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass

from controller import reasons
from controller.contract import NONE, BatchView, Candidate, Decision, Setting
from controller.decision import Ledger
from controller.journal import words
from controller.reasons import LIMITS
from controller.schedule import because_of_batch

LEAST_STEPS = 32
"""Between two decisions of a policy's own; the plan itself follows at once."""


@dataclass(frozen=True, slots=True)
class Stand:
    """What the policy does at present: the drafter and D, and why. reason: a documented code."""

    drafter: str
    length: float
    reason: str
    sentence: str
    guard: str | None = None


class Recorder:
    """Owns the ledger. news: the sentence of an operator's change that the next plan records."""

    def __init__(self, policy: str, clock: Callable[[], float]) -> None:
        self.ledger = Ledger(clock)
        self.news: str | None = None
        self._policy = policy
        self._age = 0
        self._over = False

    def write(
        self,
        batch: BatchView,
        asked: Setting,
        setting: Setting,
        stand: Stand,
        inputs: Mapping[str, object],
        price: Callable[[Stand], tuple[Candidate, Sequence[Candidate]]],
    ) -> Decision | None:
        """The decision that a planned step opens, if any. asked: the operator's setting; setting:
        what it comes to at this batch. price: the stand as a candidate, and all the others."""
        self._age += 1
        over = setting.mode != asked.mode  # more requests than the operator lets draft
        current = self.ledger.current
        reason, sentence, guard = stand.reason, stand.sentence, stand.guard
        if current is None:
            reason, guard = reasons.START, None
            sentence = f"First plan of policy {self._policy}, {words(asked)}. {sentence}"
        elif self.news is not None:
            reason, sentence, guard = reasons.OPERATOR, f"{self.news} {sentence}", None
        elif _same(current, stand) or (self._age < LEAST_STEPS and guard is None):
            return None
        elif over != self._over:
            reason, sentence = reasons.REQUEST_LIMIT, because_of_batch(asked, len(batch.requests))
        elif asked.schedule and reason not in LIMITS.values():
            reason, sentence = reasons.BATCH_TABLE, because_of_batch(asked, len(batch.requests))
        self.news, self._age, self._over = None, 0, over
        chosen, others = price(stand)
        return self.ledger.open(
            step=batch.step,
            drafter=stand.drafter,
            draft_length=stand.length,
            inputs={
                "policy": self._policy,
                "mode": setting.mode,
                "batch": len(batch.requests),
                **inputs,
            },
            candidates=(chosen, *others),
            chosen=chosen,
            reason=reason,
            sentence=sentence,
            guard=guard,
            requests=tuple(request.id for request in batch.requests),
        )


def _same(decision: Decision, stand: Stand) -> bool:
    return (decision.drafter, decision.draft_length) == (stand.drafter, round(stand.length, 3))


def by_operator(setting: Setting, enabled: Container[str]) -> Stand | None:
    """The stand where the operator fixed the plan; None where it is the policy's."""
    if setting.mode == "off":
        return Stand(NONE, 0.0, reasons.OPERATOR, "Plain decoding by the operator's setting.")
    if setting.mode == "pinned" and setting.drafter == NONE:
        return Stand(NONE, 0.0, reasons.OPERATOR, "Plain decoding is pinned by the operator.")
    if setting.mode == "pinned" and setting.drafter and setting.draft_length is not None:
        name, length = setting.drafter, setting.draft_length
        if name not in enabled:
            text = f"The operator pinned {name}, which is disabled: plain decoding."
            return Stand(NONE, 0.0, reasons.OPERATOR, text)
        text = f"The operator pinned {name} with D = {length}."
        return Stand(name if length else NONE, length, reasons.OPERATOR, text)
    return None
