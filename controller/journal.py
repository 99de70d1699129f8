"""The journal: watches the plans, notices when the regime changes, and opens the decision."""

from __future__ import annotations

from collections.abc import Callable, Container

from controller import reasons
from controller.acceptance import Acceptance
from controller.averages import LOOK_EVERY, Sample
from controller.contract import NONE, BatchView, Decision, Setting
from controller.cost import CostModel
from controller.decision import Ledger
from controller.guards import HarmGuard
from controller.limits import deciding
from controller.mixing import head_of
from controller.regime import Regime
from controller.schedule import because_of_batch

GRID = (1, 2, 4, 8, 16)
"""Uniform lengths shown as alternatives in decisions."""
RECENT_PROBE_STEPS = 128
"""A change of plan takes about 70 steps to be one."""
RECENT_GUARD_STEPS = 256
LEAST_STEPS = 32
"""Between two decisions that the batch size makes; the plan itself follows at once."""


class Journal:
    """One decision per change of plan. Owns the smoothed regime and the ledger."""

    def __init__(self, drafters: tuple[str, ...], clock: Callable[[], float]) -> None:
        self.ledger = Ledger(clock)
        self.regime = Regime(drafters, GRID)
        self._clock = clock
        self._news: str | None = None
        self._guard_fired = False
        self._steps = 0
        self._rearmed: int | None = None
        """The step in which the harm guard let go last."""
        self._probed: dict[str, int] = {}
        """By drafter that the plan left out, the step in which it was tried last."""
        self._unlooked = 0
        self._limit: str | None = None
        """The constraint that decided the plan when the last decision was opened, by its share."""
        self._changing = 0
        """Steps for which another constraint, or none, has decided a plan of a fixed D."""
        self._recorded: Setting | None = None
        self._recorded_age = 0

    def relist(self, drafters: tuple[str, ...], sentence: str) -> None:
        """The drafters are others now; the next plan opens a decision with this sentence."""
        self.regime.relist(drafters)
        if self.ledger.current is not None:
            self.operator_changed(sentence)

    def operator_changed(self, sentence: str) -> None:
        """The next plan opens a decision with this sentence."""
        self._news = sentence
        self._guard_fired, self._rearmed = False, None
        self.regime.restart()

    def looks(self, setting: Setting) -> bool:
        """Whether this step prices the uniform lengths: now and then, and for every decision that
        is certain to come. setting: what the operator's comes to at this batch size."""
        certain = self.ledger.current is None or self._news is not None or self._guard_fired
        certain = certain or self._switches(setting)
        self._unlooked += 1
        if not certain and self._unlooked < LOOK_EVERY:
            return False
        self._unlooked = 0
        return True

    def guard_fired(self) -> None:
        self._guard_fired = True

    def guard_ended(self) -> None:
        self._rearmed = self._steps

    def probed(self, drafter: str) -> None:
        """A drafter that the plan left out was tried in this step."""
        self._probed[drafter] = self._steps

    def _switches(self, setting: Setting) -> bool:
        """Whether the next plan opens a decision because the batch size makes another setting."""
        return setting != self._recorded and self._recorded_age + 1 >= LEAST_STEPS

    def write(
        self,
        batch: BatchView,
        sample: Sample,
        asked: Setting,
        setting: Setting,
        enabled: Container[str],
        cost: CostModel,
        acceptance: Acceptance,
        harm: HarmGuard,
        models: Container[str],
    ) -> Decision | None:
        """Take in a planned step; the decision it opens, if any. asked: the operator's setting;
        setting: what it comes to at this batch size; models: drafters without a shadow."""
        regime, switches = self.regime, self._switches(setting)
        if switches:
            regime.restart()  # what was smoothed before no longer describes the plan
        regime.update(sample)
        self._steps += 1
        self._recorded_age += 1
        now = self._clock()
        guard = None
        if self.ledger.current is None:
            reason, self._news = reasons.START, None
            self._record(setting)
            sentence = self._with_limit(f"First plan after the start, {words(asked)}.")
            drafter, depth = self._nominal(setting, enabled)
        elif self._news is not None:
            reason, sentence, self._news = reasons.OPERATOR, self._with_limit(self._news), None
            self._record(setting)
            drafter, depth = self._nominal(setting, enabled)
        elif switches:
            over = "off" in (setting.mode, self._recorded.mode if self._recorded else "")
            reason = reasons.REQUEST_LIMIT if over else reasons.BATCH_TABLE
            self._record(setting)
            sentence = because_of_batch(asked, len(batch.requests))
            drafter, depth = self._nominal(setting, enabled)
        elif self._guard_fired:
            self._guard_fired = False
            regime.restart()
            reason = guard = reasons.HARM_GUARD
            sentence = (
                "Drafting lost more than 2 % of time against plain decoding; "
                f"plain decoding for {harm.dwell_left} steps."
            )
            drafter, depth = NONE, 0.0
        elif _fixed(setting):
            limit = deciding(regime.means, self._limit)
            told = limit or self._limit
            if told is None or limit == self._limit:
                self._changing = 0
                return None
            self._changing += 1
            if self._changing == 1:
                regime.restart()  # so that the decision rests on the plan as it is from here
            if self._changing < LEAST_STEPS:
                return None
            reason, self._changing = reasons.LIMITS[told], 0
            drafter, depth = self._nominal(setting, enabled)
            sentence = f"{_said(drafter, depth)}: {reasons.because(reason, regime.means, {})}."
        elif not regime.changed(now):
            return None
        else:
            probed = [
                name
                for name, step in self._probed.items()
                if self._steps - step < RECENT_PROBE_STEPS
            ]
            let_go = self._rearmed
            rearmed = let_go is not None and self._steps - let_go < RECENT_GUARD_STEPS
            reason = regime.reason(probed, rearmed, models)
            guard = reason if reason == reasons.REQUEST_GUARD else None
            sentence = regime.sentence(reason)
            if reason not in reasons.LIMITS.values():
                sentence = self._with_limit(sentence)
            self._rearmed = None
            drafter, depth = regime.leader()
        candidates = regime.candidates(
            drafter, depth, cost.spread, lambda name: acceptance.evidence(head_of(name))
        )
        if drafter == NONE:
            # Plan and plain decoding are one candidate; a guard's plan is the plain one.
            del candidates[0 if guard else 1]
        inputs: dict[str, object] = {
            "mode": setting.mode,
            "cost_factor": round(cost.factor, 4),
            "loss": round(harm.loss, 5),
            **regime.inputs(),
        }
        regime.enter(drafter, depth, now)
        self._limit = deciding(regime.means, self._limit)
        return self.ledger.open(
            step=batch.step,
            drafter=drafter,
            draft_length=depth,
            inputs=inputs,
            candidates=candidates,
            chosen=candidates[0],
            reason=reason,
            sentence=sentence,
            guard=guard,
            requests=tuple(r.id for r in batch.requests),
        )

    def _with_limit(self, sentence: str) -> str:
        """The sentence, and what a constraint decided in this plan already."""
        limit = deciding(self.regime.means)
        if limit is None:
            return sentence
        clause = reasons.because(reasons.LIMITS[limit], self.regime.means, {})
        return f"{sentence} {clause[0].upper()}{clause[1:]}."

    def _record(self, setting: Setting) -> None:
        self._recorded, self._recorded_age = setting, 0

    def _nominal(self, setting: Setting, enabled: Container[str]) -> tuple[str, float]:
        """Drafter and D right after a start or an operator's change, and of a plan that the
        operator fixed."""
        name, length = setting.drafter, setting.draft_length
        if deciding(self.regime.means) is not None:
            return self.regime.leader()
        if _fixed(setting) and (name is None or name == NONE or length == 0):
            return NONE, 0.0
        if setting.mode == "pinned" and name is not None and name in enabled:
            return name, self.regime.means["depth"] if length is None else float(length)
        return self.regime.leader()


def _fixed(setting: Setting) -> bool:
    """Whether the operator fixed the plan, so that a ragged D is no change of it."""
    if setting.mode == "pinned":
        return setting.drafter == NONE or setting.draft_length is not None
    return setting.mode == "off"


def words(setting: Setting) -> str:
    """The setting as a phrase: `mode pinned with ngram, D = 4`."""
    text = f"mode {setting.mode}"
    if setting.mode == "pinned":
        length = "chosen" if setting.draft_length is None else setting.draft_length
        table = ", ".join(f"{length} up to {largest}" for largest, length in setting.schedule)
        text += f" with {setting.drafter}, D = {table or length}"
    if setting.max_drafting_requests is not None:
        text += f", drafting up to {setting.max_drafting_requests} requests"
    if setting.tpot_target_ms is not None:
        text += f", TPOT at most {setting.tpot_target_ms:g} ms"
    if setting.draft_budget is not None:
        text += f", at most {setting.draft_budget} draft tokens per step"
    return f"{text}, D at most {setting.max_draft_length}"


def _said(drafter: str, depth: float) -> str:
    if drafter == NONE:
        return "The batch decodes plainly"
    return f"Mean D of {drafter} is {depth:.1f}"
