"""Positions 2..D of a model's drafts as one loop that a GPU can repeat."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from engine.attention import TorchAttention
from engine.attention_flashinfer import FlashInferAttention
from engine.batch import Batch, Chunk
from engine.device import Device, Event
from engine.draft_models import repeated
from engine.draft_models.lane import Lane
from engine.draft_models.passes import Passes
from engine.draft_models.repeated import USES, Repeated
from engine.drafters.base import Drafter
from engine.drafts import Draft
from engine.draw import Draw
from engine.kv import KvPool
from engine.shape import Attend, Shape
from engine.vocabulary import identity
from tests.engine.conformance import (
    ATTENTIONS,
    CPU,
    Scenario,
    at_random,
    decode,
    differences,
    tiny,
)
from tests.engine.flashinfer_kernels import Kernels, replace_kernels
from tests.engine.model_drafters import draft_model, mtp, tiny_head
from tests.engine.scripted import NoAttention, ScriptedController
from tests.engine.test_device_loop import STEP, Watched, always, asked
from tests.engine.test_waits import WAITS
from tests.engine.toy import TableDecoder, target_logits

MOST = 5


@pytest.fixture
def kernels(monkeypatch: pytest.MonkeyPatch) -> Kernels:
    return replace_kernels(monkeypatch)


class Addresses(TorchDispatchMode):
    """Notes where the tensors lie that operations read or write and did not make themselves."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[int] = []
        self._made: list[Tensor] = []  # kept, so that no address comes twice

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        made = {one.untyped_storage().data_ptr() for one in self._made}
        for one in tree_leaves((args, kwargs)):
            if isinstance(one, Tensor) and one.untyped_storage().data_ptr() not in made:
                self.found.append(one.data_ptr())
        out = func(*args, **(kwargs or {}))
        self._made += [one for one in tree_leaves(out) if isinstance(one, Tensor)]
        return out


@dataclass(frozen=True)
class GraphDevice(Device):
    """Makes graphs as a GPU does: what is in one has no part of the host's. made: runs of each.
    strict: and every run finds its tensors where the first one did."""

    torch_device: torch.device = CPU.torch_device
    dtype: torch.dtype = torch.float32
    made: list[int] = field(default_factory=list)
    inside: list[int] = field(default_factory=list)
    strict: bool = False

    def graph(self, body: Callable[[], None]) -> Callable[[], None]:
        number = len(self.made)
        self.made.append(0)
        known: dict[str, list[int]] = {}

        def replay() -> None:
            self.made[number] += 1
            with self._captured(), Addresses() if self.strict else nullcontext() as addresses:
                body()
            if addresses is not None:
                assert known.setdefault("first", addresses.found) == addresses.found

        return replay

    @contextmanager
    def _captured(self) -> Generator[None]:
        self.inside.append(1)
        try:
            yield
        finally:
            self.inside.pop()

    def tensor(self, values: list[int] | list[float], dtype: torch.dtype) -> Tensor:
        assert not self.inside, "a graph would hold these values for ever"
        return super().tensor(values, dtype)

    def to_host(self, value: torch.Tensor) -> torch.Tensor:
        assert not self.inside
        return super().to_host(value)

    def record(self) -> Event:
        assert not self.inside
        return super().record()


def flashinfer(device: Device) -> Callable[[KvPool, Shape], FlashInferAttention]:
    return lambda pool, shape: FlashInferAttention(pool, shape, device)


@pytest.mark.parametrize(
    "scenario",
    [Scenario(), Scenario(pages=26, chunk_rows=9, waves=2, cancelled=(2, 7))],
    ids=["alone", "preempted"],
)
def test_the_loop_drafts_what_the_passes_one_by_one_do(
    kernels: Kernels, monkeypatch: pytest.MonkeyPatch, scenario: Scenario
) -> None:
    monkeypatch.setattr(repeated, "USES", 1)
    device = GraphDevice()
    subject = replace(tiny("llama", head_dim=64), device=device)
    head = tiny_head(subject.model)
    plain = decode(subject, ATTENTIONS["torch"], scenario).texts
    found = [
        decode(
            subject,
            ATTENTIONS["torch"],
            scenario,
            (),
            at_random(6, most=MOST),
            models=[draft_model(subject.model, attention=attention), mtp(head, attention)],
            most=MOST,
        )
        for attention in (TorchAttention, flashinfer(device))
    ]
    for run in found:
        assert differences(subject, plain, run.texts) == []
    one_by_one, loop = found
    assert (loop.drafted, loop.accepted) == (one_by_one.drafted, one_by_one.accepted)
    assert loop.accepted > 0
    assert sum(device.made) > 5  # what came twice ran as a graph
    assert len([told for told in kernels.planned if told["graph"]]) > sum(device.made)


