"""What the controller knows of its drafters and costs, as JSON-able values for the report."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict

from controller.acceptance import Acceptance
from controller.advice import advice
from controller.cost import CostModel
from controller.mechanisms import mechanisms, when
from controller.mixing import tail_key
from controller.outlook import Outlook
from controller.roster import Roster


def knowledge(
    roster: Roster,
    acceptance: Acceptance,
    cost: CostModel,
    *,
    max_length: int,
    group: int | None,
    means: Mapping[str, float],
    offered: Callable[[str], float],
) -> dict[str, object]:
    """Acceptance by drafter and as a tail, costs, when each drafter wins, and the guidelines.
    means: of recent steps, of which batch and context are used. group: the target's query heads
    per KV head. offered(drafter): share of requests that it has drafts for."""
    learned, enabled = acceptance.report(), roster.enabled_in_order
    context, batch = round(means.get("context", 0.0)), round(means.get("batch", 1.0))
    outlook = Outlook(cost, acceptance, offered)
    found = mechanisms(enabled, max_length, context, outlook)
    evidence = {name: acceptance.evidence(name) for name in enabled}
    return {
        "acceptance": {name: learned[name] for name in roster.drafters if name in learned},
        "tails": {
            name: learned[tail_key(name)] for name in roster.tails if tail_key(name) in learned
        },
        "cost": cost.report(),
        "mechanisms": {
            "context_len": context,
            "rows": [asdict(one) for one in found],
            "when": when(found, evidence),
        },
        "guidelines": advice(enabled, batch, context, group, cost, acceptance),
    }
