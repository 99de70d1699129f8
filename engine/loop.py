"""The engine loop: plan, draft, verify, commit, observe; one target forward a step."""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable, Generator, Sequence

from controller.contract import (
    NONE,
    Allotment,
    BatchView,
    Controller,
    Features,
    Offer,
    Plan,
    RequestOutcome,
    StepOutcome,
)
from engine.batch import Chunk
from engine.commit import Commit
from engine.drafters.base import Drafter
from engine.errors import RequestError
from engine.executor import Executor, Verified
from engine.meter import Meter
from engine.request import Request
from engine.scheduler import Scheduler, Work
from engine.wire import Deltas, Failed, Finished, FinishReason

log = logging.getLogger(__name__)

Emit = Callable[[Deltas | Finished | Failed], None]

MOST_FAILURES = 3
"""After so many failed steps in a row the process ends: a new one gets a fresh device context."""

MAX_ROWS = 512
"""Most rows of decoding requests in one step, drafts included."""


class Engine:
    """Drives the scheduler, the drafters, the executor and the controller. Single-threaded: every
    method is called from the loop's thread."""

    def __init__(
        self,
        executor: Executor,
        scheduler: Scheduler,
        drafters: Sequence[Drafter],
        controller: Controller,
        max_draft_length: int,
        emit: Emit,
    ) -> None:
        self.executor = executor
        self.scheduler = scheduler
        self.drafters = {drafter.name: drafter for drafter in drafters}
        self.enabled = dict.fromkeys(self.drafters, True)
        self.controller = controller
        self.max_draft_length = max_draft_length
        self.meter = Meter()
        self.steps = 0
        self._failures = 0
        self._emit = emit

    # --- requests -----------------------------------------------------------------------------

    def submit(self, request: Request) -> None:
        """Queue a checked request, or fail it when the queue is full or its name is taken."""
        if self.scheduler.full:
            message = "the request queue is full; try again shortly."
            self._emit(Failed(request.name, "queue_full", message))
        elif self.scheduler.find(request.name) is not None:
            self._emit(Failed(request.name, "invalid_request", "this id is in use.", "id"))
        else:
            self.scheduler.add(request)

    def cancel(self, name: str) -> None:
        """End a request now; its pages are free before the next step."""
        request = self.scheduler.find(name)
        if request is not None:
            self._finish(request, "cancelled", None)

    def set_enabled(self, drafter: str, enabled: bool) -> None:
        """Let a drafter draft or not, from the next step on. It keeps following the text."""
        self.enabled[drafter] = enabled
        self.controller.set_enabled(drafter, enabled)

    # --- one step -----------------------------------------------------------------------------

    def step(self) -> bool:
        """Run one step; False when there was nothing to run.

        A step that fails ends its requests; the last of MOST_FAILURES in a row is raised."""
        work = self.scheduler.next(time.perf_counter())
        if not work:
            return False
        self.steps += 1
        try:
            self._run(work)
        except Exception:
            log.exception("step %d failed; its requests end with an error", self.steps)
            message = "the engine failed while computing this step; please retry."
            for request in (*work.decoding, *(prefill.request for prefill in work.prefills)):
                self._fail(request, "internal", message)
            self._failures += 1
            if self._failures >= MOST_FAILURES:
                raise
        else:
            self._failures = 0
        return True

    def _run(self, work: Work) -> None:
        begin = time.perf_counter()
        offers = self._offers(work.decoding)
        offered = time.perf_counter()
        plan = self._plan(work, offers)
        planned = time.perf_counter()
        drafts = self._draft(work.decoding, plan.allotments)
        drafted = time.perf_counter()
        results = self.executor.verify(self._chunks(work, drafts)).result()
        verified = time.perf_counter()
        outcomes, first_tokens, ended = self._commit(work, plan, drafts, offers, results)
        done = time.perf_counter()
        draft_seconds = (offered - begin) + (drafted - planned)
        outcome = StepOutcome(
            step=self.steps,
            requests=len(work.decoding),
            rows=sum(1 + len(draft) for draft in drafts),
            prefill_rows=sum(prefill.rows for prefill in work.prefills),
            context_tokens=sum(request.computed for request in work.decoding),
            verify_ms=1e3 * (verified - drafted),
            draft_ms=1e3 * draft_seconds,
            overhead_ms=1e3 * (done - begin - draft_seconds - (verified - drafted)),
            per_request=tuple(outcomes),
        )
        self.meter.add(outcome, first_tokens)
        if work.decoding:
            try:
                self.controller.observe(outcome)
            except Exception:
                log.exception("the controller failed to observe step %d", self.steps)
        for request in ended:
            self._finish(request, request.output.finish_reason or "stop", request.output.matched)

    def _offers(self, decoding: Sequence[Request]) -> dict[tuple[int, str], Offer]:
        offers: dict[tuple[int, str], Offer] = {}
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

    def _plan(self, work: Work, offers: dict[tuple[int, str], Offer]) -> Plan:
        """The controller's plan; plain decoding when the controller itself fails."""
        decoding = work.decoding
        if not decoding:
            return Plan(())
        batch = BatchView(
            step=self.steps,
            requests=[request.view() for request in decoding],
            prefill_rows=sum(prefill.rows for prefill in work.prefills),
            free_rows=max(0, MAX_ROWS - len(decoding)),
        )
        try:
            return self.controller.plan(batch, list(offers.values()))
        except Exception:
            log.exception("the controller failed to plan step %d", self.steps)
            return Plan(tuple(Allotment(request.id, NONE, 0) for request in decoding))

    def _draft(
        self, decoding: Sequence[Request], allotments: Sequence[Allotment]
    ) -> list[list[int]]:
        """One draft per decoding request, empty for plain decoding. Ids the target does not know
        end a draft at their place."""
        drafts: list[list[int]] = [[] for _ in decoding]
        vocabulary = self.executor.decoder.shape.vocabulary
        for name, drafter in self.drafters.items():
            asked = [
                (index, min(allotment.length, self.max_draft_length, decoding[index].remaining - 1))
                for index, allotment in enumerate(allotments)
                if allotment.drafter == name and allotment.length > 0
            ]
            if not asked:
                continue
            requests = [decoding[index] for index, _ in asked]
            try:
                proposed = drafter.propose(requests, [length for _, length in asked])
            except Exception:
                log.exception("drafter %s failed to propose", name)
                continue
            for (index, length), draft in zip(asked, proposed, strict=True):
                known = draft[:length]
                for place, token in enumerate(known):
                    if not 0 <= token < vocabulary:
                        known = known[:place]
                        break
                drafts[index] = known
        return drafts

    def _chunks(self, work: Work, drafts: Sequence[list[int]]) -> list[Chunk]:
        chunks = [
            Chunk(
                request=request.id,
                ids=[request.tokens[-1], *draft],
                start=request.computed,
                pages=request.pages,
                draw=request.draw,
                drafted=len(draft),
            )
            for request, draft in zip(work.decoding, drafts, strict=True)
        ]
        for prefill in work.prefills:
            request, start = prefill.request, prefill.request.computed
            chunks.append(
                Chunk(
                    request=request.id,
                    ids=request.tokens[start : start + prefill.rows],
                    start=start,
                    pages=request.pages,
                    draw=request.draw,
                    wanted=prefill.last,
                )
            )
        return chunks

    def _commit(
        self,
        work: Work,
        plan: Plan,
        drafts: Sequence[list[int]],
        offers: dict[tuple[int, str], Offer],
        results: Sequence[Verified],
    ) -> tuple[list[RequestOutcome], int, list[Request]]:
        """Stream tokens and teach the drafters. Returns the outcomes of the decoding requests,
        how many first tokens came out, and the requests that ended."""
        commit = Commit(self.steps, self.drafters)
        outcomes: list[RequestOutcome] = []
        first_tokens = 0
        by_request = {result.request: result for result in results}
        for request, allotment, draft in zip(work.decoding, plan.allotments, drafts, strict=True):
            drafter = allotment.drafter if draft else NONE
            with self._own_fault(request):
                offer = offers.get((request.id, drafter))
                features = offer.features if offer is not None else Features()
                result = by_request[request.id]
                outcomes.append(commit.decoded(request, result, drafter, len(draft), features))
        for prefill in work.prefills:
            prefill.request.computed += prefill.rows
            if prefill.last:
                with self._own_fault(prefill.request):
                    result = by_request[prefill.request.id]
                    first_tokens += commit.first(prefill.request, result)
        if commit.deltas:
            self._emit(Deltas(tuple(commit.deltas)))
        ended = [
            request
            for request in (*work.decoding, *(prefill.request for prefill in work.prefills))
            if request.output.finish_reason is not None
            and self.scheduler.find(request.name) is request
        ]
        return outcomes, first_tokens, ended

    @contextlib.contextmanager
    def _own_fault(self, request: Request) -> Generator[None]:
        """What goes wrong inside ends this request and no other."""
        try:
            yield
        except RequestError as error:
            self._fail(request, error.code, error.message)
        except Exception:
            log.exception("request %d failed while its tokens were committed", request.id)
            self._fail(request, "internal", "the engine failed on this request; please retry.")

    # --- ends ---------------------------------------------------------------------------------

    def _finish(self, request: Request, reason: FinishReason, matched: str | int | None) -> None:
        self._forget(request)
        self._emit(
            Finished(
                id=request.name,
                finish_reason=reason,
                stop=matched,
                prompt_tokens=request.prompt_length,
                completion_tokens=request.produced,
                speculation=request.speculation(self.max_draft_length),
                timing=request.timing(time.perf_counter()),
            )
        )

    def _fail(self, request: Request, code: str, message: str) -> None:
        if self.scheduler.find(request.name) is not request:
            return  # it ended earlier in the step
        self._forget(request)
        self._emit(Failed(request.name, code, message))

    def _forget(self, request: Request) -> None:
        self.scheduler.remove(request)
        self.controller.forget(request.id)
        for drafter in self.drafters.values():
            drafter.forget(request.id)
