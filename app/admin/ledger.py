"""The newest controller decisions in memory; older ones are read from the database."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

import msgspec

from app.realised import realised_view
from controller.contract import Decision

KEEP = 500


class Ledger:
    """Decisions by id in order of birth; a decision that comes again replaces itself."""

    def __init__(self, keep: int = KEEP) -> None:
        self._keep = keep
        self._decisions: OrderedDict[str, Decision] = OrderedDict()

    def add(self, decisions: tuple[Decision, ...]) -> None:
        for decision in decisions:
            self._decisions[decision.id] = decision
        while len(self._decisions) > self._keep:
            self._decisions.popitem(last=False)

    def __contains__(self, id: str) -> bool:
        return id in self._decisions

    @property
    def oldest(self) -> Decision | None:
        """The oldest decision in memory."""
        return next(iter(self._decisions.values()), None)

    def recent(
        self,
        limit: int,
        before: str | None,
        reason: str | None = None,
        drafter: str | None = None,
        request: int | None = None,
    ) -> list[dict[str, Any]]:
        """Newest first, only those older than `before` and matching the filters."""
        found: list[dict[str, Any]] = []
        skipping = before is not None
        for decision in reversed(self._decisions.values()):
            if skipping:
                skipping = decision.id != before
                continue
            if reason is not None and decision.reason != reason:
                continue
            if drafter is not None and decision.drafter != drafter:
                continue
            if request is not None and request not in decision.requests:
                continue
            found.append(as_dict(decision))
            if len(found) == limit:
                break
        return found


def as_dict(decision: Decision) -> dict[str, Any]:
    """A decision as the API shows it."""
    shown = msgspec.to_builtins(decision)
    shown["realised"] = realised_view(decision.realised)
    return shown
