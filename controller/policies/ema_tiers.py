"""Tiers of D by an exponential mean of accepted tokens, one set of tiers per range of the batch.

SGLang's adaptive speculation (#21599, #24055): D = clamp(round(EMA) + 1) on the tiers, that is, up
while EMA > D - 0.5, down to the tier before, p, while EMA <= p - 0.5 + hysteresis (0.5 +
hysteresis for p = 0); EMA with rate 0.2 of the batch's mean of accepted tokens; 10 steps ignored,
then every 5th step decides. A slot at D = 0 tries its next tier at every decision. The mean is
capped by the D in force, and no cost is measured. SGLang rounds the batch up to a captured size
first; here it counts as it is. Drafts that limits cut do not count, since short ones accept less.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from typing import ClassVar

from controller.contract import Allotment, RequestOutcome, StepOutcome
from controller.policies.base import Policy, Step
from controller.policies.fixed import steady, uniform
from controller.policies.flight import Flight
from controller.policies.inputs import PolicyInputs
from controller.policies.options import LARGEST_BATCH, LONGEST_DRAFT, MOST_ENTRIES, OptionError
from controller.policies.placing import Pick
from controller.policies.reasons import TABLE, TIER_DOWN, TIER_TRIAL, TIER_UP
from controller.policies.recorder import Stand

START = 3
LASTING = 32
"""A limit that has cut all drafts in so many steps in a row is there to stay: what it leaves of D
is then what the tiers are judged by."""
DEFAULT = "1:1/3/5/7@-0.25,8:0/1/3,32:0/1,64:0"
"""SGLang's: from 1 request on the tiers 1, 3, 5, 7 with hysteresis -0.25, from 8 on 0, 1, 3, ..."""


