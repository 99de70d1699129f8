"""Why an engine ended, when it starts again, and whom it takes up again."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from engine.death import ended
from engine.last_words import last_words, log_end
from engine.recovery import HEALTHY_S, MOST_RETRIES, Backoff, blame, may_retry
from engine.stream import MERGED_PIECES, SLOW_EVENTS, Stream
from engine.watch import START_SILENCE_S, Watch
from engine.wire import (
    ControllerState,
    Delta,
    Failed,
    Finished,
    Heartbeat,
    Hello,
    Piece,
    Progress,
    PromptLogprobs,
    Sampling,
    Speculation,
    Submit,
    Timing,
)

HELLO = Hello(
    model="m",
    architecture="Scripted",
    dtype="float32",
    device="cpu",
    attention="torch",
    threads=1,
    context_length=64,
    vocabulary=8,
    max_draft_length=4,
    max_batch=2,
    total_pages=8,
    page_size=16,
    drafters=(),
    controller=ControllerState("auto", None, None, 4),
    pid=1,
    load_ms=1.0,
    calibration_ms=1.0,
    calibration_cached=True,
    tokenizer="t",
)


def stream(name: str = "a", priority: int = 0) -> Stream:
    return Stream(Submit(name, Sampling(), prompt="x", priority=priority), lambda stream: None)


def delta(step: int, drafter: str = "ngram", pieces: int = 2) -> Delta:
    made = tuple(Piece(step, f"{step}.", "accepted") for _ in range(pieces))
    return Delta("a", f"{step}." * pieces, made, step, drafter, 3, 1)


def finished() -> Finished:
    return Finished(
        "a", "stop", None, 1, 2, Speculation(0, 0, 0, (0,), 0, {}), Timing(0, 0, 0, None)
    )


# --- when ---------------------------------------------------------------------------------------


def test_the_backoff_doubles_to_its_largest_and_begins_anew_after_a_healthy_life() -> None:
    backoff = Backoff(0.5, 30.0)
    assert [backoff.take() for _ in range(8)] == [0.5, 1, 2, 4, 8, 16, 30, 30]
    backoff.lived(HEALTHY_S - 1)
    assert backoff.take() == 30
    backoff.lived(HEALTHY_S)
    assert [backoff.take(), backoff.take()] == [0.5, 1]


def ticks(watch: Watch, seconds: float) -> str | None:
    for _ in range(round(seconds / watch.period_s)):
        if found := watch.tick():
            return found
    return None


def serving(silence_s: float = 10.0, step_s: float = 60.0) -> Watch:
    watch = Watch(silence_s, step_s)
    watch.heard(HELLO)
    return watch


def test_silence_is_a_hang_and_any_message_breaks_it() -> None:
    watch = serving()
    assert ticks(watch, 9) is None
    watch.heard(Heartbeat(3, None))
    assert ticks(watch, 9) is None
    assert ticks(watch, 3) == "sent nothing for 10 s"


def test_a_step_above_its_limit_is_a_hang_though_heartbeats_come() -> None:
    watch = serving()
    watch.heard(Heartbeat(3, 59_000.0))
    assert watch.tick() is None
    watch.heard(Heartbeat(3, 61_000.0))
    assert watch.tick() == "has been running step 3 for 61.0 s"


def test_the_first_step_may_compile_and_has_five_times_as_long() -> None:
    watch = serving()
    watch.heard(Heartbeat(1, 290_000.0))
    assert watch.tick() is None
    watch.heard(Heartbeat(1, 301_000.0))
    assert watch.tick() is not None


def test_while_it_starts_no_step_counts_and_silence_may_be_long() -> None:
    watch = Watch(10.0, 60.0)
    watch.heard(Progress("load", 0.1, "Loading"))
    watch.heard(Heartbeat(0, 1e9))
    assert ticks(watch, START_SILENCE_S - 1) is None
    assert ticks(watch, 3) == "sent nothing for 300 s"


# --- why ----------------------------------------------------------------------------------------


def test_a_death_names_status_or_signal() -> None:
    death = ended(1, "boom")
    assert (death.kind, death.reason) == ("exit", "The engine process ended with status 1.")
    assert death.log_line == "boom"
    death = ended(-signal.SIGSEGV, None)
    assert (death.kind, death.log_line) == ("signal", None)
    assert death.reason == "The engine process was killed by signal 11 (SIGSEGV)."
    assert "out of memory" in ended(-signal.SIGKILL, None).reason


INFO = "2026-11-29 21:00:00,000 engine.worker INFO the client has gone"
WARNING = "2026-11-29 21:00:01,000 engine.build WARNING using the torch attention: none"
FATAL = "Fatal Python error: Segmentation fault"
TRACEBACK = """Traceback (most recent call last):
  File "x.py", line 1, in <module>
    boom()
