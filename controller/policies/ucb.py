"""A bandit over (drafter, D): the arm with the highest upper confidence bound drafts next.

BanditSpec's UCBSpec (arXiv 2505.15141): the mean tokens of an arm's rounds plus a radius that
shrinks with its rounds. The paper's reward is the accepted length and knows no cost, so longer
drafts look better than they are; `reward=tokens_per_ms` values time and adds plain decoding as an
arm. In the paper a round is one request's; here one arm serves a whole step, since its requests
share it. Switching counts as free, and rewards are taken to be stationary. A request whose draft
was cut says nothing about the arm's D; a round in which all were is a round without a reward.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import ClassVar

from controller.contract import NONE, Allotment, RequestOutcome, StepOutcome
from controller.policies.base import Policy, Step
from controller.policies.fixed import uniform
from controller.policies.flight import Flight
from controller.policies.inputs import PolicyInputs
from controller.policies.openings import Opening
from controller.policies.options import LONGEST_DRAFT
from controller.policies.placing import PLAIN, Pick
from controller.policies.reasons import ARM
from controller.policies.recorder import Stand


class Arm:
    """One arm. rounds: that it played. told: those of them whose reward is known; mean: of these,
    0 before the first."""

    __slots__ = ("mean", "rounds", "told")

    def __init__(self) -> None:
        self.rounds = self.told = 0
        self.mean = 0.0

    def add(self, reward: float) -> None:
        self.told += 1
        self.mean += (reward - self.mean) / self.told


class Ucb(Policy):
    """Options: draft_lengths (1,2,4,8), exploration (0.5: radius in units of the reward's range),
    reward (tokens, or tokens_per_ms)."""

    name: ClassVar[str] = "ucb"

    def __init__(self, inputs: PolicyInputs) -> None:
        super().__init__(inputs)
        options = self.options
        self._lengths = options.numbers("draft_lengths", "1,2,4,8", LONGEST_DRAFT)
        self._exploration = options.real("exploration", 0.5, 0.0, 100.0)
        self._by_time = options.word("reward", "tokens", ("tokens", "tokens_per_ms")) != "tokens"
        self._arms: dict[Pick, Arm] = {}
        self._ran: Flight[Pick] = Flight()
        self._most = 0.0
        """Largest reward so far: the range of rewards."""

    def choose(self, step: Step) -> list[Pick]:
        offered = {name for one in step.openings for name in one.offers}
        arms: list[Pick] = [
            (name, length)
            for name in self.drafters
            if name in offered and name in self._enabled
            for length in self._lengths
            if length <= self.setting.max_draft_length
        ]
        if not arms:
            return [PLAIN] * len(step.openings)
        if self._by_time:
            arms.insert(0, PLAIN)
        chosen = max(arms, key=self.bound)
        self._ran.note(step.batch.step, chosen)
        return uniform(step, *chosen)

    def bound(self, arm: Pick) -> float:
        """The arm's upper confidence bound; infinite before its first round."""
        found = self._arms.get(arm)
        if found is None:
            return math.inf
        rounds = sum(one.rounds for one in self._arms.values())
        radius = math.sqrt(2.0 * math.log(rounds) / found.rounds)
        return found.mean + self._exploration * (self._most or 1.0) * radius

    def preferred(self, opening: Opening) -> str | None:
        """That of the arm which is known best of those that can draft here."""
        arms = self._arms.items()
        known = {arm: one.told for arm, one in arms if one.told and arm[0] in opening.offers}
        return max(known, key=known.__getitem__)[0] if known else super().preferred(opening)

    def learn(
        self,
        outcome: StepOutcome,
        own: Sequence[RequestOutcome],
        whole: Sequence[RequestOutcome],
    ) -> None:
        arm = self._ran.take(outcome.step)
        if arm is None or not own or arm[0] not in (NONE, *self.drafters):
            return
        played = self._arms.setdefault(arm, Arm())
        played.rounds += 1
        whole = [one for one in whole if one.drafter in (NONE, arm[0])]  # others asked for theirs
        # The time of a step in which many drafts were cut is not the arm's.
        if len(whole) <= (len(own) // 2 if self._by_time else 0):
            return
        reward = sum(one.committed for one in whole) / len(whole)
        if self._by_time:  # of a shared forward the part of these rows, as in the ledger
            share = outcome.rows / (outcome.rows + outcome.prefill_rows)
            reward /= outcome.verify_ms * share + outcome.draft_ms + outcome.overhead_ms
        self._most = max(self._most, reward)
        played.add(reward)

    def forgotten(self, drafter: str) -> None:
        self._arms = {arm: found for arm, found in self._arms.items() if arm[0] != drafter}

    def stand(self, step: Step, allotments: Sequence[Allotment]) -> Stand:
        enabled = (NONE, *self._enabled)
        usable = {arm: one for arm, one in self._arms.items() if arm[0] in enabled and one.told}
        if not usable:
            return Stand(NONE, 0.0, ARM, "No arm was tried yet.")
        arm = max(usable, key=lambda one: usable[one].told)
        drafter, length = arm
        unit = "tokens per ms" if self._by_time else "tokens"
        text = (
            f"{drafter} with D = {length} has brought {usable[arm].mean:.2f} {unit} per request "
            f"and step in {usable[arm].told} rounds, the most of {len(usable)} arms."
        )
        return Stand(drafter, float(length), ARM, text)

    def describe(self) -> Mapping[str, object]:
        return {
            f"{drafter} {length}": {
                "rounds": arm.rounds,
                "told": arm.told,
                "mean": round(arm.mean, 4),
            }
            for (drafter, length), arm in self._arms.items()
        }
