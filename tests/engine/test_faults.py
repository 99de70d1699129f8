"""One request's fault ends that request only."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest

from controller.contract import Features, Offer, ShadowScore
from engine.drafters.base import Committed
from engine.drafts import Draft
from engine.draw import Draw
from engine.loop import MOST_FAILURES
from engine.request import Request
from engine.wire import Deltas, Failed, Finished
from tests.engine.scripted import Harness, ScriptedDrafter


def logits(token: int, position: int) -> list[float]:
    return [float((3 * token + k + position) % 5) for k in range(5)]


def poisoned(token: int, position: int) -> list[float]:
    row = logits(token, position)
    if position >= 100:
        row[2] = float("nan")
    return row


def test_nan_logits_end_only_the_request_that_met_them() -> None:
    harness = Harness(5, poisoned)
    good = harness.add([1], 20)
    bad = harness.add([1] * 95, 20)
    harness.drain()
    end = harness.end(bad)
    assert isinstance(end, Failed)
    assert end.code == "internal"
    assert "NaN" in end.message
    assert isinstance(harness.end(good), Finished)
    assert good.produced == 20


def test_a_drafter_that_raises_costs_only_its_drafts() -> None:
    def broken(tokens: list[int], length: int) -> list[int]:
        raise RuntimeError("a drafter's bug")

    harness = Harness(5, logits, [ScriptedDrafter(broken, "a")], lambda s, r, n: ("a", 4))
    request = harness.add([1], 10)
    harness.drain()
    assert isinstance(harness.end(request), Finished)
    assert request.produced == 10
    assert request.drafted == 0


def test_a_controller_that_raises_means_plain_decoding() -> None:
    def broken(step: int, request: int, names: list[str]) -> tuple[str, int]:
        raise RuntimeError("a controller's bug")

    harness = Harness(5, logits, [ScriptedDrafter(lambda t, n: [0] * n, "a")], broken)
    request = harness.add([1], 10)
    harness.drain()
    assert isinstance(harness.end(request), Finished)
    assert request.produced == 10


def test_a_failed_forward_ends_its_requests_and_the_engine_goes_on() -> None:
    fail = [True]

    def sometimes(token: int, position: int) -> list[float]:
        if fail[0]:
            raise RuntimeError("a kernel's bug")
        return logits(token, position)

    harness = Harness(5, sometimes, pages=8)
    lost = harness.add([1], 10)
    harness.drain()
    assert isinstance(harness.end(lost), Failed)
    assert harness.engine.scheduler.pages.free == 8
    fail[0] = False
    kept = harness.add([1], 10)
    harness.drain()
    assert isinstance(harness.end(kept), Finished)


def test_a_full_queue_refuses_and_keeps_what_it_has() -> None:
    harness = Harness(5, logits, max_waiting=1, max_batch=1)
    kept = [harness.add([1], 5), harness.add([1], 5)]
    refused = harness.add([1], 5)
    end = harness.end(refused)
    assert isinstance(end, Failed)
    assert end.code == "queue_full"
    harness.drain()
    assert all(isinstance(harness.end(request), Finished) for request in kept)


@pytest.mark.parametrize("draft", [[-1, 0], [5, 0], [10**9], [0, 7, 0]])
def test_ids_outside_the_vocabulary_are_rejected_at_their_place(draft: list[int]) -> None:
    plain = Harness(5, logits)
    wanted = plain.add([1], 12)
    plain.drain()
    harness = Harness(
        5, logits, [ScriptedDrafter(lambda t, n: draft[:n], "a")], lambda s, r, n: ("a", 4)
    )
    request = harness.add([1], 12)
    harness.drain()
    assert request.tokens == wanted.tokens


def test_steps_that_keep_failing_end_the_process_so_that_it_is_restarted() -> None:
    def lost(token: int, position: int) -> list[float]:
        raise RuntimeError("device lost")

    harness = Harness(5, lost)
    first = harness.add([1], 10)
    for _ in range(MOST_FAILURES - 1):
        harness.engine.step()
    assert isinstance(harness.end(first), Failed)  # it was tried twice
    waiting = harness.add([1], 10)
    with pytest.raises(RuntimeError, match="device lost"):
        harness.engine.step()
    with pytest.raises(AssertionError, match="has not ended"):
        harness.end(waiting)  # the next process goes on with it


def test_a_lost_device_ends_the_process_at_once() -> None:
    def lost(token: int, position: int) -> list[float]:
        raise RuntimeError("CUDA error: an illegal memory access was encountered")

    harness = Harness(5, lost)
    harness.add([1], 10)
    with pytest.raises(RuntimeError, match="illegal memory access"):
        harness.engine.step()


def test_rows_that_cannot_be_computed_end_their_request_and_no_other() -> None:
    def picky(token: int, position: int) -> list[float]:
        if position == 30:
            raise RuntimeError("a kernel's bug")
        return logits(token, position)

    plain = Harness(5, logits)
    wanted = [plain.add([one], 20) for one in (0, 1, 2)]
    plain.drain()
    harness = Harness(
        5, picky, [ScriptedDrafter(lambda t, n: [0] * n, "a")], lambda s, r, n: ("a", 2)
    )
    kept = [harness.add([one], 20) for one in (0, 1, 2)]
    bad = harness.add([1] * 25, 20)
    harness.drain()
    assert isinstance(harness.end(bad), Failed)
    for request, other in zip(kept, wanted, strict=True):
        assert isinstance(harness.end(request), Finished)
        assert request.tokens == other.tokens


def test_a_failed_step_is_tried_again_for_requests_without_output() -> None:
    fails = iter([True, True])

    def once(token: int, position: int) -> list[float]:
        if next(fails, False):
            raise RuntimeError("a passing fault")
        return logits(token, position)

    harness = Harness(5, once)
    request = harness.add([1], 10)
    harness.drain()
    assert isinstance(harness.end(request), Finished)
    assert request.produced == 10


def test_drafters_that_fail_to_forget_lose_no_end() -> None:
    class Clinging(ScriptedDrafter):
        def forget(self, request: int) -> None:
            raise RuntimeError("a bug")

    harness = Harness(5, logits, [Clinging(lambda t, n: [0] * n, "a")])
    request = harness.add([1], 10)
    harness.drain()
    assert isinstance(harness.end(request), Finished)


def test_a_drafter_that_answers_for_too_few_requests_costs_only_its_drafts() -> None:
    class Short(ScriptedDrafter):
        def propose(self, requests: Sequence[Request], lengths: Sequence[int]) -> list[Draft]:
            return super().propose(requests, lengths)[:1]

    harness = Harness(5, logits, [Short(lambda t, n: [0] * n, "a")], lambda s, r, n: ("a", 4))
    requests = [harness.add([1], 10), harness.add([2], 10)]
    harness.drain()
    assert all(isinstance(harness.end(request), Finished) for request in requests)
    assert [request.produced for request in requests] == [10, 10]


class Panic(BaseException):
    """What a compiled library raises."""


@pytest.mark.parametrize("fault", [RuntimeError, Panic])
@pytest.mark.parametrize("method", ["admit", "offer", "propose", "commit", "forget"])
def test_a_request_that_a_drafter_fails_on_goes_on_and_costs_the_others_nothing(
    method: str, fault: type[BaseException], caplog: pytest.LogCaptureFixture
) -> None:
    class Picky(ScriptedDrafter):
        def admit(self, request: Request) -> None:
            self._check("admit", [request])

        def offer(self, requests: Sequence[Request]) -> list[Offer | None]:
            self._check("offer", requests)
            return super().offer(requests)

        def propose(self, requests: Sequence[Request], lengths: Sequence[int]) -> list[Draft]:
            self._check("propose", requests)
            return super().propose(requests, lengths)

        def commit(self, commits: Sequence[Committed]) -> list[tuple[ShadowScore, ...]]:
            self._check("commit", [one.request for one in commits])
            return [(score,)] * len(commits)

        def forget(self, request: int) -> None:
            if method == "forget":
                raise fault

        def _check(self, called: str, requests: Sequence[Request]) -> None:
            if method == called and any(request.id == 2 for request in requests):
                raise fault

    score = ShadowScore("a", 1, 1, Features())
    harness = Harness(
        5, logits, [Picky(lambda t, n: [0] * n, "a")], lambda s, r, n: ("a", 4), pages=64
    )
    requests = [harness.add([1], 30) for _ in range(3)]
    harness.drain()
    ends = [harness.end(request) for request in requests]
    assert all(isinstance(end, Finished) for end in ends)
    assert [len(harness.pieces(request)) for request in requests] == [30, 30, 30]
    assert harness.engine.scheduler.pages.free == 64
    first, second, third = (
        [
            one
            for step in harness.controller.outcomes
            for one in step.per_request
            if one.request == n
        ]
        for n in (1, 2, 3)
    )
    for other in (first, third):  # all but the step that showed the fault
        assert all(one.shadows for one in other[1:])
        assert all(one.drafted for one in other[1:-1])
    if method == "commit":
        assert not any(one.shadows for one in second)
    if method in ("offer", "propose"):
        assert not any(one.drafted for one in second)
    assert sum("this is logged once" in record.message for record in caplog.records) == 1


def test_a_panic_of_a_compiled_library_ends_only_its_request() -> None:
    class Panicking:
        def admit(self, draft: Draft) -> tuple[Draft, None]:
            return draft, None

        def advance(self, token: int) -> None:
            raise Panic

    harness = Harness(5, logits)
    kept, lost = harness.add([1], 10), harness.add([1], 10)
    constraint: Any = Panicking()
    lost.constraint = constraint
    harness.drain()
    assert isinstance(harness.end(kept), Finished)
    assert isinstance(harness.end(lost), Failed)


def test_a_burst_on_an_idle_engine_may_fill_the_batch_and_the_queue() -> None:
    harness = Harness(5, logits, max_waiting=0, max_batch=2)
    requests = [harness.add([1], 3) for _ in range(3)]
    harness.drain()
    assert [isinstance(harness.end(request), Finished) for request in requests] == [
        True,
        True,
        False,
    ]


def after(rows: dict[int, list[float]]) -> Callable[[int, int], list[float]]:
    """The next token's logits depend on the last token alone."""
    return lambda token, position: list(rows.get(token, [0.0] * 5))


