"""The policies to choose from, and two of them compared on the same traffic. Pure functions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from ui.shaping import MISSING, counted, number, percent

Json = Mapping[str, Any]

ADAPTIVE: Final = "adaptive"


class Policy(NamedTuple):
    """meaning: a sentence. options: all that it takes, with their defaults; "" when it takes
    none."""

    meaning: str
    options: str


POLICIES: Final[dict[str, Policy]] = {
    ADAPTIVE: Policy(
        "Paceline's own: prices every request's draft by measured acceptance and cost.", ""
    ),
    "off": Policy("Plain decoding, but for requests that ask for drafts.", ""),
    "fixed": Policy("One drafter with one D.", "drafter=auto draft_length=4"),
    "batch_table": Policy(
        "D by ranges of the batch size, as vLLM has it.",
        "drafter=auto table=1-16:3,32-128:2,256-2048:0",
    ),
    "tensorrt_schedule": Policy(
        "D by upper bounds of the batch size, as TensorRT-LLM has it.",
        "drafter=auto schedule=4:4,8:2,32:1 acceptance_window=0 acceptance_threshold=0.5",
    ),
    "ema_tiers": Policy(
        "D on tiers by the average of accepted tokens, as SGLang has it.",
        "drafter=auto tiers=1:1/3/5/7@-0.25,8:0/1/3,32:0/1,64:0 draft_length=3 ema_rate=0.2 "
        "warm_up_steps=10 interval_steps=5",
    ),
    "goodput": Policy(
        "The D of highest goodput by one acceptance rate, as TurboSpec has it.",
        "drafter=auto max_draft_length=16 interval_steps=20",
    ),
    "ucb": Policy(
        "A bandit over drafter and D, as BanditSpec has it.",
        "draft_lengths=1,2,4,8 exploration=0.5 reward=tokens",
    ),
    "acceptance_gate": Policy(
        "One D, with a pause while too few drafted tokens are accepted.",
        "drafter=auto draft_length=4 window=32 threshold=0.3 pause_steps=256",
    ),
    "ngram_else_model": Policy(
        "A drafter without a model where it finds a match, else the model.",
        "matcher=auto least_match=1 match_draft_length=8 model=auto draft_length=3",
    ),
    "margin_verify": Policy(
        "Verifies the likeliest drafted rows that are worth their time, as vLLM has it.",
        "drafter=auto draft_length=7",
    ),
}

MEASURES: Final = {
    "tokens_per_row_second": (
        "Tokens/s of the device",
        "each step's time shared by its rows; the figure to decide by",
    ),
    "tokens_per_request_second": (
        "Tokens/s of a request",
        "what a client feels; favours the arm that drafts more",
    ),
    "acceptance_length": ("Acceptance length", "tokens per request and step"),
}
"""What the arms are compared by: (name, meaning) by the report's name."""


def in_force(setting: Json) -> str:
    """Who chooses now, in words: `adaptive`, or `adaptive against fixed (draft_length=4), which has
    50 % of the requests`."""
    first = _named(setting.get("policy") or ADAPTIVE, setting.get("policy_options"))
    if not setting.get("ab_policy"):
        return first
    second = _named(setting["ab_policy"], setting.get("ab_options"))
    share = percent(setting.get("ab_share"))
    return f"{first} against {second}, which has {share} of the requests"


def _named(policy: Any, options: Any) -> str:
    return f"{policy} ({options})" if options else str(policy)


def change(
    policy: str, options: str, second: str | None, second_options: str, share: float
) -> dict[str, Any]:
    """The body of the change. second: the policy of arm B, None without a comparison."""
    body: dict[str, Any] = {"policy": policy, "policy_options": options.strip()}
    if second is not None:
        body |= {"ab_policy": second, "ab_options": second_options.strip(), "ab_share": share}
    return body


class Compared(NamedTuple):
    """A measure of both arms, with 90 % intervals as text. verdict: what B over A says."""

    name: str
    meaning: str
    a: str
    b: str
    ratio: str
    verdict: str


def comparison(report: Json) -> list[Compared]:
    """The measures of the report's arms; empty without two."""
    found: Json = report.get("ab") or {}
    arms: Json = found.get("arms") or {}
    if not arms:
        return []
    ratios: Json = found.get("b_over_a") or {}
    return [
        Compared(
            name,
            meaning,
            estimate(arms["A"].get(key)),
            estimate(arms["B"].get(key)),
            estimate(ratios.get(key), " ×"),
            verdict(ratios.get(key)),
        )
        for key, (name, meaning) in MEASURES.items()
    ]


def counts(report: Json) -> dict[str, str]:
    """By arm, its policy and its requests: `adaptive: 120 requests ended, 3 running`."""
    arms: Json = (report.get("ab") or {}).get("arms") or {}
    found: dict[str, str] = {}
    for label, arm in arms.items():
        ended = counted(arm["requests"], "request")
        found[label] = f"{arm['policy']}: {ended} ended, {arm['running']} running"
    return found


def estimate(value: Json | None, unit: str = "") -> str:
    """`38.1 (36.0 … 40.2)`."""
    if not value:
        return MISSING
    text = number(value.get("value"), 2, unit)
    if value.get("low") is None or value.get("high") is None:
        return text
    return f"{text} ({number(value['low'], 2)} … {number(value['high'], 2)})"


def verdict(ratio: Json | None) -> str:
    """What B over A says, by its 90 % interval."""
    if not ratio or ratio.get("low") is None or ratio.get("high") is None:
        return "too few requests ended"
    if ratio["low"] > 1.0:
        return "B has more"
    return "A has more" if ratio["high"] < 1.0 else "no clear difference"
