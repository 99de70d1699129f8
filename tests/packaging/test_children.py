"""Logs of the children of `paceline up`: one older is kept, and the end of a long one is shown."""

from __future__ import annotations

import os
from pathlib import Path

from app import children
from app.children import Child


def test_a_start_keeps_the_log_of_the_one_before(tmp_path: Path) -> None:
    log = tmp_path / "child.log"
    for number in range(3):
        arguments = children.python("-c", f"print('start {number}')")
        child = children.spawn("child", arguments, os.environ, log)
        child.process.wait()
        assert child.last_lines() == f"start {number}"
    assert (tmp_path / "child.log.1").read_text("utf-8") == "start 1\n"
    assert {path.name for path in tmp_path.iterdir()} == {"child.log", "child.log.1"}


def test_the_last_lines_of_a_long_log_are_read_from_its_end(tmp_path: Path) -> None:
    log = tmp_path / "child.log"
    log.write_bytes(b"x" * 2 * children.TAIL_BYTES + b"\nlast\n")
    ended = children.spawn("child", children.python("-c", ""), os.environ, tmp_path / "other.log")
    ended.process.wait()
    read = Child(ended.name, ended.process, log).last_lines()
    assert read.endswith("\nlast")
    assert len(read) < children.TAIL_BYTES
