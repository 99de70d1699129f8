"""The harm ledger of the controller's report as rows and sentences. Pure functions."""

from __future__ import annotations

from typing import Any

from ui.shaping import Json, Row, length, number, percent

SPANS = {"window": "Recent steps", "total": "Since the start"}


def ledger_rows(report: Json) -> list[Row]:
    """One row for each span that has steps: seconds, and shares of plain decoding's."""
    ledger = report.get("ledger") or {}
    rows: list[Row] = []
    for span, name in SPANS.items():
        account = ledger.get(span) or {}
        if account.get("steps"):
            best = account["best_static"]
            rows.append(
                {
                    "Steps": f"{name}: {number(account['steps'])}",
                    "Tokens": account["tokens"],
                    "Took (s)": account["real_s"],
                    "Plain decoding (s)": account["plain_s"],
                    "Saved": _share(account, account["saved_s"]),
                    "Best static choice": choice(best),
                    "It saves at least": _share(account, best["low_s"]),
                }
            )
    return rows


def static_rows(report: Json) -> list[Row]:
    """The static choices over the recent steps, best first; none before there are such."""
    account = (report.get("ledger") or {}).get("window") or {}
    if not account.get("steps"):
        return []
    return [
        {
            "Static choice": choice(one),
            "Saves": _share(account, one["saved_s"]),
            "At least": _share(account, one["low_s"]),
        }
        for one in account.get("static") or ()
    ]


def sentence(report: Json) -> str:
    """How serving compares over the recent steps, or since the start where that is all; "" before
    the first one."""
    ledger = report.get("ledger") or {}
    span = next((one for one in SPANS if (ledger.get(one) or {}).get("steps")), None)
    if span is None:
        return ""
    account = ledger[span]
    saved, best = _share(account, account["saved_s"]), account["best_static"]
    verb = "saved" if saved >= 0 else "lost"
    text = (
        f"{SPANS[span]}: {number(account['tokens'])} tokens took "
        f"{number(account['real_s'], 1)} s, which {verb} {percent(abs(saved), 1)} against plain "
        f"decoding ({number(account['plain_s'], 1)} s)."
    )
    if best["drafter"] == "none":
        return f"{text} No static choice is sure to have saved anything."
    at_least = percent(_share(account, best["low_s"]), 1)
    return f"{text} The best static choice, {choice(best)}, would have saved {at_least} at least."


def choice(one: Json) -> str:
    """`ngram, D 4`, or `plain decoding`."""
    if one["drafter"] == "none":
        return "plain decoding"
    return f"{one['drafter']}, D {length(one['draft_length'])}"


def _share(account: Json, seconds: Any) -> float:
    """Of what plain decoding would have taken."""
    return seconds / account["plain_s"] if account.get("plain_s") else 0.0
