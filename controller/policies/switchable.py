"""The controller that serves, whichever policy or pair of policies that is at the moment.

A switch makes a new controller of the drafters and the setting in force; the cost model goes on,
what was learned of acceptance begins afresh.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from controller.contract import (
    BatchView,
    Controller,
    Decision,
    DrafterInfo,
    HarmTotals,
    Offer,
    Plan,
    Setting,
    StepOutcome,
    StepRecord,
    WhatIf,
)
from controller.policies import ADAPTIVE, NAMES, PolicyInputs, check_options, make
from controller.policies.arm import Arm
from controller.policies.options import OptionError, parse_options
from controller.policies.split import Split

DECISIONS_KEPT, STEPS_KEPT = 256, 64


@dataclass(frozen=True, slots=True)
class PolicyChoice:
    """policy_options and ab_options: `KEY=VALUE KEY=VALUE`. ab_policy: the policy of arm B, "" for
    none; ab_share: the share of requests in arm B, 0..1."""

    policy: str = ADAPTIVE
    policy_options: str = ""
    ab_policy: str = ""
    ab_options: str = ""
    ab_share: float = 0.5


def check_choice(choice: PolicyChoice) -> None:
    """ValueError, beginning with the field and a colon, for a choice that no server could make."""
    Switchable(PolicyInputs(()), choice)


class Switchable:
    """Holds one controller and stands for it. ValueError for a choice that makes no sense."""

    def __init__(self, inputs: PolicyInputs, choice: PolicyChoice) -> None:
        self._inputs = inputs
        self._infos: dict[str, DrafterInfo] = {
            name: DrafterInfo(name, name in inputs.models, name in inputs.tails)
            for name in inputs.drafters
        }
        self._disabled: set[str] = set()
        self._kept: list[Decision] = []
        self._kept_steps: list[StepRecord] = []
        self._open: dict[object, Decision] = {}
        """By arm, as last told: what a switch closes."""
        self.choice = choice
        self.controller = self._made(choice, inputs.setting)

    def switch(self, choice: PolicyChoice) -> None:
        """Another policy from the next plan on; what runs stays with it until then. ValueError,
        beginning with the field and a colon, leaves everything as it was."""
        made = self._made(choice, self.controller.setting)
        self._kept = self.take_decisions()[-DECISIONS_KEPT:]
        self._kept_steps = self.take_step_records()[-STEPS_KEPT:]
        told = {one.id for one in self._kept}
        for one in self._open.values():
            one.closed = True
            if one.id not in told:
                self._kept.append(one)
        self._open = {}
        self.choice, self.controller = choice, made

    def _made(self, choice: PolicyChoice, setting: Setting) -> Controller:
        first = self._controller(
            "policy", choice.policy, "policy_options", choice.policy_options, setting
        )
        if not choice.ab_policy:
            if choice.ab_options:
                raise ValueError("ab_options: has no effect without ab_policy")
            return first
        second = self._controller(
            "ab_policy", choice.ab_policy, "ab_options", choice.ab_options, setting
        )
        a, b = Arm("A", choice.policy, first), Arm("B", choice.ab_policy, second)
        return Split(a, b, self._inputs.cost, choice.ab_share)

    def _controller(
        self, field: str, policy: str, options_field: str, options: str, setting: Setting
    ) -> Controller:
        """A controller that has had all that was done to the drafters."""
        if policy not in NAMES:
            raise ValueError(f"{field}: {policy[:64]!r} is not one of {_names()}")
        plain = [info for info in self._infos.values() if not info.model]
        try:
            inputs = replace(
                self._inputs,
                drafters=[info.name for info in plain],
                models=(),
                tails=[info.name for info in plain if info.tail],
                setting=Setting(max_draft_length=setting.max_draft_length),
                options=parse_options(options),
            )
            made = make(policy, inputs)
            for info in self._infos.values():
                if info.model:
                    made.add_drafter(info)
            check_options(made)
        except OptionError as error:
            raise ValueError(f"{options_field}: {error}") from None
        for name in self._disabled:
            made.set_enabled(name, False)
        made.configure(setting)
        return made

    # --- what the engine calls ----------------------------------------------------------------

    @property
    def setting(self) -> Setting:
        return self.controller.setting

    @property
    def attentive(self) -> bool:
        return self.controller.attentive

    def configure(self, setting: Setting) -> None:
        self.controller.configure(setting)

    def set_enabled(self, drafter: str, enabled: bool) -> None:
        self.controller.set_enabled(drafter, enabled)
        (self._disabled.discard if enabled else self._disabled.add)(drafter)

    def add_drafter(self, drafter: DrafterInfo) -> None:
        self.controller.add_drafter(drafter)
        self._infos[drafter.name] = drafter

    def remove_drafter(self, name: str) -> None:
        self.controller.remove_drafter(name)
        del self._infos[name]
        self._disabled.discard(name)

    def plan(self, batch: BatchView, offers: Sequence[Offer]) -> Plan:
        return self.controller.plan(batch, offers)

    def observe(self, outcome: StepOutcome) -> None:
        self.controller.observe(outcome)

    def forget(self, request: int) -> None:
        self.controller.forget(request)

    def take_decisions(self) -> list[Decision]:
        kept, self._kept = self._kept, []
        found = self.controller.take_decisions()
        for one in found:
            if not one.closed:  # it takes the place of the one that it closed
                self._open[one.inputs.get("arm")] = one
        return kept + found

    def take_step_records(self) -> list[StepRecord]:
        kept, self._kept_steps = self._kept_steps, []
        return kept + self.controller.take_step_records()

    def harm_totals(self) -> HarmTotals | None:
        return self.controller.harm_totals()

    def what_if(self, batch_size: int, context_len: int) -> WhatIf:
        return self.controller.what_if(batch_size, context_len)

    def report(self) -> dict[str, object]:
        """The controller's report, with the policy in force."""
        report = self.controller.report()
        own = report.get("policy")
        state = own if isinstance(own, dict) else {"name": self.choice.policy, "options": {}}
        return {**report, "policy": state}


def _names() -> str:
    return ", ".join(NAMES)
