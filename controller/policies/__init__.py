"""Policies beside the adaptive controller behind the same protocol, as rivals have them."""

from __future__ import annotations

from controller.contract import Controller
from controller.controller import AdaptiveController
from controller.policies.acceptance_gate import AcceptanceGate
from controller.policies.base import Policy
from controller.policies.batch_table import BatchTable
from controller.policies.ema_tiers import EmaTiers
from controller.policies.fixed import Fixed
from controller.policies.goodput import Goodput
from controller.policies.inputs import PolicyInputs
from controller.policies.margin_verify import MarginVerify
from controller.policies.ngram_else_model import NgramElseModel
from controller.policies.off import Off
from controller.policies.options import Options
from controller.policies.tensorrt_schedule import TensorrtSchedule
from controller.policies.ucb import Ucb

__all__ = ["ADAPTIVE", "NAMES", "PolicyInputs", "check_options", "make"]

ADAPTIVE = "adaptive"

POLICIES: dict[str, type[Policy]] = {
    policy.name: policy
    for policy in (
        Off,
        Fixed,
        BatchTable,
        TensorrtSchedule,
        EmaTiers,
        Goodput,
        Ucb,
        AcceptanceGate,
        NgramElseModel,
        MarginVerify,
    )
}

NAMES: tuple[str, ...] = (ADAPTIVE, *POLICIES)


def make(name: str, inputs: PolicyInputs) -> Controller:
    """The controller of that name. ValueError for an unknown one and for a setting that makes no
    sense; OptionError, a ValueError too, for its options."""
    if name == ADAPTIVE:
        Options(name, inputs.options).finish()
        return AdaptiveController(
            inputs.drafters,
            inputs.cost,
            inputs.setting,
            models=inputs.models,
            tails=inputs.tails,
            group=inputs.group,
            clock=inputs.clock,
        )
    kind = POLICIES.get(name)
    if kind is None:
        raise ValueError(f"policy: {name[:64]!r} is not one of {', '.join(NAMES)}")
    policy = kind(inputs)
    policy.options.finish()
    policy.check_options()
    return policy


def check_options(controller: Controller) -> None:
    """OptionError when its options make no sense with the drafters that it has got by now."""
    if isinstance(controller, Policy):
        controller.check_options()
