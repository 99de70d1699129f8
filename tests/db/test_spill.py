"""The spill and the queue against simple models, and disks that refuse."""

from __future__ import annotations

import resource
import stat
import tempfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.telemetry.queue import LineQueue
from app.telemetry.spill import Spill
from tests.db.databases import read_only

LINES = st.lists(st.binary(min_size=1, max_size=30).filter(lambda b: b"\n" not in b), max_size=8)


def drain(spill: Spill) -> list[bytes]:
    lines: list[bytes] = []
    while spill.count:
        lines += spill.oldest()
        spill.remove_oldest()
    return lines


@given(batches=st.lists(LINES, max_size=12), cap=st.integers(50, 400), reopen=st.booleans())
def test_spill_keeps_the_newest_lines_in_order_below_its_cap(
    batches: list[list[bytes]], cap: int, reopen: bool
) -> None:
    with tempfile.TemporaryDirectory() as name:
        spill = Spill(Path(name), cap_bytes=cap, segment_bytes=64)
        written: list[bytes] = []
        dropped = 0
        for batch in filter(None, batches):
            if sum(len(line) + 1 for line in batch) > cap:
                assert spill.append(batch) == len(batch)
                continue
            dropped += spill.append(batch)
            written += batch
            assert spill.count == len(written) - dropped
            assert spill.size <= cap
        if reopen:
            spill = Spill(Path(name), cap_bytes=cap, segment_bytes=64)
            spill.open()
            assert spill.count == len(written) - dropped
        assert drain(spill) == written[dropped:]
        assert list(Path(name).iterdir()) == []


@given(
    actions=st.lists(st.one_of(st.binary(max_size=40), st.integers(1, 5), st.just("back"))),
    max_lines=st.integers(1, 8),
    max_bytes=st.integers(10, 120),
)
def test_queue_is_bounded_in_order_and_counts_every_line(
    actions: list[bytes | int | str], max_lines: int, max_bytes: int
) -> None:
    queue = LineQueue(max_lines, max_bytes)
    out: list[bytes] = []
    added = gone = 0
    taken: list[bytes] = []
    for action in actions:
        if isinstance(action, bytes):
            queue.append(action)
            added += 1
        elif isinstance(action, int):
            gone += len(taken)
            out += taken
            taken = queue.take(action, 60)
            assert len(taken) <= action
            assert len(taken) <= 1 or sum(map(len, taken)) <= 60
        else:
            queue.put_back(taken)
            taken = []
        assert len(queue) <= max_lines
        assert queue.size <= max_bytes
    gone += len(taken)
    rest = queue.take(10_000, 10_000)
    assert added == gone + len(rest) + queue.dropped
    assert (len(queue), queue.size) == (0, 0)


def test_lines_appended_during_a_replay_come_after_it(tmp_path: Path) -> None:
    spill = Spill(tmp_path)
    spill.append([b"1", b"2"])
    assert spill.oldest() == [b"1", b"2"]
    spill.append([b"3"])
    spill.remove_oldest()
    assert drain(spill) == [b"3"]


def test_files_are_private(tmp_path: Path) -> None:
    spill = Spill(tmp_path / "spill")
    spill.append([b"1"])
    (file,) = (tmp_path / "spill").iterdir()
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert stat.S_IMODE(file.parent.stat().st_mode) == 0o700


def test_a_full_disk_keeps_what_was_there_and_nothing_of_what_failed(tmp_path: Path) -> None:
    spill = Spill(tmp_path)
    spill.append([b"first"])
    old = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (20, old[1]))
    try:
        with pytest.raises(OSError, match="too large"):
            spill.append([b"second line", b"third line"])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, old)
    assert spill.count == 1
    spill.append([b"fourth"])
    again = Spill(tmp_path)
    again.open()
    assert drain(again) == [b"first", b"fourth"]


def test_a_read_only_folder_is_an_error_of_the_append_alone(tmp_path: Path) -> None:
    folder = tmp_path / "a" / "spill"
    spill = Spill(folder)
    spill.append([b"first"])
    (file,) = folder.iterdir()
    with read_only(file):
        with pytest.raises(PermissionError):
            spill.append([b"second"])
        assert spill.oldest() == [b"first"]
        assert spill.remove_oldest() == 1  # the file stays, but is not read back again
        assert spill.oldest() == []
    assert spill.count == 0
    again = Spill(folder)
    again.open()
    assert drain(again) == [b"first"]


def test_other_files_in_the_folder_are_left_alone(tmp_path: Path) -> None:
    (tmp_path / "notes.jsonl").write_text("x\n")
    (tmp_path / "README").write_text("x\n")
    spill = Spill(tmp_path, cap_bytes=10)
    spill.open()
    for number in range(5):
        spill.append([b"line %d" % number])
    assert drain(spill) == [b"line 4"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["README", "notes.jsonl"]
