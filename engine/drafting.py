"""Asks the drafters what they can draft, the controller what is worth it, and collects drafts."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Sequence

from controller.contract import (
    NONE,
    Allotment,
    Bar,
    BatchView,
    Controller,
    DrafterInfo,
    Offer,
    Plan,
    Proposal,
    ShadowScore,
    Wish,
)
from engine.draft_calls import Calls
from engine.drafters.base import Committed, Drafter
from engine.drafts import Draft
from engine.guarded import Guarded
from engine.request import Request
from engine.scheduler import Prefill, Work
from engine.unseen import Unseen

log = logging.getLogger(__name__)

MAX_ROWS = 512
"""No drafts beyond so many rows of decoding requests in one step."""

USED_STEPS = 64
"""A drafter that drafted within so many steps takes in prompts along with the target."""

NO_WISH = Wish()

_NOTHING = Draft()

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
        self.guarded = {drafter.name: Guarded(drafter) for drafter in drafters}
        self.enabled = dict.fromkeys(self.drafters, True)
        self.controller = controller
        self.max_draft_length = max_draft_length
        self._vocabulary = vocabulary
        self.watched = False
        """Somebody records: the drafters are scored in every step, looked for drafts or not."""
        self._admitted: dict[int, Request] = {}
        self._looked = True
        self._steps = 0
        self._used: dict[str, int] = {}  # drafter -> the last step that it was planned in

    def set_enabled(self, drafter: str, enabled: bool) -> None:
        """Let a drafter draft or not, from the next step on. It keeps following the text."""
        self.enabled[drafter] = enabled
        self.controller.set_enabled(drafter, enabled)

    def attach(self, drafter: Drafter, rho: float = 0.0) -> Guarded:
        """One more drafter, enabled, from the next step on; it is told of the running requests.
        rho: see DrafterInfo. ValueError when there is one of this name."""
        if drafter.name in self.drafters:
            raise ValueError(f"there is a drafter {drafter.name} already")
        self.controller.add_drafter(
            DrafterInfo(drafter.name, model=drafter.kind == "model", rho=rho)
        )
        guarded = Guarded(drafter)
        self.drafters[drafter.name] = drafter
        self.guarded[drafter.name] = guarded
        self.enabled[drafter.name] = True
        for request in self._admitted.values():
            guarded.admit(request)
        return guarded

    def detach(self, name: str) -> Guarded | None:
        """The drafter drafts no more, and nothing here holds it; None if there is none of this
        name. ValueError while the controller's setting pins it."""
        if name not in self.drafters:
            return None
        self.controller.remove_drafter(name)
        del self.drafters[name], self.enabled[name]
        self._used.pop(name, None)
        return self.guarded.pop(name)

    def admit(self, requests: Iterable[Request]) -> None:
        """Tell the drafters of the requests that they were not told of yet."""
        for request in requests:
            if request.id not in self._admitted:
                self._admitted[request.id] = request
                for name in self.drafters:
                    self.guarded[name].admit(request)

    def offers(self, decoding: Sequence[Request]) -> Offers:
        """What every enabled drafter offers for every request that could commit a draft, unless it
        asked for plain decoding; while the controller does not look for drafts, only for those that
        ask for some themselves."""
        offers: Offers = {}
        most, looks = self.max_draft_length, self._looks()
        self._looked = looks
        requests = [
            one
            for one in decoding
            if most > 0 and one.remaining > 1 and _may_draft(one.wish, looks)
        ]
        if not requests:
            return offers
        for name in self.drafters:
            if self.enabled[name]:
                for offer in self.guarded[name].offer(requests):
                    if offer is not None:
                        offers[offer.request, name] = offer
        return offers

    def _looks(self) -> bool:
        try:
            return self.controller.attentive
        except Exception:
            log.exception("the controller failed to say whether it looks for drafts")
            return True

    def plan(self, step: int, work: Work, offers: Offers, row_limit: int | None = None) -> Plan:
        """The controller's plan; plain decoding when the controller itself fails.

        row_limit: rows of one forward, prefills included, that memory has room for. It bounds the
        drafts before they are drawn, so that it cannot depend on them."""
        decoding = work.decoding
        self._steps += 1
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
            plan = self.controller.plan(batch, list(offers.values()))
        except Exception:
            log.exception("the controller failed to plan step %d", step)
            return Plan(tuple(Allotment(request.id, NONE, 0) for request in decoding))
        for one in plan.allotments:
            # A probe makes a drafter nobody's: it need not follow the texts of others for it.
            if one.length and one.request not in plan.probes:
                self._used[one.drafter] = self._steps
        return plan

    def draft(
        self,
        decoding: Sequence[Request],
        plan: Plan,
        grow: Callable[[Request, int], int],
    ) -> tuple[list[Draft], Calls]:
        """One draft per decoding request, empty for plain decoding, and what the drafters took for
        them. Ids the target does not know end a draft at their place, and so does its bar.
        grow(request, rows): how many rows it has pages for.

        Tokens that the device has drawn are left there, unless a bar or a tail needs them."""
        drafts = [_NOTHING] * len(decoding)
        asked: dict[str, list[tuple[int, int]]] = {}
        tails: dict[str, list[tuple[int, int, int]]] = {}
        for index, one in enumerate(plan.allotments):
            if one.length < 1 or one.drafter not in self.drafters:
                continue
            head = min(one.length, self.max_draft_length)
            wanted = min(head + one.tail_length, self.max_draft_length)
            granted = grow(decoding[index], 1 + wanted) - 1
            if granted > 0:
                asked.setdefault(one.drafter, []).append((index, min(head, granted)))
            if granted > head and one.tail in self.drafters:
                tails.setdefault(one.tail, []).append((index, head, granted - head))
        calls = Calls()
        for name, some in asked.items():
            begin = time.perf_counter()
            requests, lengths = [decoding[index] for index, _ in some], [n for _, n in some]
            guarded = self.guarded[name]
            proposed = guarded.propose(requests, lengths)
            for (index, length), draft in zip(some, proposed, strict=True):
                if draft is not None:
                    length = min(length, _promising(draft, plan.allotments[index].bar))
                    drafts[index] = draft.cut(min(length, self._known(draft.tokens)))
            ms = 1e3 * (time.perf_counter() - begin)
            if guarded.weighty is None:
                calls.add(Proposal(name, len(some), max(lengths), ms), begin, proposed)
            else:  # it may only have caught up with the text
                lengths = [n for n, draft in zip(lengths, proposed, strict=True) if draft]
                depth, rows = max(lengths, default=0), guarded.take_catch_up()
                calls.add(Proposal(name, len(lengths), depth, ms, rows), begin, proposed)
        for name, more in tails.items():
            self._continue(name, decoding, drafts, more)
        return drafts, calls

    def follow(self, prefills: Sequence[Prefill]) -> list[Proposal]:
        """Have the drafters that compute on the text take in the prompts of this step, of requests
        that are likely to use them."""
        proposals: list[Proposal] = []
        for name, guarded in self.guarded.items() if prefills else ():
            if not guarded.follows or not self.enabled[name]:
                continue
            theirs = [
                (prefill.request, prefill.request.computed + prefill.rows)
                for prefill in prefills
                if self._uses(prefill.request, name)
            ]
            if theirs:
                begin = time.perf_counter()
                guarded.follow(theirs)
                ms = 1e3 * (time.perf_counter() - begin)
                if rows := guarded.take_catch_up():
                    proposals.append(Proposal(name, 0, 0, ms, rows))
        return proposals

    def _uses(self, request: Request, name: str) -> bool:
        """Whether the drafter will likely draft for the request."""
        wish, setting = request.wish, self.controller.setting
        if not wish.enabled or setting.mode == "off":
            return False
        wanted = wish.drafter or (setting.drafter if setting.mode == "pinned" else None)
        if wanted is not None:
            return wanted == name
        return self._steps - self._used.get(name, -USED_STEPS) < USED_STEPS

    def _continue(
        self,
        name: str,
        decoding: Sequence[Request],
        drafts: list[Draft],
        wanted: Sequence[tuple[int, int, int]],
    ) -> None:
        """Have the drafter continue the drafts that came in full. wanted: (index, length of a full
        draft, most tokens to add). How many may be added was settled before anything was drawn."""
        whole = [one for one in wanted if len(drafts[one[0]]) == one[1]]
        if not whole:
            return
        added = self.guarded[name].extend(
            [decoding[index] for index, _, _ in whole],
            [list(drafts[index].tokens) for index, _, _ in whole],
            [most for _, _, most in whole],
        )
        for (index, _, most), tokens in zip(whole, added, strict=True):
            if tokens is not None:
                drafts[index] = drafts[index].extended(tokens[: min(most, self._known(tokens))])

    def commit(
        self, commits: Sequence[Committed], drafters: Sequence[str]
    ) -> list[tuple[ShadowScore, ...]]:
        """Tell every drafter what the step committed, and what of it itself had drafted; drafters:
        who ran for each. Returns, for each commit, what the drafters scored; in steps that did
        not look for drafts they score nothing, unless somebody records."""
        scores: list[tuple[ShadowScore, ...]] = [()] * len(commits)
        if not (self._looked or self.watched):
            commits = [one._replace(scored=False) for one in commits]
        for name in self.drafters:
            told = [
                one if ran == name or not one.drafted else one._replace(drafted=0, accepted=0)
                for one, ran in zip(commits, drafters, strict=True)
            ]
            for place, settled in enumerate(self.guarded[name].commit(told)):
                if settled:
                    scores[place] += settled
        return scores

    def work(self) -> bool:
        """Let the drafters do work of their own; False when none has any."""
        return any([guarded.work() for guarded in self.guarded.values()])

    def forget(self, request: int) -> None:
        """Drop what the controller and the drafters hold of a request."""
        self._admitted.pop(request, None)
        try:
            self.controller.forget(request)
        except Exception:
            log.exception("the controller failed to forget request %d", request)
        for name in self.drafters:
            self.guarded[name].forget(request)

    def _known(self, tokens: Sequence[int]) -> int:
        """How many tokens come before the first id that the target does not have. What is unseen
        was drawn through a vocabulary map, which has no others."""
        if isinstance(tokens, Unseen):
            return len(tokens)
        for place, token in enumerate(tokens):
            if not 0 <= token < self._vocabulary:
                return place
        return len(tokens)


def _may_draft(wish: Wish, looks: bool) -> bool:
    """Whether a request with this wish is offered drafts in a step that looks for them or not."""
    if wish == NO_WISH:
        return looks
    return wish.enabled and wish.drafter != NONE and wish.draft_length != 0


def _promising(draft: Draft, bar: Bar | None) -> int:
    """How many tokens of a draft the bar lets through. Drafts without margins pass."""
    return len(draft) if bar is None or not draft.margins else bar.length(draft.margins)
