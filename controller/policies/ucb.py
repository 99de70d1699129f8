"""A bandit over (drafter, D): the arm with the highest upper confidence bound drafts next.

BanditSpec's UCBSpec (arXiv 2505.15141): the mean tokens of an arm's rounds plus a radius that
shrinks with its rounds. The paper's reward is the accepted length and knows no cost, so longer
drafts look better than they are; `reward=tokens_per_ms` values time and adds plain decoding as an
arm. In the paper a round is one request's; here one arm serves a whole step, since its requests
share it. Switching counts as free, and rewards are taken to be stationary.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import ClassVar

from controller.contract import NONE, Allotment, RequestOutcome, StepOutcome
from controller.policies.base import PLAIN, Pick, Policy, Step
from controller.policies.fixed import uniform
from controller.policies.flight import Flight
from controller.policies.inputs import PolicyInputs
from controller.policies.options import LONGEST_DRAFT
from controller.policies.reasons import ARM
from controller.policies.recorder import Stand


class Arm:
    """Rounds and mean reward of one arm."""

    __slots__ = ("mean", "rounds")

    def __init__(self) -> None:
        self.rounds = 0
        self.mean = 0.0

    def add(self, reward: float) -> None:
        self.rounds += 1
        self.mean += (reward - self.mean) / self.rounds


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
        self._most = 1.0
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
        if found is None or not found.rounds:
            return math.inf
        rounds = sum(one.rounds for one in self._arms.values())
        radius = math.sqrt(2.0 * math.log(rounds) / found.rounds)
        return found.mean + self._exploration * self._most * radius

    def learn(self, outcome: StepOutcome, own: Sequence[RequestOutcome]) -> None:
        arm = self._ran.take(outcome.step)
        if arm is None or not own:
            return
        reward = sum(one.committed for one in own) / len(own)
        if self._by_time:  # of a shared forward the part of these rows, as in the ledger
            share = outcome.rows / (outcome.rows + outcome.prefill_rows)
            reward /= outcome.verify_ms * share + outcome.draft_ms + outcome.overhead_ms
        self._most = max(self._most, reward) if self._arms else reward
        self._arms.setdefault(arm, Arm()).add(reward)

    def forgotten(self, drafter: str) -> None:
        self._arms = {arm: found for arm, found in self._arms.items() if arm[0] != drafter}

    def stand(self, step: Step, allotments: Sequence[Allotment]) -> Stand:
        usable = {arm: one for arm, one in self._arms.items() if arm[0] in (NONE, *self._enabled)}
        if not usable:
            return Stand(NONE, 0.0, ARM, "No arm was tried yet.")
        arm = max(usable, key=lambda one: usable[one].rounds)
        drafter, length = arm
        unit = "tokens per ms" if self._by_time else "tokens"
        text = (
            f"{drafter} with D = {length} has brought {usable[arm].mean:.2f} {unit} per request "
            f"and step in {usable[arm].rounds} rounds, the most of {len(usable)} arms."
        )
        return Stand(drafter, float(length), ARM, text)

    def describe(self) -> Mapping[str, object]:
        return {
            f"{drafter} {length}": {"rounds": arm.rounds, "mean": round(arm.mean, 4)}
            for (drafter, length), arm in self._arms.items()
        }
