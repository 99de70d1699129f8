"""Weights move into huge pages without changing."""

from __future__ import annotations

import pytest
import torch

import engine.huge_pages
from engine.huge_pages import HUGE, allowed, collapse, regions


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