def favourite(token: int) -> list[float]:
    return [2.0 if k == token else 0.0 for k in range(5)]


BROKEN = [1.0, float("nan"), 0.0, 0.0, 0.0]
CLOSING = Draw(allowed_token_ids=(3, 4), bad_words=((4, 3), (4, 4)))
"""Nothing may follow token 4."""


def drafted_from(rows: dict[int, list[float]], length: int, draft: list[int]) -> Harness:
    """Every step drafts the tokens of `draft` that come after the text, as far as they go."""

    def script(tokens: list[int], most: int) -> list[int]:
        return draft[len(tokens) - 1 :][:most]

    return Harness(5, after(rows), [ScriptedDrafter(script, "a")], lambda s, r, n: ("a", length))


@pytest.mark.parametrize("length", [0, 1, 2, 3])
@pytest.mark.parametrize("why", ["nothing left", "NaN"])
@pytest.mark.parametrize("end", ["end", "stop token", "stop string", "length"])
def test_rows_after_the_token_that_ends_a_request_cannot_fail_it(
    length: int, why: str, end: str
) -> None:
    rows = {1: favourite(3), 3: favourite(4), 4: favourite(0) if why == "nothing left" else BROKEN}
    harness = drafted_from(rows, length, [3, 4, 0, 0, 0])
    draw = CLOSING if why == "nothing left" else Draw()
    ids = frozenset({4})
    request = {
        "end": lambda: harness.add([1], 9, draw, end_ids=ids),
        "stop token": lambda: harness.add([1], 9, draw, stop_token_ids=ids),
        "stop string": lambda: harness.add([1], 9, draw, stop=["e"]),
        "length": lambda: harness.add([1], 2, draw),
    }[end]()
    harness.drain()
    finished = harness.end(request)
    assert isinstance(finished, Finished)
    assert finished.finish_reason == ("length" if end == "length" else "stop")
    assert request.tokens == [1, 3, 4]


