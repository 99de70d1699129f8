"""Model drafters that come, go and fail while the engine runs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

from controller.contract import NONE, DrafterInfo, Proposal, Setting, Wish
from engine.attention import TorchAttention
from engine.batch import Batch, Chunk, pack
from engine.draft_models.draft_model import DraftModelDrafter
from engine.draft_models.mtp import MtpDrafter
from engine.drafters.base import Drafter
from engine.drafts import Draft
from engine.draw import Draw
from engine.executor import Executor
from engine.kv import KvPool
from engine.loop import Engine
from engine.pages import Pages
from engine.request import Request
from engine.scheduler import Scheduler
from engine.shape import Model
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
    serving.attach(draft_model(subject.model, chunk_rows=8))
    serving.controller.wanted = ("draft_model", 2)
    first = serving.submit(subject.prompts[0], 8, Wish(drafter="mtp"))
    late = serving.submit([5, 6, 7], 20)
    serving.steps(4)
    assert late.drafted > 0
    assert first.drafted == 0


# --- faults ---------------------------------------------------------------------------------------


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
