"""Reason codes of decisions, what each means, and how it is said with numbers."""

from __future__ import annotations

from collections.abc import Mapping

from controller.limits import BY_BUDGET, BY_TARGET, because_of_budget, because_of_target

START = "START"
OPERATOR = "OPERATOR"
BATCH_TABLE = "BATCH_TABLE"
REQUEST_LIMIT = "REQUEST_LIMIT"
TPOT_TARGET = "TPOT_TARGET"
DRAFT_BUDGET = "DRAFT_BUDGET"
HARM_GUARD = "HARM_GUARD"
REARMED = "REARMED"
REQUEST_GUARD = "REQUEST_GUARD"
SHADOW_WIN = "SHADOW_WIN"
PROBE = "PROBE"
MATCH = "MATCH"
NO_MATCH = "NO_MATCH"
ACCEPTANCE_UP = "ACCEPTANCE_UP"
ACCEPTANCE_DOWN = "ACCEPTANCE_DOWN"
PRICE_UP = "PRICE_UP"
PRICE_DOWN = "PRICE_DOWN"
WISH = "WISH"
MIXED = "MIXED"

REASONS: dict[str, str] = {
    START: "The first plan after a start.",
    OPERATOR: "The operator changed the mode, the pin, a limit or a drafter.",
    BATCH_TABLE: "The operator's table of D by batch size gives another D.",
    REQUEST_LIMIT: "More requests decode than the operator lets draft, or no longer.",
    TPOT_TARGET: "The operator's target for the time per output token decides, or no longer.",
    DRAFT_BUDGET: "The operator's budget of draft tokens per step decides, or no longer.",
    HARM_GUARD: "Drafting lost more than 2 % against plain decoding; it stops for a dwell.",
    REARMED: "The dwell of the harm guard ended of late, and drafting pays again.",
    REQUEST_GUARD: "Requests whose drafts cost more than they gave are stood down, or free again.",
    SHADOW_WIN: "Drafting without a model starts because shadow scores predict that it pays.",
    PROBE: "Drafting starts because a probe of the drafter measured more than was predicted.",
    MATCH: "The drafters find a draft for more of the requests.",
    NO_MATCH: "The drafters find a draft for fewer of the requests.",
    ACCEPTANCE_UP: "Drafted tokens are accepted more often.",
    ACCEPTANCE_DOWN: "Drafted tokens are accepted less often.",
    PRICE_UP: "A drafted row costs more (larger batch, longer context or a slower machine).",
    PRICE_DOWN: "A drafted row costs less.",
    WISH: "More or fewer requests ask for a drafter or a length themselves.",
    MIXED: "The plan moved without one dominant cause.",
}


LIMITS = {BY_TARGET: TPOT_TARGET, BY_BUDGET: DRAFT_BUDGET}
"""The codes of the operator's constraints, by the name of the share of steps that each decides."""


def because(reason: str, means: Mapping[str, float], base: Mapping[str, float]) -> str:
    """The clause after the colon of a sentence: the cause with its numbers, now and before.

    means and base: the smoothed inputs now and when the decision in force was opened."""
    if reason == TPOT_TARGET:
        return because_of_target(means)
    if reason == DRAFT_BUDGET:
        return because_of_budget(means)

    def now_and_before(key: str) -> tuple[float, float]:
        return means.get(key, 0.0), base.get(key, means.get(key, 0.0))

    def share(key: str, of: str) -> str:
        now, before = now_and_before(key)
        return f"{100 * now:.0f} % {of} (before: {100 * before:.0f} %)"

    price = (
        f"{100 * means['row_cost']:.1f} % of a token's time per drafted row, "
        f"at a batch of {means['batch']:.1f}"
    )
    batch, batch_before = now_and_before("batch")
    row = (
        f"{share('row_cost', 'of a token')} at a mean batch of {batch:.1f} "
        f"(before: {batch_before:.1f})"
    )
    first = f"the first drafted token is accepted in {100 * means.get('first', 0.0):.0f} %"
    return {
        MATCH: f"a draft exists for {share('offered', 'of the requests')}",
        NO_MATCH: f"a draft exists for only {share('offered', 'of the requests')}",
        ACCEPTANCE_UP: f"first drafted tokens are accepted in {share('first', 'of cases')}",
        ACCEPTANCE_DOWN: f"first drafted tokens are accepted in {share('first', 'of cases')}",
        PRICE_UP: f"a drafted row costs {row}",
        PRICE_DOWN: f"a drafted row costs {row}",
        WISH: f"{share('forced', 'of the requests')} decide for themselves",
        REQUEST_GUARD: f"{share('blocked', 'of the requests')} are stood down for losing time",
        SHADOW_WIN: f"by the shadow scores {first}, and it costs {price}",
        PROBE: f"after a probe, {first}, and it costs {price}",
        REARMED: f"the harm guard's dwell is over; {first}, and it costs {price}",
    }.get(reason, f"several small causes; {first}, and it costs {price}")
