"""What every policy is made of: the drafters, the cost model, the operator's setting, options."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from controller.contract import Setting
from controller.cost import CostModel


@dataclass(frozen=True, slots=True)
class PolicyInputs:
    """drafters: names without "none". models: those of them that are models. tails: those that can
    continue a model's draft. cost: the calibrated table, which the policy keeps up to date.
    options: the policy's own, by name; numbers may be written as text. group: the target's query
    heads per KV head, where known. clock: seconds since the epoch."""

    drafters: Sequence[str]
    cost: CostModel = field(default_factory=CostModel)
    models: Sequence[str] = ()
    tails: Sequence[str] = ()
    setting: Setting = field(default_factory=Setting)
    options: Mapping[str, object] = field(default_factory=dict)
    group: int | None = None
    clock: Callable[[], float] = time.time
