"""The drafters of a simulated engine: what the controller is told of them, and what they cost."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from controller.contract import DrafterInfo
from controller.simulate.machines import Hardware, Model
from controller.simulate.texts import LONGEST

LOOKUP_SHARE = 0.0059
"""Of a verify step that an n-gram look-up took (SpecDecode-Bench, H100)."""
EAGLE_MS = 0.71
"""One pass of the EAGLE drafter of Llama-3.1-8B on an H100."""


@dataclass(frozen=True, slots=True)
class SimulatedDrafter:
    """Drafting costs fixed_ms + depth_ms * longest draft + verify_share of the step's verification
    for all its requests together, and row_ms for each row of text that it lacks.

    remembers: it keeps up with the text of requests that it does not draft for, as heads on the
    target's hidden states do; a draft model does not and falls behind."""

    info: DrafterInfo
    fixed_ms: float = 0.0
    depth_ms: float = 0.0
    verify_share: float = 0.0
    row_ms: float = 0.0
    remembers: bool = True
    longest: int = LONGEST

    @property
    def name(self) -> str:
        return self.info.name

    def ms(self, depth: int, verify_ms: float, missing: int = 0) -> float:
        """Milliseconds of drafting up to `depth` tokens, with `missing` rows of text before."""
        return (
            self.fixed_ms
            + self.depth_ms * depth
            + self.verify_share * verify_ms
            + self.row_ms * missing
        )


def lookup(name: str) -> SimulatedDrafter:
    """A drafter that needs no model."""
    return SimulatedDrafter(DrafterInfo(name, tail=True), verify_share=LOOKUP_SHARE)


def head(name: str, pass_ms: float, plain_ms: float) -> SimulatedDrafter:
    """A serial head on the target's hidden states, one pass of which takes pass_ms."""
    return SimulatedDrafter(DrafterInfo(name, model=True, rho=pass_ms / plain_ms), depth_ms=pass_ms)


def draft_model(name: str, own: Model, target: Model, hardware: Hardware) -> SimulatedDrafter:
    """A model of its own on one device, which must compute the text that it lacks."""
    weights = own.parameters * own.weight_bytes
    pass_ms = 1e3 * weights / hardware.bandwidth / 0.85 + hardware.launch_ms
    row_ms = 1e3 * 2.0 * own.active / hardware.peak / 0.77
    rho = weights / (target.active * target.weight_bytes)
    return SimulatedDrafter(
        DrafterInfo(name, model=True, rho=rho), depth_ms=pass_ms, row_ms=row_ms, remembers=False
    )


def model_free(drafters: Sequence[SimulatedDrafter]) -> tuple[str, ...]:
    return tuple(one.name for one in drafters if not one.info.model)