@pytest.mark.parametrize("drafter", ["mtp", "draft_model"])
def test_a_step_of_the_loop_waits_once(
    kernels: Kernels, monkeypatch: pytest.MonkeyPatch, drafter: str
) -> None:
    """The fixed plans wait for nothing. That of a prompt which is followed beside them waits for
    that of the step's first pass, which was copied before this began."""
    monkeypatch.setattr(repeated, "USES", 1)
    subject = tiny("llama", head_dim=64)

    def make(like: KvPool, device: Device, most: int) -> Drafter:
        one = draft_model(subject.model, attention=lambda p, s: FlashInferAttention(p, s, device))
        head = tiny_head(subject.model, device=device)
        other = mtp(head, lambda p, s: FlashInferAttention(p, s, device))
        return (other if drafter == "mtp" else one)(like, device, most)

    controller = ScriptedController(always(drafter, 3))
    watched = Watched(subject, monkeypatch, [make], controller, guarded=False)
    requests = asked(subject)
    watched.run(requests)
    outcomes = [one for one in controller.outcomes if one.rows > one.requests]
    for outcome, waits in zip(outcomes, watched.drafting(), strict=True):
        followed = ["FlashInferAttention.plan"] if outcome.prefill_rows else []
        assert waits in ([STEP], [*followed, STEP])
    assert any(not one.prefill_rows for one in outcomes)
    assert any(told["graph"] for told in kernels.planned)
    plain = decode(subject, ATTENTIONS["torch"], Scenario()).texts
    assert differences(subject, plain, [request.tokens for request in requests]) == []


# --- the loop itself ------------------------------------------------------------------------------


@dataclass
class FixedNothing:
    """A pass that attends to nothing. told: the chunks of each plan."""

    slots: Tensor
    told: list[Sequence[Chunk]] = field(default_factory=list)

    @property
    def attend(self) -> Attend:
        return lambda layer, q, k, v, sinks=None: q

    def plan(self, chunks: Sequence[Chunk]) -> None:
        self.told.append(chunks)


class FixingNothing(NoAttention):
    """Counts its plans, and keeps its fixed passes."""

    def __init__(self, fixes: bool = True, most_keys: int = 1 << 10) -> None:
        self.most_keys = most_keys
        self.planned = 0
        self.made: list[list[FixedNothing]] = []
        self._fixes = fixes

    def plan(self, batch: Batch) -> Attend:
        self.planned += 1
        return super().plan(batch)

    def fixed(self, slots: Tensor, hides: bool) -> list[FixedNothing] | None:
        if not self._fixes:
            return None
        self.made.append([FixedNothing(own) for own in slots])
        return self.made[-1]


TABLE = torch.zeros_like(target_logits())
"""The next token is one more, so that no two places of a draft hold the same."""
for last in range(len(TABLE)):
    TABLE[last, :, (last + 1) % len(TABLE)] = 1.0


def passes(device: Device, attention: NoAttention, repeats: bool = True) -> Passes:
    decoder = TableDecoder(TABLE)
    return Passes(
        lambda ids, hidden, positions, attend: decoder.forward(ids, positions, attend),
        decoder.logits,
        identity(TABLE.shape[-1]),
        attention,
        device,
        16,
        repeats,
    )


def lane(number: int, end: int, length: int, draw: Draw | None = None, first: int = 0) -> Lane:
    request: Any = SimpleNamespace(id=number, draw=draw or Draw())
    return Lane(request, (number, 9), end - 1, [number % 4], length, first)


def drafted(passes: Passes, lanes: Sequence[Lane]) -> list[list[int]]:
    drafts = passes.draft(lanes, torch.empty(0))
    found = [list(draft.tokens) for draft in drafts]
    assert [len(list(draft.margins)) for draft in drafts] == [lane.length for lane in lanes]
    return found


RAGGED = [lane(1, 3, 4), lane(2, 1, 3), lane(3, 2, 1), lane(4, 1, 1), lane(5, 2, 1)]


def test_a_loop_is_made_once_for_a_number_of_rows_and_a_depth() -> None:
    device, attention = GraphDevice(strict=True), FixingNothing()
    subject = passes(device, attention)
    runs = [
        ([*RAGGED[:2]], 6),
        (RAGGED, 5),
        ([lane(6, 1, 4), lane(7, 2, 4)], 3),
        ([lane(1, 1, 2)], 2),
    ]
    for lanes, times in runs:
        wanted = drafted(passes(CPU, NoAttention()), lanes)
        for _ in range(times):
            assert drafted(subject, lanes) == wanted
    loops = [(len(made), len(made[0].slots)) for made in attention.made]
    assert loops == [(3, 2), (3, 8), (1, 1)]  # 2 rows serve the third run, 5 rows take 8
    assert device.made == [6 + 3 - USES, 5 - USES]  # one that is hardly used becomes no graph
    assert attention.planned == 6 + 5 + 3 + 2  # the first pass of each call and no other