RuntimeError: lost"""
AGAIN = TRACEBACK.replace("lost", "again")


@pytest.mark.parametrize(
    ("text", "line"),
    [
        (INFO, None),
        ("Loading weights: 100%", None),
        (f"{WARNING}\n{INFO}", WARNING),
        (f"{WARNING}\n{TRACEBACK}\n{INFO}", "RuntimeError: lost"),
        (
            f"{TRACEBACK}\n\nDuring handling:\n\n{TRACEBACK.replace('lost', 'again')}\n{INFO}",
            "RuntimeError: again",
        ),
        (f"{TRACEBACK}\n{WARNING}", WARNING),
        (f"{FATAL}\n\nThread 0x1:\n  File x", FATAL),
    ],
)
def test_its_last_words_are_a_warning_or_the_end_of_a_traceback(
    tmp_path: Path, text: str, line: str | None
) -> None:
    log = tmp_path / "engine.log"
    log.write_text(f"{text}\n")
    assert last_words(log, 0) == line


def test_what_an_earlier_process_wrote_is_not_taken_for_its_last_words(tmp_path: Path) -> None:
    log = tmp_path / "engine.log"
    assert last_words(log, log_end(log)) is None
    log.write_text(f"{TRACEBACK}\n")
    start = log_end(log)
    with log.open("a") as file:
        file.write(f"{INFO}\n")
    assert last_words(log, start) is None
    assert last_words(log, 10 * start) == "RuntimeError: lost"  # the log was begun anew


def test_last_words_are_cut_and_without_control_characters(tmp_path: Path) -> None:
    log = tmp_path / "engine.log"
    log.write_bytes(b"x" * 100_000 + b"\nTraceback (most recent call last):\nE: \x1b[31mlost\xff\n")
    assert last_words(log, 0) == "E:  [31mlost\ufffd"
    log.write_text(f"Traceback (most recent call last):\n{'y' * 1000}\n")
    assert last_words(log, 0) == "y" * 300


# --- whom ---------------------------------------------------------------------------------------


def test_only_a_request_of_which_nobody_saw_anything_begins_anew() -> None:
    waiting, cancelled = stream(), stream()
    cancelled.cancel()
    assert may_retry(waiting)
    assert not may_retry(cancelled)


async def test_what_was_sent_and_not_read_is_forgotten_when_a_request_begins_anew() -> None:
    unread = stream()
    unread.put(delta(1))
    assert may_retry(unread)
    unread.restart()
    unread.put(delta(9))
    unread.put(finished())
    events = [event async for event in unread]
    assert events == [delta(9), finished()]
    assert not may_retry(unread)


def test_two_deaths_while_it_ran_or_many_while_it_waited_are_enough() -> None:
    running = stream("running")
    waiting = [stream(f"w{i}") for i in range(3)]
    for death in range(2):
        assert may_retry(running)
        blame([running, *waiting], max_batch=1)
        assert [other.deaths for other in waiting] == [0, 0, 0]
        assert running.deaths == death + 1
    assert not may_retry(running)
    for _ in range(MOST_RETRIES):
        assert may_retry(waiting[0])
        waiting[0].restart()
    assert not may_retry(waiting[0])


def test_the_batch_is_taken_by_priority_and_then_by_arrival() -> None:
    streams = [stream("a", 1), stream("b"), stream("c"), stream("d", 1)]
    blame(streams, max_batch=3)
    assert [s.deaths for s in streams] == [1, 1, 1, 0]


def test_what_has_begun_is_to_blame_beside_a_batch_of_the_others() -> None:
    begun, waiting = stream("begun", 5), stream("waiting")
    begun.put(delta(1))
    blame([begun, waiting], max_batch=1)
    assert [begun.deaths, waiting.deaths] == [1, 1]


# --- a slow reader ------------------------------------------------------------------------------


async def test_a_slow_reader_gets_fewer_events_that_lose_nothing() -> None:
    slow = stream()
    sent = [delta(step) for step in range(2000)]
    for item in sent:
        slow.put(item)
    slow.put(finished())
    assert slow.waiting <= SLOW_EVENTS + 2 * len(sent) / MERGED_PIECES + 2
    events = [event async for event in slow]
    *deltas, end = events
    assert end == finished()
    got = [item for item in deltas if isinstance(item, Delta)]
    assert "".join(item.text for item in got) == "".join(item.text for item in sent)
    assert [p for item in got for p in item.pieces] == [p for item in sent for p in item.pieces]
    assert sum(item.drafted for item in got) == sum(item.drafted for item in sent)
    assert sum(item.accepted for item in got) == sum(item.accepted for item in sent)
    assert all(len(item.pieces) <= MERGED_PIECES for item in got)
    assert [item.step for item in got][-1] == 1999


async def test_deltas_of_different_drafters_and_other_events_stay_apart() -> None:
    slow = stream()
    for step in range(SLOW_EVENTS):
        slow.put(delta(step))
    later = [delta(90, "suffix"), delta(91, "ngram"), PromptLogprobs("a", ()), delta(92)]
    for item in later:
        slow.put(item)
    slow.put(Failed("a", "internal", "x"))
    events = [event async for event in slow]
    assert events[SLOW_EVENTS:] == [*later, Failed("a", "internal", "x")]


@pytest.mark.parametrize("behind", [1, SLOW_EVENTS])
async def test_a_reader_that_keeps_up_gets_every_step_by_itself(behind: int) -> None:
    quick = stream()
    got: list[object] = []
    for step in range(100):
        quick.put(delta(step))
        if quick.waiting == behind:
            got.append(await anext(quick))
    assert got == [delta(step) for step in range(len(got))]
