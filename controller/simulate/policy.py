"""Makes the controllers that a simulation compares, from what a serving engine would give them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from controller.contract import NONE, Controller, CostPoint, Setting
from controller.cost import CostModel
from controller.policies import ADAPTIVE, NAMES, PolicyInputs, make
from controller.policies.options import AUTO, parse_options
from controller.simulate.drafters import model_free
from controller.simulate.machine import Machine

NAMING = ("drafter", "matcher", "model")
"""Options that name a drafter."""

Make = Callable[[str, PolicyInputs], Controller]
"""A policy by name over its inputs."""


@dataclass(frozen=True, slots=True)
class Choice:
    """A policy with its options, as written in a table."""

    name: str
    options: Mapping[str, object] = field(default_factory=dict)

    @property
    def label(self) -> str:
        return " ".join([self.name, *(f"{key}={value}" for key, value in self.options.items())])


def parse_choice(text: str) -> Choice:
    """`NAME` or `NAME KEY=VALUE ...`. ValueError for a name or an option that there is not."""
    name, _, rest = text.strip().partition(" ")
    if name not in NAMES:
        raise ValueError(f"policy: {name[:64]!r} is not one of {', '.join(NAMES)}")
    choice = Choice(name, parse_options(rest))
    make(name, PolicyInputs((), options=choice.options))
    return choice


def check_named(choice: Choice, drafters: Sequence[str]) -> None:
    """ValueError for an option that names a drafter that there is not: the policy would run
    without, unsaid."""
    for option in NAMING:
        named = choice.options.get(option, AUTO)
        if named not in (AUTO, NONE, *drafters):
            raise ValueError(
                f"policies: {choice.label}: there is no drafter {named!r}, but "
                f"{', '.join(drafters)}"
            )


def build(
    choice: Choice,
    machine: Machine,
    points: Sequence[CostPoint],
    clock: Callable[[], float],
    setting: Setting,
    maker: Make = make,
) -> Controller:
    """A controller that knows the calibration and the drafters, as at a server's start: those
    without a model from the beginning, models loaded one by one."""
    names = model_free(machine.drafters)
    inputs = PolicyInputs(
        drafters=names,
        cost=CostModel(points),
        tails=names if machine.chains else (),
        setting=Setting(max_draft_length=setting.max_draft_length),
        options=choice.options,
        clock=clock,
    )
    controller = maker(choice.name, inputs)
    for drafter in machine.drafters:
        if drafter.info.model:
            controller.add_drafter(drafter.info)
    if setting != controller.setting:
        controller.configure(setting)
    return controller


SERVES = Choice(ADAPTIVE)
"""The controller that serves."""