def test_rows_that_draft_nothing_repeat_the_first_one() -> None:
    attention = FixingNothing()
    drafted(passes(CPU, attention), RAGGED)
    passes_told = [fixed.told[-1] for fixed in attention.made[0]]
    requests = [[chunk.request for chunk in chunks] for chunks in passes_told]
    assert requests == [
        [1, 2, 1, 1, 1, 1, 1, 1],
        [1, 2, 1, 1, 1, 1, 1, 1],
        [1, 1, 1, 1, 1, 1, 1, 1],
    ]
    starts = [[chunk.start for chunk in chunks[:2]] for chunks in passes_told]
    assert starts == [[3, 1], [4, 2], [5, 5]]
    for fixed, chunks in zip(attention.made[0], passes_told, strict=True):
        slots = [chunk.pages[0] * 16 + chunk.start for chunk in chunks]
        assert fixed.slots.tolist() == slots  # nothing but what the drafts are granted is written


def test_in_a_loop_nobody_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    subject = passes(GraphDevice(), FixingNothing())

    def forbidden(*arguments: object, **options: object) -> None:
        raise AssertionError("a hidden wait for the device")

    found: list[list[Draft]] = []
    with monkeypatch.context() as patch:
        for name in WAITS:
            patch.setattr(torch.Tensor, name, forbidden)
        found += [subject.draft(RAGGED, torch.empty(0)) for _ in range(USES + 2)]
    assert all([len(draft) for draft in drafts] == [4, 3, 1, 1, 1] for drafts in found)


def test_hidden_first_keys_have_a_loop_of_their_own() -> None:
    attention = FixingNothing()
    subject = passes(CPU, attention)
    drafted(subject, [lane(1, 3, 2)])
    drafted(subject, [lane(1, 3, 2, first=1)])
    assert len(attention.made) == 2


@pytest.mark.parametrize(
    ("lanes", "attention", "repeats"),
    [
        ([lane(1, 3, 3), lane(2, 1, 2, Draw(0.8, seed=1))], FixingNothing(), True),
        ([lane(1, 3, 3, Draw(0.8))], FixingNothing(), True),
        ([lane(1, 3, 1)], FixingNothing(), True),
        ([lane(1, 3, 3)], FixingNothing(most_keys=4), True),
        ([lane(1, 3, 3)], FixingNothing(fixes=False), True),
        ([lane(1, 3, 3)], FixingNothing(), False),
    ],
    ids=["a seed", "a law", "one token", "too many keys", "no kernel", "no such model"],
)
def test_what_no_loop_serves_is_enqueued_pass_by_pass(
    lanes: list[Lane], attention: FixingNothing, repeats: bool
) -> None:
    drafted(passes(CPU, attention, repeats), lanes)
    assert not attention.made
    assert attention.planned == lanes[0].length


def test_a_model_that_no_graph_can_hold_is_drafted_with_all_the_same(
    caplog: pytest.LogCaptureFixture,
) -> None:
    class Refusing(GraphDevice):
        def graph(self, body: Callable[[], None]) -> Callable[[], None]:
            raise RuntimeError("operation not permitted when stream is capturing")

    attention = FixingNothing()
    subject = passes(Refusing(), attention)
    wanted = drafted(passes(CPU, NoAttention()), RAGGED)
    for _ in range(USES + 3):
        assert drafted(subject, RAGGED) == wanted
    assert len(attention.made) == 1
    assert caplog.text.count("drafting in one loop failed") == 1


def test_a_shortage_of_memory_is_told_and_the_loop_made_afresh() -> None:
    attention = FixingNothing()
    subject = passes(CPU, attention)
    fixed, short = attention.fixed, [True]

    def failing(slots: Tensor, hides: bool) -> list[FixedNothing] | None:
        if short.pop() if short else False:
            raise torch.OutOfMemoryError("the device has no memory left")
        return fixed(slots, hides)

    attention.fixed = failing
    with pytest.raises(torch.OutOfMemoryError):
        drafted(subject, RAGGED)
    drafted(subject, RAGGED)
    assert len(attention.made) == 1


def test_loops_do_not_pile_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(repeated, "MOST_LOOPS", 2)
    attention = FixingNothing()
    subject = passes(CPU, attention)
    made: Any = subject._repeated
    assert isinstance(made, Repeated)
    for length in (2, 3, 2, 4, 2):
        drafted(subject, [lane(1, 1, length)])
        assert len(made._loops) <= 2
    assert len(attention.made) == 3  # the loop of two tokens was always the last one used


def test_a_closed_drafter_keeps_no_loop_and_no_weights_alive() -> None:
    """Without waiting for the collector: the memory is wanted for the next drafter."""
    subject = passes(CPU, FixingNothing())
    drafted(subject, RAGGED)
    loops = weakref.ref(subject._repeated)
    kept = weakref.ref(subject)
    gc.disable()
    try:
        subject.close()
        assert loops() is None
        del subject
        assert kept() is None
    finally:
        gc.enable()
