"""Model drafters that come, go and fail while the engine runs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import pytest
import torch
from torch import Tensor

from controller.contract import NONE, DrafterInfo, Offer, Proposal, Setting, ShadowScore, Wish
from engine.attention import TorchAttention
from engine.batch import Batch, Chunk, pack
from engine.draft_models.contents import Contents, Progress
from engine.draft_models.draft_model import DraftModelDrafter
from engine.draft_models.hiddens import Hiddens
from engine.draft_models.mtp import MtpDrafter
from engine.drafters.base import Committed, Drafter
from engine.drafts import Draft
from engine.draw import Draw
from engine.executor import Executor
from engine.guarded import Guarded
from engine.kv import KvPool
from engine.loop import Engine
from engine.pages import Pages
from engine.request import Request
from engine.scheduler import Prefill, Scheduler
from engine.shape import Model
from engine.verification import RELAX_STEPS
from engine.wire import Deltas, Failed, Finished, PromptLogprobs
from tests.engine.conformance import ATTENTIONS, CPU, Scenario, Subject, decode, request_of, tiny
from tests.engine.model_drafters import draft_model, mtp, own_pool, tiny_head
from tests.engine.scripted import ScriptedController

SIZE, MOST = 4, 5


class Controller(ScriptedController):
    """Allots what `wanted` says, where it is offered; notes who came and went."""

    def __init__(self) -> None:
        super().__init__(lambda step, request, names: self.wanted)
        self.wanted: tuple[str, int] = (NONE, 0)
        self.told: list[DrafterInfo | str] = []

    def add_drafter(self, drafter: DrafterInfo) -> None:
        self.told.append(drafter)

    def remove_drafter(self, name: str) -> None:
        self.told.append(name)


class Serving:
    """An engine over a tiny target."""

    def __init__(self, subject: Subject, model: Any = None, chunk_rows: int = 64) -> None:
        self.model: Model = model or subject.model
        self.pages = Pages(64, SIZE)
        self.pool = own_pool(self.model.shape, CPU, KvPool((), (), 64, SIZE))
        attention = TorchAttention(self.pool, self.model.shape)
        self.executor = Executor(self.model, attention, CPU, SIZE)
        self.events: list[Deltas | PromptLogprobs | Finished | Failed] = []
        self.controller = Controller()
        self.engine = Engine(
            self.executor,
            Scheduler(self.pages, 4, 64, chunk_rows),
            (),
            self.controller,
            MOST,
            self.events.append,
        )
        self.count = 0

    def attach(self, make: Any) -> Any:
        drafter = make(self.pool, CPU, MOST)
        self.engine.attach(drafter)
        return drafter

    def submit(self, prompt: Sequence[int], length: int, wish: Wish | None = None) -> Request:
        self.count += 1
        request = request_of(self.count, f"{self.count}", prompt, length, Draw())
        request.wish = wish or Wish()
        self.engine.submit(request)
        return request

    def steps(self, count: int) -> None:
        for _ in range(count):
            self.engine.step()
            self.pages.check()

    def drain(self) -> None:
        while self.engine.step():
            self.pages.check()
        assert not [event for event in self.events if isinstance(event, Failed)]

    def proposals(self) -> list[Proposal]:
        return [one for outcome in self.controller.outcomes for one in outcome.proposals]


@pytest.fixture(scope="module")
def subject() -> Subject:
    with torch.no_grad():
        return tiny("llama")


@pytest.fixture(scope="module")
def plain(subject: Subject) -> list[list[int]]:
    with torch.no_grad():
        return decode(subject, ATTENTIONS["torch"], Scenario()).texts


@pytest.fixture(autouse=True)
def _no_grad() -> Any:
    with torch.no_grad():
        yield


# --- coming and going -----------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["mtp", "draft_model"])
def test_a_drafter_comes_and_goes_between_steps(
    subject: Subject, plain: list[list[int]], name: str
) -> None:
    serving = Serving(subject)
    makers = {
        "mtp": mtp(tiny_head(subject.model)),
        "draft_model": draft_model(subject.model, chunk_rows=200),
    }
    requests = [serving.submit(prompt, subject.length) for prompt in subject.prompts]
    serving.controller.wanted = (name, 3)
    serving.steps(4)
    assert not any(request.drafted for request in requests)
    drafter = serving.attach(makers[name])
    serving.steps(4)
    assert all(request.drafted for request in requests)
    drafted = [request.drafted for request in requests]
    assert serving.engine.detach(name) is drafter
    assert serving.engine.detach(name) is None
    drafter.close()
    serving.steps(2)
    assert [request.drafted for request in requests] == drafted
    serving.attach(makers[name])
    serving.drain()
    assert [request.tokens for request in requests] == plain
    assert all(request.drafted > before for request, before in zip(requests, drafted, strict=True))
    info, gone, again = serving.controller.told
    assert isinstance(info, DrafterInfo)
    assert (info.name, info.model, gone, again) == (name, True, name, info)


def test_a_second_drafter_of_a_name_is_refused(subject: Subject) -> None:
    serving = Serving(subject)
    serving.attach(draft_model(subject.model))
    with pytest.raises(ValueError, match="draft_model"):
        serving.attach(draft_model(subject.model))
    assert len(serving.controller.told) == 1


def test_a_head_is_refused_where_the_model_hides_what_it_reads(subject: Subject) -> None:
    class Hiding:
        """As a transformers module: only its final hidden states are to be had."""

        def __init__(self) -> None:
            self.shape = subject.model.shape
            self.forward, self.logits = subject.model.forward, subject.model.logits

    serving = Serving(subject, Hiding())
    with pytest.raises(ValueError, match=r"mtp reads layers \(1, 2\)"):
        serving.attach(mtp(tiny_head(subject.model)))
    serving.attach(mtp(tiny_head(subject.model, taps=(2,))))
    serving.controller.wanted = ("mtp", 2)
    request = serving.submit(subject.prompts[0], 8)
    serving.drain()
    assert request.drafted > 0


def test_a_new_engine_over_the_same_target_has_no_readers_of_the_one_before(
    subject: Subject,
) -> None:
    serving = Serving(subject)
    serving.attach(mtp(tiny_head(subject.model)))
    assert serving.executor.taps == (1, 2)
    scheduler = Scheduler(Pages(64, SIZE), 4, 64, 64)
    Engine(serving.executor, scheduler, (), Controller(), MOST, serving.events.append)
    assert serving.executor.taps == ()


def test_each_reader_gets_the_layers_that_it_reads(subject: Subject) -> None:
    class Reader:
        def __init__(self, *taps: int) -> None:
            self.taps = taps
            self.got = torch.empty(0)

        def read(self, batch: Batch, features: Tensor) -> None:
            self.got = features

    model: Any = subject.model
    serving = Serving(subject)
    readers = [Reader(2), Reader(0, 1), Reader(0, 1, 2)]
    chunk = Chunk(0, [5, 6, 7], 0, [3], Draw())
    batch = pack([chunk], CPU, SIZE)
    attend = TorchAttention(serving.pool, model.shape).plan(batch)
    _, wanted = model.features(batch.ids, batch.positions, attend, (0, 1, 2))
    first, second, last = wanted.chunk(3, dim=1)
    for some in (readers, readers[:1], readers[1:2]):
        serving.executor.readers = list(some)
        serving.executor.verify([chunk]).result()
    torch.testing.assert_close(readers[0].got, last)
    torch.testing.assert_close(readers[1].got, torch.cat((first, second), dim=1))
    torch.testing.assert_close(readers[2].got, wanted)


def test_without_a_reader_no_hidden_state_is_taken_out(
    subject: Subject, monkeypatch: pytest.MonkeyPatch
) -> None:
    def never(*arguments: Any) -> Any:
        raise AssertionError("features")

    monkeypatch.setattr(type(subject.model), "features", never)
    serving = Serving(subject)
    serving.attach(draft_model(subject.model))
    serving.controller.wanted = ("draft_model", 2)
    request = serving.submit(subject.prompts[0], 8)
    serving.drain()
    assert request.drafted > 0


# --- prompts --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("wish", "setting", "followed"),
    [
        (Wish(drafter="draft_model"), Setting(), True),
        (Wish(), Setting(mode="pinned", drafter="draft_model"), True),
        (Wish(), Setting(), False),
        (Wish(drafter="mtp"), Setting(mode="pinned", drafter="draft_model"), False),
        (Wish(enabled=False), Setting(mode="pinned", drafter="draft_model"), False),
        (Wish(drafter="draft_model"), Setting(mode="off"), False),
    ],
)
def test_a_draft_model_takes_in_the_prompts_of_those_that_use_it(
    subject: Subject, wish: Wish, setting: Setting, followed: bool
) -> None:
    serving = Serving(subject, chunk_rows=16)
    drafter = serving.attach(draft_model(subject.model))
    assert isinstance(drafter, DraftModelDrafter)
    serving.controller.configure(setting)
    request = serving.submit(subject.prompts[1], 12, wish)
    serving.steps(4)
    (offer,) = drafter.offer([request])
    assert offer is not None
    assert offer.catch_up == (0 if followed else len(request.tokens))


def test_a_draft_model_that_drafted_lately_takes_in_new_prompts(subject: Subject) -> None:
    serving = Serving(subject)
    drafter = serving.attach(draft_model(subject.model, chunk_rows=16))
    serving.controller.wanted = ("draft_model", 2)
    first = serving.submit(subject.prompts[0], 12)
    serving.drain()
    length = len(subject.prompts[0]) + 1  # with the first token, which the prefill gives
    cold, drafting = serving.proposals()[:2]
    assert (cold.requests, cold.depth, cold.catch_up) == (0, 0, 16)
    assert (drafting.requests, drafting.depth) == (1, 2)
    assert first.drafted > 0
    second = serving.submit(subject.prompts[1], 12)
    serving.steps(2)
    (offer,) = drafter.offer([second])
    assert offer is not None
    assert offer.catch_up == 0
    assert length > 16


def test_those_that_are_up_to_date_do_not_wait_for_one_that_catches_up(subject: Subject) -> None:
    serving = Serving(subject)
    serving.attach(draft_model(subject.model, chunk_rows=4))
    serving.controller.wanted = ("draft_model", 2)
    first = serving.submit(subject.prompts[0], 8, Wish(drafter="mtp"))
    late = serving.submit([5, 6, 7], 20)
    serving.steps(4)
    assert late.drafted > 0
    assert first.drafted == 0


def test_those_that_are_up_to_date_do_not_share_the_rows_of_the_others(subject: Subject) -> None:
    serving = Serving(subject)
    serving.attach(draft_model(subject.model, chunk_rows=1))
    serving.controller.wanted = ("draft_model", 2)
    requests = [serving.submit([5, 6, last], 12) for last in range(4)]
    serving.steps(2)
    assert all(request.drafted for request in requests)


def test_rows_that_the_device_has_yet_to_compute_have_no_time(subject: Subject) -> None:
    serving = Serving(subject)
    drafter = serving.attach(draft_model(subject.model, chunk_rows=64))
    serving.controller.configure(Setting(mode="pinned", drafter="draft_model"))
    for enqueues, catch_up in ((False, len(subject.prompts[0])), (True, 0)):
        drafter._enqueues = enqueues
        work = Prefill(serving.submit(subject.prompts[0], 2), len(subject.prompts[0]), last=True)
        serving.engine.scheduler.next(0.0)
        drafter.admit(work.request)
        proposals = serving.engine.drafting.follow([work])
        assert sum(one.catch_up for one in proposals) == catch_up
        assert bool(proposals) == bool(catch_up)
        serving.engine.cancel(work.request.name)


# --- shared prefixes ------------------------------------------------------------------------------


def test_a_prefix_that_a_new_head_has_not_seen_is_computed_once_more(subject: Subject) -> None:
    serving = Serving(subject)
    prompt = subject.prompts[0]
    pages = (len(prompt) - 1) // SIZE
    serving.submit(prompt, 4)
    serving.drain()
    running = serving.submit(prompt, 40)
    serving.steps(3)
    drafter = serving.attach(mtp(tiny_head(subject.model)))
    assert serving.pages.kept == 0
    found: list[int] = []
    for cached in (0, pages):
        request = serving.submit(prompt, 8)
        serving.steps(2)
        assert request.cached_tokens == cached * SIZE
        assert drafter._states[request.id].whole
        found.append(request.reused)
        serving.steps(10)
        assert request.produced == 8
    assert found == [0, pages]
    serving.drain()
    later = serving.submit(running.tokens, 4)  # the pages of the request that ran are unknown
    serving.steps(2)
    assert drafter._states[later.id].whole
    serving.drain()


def test_contents_end_with_pages_that_are_given_up() -> None:
    contents = Contents(SIZE)
    request = request_of(1, "1", list(range(12)), 4, Draw())
    request.pages, request.keys = [5, 6], [b"a"]
    progress = Progress(request, request.pages)
    contents.seal(progress, 2)
    request.pages = []  # put back after a step that failed
    contents.settle()
    other = request_of(2, "2", list(range(12)), 4, Draw())
    other.pages, other.keys, other.reused = [5, 6], [b"a", b"b"], 2
    assert contents.found(other) == 1
    contents.overwrite(other.pages, SIZE, 2 * SIZE)
    request.keys.append(b"b")
    contents.settle()
    assert contents.found(other) == 1


def test_nothing_waits_for_keys_where_there_are_none() -> None:
    contents = Contents(SIZE, keyed=False)
    request = request_of(1, "1", list(range(12)), 4, Draw())
    request.pages = [5, 6]
    contents.seal(Progress(request, request.pages), 2)
    assert not contents._unsettled


@pytest.mark.parametrize("name", ["mtp", "draft_model"])
def test_pages_are_noted_once_in_a_call(
    subject: Subject, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    serving = Serving(subject)
    makers = {"mtp": mtp(tiny_head(subject.model)), "draft_model": draft_model(subject.model)}
    drafter = serving.attach(makers[name])
    requests = [serving.submit([5, 6, last], 12) for last in range(4)]
    serving.steps(2)
    for request in requests:
        serving.engine.scheduler.grow(request, 2)
    calls: list[str] = []
    monkeypatch.setattr(drafter._contents, "settle", lambda: calls.append("settle"))
    assert all(drafter.offer(requests))
    assert len(calls) == 1
    assert all(drafter.propose(requests, [1] * 4))
    assert len(calls) == 2
    drafter.commit([])
    assert len(calls) == 3


def test_the_memory_of_a_head_counts_what_it_keeps_of_requests(subject: Subject) -> None:
    serving = Serving(subject)
    drafter = serving.attach(mtp(tiny_head(subject.model)))
    empty = drafter.memory.kv_bytes
    serving.submit(subject.prompts[0], 4)
    serving.steps(1)
    assert drafter.memory.kv_bytes == empty + drafter._states[1].nbytes > empty
    serving.drain()
    assert drafter.memory.kv_bytes == empty


# --- faults ---------------------------------------------------------------------------------------


class Short:
    """A drafter that has memory for two requests in a call, and cannot follow one of them."""

    name = "short"
    kind: Literal["model_free", "model"] = "model"

    def __init__(self) -> None:
        self.sizes: list[int] = []
        self.broken: Request | None = None
        self.followed: list[Request] = []

    def admit(self, request: Request) -> None:
        raise torch.OutOfMemoryError("no memory")

    def offer(self, requests: Sequence[Request]) -> list[Offer | None]:
        return [None] * len(requests)

    def propose(self, requests: Sequence[Request], lengths: Sequence[int]) -> list[Draft]:
        self.sizes.append(len(requests))
        if len(requests) > 2:
            raise torch.OutOfMemoryError("no memory")
        return [Draft([1])] * len(requests)

    def commit(self, commits: Sequence[Committed]) -> list[tuple[ShadowScore, ...]]:
        return [()] * len(commits)

    def forget(self, request: int) -> None:
        pass

    def follow(self, prefills: Sequence[tuple[Request, int]]) -> None:
        if self.broken in [request for request, _ in prefills]:
            raise RuntimeError("a fault of its own")
        self.followed += [request for request, _ in prefills]


def some_requests(count: int) -> list[Request]:
    return [request_of(number, f"{number}", [5, 6], 4, Draw()) for number in range(count)]


def test_a_shortage_limits_the_requests_of_a_call_for_a_while() -> None:
    drafter, requests = Short(), some_requests(8)
    guarded = Guarded(drafter)
    guarded.admit(requests[0])  # says nothing of calls for many

    def sizes() -> list[int]:
        drafter.sizes.clear()
        drafts = guarded.propose(requests, [1] * 8)
        assert [draft is not None for draft in drafts] == [drafter.sizes[0] <= 2] * 8
        guarded.commit([])
        return list(drafter.sizes)

    assert [sizes() for _ in range(4)] == [[8], [4], [2] * 4, [2] * 4]
    for _ in range(RELAX_STEPS):
        guarded.commit([])
    assert [sizes(), sizes()] == [[4], [2] * 4]
    for _ in range(3 * RELAX_STEPS):
        guarded.commit([])
    assert sizes() == [8]


def test_a_prompt_that_cannot_be_followed_costs_the_others_one_step() -> None:
    drafter, requests = Short(), some_requests(3)
    guarded = Guarded(drafter)
    drafter.broken = requests[1]
    guarded.follow([(request, 2) for request in requests])
    assert drafter.followed == []
    guarded.follow([(request, 2) for request in requests])
    assert drafter.followed == [requests[0], requests[2]]


def test_a_request_that_cannot_be_read_costs_its_own_drafts(
    subject: Subject, plain: list[list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    serving = Serving(subject)
    serving.attach(mtp(tiny_head(subject.model)))
    serving.controller.wanted = ("mtp", 2)
    requests = [serving.submit(prompt, subject.length) for prompt in subject.prompts]
    keep = Hiddens.keep

    def keeps(state: Hiddens, start: int, features: Tensor, first: int, count: int) -> None:
        if state.request is requests[1]:
            raise RuntimeError("a fault of its own")
        keep(state, start, features, first, count)

    with monkeypatch.context() as patch:
        patch.setattr(Hiddens, "keep", keeps)
        serving.steps(6)
        before = [request.drafted for request in requests]
        serving.steps(3)
    running = [one for one in range(4) if one != 1 and requests[one].drafted > before[one]]
    assert len(running) == 3
    assert requests[1].drafted == before[1]
    serving.drain()
    assert requests[1].drafted > before[1]
    assert [request.tokens for request in requests] == plain


class Raising(MtpDrafter):
    """Fails in the named call, every time while it is set."""

    where = ""

    def read(self, batch: Batch, features: Tensor) -> None:
        super().read(batch, features)
        if self.where == "read":
            raise RuntimeError("a fault of its own")

    def propose(self, requests: Sequence[Request], lengths: Sequence[int]) -> list[Draft]:
        drafts = super().propose(requests, lengths)
        if self.where == "propose":
            raise RuntimeError("a fault of its own")
        return drafts

    def commit(self, commits: Any) -> Any:
        if self.where == "commit":
            raise RuntimeError("a fault of its own")
        return super().commit(commits)

    def _store(self, lanes: Any, parts: Any) -> None:
        if self.where == "store" and lanes:
            raise RuntimeError("a fault of its own")
        super()._store(lanes, parts)


@pytest.mark.parametrize("where", ["read", "propose", "commit", "store"])
def test_a_head_that_fails_costs_its_drafts_and_recovers(
    subject: Subject, plain: list[list[int]], where: str
) -> None:
    head = tiny_head(subject.model)

    def make(like: Any, device: Any, most: int) -> Drafter:
        pool = own_pool(head.shape, device, like)
        return Raising(head, TorchAttention(pool, head.shape), pool, device, most)

    serving = Serving(subject)
    drafter = serving.attach(make)
    serving.controller.wanted = ("mtp", 3)
    requests = [serving.submit(prompt, subject.length) for prompt in subject.prompts]
    drafter.where = where
    serving.steps(6)
    drafter.where = ""
    before = [request.drafted for request in requests]
    serving.drain()
    assert [request.tokens for request in requests] == plain
    assert all(request.drafted > then for request, then in zip(requests, before, strict=True))
