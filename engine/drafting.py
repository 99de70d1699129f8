"""Asks the drafters what they can draft, the controller what is worth it, and collects drafts."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

from controller.contract import NONE, Allotment, BatchView, Controller, Offer, Plan
from engine.drafters.base import Drafter
from engine.drafts import Draft
from engine.request import Request
from engine.scheduler import Work

log = logging.getLogger(__name__)

MAX_ROWS = 512
"""No drafts beyond so many rows of decoding requests in one step."""

Offers = dict[tuple[int, str], Offer]
"""(request id, drafter) -> what it offers."""


class Drafting:
    """The drafters by name, which of them may draft, and the controller that chooses.

    A drafter or a controller that raises costs its drafts, never the step."""

    def __init__(
        self,
        drafters: Sequence[Drafter],
        controller: Controller,
        max_draft_length: int,
        vocabulary: int,
    ) -> None:
        self.drafters = {drafter.name: drafter for drafter in drafters}
        self.enabled = dict.fromkeys(self.drafters, True)
        self.controller = controller
        self.max_draft_length = max_draft_length
        self._vocabulary = vocabulary

    def set_enabled(self, drafter: str, enabled: bool) -> None:
        """Let a drafter draft or not, from the next step on. It keeps following the text."""
        self.enabled[drafter] = enabled
        self.controller.set_enabled(drafter, enabled)

    def offers(self, decoding: Sequence[Request]) -> Offers:
        """What every enabled drafter offers for every request that could commit a draft."""
        offers: Offers = {}
        for request in decoding:
            if min(request.remaining - 1, self.max_draft_length) < 1:
                continue  # no draft could be committed
            for name, drafter in self.drafters.items():
                if not self.enabled[name]:
                    continue
                try:
                    offer = drafter.offer(request)
                except Exception:
                    log.exception("drafter %s failed for request %d", name, request.id)
                    continue
                if offer is not None:
                    offers[request.id, name] = offer
        return offers

    def plan(self, step: int, work: Work, offers: Offers, row_limit: int | None = None) -> Plan:
        """The controller's plan; plain decoding when the controller itself fails.

        row_limit: rows of one forward, prefills included, that memory has room for. It bounds the
        drafts before they are drawn, so that it cannot depend on them."""
        decoding = work.decoding
        if not decoding:
            return Plan(())
        prefill_rows = sum(prefill.rows for prefill in work.prefills)
        most = MAX_ROWS if row_limit is None else min(MAX_ROWS, row_limit - prefill_rows)
        batch = BatchView(
            step=step,
            requests=[request.view() for request in decoding],
            prefill_rows=prefill_rows,
            free_rows=max(0, most - len(decoding)),
        )
        try:
            return self.controller.plan(batch, list(offers.values()))
        except Exception:
            log.exception("the controller failed to plan step %d", step)
            return Plan(tuple(Allotment(request.id, NONE, 0) for request in decoding))

    def draft(
        self,
        decoding: Sequence[Request],
        allotments: Sequence[Allotment],
        grow: Callable[[Request, int], int],
    ) -> list[Draft]:
        """One draft per decoding request, empty for plain decoding. Ids the target does not know
        end a draft at their place. grow(request, rows): how many rows it has pages for."""
        drafts = [Draft() for _ in decoding]
        for name, drafter in self.drafters.items():
            asked = [
                (index, grow(decoding[index], 1 + min(allotment.length, self.max_draft_length)) - 1)
                for index, allotment in enumerate(allotments)
                if allotment.drafter == name and allotment.length > 0
            ]
            asked = [(index, length) for index, length in asked if length > 0]
            if not asked:
                continue
            requests = [decoding[index] for index, _ in asked]
            try:
                proposed = drafter.propose(requests, [length for _, length in asked])
                for (index, length), draft in zip(asked, proposed, strict=True):
                    drafts[index] = draft.cut(min(length, self._known(draft.tokens)))
            except Exception:
                log.exception("drafter %s failed to propose", name)
                for index, _ in asked:
                    drafts[index] = Draft()
        return drafts

    def _known(self, tokens: Sequence[int]) -> int:
        """How many tokens come before the first id that the target does not have."""
        for place, token in enumerate(tokens):
            if not 0 <= token < self._vocabulary:
                return place
        return len(tokens)

    def forget(self, request: int) -> None:
        """Drop what the controller and the drafters hold of a request."""
        for holder in (self.controller, *self.drafters.values()):
            try:
                holder.forget(request)
            except Exception:
                log.exception("%s failed to forget request %d", type(holder).__name__, request)
