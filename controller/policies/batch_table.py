"""D by the number of decoding requests.

vLLM's dynamic speculative decoding (`num_speculative_tokens_per_batch_size`, PR #32374): ranges
with both ends included, from 1 on; a gap carries the D before it, and past the last range its D
holds. vLLM counts requests in prefill too, which makes its D flap; here decoding requests count.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from typing import ClassVar

from controller.contract import Allotment
from controller.policies.base import Policy, Step
from controller.policies.fixed import steady, uniform
from controller.policies.inputs import PolicyInputs
from controller.policies.options import LONGEST_DRAFT
from controller.policies.placing import Pick
from controller.policies.reasons import TABLE
from controller.policies.recorder import Stand

EXAMPLE = "1-16:3,32-128:2,256-2048:0"
"""The table of vLLM's own tests; vLLM has no default."""


class BatchTable(Policy):
    """Options: drafter (auto), table (1-16:3,32-128:2,256-2048:0)."""

    name: ClassVar[str] = "batch_table"

    def __init__(self, inputs: PolicyInputs) -> None:
        super().__init__(inputs)
        self._drafter = self.options.drafter()
        self._ranges = self.options.ranges("table", EXAMPLE, LONGEST_DRAFT)
        self._starts = [first for first, _, _ in self._ranges]

    def length(self, requests: int) -> int:
        """D at a batch size, >= 1."""
        return self._ranges[bisect_right(self._starts, requests) - 1][2]

    def choose(self, step: Step) -> list[Pick]:
        return uniform(step, self.main(self._drafter), self.length(step.size))

    def stand(self, step: Step, allotments: Sequence[Allotment]) -> Stand:
        length = self.length(step.size)
        clause = f"{step.size} requests decode: the table gives D = {length}"
        return steady(self.main(self._drafter), self._drafter, length, TABLE, clause)
