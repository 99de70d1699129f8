"""Speculation modes by name, as the command line takes them: none, auto, ngram, ngram:8."""

from __future__ import annotations

from typing import Any

from app.failures import SettingsError


def speculation(mode: str) -> dict[str, Any] | None:
    """The request's `speculation` field; None leaves everything to the server (auto).

    Raises SettingsError on a draft length that is not a number."""
    drafter, colon, length = mode.partition(":")
    if drafter == "auto" and not colon:
        return None
    if drafter == "none" and not colon:
        return {"enabled": False}
    if not colon:
        return {"drafter": drafter}
    if drafter in ("", "auto", "none") or not length.isdecimal():
        raise SettingsError(f"mode {mode!r}: give none, auto, DRAFTER or DRAFTER:LENGTH")
    return {"drafter": drafter, "draft_length": int(length)}