class Slot:
    """The tiers from one batch size on, their mean and the D in force. before: the D that was in
    force until it changed last. measured: the mean holds more than where it starts. cut: steps in a
    row that drafted, and nothing of it at the D in force."""

    def __init__(self, tiers: Sequence[int], hysteresis: float, start: int) -> None:
        self.tiers = tuple(tiers)
        self.length = start if start in tiers else tiers[len(tiers) // 2]
        self.mean = float(self.length - 1)
        self.before = self.length
        self.measured = False
        self.cut = 0
        self._hysteresis = hysteresis
        self._steps = 0

    def update(self, accepted: Sequence[int], rate: float, warm_up: int, interval: int) -> None:
        """A step's accepted tokens by request; nothing for none."""
        if not accepted:
            return
        if self.length:
            self.measured = True
            self.mean += rate * (sum(accepted) / len(accepted) - self.mean)
        self._steps += 1
        past = self._steps - warm_up
        if past > 0 and past % interval == 0:
            length = self._decide()
            if length != self.length:
                self.before, self.length = self.length, length

    def _decide(self) -> int:
        place = self.tiers.index(self.length)
        if self.length == 0:
            place = min(place + 1, len(self.tiers) - 1)
            if self.mean < 0.0 < self.tiers[place]:  # it never drafted so far
                self.mean = self.tiers[place] - 1.0
            return self.tiers[place]
        start = place
        while place and self.mean <= max(self.tiers[place - 1] - 0.5, 0.5) + self._hysteresis:
            place -= 1
        while place >= start and place + 1 < len(self.tiers):
            if self.mean <= self.tiers[place] - 0.5:
                break
            place += 1
        return self.tiers[place]


class EmaTiers(Policy):
    """Options: drafter (auto), tiers (1:1/3/5/7@-0.25,8:0/1/3,32:0/1,64:0), draft_length (3: where
    every slot starts; its middle tier where it has no such), ema_rate (0.2), warm_up_steps (10),
    interval_steps (5)."""

    name: ClassVar[str] = "ema_tiers"

    def __init__(self, inputs: PolicyInputs) -> None:
        super().__init__(inputs)
        options = self.options
        self._drafter = options.drafter()
        start = options.whole("draft_length", START, 0, LONGEST_DRAFT)
        self._slots = _slots(options.text("tiers", DEFAULT), start)
        if start != START and not any(start in slot.tiers for _, slot in self._slots):
            raise OptionError(f"draft_length: {start} is none of the D in tiers; give one of these")
        self._starts = [first for first, _ in self._slots]
        self._rate = options.real("ema_rate", 0.2, 0.001, 1.0)
        self._warm_up = options.whole("warm_up_steps", 10, 0, 100_000)
        self._interval = options.whole("interval_steps", 5, 1, 100_000)
        self._ran: Flight[int] = Flight()

    def slot(self, requests: int) -> Slot:
        """The slot of a batch size, >= 1."""
        return self._slots[bisect_right(self._starts, requests) - 1][1]

    def choose(self, step: Step) -> list[Pick]:
        length = self.slot(step.size).length
        self._ran.note(step.batch.step, length)
        return uniform(step, self.main(self._drafter), length)

    def stand(self, step: Step, allotments: Sequence[Allotment]) -> Stand:
        slot = self.slot(step.size)
        length, before = slot.length, slot.before
        if length == before:
            reason, how = TABLE, f"D = {length} is where they start"
        elif not before:
            reason, how = TIER_TRIAL, f"D = {length} is tried after none"
        else:
            reason = TIER_UP if length > before else TIER_DOWN
            how = f"D {'rose' if length > before else 'fell'} from {before} to {length}"
        mean = f"{slot.mean:.2f} drafted tokens are accepted on average"
        clause = (
            f"At {step.size} requests the tiers {'/'.join(map(str, slot.tiers))} hold, and "
            f"{mean if slot.measured else 'no draft of theirs is measured yet'}: {how}"
        )
        return steady(self.main(self._drafter), self._drafter, slot.length, reason, clause)

    def learn(
        self,
        outcome: StepOutcome,
        own: Sequence[RequestOutcome],
        whole: Sequence[RequestOutcome],
    ) -> None:
        slot, length = self.slot(outcome.requests), self._ran.take(outcome.step)
        if length != slot.length:
            return  # it ran with another D, which says nothing about this one
        told = [one for one in whole if one.drafted or not length]
        if told:
            slot.cut = 0
        elif any(one.drafted for one in own):
            slot.cut += 1
            told = [one for one in own if one.drafted and slot.cut > LASTING]
        slot.update([one.accepted for one in told], self._rate, self._warm_up, self._interval)

    def describe(self) -> Mapping[str, object]:
        return {
            f"from {first}": {"draft_length": slot.length, "mean_accepted": round(slot.mean, 3)}
            for first, slot in self._slots
        }


def _slots(text: str, start: int) -> list[tuple[int, Slot]]:
    """`FROM:D/D/D@HYSTERESIS,...` as (from, slot). OptionError."""
    wanted = f"tiers: must be FROM:D/D@HYSTERESIS,... such as {DEFAULT}, not {text[:64]!r}"
    parts = text.split(",")
    if len(parts) > MOST_ENTRIES:
        raise OptionError(f"tiers: takes at most {MOST_ENTRIES} entries")
    found: list[tuple[int, Slot]] = []
    for part in parts:
        first, _, rest = part.strip().partition(":")
        lengths, _, hysteresis = rest.partition("@")
        try:
            tiers = [int(length) for length in lengths.split("/")]
            drop, size = float(hysteresis or 0.0), int(first)
        except ValueError:
            raise OptionError(wanted) from None
        if tiers != sorted(set(tiers)) or not 0 <= tiers[0] <= tiers[-1] <= LONGEST_DRAFT:
            raise OptionError(f"tiers: D must rise within a slot, from 0 to {LONGEST_DRAFT}")
        if not -1.0 <= drop <= 1.0 or not 1 <= size <= LARGEST_BATCH:
            raise OptionError(wanted)
        found.append((size, Slot(tiers, drop, start)))
    sizes = [size for size, _ in found]
    if sizes != sorted(set(sizes)) or sizes[0] != 1:
        raise OptionError("tiers: batches must rise from entry to entry, the first from 1")
    return found
