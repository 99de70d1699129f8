"""Weights move into huge pages without changing."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch

import engine.huge_pages
from engine.huge_pages import HUGE, allowed, collapse, regions
from engine.supervisor import HUGE_PAGES, child_environment


def test_regions_cover_whole_huge_pages_and_join_neighbours() -> None:
    extents = [(5 * HUGE + 7, 10), (HUGE + 1, 2 * HUGE), (4 * HUGE - 3, 1), (9 * HUGE, HUGE)]
    assert regions(extents) == [(HUGE, 4 * HUGE), (5 * HUGE, 6 * HUGE), (9 * HUGE, 10 * HUGE)]


def test_collapsing_keeps_the_contents() -> None:
    weight = torch.arange(6 * HUGE // 8)
    moved = collapse([(weight.data_ptr(), weight.nbytes)])
    assert moved % HUGE == 0
    assert torch.equal(weight, torch.arange(6 * HUGE // 8))


def test_a_system_that_forbids_huge_pages_is_left_alone(
    monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory
) -> None:
    setting = tmp_path_factory.mktemp("sys") / "enabled"
    monkeypatch.setattr(engine.huge_pages, "SETTING", str(setting))
    assert not allowed()  # no such file: another kernel
    setting.write_text("always madvise [never]\n")
    assert not allowed()
    assert collapse([(0, HUGE)]) == 0


def test_the_engine_process_allocates_large_tensors_in_huge_pages(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if not allowed():
        pytest.skip("huge pages are switched off on this machine")
    monkeypatch.delenv(HUGE_PAGES, raising=False)
    code = (
        "import re, torch\n"
        "weight = torch.ones(1 << 24)\n"
        "print(re.search(r'AnonHugePages: +(\\d+)', open('/proc/self/smaps_rollup').read())[1])"
    )

    def huge_kilobytes(environment: dict[str, str]) -> int:
        command = [sys.executable, "-c", code]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
        return int(done.stdout)

    assert huge_kilobytes(child_environment()) >= 2048
    monkeypatch.setenv(HUGE_PAGES, "0")  # the operator's choice stays
    assert child_environment()[HUGE_PAGES] == "0"
