"""One arm of a comparison: a controller of its own, and what its requests got."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, replace

from controller.contract import Controller, Decision, StepOutcome
from controller.policies.intervals import Estimate, Ratio

MAX_REQUESTS = 4096

MEASURES = ("acceptance_length", "tokens_per_request_second", "tokens_per_row_second")
"""Tokens per request and step; per second that a request waits for its steps; and per second of
the device, of which an arm has the time of its rows and of its own drafts."""


@dataclass(slots=True)
class _Account:
    """tokens committed in `steps` steps; waited: seconds of these steps; shared: the request's part
    (by rows) of the seconds that its arm caused in them."""

    steps: int = 0
    tokens: int = 0
    waited: float = 0.0
    shared: float = 0.0

    def pairs(self) -> tuple[tuple[float, float], ...]:
        """(y, x) of each measure."""
        return ((self.tokens, self.steps), (self.tokens, self.waited), (self.tokens, self.shared))


class Arm:
    """label: A or B. policy: its controller's name."""

    def __init__(self, label: str, policy: str, controller: Controller) -> None:
        self.label = label
        self.policy = policy
        self.controller = controller
        self._ended = [Ratio() for _ in MEASURES]
        self._running: OrderedDict[int, _Account] = OrderedDict()

    def tagged(self, decision: Decision, requests: tuple[int, ...]) -> Decision:
        """A copy that says which arm made it. requests: those of the arm in the batch."""
        return replace(
            decision,
            id=f"{decision.id}-{self.label.lower()}",
            inputs={**decision.inputs, "arm": self.label, "policy": self.policy},
            sentence=f"Arm {self.label} ({self.policy}): {decision.sentence}",
            requests=requests,
        )

    def count(self, outcome: StepOutcome, part: StepOutcome) -> None:
        """Add what the arm's requests got from a step. outcome: the whole step, which they waited
        for; part: what the arm caused of it."""
        waited = (outcome.verify_ms + outcome.draft_ms + outcome.overhead_ms) / 1000.0
        share = part.rows / (part.rows + part.prefill_rows)
        caused = (part.verify_ms * share + part.draft_ms + part.overhead_ms) / 1000.0
        for one in part.per_request:
            account = self._running.get(one.request)
            if account is None:
                account = self._running[one.request] = _Account()
                if len(self._running) > MAX_REQUESTS:
                    self.forget(next(iter(self._running)))
            account.steps += 1
            account.tokens += one.committed
            account.waited += waited
            account.shared += caused * (1 + one.drafted) / part.rows

    def forget(self, request: int) -> None:
        """The request has ended."""
        account = self._running.pop(request, None)
        if account is not None:
            for ratio, (y, x) in zip(self._ended, account.pairs(), strict=True):
                ratio.add(y, x)

    def estimates(self) -> dict[str, Estimate | None]:
        """Each measure over the requests that have ended."""
        pairs = zip(MEASURES, self._ended, strict=True)
        return {name: ratio.estimate() for name, ratio in pairs}

    def report(self) -> dict[str, object]:
        """JSON-able."""
        found = {name: one and one.report() for name, one in self.estimates().items()}
        report = self.controller.report()
        return {
            "policy": self.policy,
            "requests": self._ended[0].count,
            "running": len(self._running),
            **found,
            "decisions": report["decisions"],
            "current": report["current"],
        }
