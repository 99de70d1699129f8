"""What model drafters draw stays on the device until the step has been verified."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

from controller.contract import Bar, BatchView, Offer, Plan, Proposal, StepOutcome
from engine.assemble import assemble
from engine.attention import TorchAttention
from engine.batch import Chunk, pack
from engine.draft_calls import Calls
from engine.drafters.base import Drafter
from engine.drafts import Draft
from engine.draw import Draw
from engine.executor import Executor
from engine.kv import empty_pool
from engine.loop import Engine
from engine.pages import Pages
from engine.request import Request
from engine.scheduler import Scheduler, Work
from engine.unseen import Unseen, leading, unseen_of
from engine.verification import Verification
from engine.wire import Failed
from tests.engine.conformance import CPU, Subject, at_random, request_of, tiny
from tests.engine.late_device import LateDevice, watch_all
from tests.engine.model_drafters import MakeDrafter, draft_model, mtp, tiny_head
from tests.engine.replay import make_request
from tests.engine.scripted import ScriptedController, ScriptedTail

Choose = Callable[[int, int, list[str]], tuple[str, int]]
MOST = 4
STEP, DRAWN = "Step.result", "Drawn.result"


@pytest.fixture(scope="module")
def subject() -> Subject:
    return tiny("llama")


class Watched:
    """An engine over a late device. steps: who waited in each step, and how many forwards of the
    target had been enqueued by then."""

    def __init__(
        self,
        subject: Subject,
        patch: pytest.MonkeyPatch,
        models: Sequence[MakeDrafter],
        controller: ScriptedController,
        hands: Sequence[Drafter] = (),
        *,
        guarded: bool = True,
    ) -> None:
        """guarded: a look at a tensor that is not on the host fails."""
        self._guarded = guarded
        self.device = LateDevice()
        self._patch = patch
        pages = Pages(80, subject.page_size)
        pool = empty_pool(subject.model.shape, self.device, pages.total, subject.page_size)
        attention = TorchAttention(pool, subject.model.shape)
        self.executor = Executor(subject.model, attention, self.device, subject.page_size)
        self.events: list[Any] = []
        scheduler = Scheduler(pages, 8, 64, 9)
        self.engine = Engine(self.executor, scheduler, hands, controller, MOST, self.events.append)
        for make in models:
            self.engine.attach(make(pool, self.device, MOST))
        self.controller = controller
        self.steps: list[list[str]] = []

    def run(self, requests: Sequence[Request]) -> None:
        for request in requests:
            self.engine.submit(request)
        stream = self.device.stream
        with self._patch.context() as patch:
            if self._guarded:
                watch_all(patch, stream)
            while self.engine.step():
                self.steps.append(stream.waits[:])
                stream.waits.clear()
                stream.seen.clear()
        assert not [event for event in self.events if isinstance(event, Failed)]

    def drafting(self) -> list[list[str]]:
        """Who waited in the steps in which something was drafted."""
        drafted = {
            outcome.step for outcome in self.controller.outcomes if outcome.rows > outcome.requests
        }
        assert drafted
        return [waits for step, waits in enumerate(self.steps, 1) if step in drafted]


def asked(subject: Subject, draw: Draw | None = None) -> list[Request]:
    return [
        request_of(number, f"{number}", prompt, subject.length, draw or Draw())
        for number, prompt in enumerate(subject.prompts, 1)
    ]


def always(drafter: str, length: int) -> Choose:
    return lambda step, request, names: (drafter, length)


def models(subject: Subject) -> list[MakeDrafter]:
    return [draft_model(subject.model), mtp(tiny_head(subject.model))]


def texts_of(
    subject: Subject,
    patch: pytest.MonkeyPatch,
    choose: Choose,
    draw: Draw | None = None,
) -> tuple[list[list[int]], Watched]:
    watched = Watched(subject, patch, models(subject), ScriptedController(choose))
    requests = asked(subject, draw)
    watched.run(requests)
    return [request.tokens for request in requests], watched


# --- one wait a step ------------------------------------------------------------------------------

DRAWS = {
    "greedy": Draw(),
    "seeded": Draw(0.9, top_p=0.9, seed=3),
    "unseeded": Draw(0.9, top_k=9),
    "early ends": Draw(min_tokens=20, end_ids=(2,)),
    "biased": Draw(logit_bias=((5, 1.0),)),
    "log probabilities": Draw(logprobs=2, prompt_logprobs=1),
}


@pytest.mark.parametrize("draw", DRAWS.values(), ids=DRAWS)
@pytest.mark.parametrize("length", [1, 3])
@pytest.mark.parametrize("drafter", ["mtp", "draft_model"])
def test_a_step_waits_once_and_writes_the_plain_text(
    subject: Subject, monkeypatch: pytest.MonkeyPatch, drafter: str, length: int, draw: Draw
) -> None:
    found, watched = texts_of(subject, monkeypatch, always(drafter, length), draw)
    assert watched.drafting() == [[STEP]] * len(watched.drafting())
    assert all(waits in ([STEP], []) for waits in watched.steps)  # a chunk of a prefill: for none
    if draw.greedy or draw.seed is not None:
        plain, _ = texts_of(subject, monkeypatch, lambda s, r, n: ("none", 0), draw)
        assert found == plain


def test_two_models_in_one_step_wait_once_too(
    subject: Subject, monkeypatch: pytest.MonkeyPatch
) -> None:
    found, watched = texts_of(subject, monkeypatch, at_random(4, most=MOST))
    plain, _ = texts_of(subject, monkeypatch, lambda s, r, n: ("none", 0))
    assert found == plain
    assert all(waits == [STEP] for waits in watched.drafting())
    both = [
        {one.drafter for one in outcome.proposals if one.requests}
        for outcome in watched.controller.outcomes
    ]
    assert {"mtp", "draft_model"} in both


# --- what needs them on the host ------------------------------------------------------------------


@pytest.mark.parametrize(
    "draw",
    [Draw(presence_penalty=0.7), Draw(bad_words=((5, 6), (7, 8, 9)))],
    ids=["penalties", "bad words"],
)
def test_history_needs_them_once_the_forward_is_on_its_way(
    subject: Subject, monkeypatch: pytest.MonkeyPatch, draw: Draw
) -> None:
    plain, _ = texts_of(subject, monkeypatch, lambda s, r, n: ("none", 0), draw)
    controller = ScriptedController(always("mtp", 3))
    watched = Watched(subject, monkeypatch, models(subject), controller)
    forwards: list[int] = []
    apply = watched.executor._chain.apply

    def noted(logits: Tensor, chunks: Sequence[Chunk], groups: Sequence[range]) -> Tensor | None:
        before = len(watched.device.stream.waits)
        found = apply(logits, chunks, groups)
        if len(watched.device.stream.waits) > before:
            forwards.append(watched.executor.forwards)
        return found

    watched.executor._chain.apply = noted
    requests = asked(subject, draw)
    watched.run(requests)
    assert [request.tokens for request in requests] == plain
    assert watched.drafting() == [[DRAWN, STEP]] * len(watched.drafting())
    assert len(forwards) == len(watched.drafting())  # inside the chain, so behind the forward


class AnyText:
    """A grammar that allows every token, but looks at what it allows."""

    def __init__(self, vocabulary: int) -> None:
        self._words = (vocabulary + 31) // 32
        self.admitted: list[int] = []

    def admit(self, draft: Draft) -> tuple[Draft, Tensor]:
        self.admitted += list(draft.tokens)
        return draft, torch.full((1 + len(draft), self._words), -1, dtype=torch.int32)

    def advance(self, token: int) -> None:
        return


def test_a_grammar_needs_them_before_the_target_runs(
    subject: Subject, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain, _ = texts_of(subject, monkeypatch, lambda s, r, n: ("none", 0))
    controller = ScriptedController(always("draft_model", 3))
    watched = Watched(subject, monkeypatch, models(subject), controller)
    requests, grammar = asked(subject), AnyText(subject.vocabulary)
    constraint: Any = grammar
    requests[1].constraint = constraint
    watched.run(requests)
    assert [request.tokens for request in requests] == plain
    assert set(grammar.admitted) <= set(range(subject.vocabulary))
    met = {tuple(waits) for waits in watched.drafting()}
    assert met == {(DRAWN, STEP), (STEP,)}  # once the constrained request is through: one again


class BarredController(ScriptedController):
    """Sets a bar, or lets a tail continue what was drafted."""

    bar: Bar | None = None
    tail = ""

    def plan(self, batch: BatchView, offers: Sequence[Offer]) -> Plan:
        plan = super().plan(batch, offers)
        return Plan(
            tuple(
                one
                if one.length == 0
                else one._replace(bar=self.bar)
                if self.bar is not None
                else one._replace(tail=self.tail, tail_length=1)
                for one in plan.allotments
            )
        )


@pytest.mark.parametrize("what", ["bar", "tail"])
def test_a_bar_and_a_tail_need_them_before_the_target_runs(
    subject: Subject, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    plain, _ = texts_of(subject, monkeypatch, lambda s, r, n: ("none", 0))
    controller = BarredController(always("mtp", 2))
    if what == "bar":
        controller.bar = Bar(0.6, 0.0, 1.0, 0.0, 12.0)
    else:
        controller.tail = "suffix"
    tails: list[list[int]] = []

    def tail(tokens: list[int], length: int) -> list[int]:
        tails.append(tokens)
        return tokens[-length:]

    hands = [ScriptedTail(tail, "suffix")]
    watched = Watched(subject, monkeypatch, models(subject), controller, hands)
    requests = asked(subject)
    watched.run(requests)
    assert [request.tokens for request in requests] == plain
    found = watched.drafting()
    assert found[0] == [DRAWN, STEP]
    if what == "tail":  # where a text has no room for one, nobody looks
        assert all(waits in ([DRAWN, STEP], [STEP]) for waits in found)
    else:
        assert found == [[DRAWN, STEP]] * len(found)
    assert bool(tails) == (what == "tail")
    assert all(0 <= token < subject.vocabulary for text in tails for token in text)


# --- the parts ------------------------------------------------------------------------------------


class Given:
    """A source of drafted tokens that says when somebody looks at them."""

    def __init__(self, ids: Sequence[int]) -> None:
        self.ids = torch.tensor(ids)
        self.looks = 0

    @property
    def seen(self) -> bool:
        return self.looks > 0

    def tokens(self) -> list[int]:
        self.looks += 1
        return self.ids.tolist()

    def took(self) -> float:
        return 5.0


def test_drafts_can_be_counted_and_cut_without_a_look() -> None:
    source = Given([9, 8, 7, 6])
    draft = Draft(Unseen(source, [1, 3, 0]))
    assert len(draft.cut(2)) == 2
    assert draft.cut(0).refused == ""
    assert len(leading(draft.tokens, 1)) == 1
    assert unseen_of(draft.cut(2).tokens) is not None
    assert source.looks == 0
    assert draft.cut(2).tokens == [8, 6]
    assert draft.extended([4]).tokens == [8, 6, 9, 4]
    assert unseen_of(draft.tokens) is None  # they need not stay there any longer


def test_the_batch_takes_drafts_of_several_calls_from_where_they_are() -> None:
    one, other = Given([40, 41, 42]), Given([50, 51])
    drafts = [Draft(Unseen(one, [0, 2])), Draft([60]), Draft(Unseen(other, [1])), Draft()]
    requests = [make_request([number, 7, 8], number) for number in range(1, 5)]
    for request in requests:
        request.computed, request.pages = 2, [request.id]
    chunks = assemble(Work(requests, []), drafts)
    batch = pack(chunks, CPU, 8)
    assert batch.ids.tolist() == [8, 40, 42, 8, 60, 8, 51, 8]
    assert batch.next_drafts.tolist() == [40, 42, -1, 60, -1, 51, -1, -1]
    assert (one.looks, other.looks) == (0, 0)
    assert [list(chunk.drafts) for chunk in chunks] == [[40, 42], [60], [51], []]


def test_a_forward_that_runs_out_of_memory_is_repeated_without_unseen_drafts(
    subject: Subject, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain, _ = texts_of(subject, monkeypatch, lambda s, r, n: ("none", 0))
    controller = ScriptedController(always("mtp", 3))
    watched = Watched(subject, monkeypatch, models(subject), controller)
    verify, failed = watched.executor.verify, []

    def short(chunks: Any) -> Any:
        if not failed and any(chunk.unseen is not None for chunk in chunks):
            failed.append(1)
            raise torch.OutOfMemoryError("the device has no memory left")
        return verify(chunks)

    watched.executor.verify = short
    requests = asked(subject)
    watched.run(requests)
    assert failed
    assert isinstance(watched.engine._verification, Verification)
    assert [request.tokens for request in requests] == plain


# --- times ----------------------------------------------------------------------------------------


def test_what_the_device_draws_alone_counts_as_drafting() -> None:
    calls = Calls()
    calls.add(Proposal("ngram", 1, 2, 1.0), 10.0, [Draft([1])])
    calls.add(Proposal("mtp", 1, 2, 1.0), 10.0, [None, Draft(Unseen(Given([3]), [0]))])
    calls.add(Proposal("draft_model", 1, 1, 9.0), 10.001, [Draft(Unseen(Given([3]), [0]))])
    proposals, end = calls.settled()
    assert [one.ms for one in proposals] == [1.0, 5.0, 9.0]  # the longer of the two clocks
    assert end == pytest.approx(10.010)  # the second call began on the device behind the first


def test_a_steps_times_add_up_whatever_the_device_does_alone(
    subject: Subject, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On the late device a draft takes milliseconds by its own clock."""
    _, watched = texts_of(subject, monkeypatch, always("mtp", 3))
    drafting: list[StepOutcome] = [
        outcome for outcome in watched.controller.outcomes if outcome.rows > outcome.requests
    ]
    for outcome in drafting:
        (proposal,) = [one for one in outcome.proposals if one.requests]
        assert proposal.ms >= 4.0
        assert outcome.draft_ms >= 0.0
        assert outcome.verify_ms >= 0.0
