"""Reason codes of decisions, what each means, and how it is said with numbers."""

from __future__ import annotations

from collections.abc import Mapping

START = "START"
OPERATOR = "OPERATOR"
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
    HARM_GUARD: "Drafting lost more than 2 % against plain decoding; it stops for a dwell.",
    REARMED: "The dwell of the harm guard ended and drafting pays again.",
    REQUEST_GUARD: "Requests whose drafts cost more than they gave are stood down, or free again.",
    SHADOW_WIN: "Drafting starts because shadow scores predict that it pays.",
    PROBE: "Drafting starts because a probe measured a better outcome than was predicted.",
    MATCH: "The drafters find a draft for more of the requests.",
    NO_MATCH: "The drafters find a draft for fewer of the requests.",
    ACCEPTANCE_UP: "Drafted tokens are accepted more often.",
    ACCEPTANCE_DOWN: "Drafted tokens are accepted less often.",
    PRICE_UP: "A drafted row costs more (larger batch, longer context or a slower machine).",
    PRICE_DOWN: "A drafted row costs less.",
    WISH: "More or fewer requests ask for a drafter or a length themselves.",
    MIXED: "The plan moved without one dominant cause.",
}


def because(reason: str, means: Mapping[str, float], base: Mapping[str, float]) -> str:
    """The clause after the colon of a sentence: the cause with its numbers, now and before.

    means and base: the smoothed inputs now and when the decision in force was opened."""

    def moved(key: str, scale: float = 100.0) -> str:
        before = scale * base.get(key, means.get(key, 0.0))
        return f"{scale * means.get(key, 0.0):.1f} now, {before:.1f} before"

    price = (
        f"{100 * means['row_cost']:.1f} % of a token's time per drafted row, "
        f"at a batch of {means['batch']:.1f}"
    )
    first = f"the first drafted token is accepted in {100 * means.get('first', 0.0):.0f} %"
    return {
        MATCH: f"a draft exists for more requests (%: {moved('offered')})",
        NO_MATCH: f"a draft exists for fewer requests (%: {moved('offered')})",
        ACCEPTANCE_UP: f"first drafted tokens accepted (%): {moved('first')}",
        ACCEPTANCE_DOWN: f"first drafted tokens accepted (%): {moved('first')}",
        PRICE_UP: (
            f"a drafted row costs more (% of a token: {moved('row_cost')}; "
            f"batch {moved('batch', 1.0)})"
        ),
        PRICE_DOWN: (
            f"a drafted row costs less (% of a token: {moved('row_cost')}; "
            f"batch {moved('batch', 1.0)})"
        ),
        WISH: f"requests that decide for themselves (%): {moved('forced')}",
        REQUEST_GUARD: f"requests stood down for losing time (%): {moved('blocked')}",
        SHADOW_WIN: f"by the shadow scores {first}, and it costs {price}",
        PROBE: f"after a probe, {first}, and it costs {price}",
        REARMED: f"the harm guard's dwell is over; {first}, and it costs {price}",
    }.get(reason, f"several small causes; {first}, and it costs {price}")
