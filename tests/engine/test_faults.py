"""One request's fault ends that request only."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from controller.contract import ShadowScore
from engine.loop import MOST_FAILURES
from engine.request import Request
from engine.wire import Failed, Finished
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
            raise RuntimeError("out of memory")
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
    for _ in range(MOST_FAILURES - 1):
        harness.add([1], 10)
        harness.drain()
    last = harness.add([1], 10)
    with pytest.raises(RuntimeError, match="device lost"):
        harness.engine.step()
    assert isinstance(harness.end(last), Failed)


def test_a_drafter_that_fails_to_follow_one_request_ends_that_request_only() -> None:
    class Picky(ScriptedDrafter):
        def commit(
            self,
            request: Request,
            tokens: Sequence[int],
            drafted: int,
            accepted: int,
            ended: bool,
        ) -> tuple[ShadowScore, ...]:
            if request.id == 2 and request.produced > 4:
                raise RuntimeError("a bug")
            return ()

        def admit(self, request: Request) -> None:
            if request.id == 3:
                raise RuntimeError("another bug")

    harness = Harness(5, logits, [Picky(lambda t, n: [0] * n, "a")], pages=64)
    kept, second, third = (harness.add([1], 12) for _ in range(3))
    harness.drain()
    assert isinstance(harness.end(kept), Finished)
    assert len(harness.pieces(kept)) == 12
    assert isinstance(harness.end(second), Failed)
    assert isinstance(harness.end(third), Failed)
    assert harness.engine.scheduler.pages.free == 64


def test_a_burst_on_an_idle_engine_may_fill_the_batch_and_the_queue() -> None:
    harness = Harness(5, logits, max_waiting=0, max_batch=2)
    requests = [harness.add([1], 3) for _ in range(3)]
    harness.drain()
    assert [isinstance(harness.end(request), Finished) for request in requests] == [
        True,
        True,
        False,
    ]
