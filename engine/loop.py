"""The engine loop: plan, draft, verify, commit, observe; one target forward a step."""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable, Generator, Sequence
from typing import NamedTuple

from torch import Tensor

from controller.contract import (
    NONE,
    Controller,
    Features,
    Margins,
    RequestOutcome,
    StepOutcome,
)
from engine.assemble import assemble
from engine.commit import Commit
from engine.drafters.base import Drafter, Reads, Weighty
from engine.drafting import Drafting, Offers
from engine.drafts import Draft
from engine.errors import RequestError
from engine.executor import Executor, Verified
from engine.meter import Meter
from engine.recorder import Recorder
from engine.request import Request
from engine.scheduler import Scheduler, Work
from engine.shape import Tapped, weight_bytes
from engine.verification import Verdict, Verification, is_lost
from engine.wire import Deltas, Failed, Finished, FinishReason, PromptLogprobs

log = logging.getLogger(__name__)

Emit = Callable[[Deltas | PromptLogprobs | Finished | Failed], None]

_NO_FEATURES = Features()

MOST_FAILURES = 3
"""After so many failed steps in a row the process ends: a new one gets a fresh device context."""


class _Lane(NamedTuple):
    """A decoding request in a step, the drafter it was allotted, who continues it, and its
    draft."""

    request: Request
    drafter: str
    tail: str
    draft: Draft


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
        executor.readers.clear()  # those of an engine that ran before
        self.scheduler = scheduler
        self.drafting = Drafting(
            drafters, controller, max_draft_length, executor.decoder.shape.vocabulary
        )
        self.controller = controller
        self.meter = Meter()
        self.steps = 0
        self._verification = Verification(executor)
        self._failures = 0
        self._after = 0.0
        """Seconds that the last step went on after it was measured; they count in the next."""
        self._emit = emit
        self.recorder = Recorder()

    # --- drafters -----------------------------------------------------------------------------

    def attach(self, drafter: Drafter) -> None:
        """One more drafter, from the next step on. ValueError when there is one of its name, or
        when it reads hidden states that this model does not show. Prompts are computed once more
        for one that reads hidden states."""
        decoder = self.executor.decoder
        last = (decoder.shape.layers,)
        reads = isinstance(drafter, Reads)
        if reads and drafter.taps != last and not isinstance(decoder, Tapped):
            raise ValueError(
                f"{drafter.name} reads layers {drafter.taps} of the model, which only shows its "
                f"final hidden states, {last}"
            )
        target = weight_bytes(decoder)
        rho = drafter.pass_bytes / target if isinstance(drafter, Weighty) and target else 0.0
        guarded = self.drafting.attach(drafter, rho)
        if reads:  # it can only read what is computed from now on
            self.scheduler.forget_prefixes()
            self.executor.readers.append(guarded)

    def detach(self, name: str) -> Drafter | None:
        """The drafter drafts no more; its requests go on without it. It is given back, None if
        there is none of this name. ValueError while the controller's setting pins it."""
        guarded = self.drafting.detach(name)
        if guarded is None:
            return None
        if guarded in self.executor.readers:
            self.executor.readers.remove(guarded)
        return guarded.drafter

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
            if self.recorder.running:
                self.recorder.arrived(request)

    def cancel(self, name: str) -> None:
        """End a request now; its pages are free before the next step."""
        request = self.scheduler.find(name)
        if request is not None:
            self._finish(request, "cancelled", None)

    # --- one step -----------------------------------------------------------------------------

    def upkeep(self) -> bool:
        """Let the drafters do a few milliseconds of their own work, such as indexing, while there
        is no step to run; False when none has any."""
        return self.drafting.work()

    def step(self) -> bool:
        """Run one step; False when there was nothing to run.

        Rows that cannot be computed end their request. When none can, requests without output are
        put back once and the others end. Raises when the device is lost, and the last of
        MOST_FAILURES such steps in a row: a new process then goes on with the requests."""
        work = self.scheduler.next(time.perf_counter())
        if not work:
            return False
        self.steps += 1
        try:
            self._run(work)
        except Exception as error:
            self._failures += 1
            if is_lost(error) or self._failures >= MOST_FAILURES:
                raise
            log.exception("step %d failed", self.steps)
            for request in work.requests:
                self._again(request)
        else:
            self._failures = 0
        return True

    def _run(self, work: Work) -> None:
        begin = time.perf_counter()
        self.drafting.admit(prefill.request for prefill in work.prefills)
        self.drafting.watched = self.recorder.running
        offers = self.drafting.offers(work.decoding)
        offered = time.perf_counter()
        plan = self.drafting.plan(self.steps, work, offers, self._verification.row_limit)
        planned = time.perf_counter()
        drafts, calls = self.drafting.draft(work.decoding, plan, self.scheduler.grow)
        followed = self.drafting.follow(work.prefills)
        lanes = [
            _Lane(request, allotment.drafter, allotment.tail, draft)
            for request, allotment, draft in zip(
                work.decoding, plan.allotments, drafts, strict=True
            )
        ]
        work, lanes, masks = self._constrain(work, lanes)
        drafted = time.perf_counter()
        drafts = [lane.draft for lane in lanes]
        verdict = self._verification.run(assemble(work, drafts, masks))
        verified = time.perf_counter()
        proposals, end = calls.settled()
        # what the device drew after the host had gone on
        late = max(0.0, min(end, verified) - drafted)
        if verdict.split:
            work, lanes = self._after_split(work, lanes, verdict)
        outcomes, first_tokens = self._commit(work, lanes, offers, verdict.results)
        done = time.perf_counter()
        draft_seconds = (offered - begin) + (drafted - planned) + late
        verify_seconds = verified - drafted - late
        outcome = StepOutcome(
            step=self.steps,
            requests=len(work.decoding),
            rows=sum(1 + len(lane.draft) for lane in lanes),
            prefill_rows=sum(prefill.rows for prefill in work.prefills),
            context_tokens=sum(request.computed for request in work.decoding),
            verify_ms=1e3 * verify_seconds,
            draft_ms=1e3 * draft_seconds,
            overhead_ms=1e3 * (done - begin - draft_seconds - verify_seconds + self._after),
            per_request=tuple(outcomes),
            proposals=(*proposals, *followed),
        )
        self.meter.add(outcome, first_tokens)
        if work.decoding:
            try:
                self.controller.observe(outcome)
            except Exception:
                log.exception("the controller failed to observe step %d", self.steps)
            if self.recorder.running:
                self.recorder.step(outcome, work.decoding)
        for request in work.requests:
            if self.scheduler.find(request.name) is not request:
                continue  # it failed
            if request.output.finish_reason is not None:
                self._finish(request, request.output.finish_reason, request.output.matched)
            else:
                self.scheduler.committed(request)
        self._after = time.perf_counter() - done

    def _constrain(
        self, work: Work, lanes: list[_Lane]
    ) -> tuple[Work, list[_Lane], dict[int, Tensor]]:
        """Cut drafts where a grammar ends them. Returns what still runs, and the masks by request:
        a request whose grammar fails ends."""
        masks: dict[int, Tensor] = {}
        for index, lane in enumerate(lanes):
            if (constraint := lane.request.constraint) is not None:
                with self._own_fault(lane.request):
                    draft, masks[lane.request.id] = constraint.admit(lane.draft)
                    lanes[index] = lane._replace(draft=draft)
        for prefill in work.prefills:
            if prefill.last and (constraint := prefill.request.constraint) is not None:
                with self._own_fault(prefill.request):
                    _, masks[prefill.request.id] = constraint.admit(Draft())
        if all(request.constraint is None for request in work.requests):
            return work, lanes, masks
        return *self._still_running(work, lanes), masks

    def _after_split(
        self, work: Work, lanes: list[_Lane], verdict: Verdict
    ) -> tuple[Work, list[_Lane]]:
        """What ran: drafts were dropped, and requests whose rows do not run even alone end."""
        message = (
            "the device has not enough memory for this request; send a shorter prompt, or serve "
            "with a lower --memory-fraction or --chunk-rows."
        )
        unfit = set(verdict.unfit)
        for request in work.requests:
            if request.id in unfit:
                self._fail(request, "out_of_memory", message)
            elif request.id in verdict.broken:
                self._fail(request, "internal", "the engine failed on this request; please retry.")
        plain = [lane._replace(draft=Draft()) for lane in lanes]
        return self._still_running(work, plain)

    def _still_running(self, work: Work, lanes: list[_Lane]) -> tuple[Work, list[_Lane]]:
        """The work and its lanes without the requests that have ended."""
        kept = [lane for lane in lanes if self.scheduler.find(lane.request.name) is lane.request]
        prefills = [
            prefill
            for prefill in work.prefills
            if self.scheduler.find(prefill.request.name) is prefill.request
        ]
        return Work([lane.request for lane in kept], prefills), kept

    def _commit(
        self,
        work: Work,
        lanes: Sequence[_Lane],
        offers: Offers,
        results: Sequence[Verified],
    ) -> tuple[list[RequestOutcome], int]:
        """Stream tokens and teach the drafters. Returns the outcomes of the decoding requests and
        how many first tokens came out."""
        commit = Commit(self.steps)
        first_tokens = 0
        by_request = {result.request: result for result in results}
        for request, allotted, tail, draft in lanes:
            drafter = allotted if draft else NONE
            with self._own_fault(request):
                offer = offers.get((request.id, allotted if draft.refused else drafter))
                features = offer.features if offer is not None else _NO_FEATURES
                result = by_request[request.id]
                margins = None
                if draft.margins:
                    margins = Margins(allotted, not request.draw.greedy, tuple(draft.margins))
                refused = tail if draft.refused == "tail" else allotted if draft.refused else NONE
                commit.decoded(request, result, drafter, tail, draft, features, margins, refused)
        for prefill in work.prefills:
            prefill.request.computed += prefill.rows
            if (result := by_request.get(prefill.request.id)) is not None:
                with self._own_fault(prefill.request):
                    first_tokens += commit.prefilled(prefill.request, result)
        for request, prompt in commit.prompts:
            with self._own_fault(request):  # a long one may fit no message
                self._emit(prompt)
        if commit.deltas:
            self._emit(Deltas(tuple(commit.deltas)))
        return commit.outcomes(self.drafting.commit), first_tokens

    @contextlib.contextmanager
    def _own_fault(self, request: Request) -> Generator[None]:
        """What goes wrong inside ends this request and no other."""
        try:
            yield
        except RequestError as error:
            # A constraint does not know which field it comes from.
            field = request.grammar_field if error.code == "invalid_request" else None
            self._fail(request, error.code, error.message, error.param or field)
        except (KeyboardInterrupt, SystemExit, GeneratorExit):
            raise
        except BaseException:  # a panic of a compiled library is no Exception
            log.exception("request %d failed while its tokens were committed", request.id)
            self._fail(request, "internal", "the engine failed on this request; please retry.")

    # --- ends ---------------------------------------------------------------------------------

    def _finish(self, request: Request, reason: FinishReason, matched: str | int | None) -> None:
        self._forget(request, sound=True)
        self._emit(
            Finished(
                id=request.name,
                finish_reason=reason,
                stop=matched,
                prompt_tokens=request.prompt_length,
                completion_tokens=request.produced,
                speculation=request.speculation(self.drafting.max_draft_length),
                timing=request.timing(time.perf_counter()),
                cached_tokens=request.cached_tokens,
            )
        )

    def _again(self, request: Request) -> None:
        """Put back a request of a failed step, once and if nothing of it was streamed."""
        if self.scheduler.find(request.name) is not request:
            return
        if request.produced or request.retried:
            message = "the engine failed while computing this step; please retry."
            self._fail(request, "internal", message)
            return
        request.retried = True
        self.scheduler.remove(request, sound=False)
        self.scheduler.add(request)

    def _fail(self, request: Request, code: str, message: str, param: str | None = None) -> None:
        if self.scheduler.find(request.name) is not request:
            return  # it ended earlier in the step
        self._forget(request, sound=False)
        self._emit(Failed(request.name, code, message, param))

    def _forget(self, request: Request, sound: bool) -> None:
        self.scheduler.remove(request, sound)
        if self.recorder.running:
            self.recorder.finished(request)
        self.drafting.forget(request.id)
        self.executor.forget(request.id)