@pytest.mark.parametrize("length", [0, 1, 2, 3, 8])
@pytest.mark.parametrize("seed", [None, 4])
@pytest.mark.parametrize(
    ("draw", "rows", "code"),
    [
        (CLOSING, {1: favourite(3), 3: favourite(4)}, "invalid_request"),
        (Draw(), {1: favourite(3), 3: favourite(4), 4: BROKEN}, "internal"),
        (Draw(bad_words=((0, 0),)), {1: favourite(3), 3: favourite(4), 4: BROKEN}, "internal"),
    ],
)
def test_what_comes_before_a_row_without_a_token_is_streamed_first_whatever_the_drafts(
    length: int, seed: int | None, draw: Draw, rows: dict[int, list[float]], code: str
) -> None:
    harness = drafted_from(rows, length, [3, 4, 0, 0, 0, 0, 0, 0])
    if seed is not None:
        draw = replace(draw, temperature=0.1, seed=seed)
    request = harness.add([1], 9, draw)
    kept = harness.add([0], 9)
    harness.drain()
    failed = harness.end(request)
    assert isinstance(failed, Failed)
    assert failed.code == code
    before = harness.events[: harness.events.index(failed)]
    streamed = [
        piece.token
        for event in before
        if isinstance(event, Deltas)
        for delta in event.items
        if delta.id == request.name
        for piece in delta.pieces
    ]
    assert streamed == [3, 4] == request.tokens[1:]
    assert isinstance(harness.end(kept), Finished)
    cells = [one for step in harness.controller.outcomes for one in step.per_request]
    assert all(one.committed == one.accepted + 1 or one.cut for one in cells)
    assert request.accepted <= request.drafted
