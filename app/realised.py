"""What was measured while a decision was in force, as the API shows it."""

from __future__ import annotations

from typing import Any

from controller.contract import Realised


def realised_view(realised: Realised) -> dict[str, Any]:
    """Sums over the steps, goodput in tokens per second, and the means of a step, which are null
    before the first one."""
    return {
        "steps": realised.steps,
        "tokens": realised.tokens,
        "ms": realised.ms,
        "goodput": realised.goodput,
        "tokens_per_step": realised.tokens_per_step,
        "ms_per_step": realised.ms_per_step,
    }
