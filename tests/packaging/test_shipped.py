"""What ships beside the code is in the wheel, small enough, and fits the target it names."""

from __future__ import annotations

from pathlib import Path

import pytest
from setuptools import Distribution

from engine.shipped import CORPUS, DRAFT_MODEL, MTP, ROOT, corpus_for, marks, shipped

PROJECT = ROOT.parents[1]
MOST_BYTES = 40 * 1024 * 1024
"""Of all weights together."""
MOST_CORPUS_BYTES = 2 * 1024 * 1024
"""Of each target's corpus."""


@pytest.fixture
def packed(monkeypatch: pytest.MonkeyPatch) -> set[Path]:
    """The data files that a wheel would hold."""
    monkeypatch.chdir(PROJECT)
    distribution = Distribution()
    distribution.parse_config_files(["pyproject.toml"])
    command = distribution.get_command_obj("build_py")
    command.ensure_finalized()
    command.manifest_files = {}  # only what pyproject.toml says
    return set(map(Path, command.find_data_files("engine.shipped", "engine/shipped")))


def test_every_file_that_ships_is_in_the_wheel(packed: set[Path]) -> None:
    files = {path.relative_to(PROJECT) for path in ROOT.rglob("*") if path.is_file()}
    expected = {path for path in files if path.suffix not in (".py", ".pyc")}
    assert expected
    assert expected <= packed


def test_the_weights_together_are_small() -> None:
    weights = list(ROOT.rglob("*.safetensors"))
    assert sum(path.stat().st_size for path in weights) <= MOST_BYTES


def test_every_corpus_is_small() -> None:
    assert marks()
    for folder in marks():
        assert (folder / CORPUS).stat().st_size <= MOST_CORPUS_BYTES


def test_each_target_finds_what_ships_for_it_and_no_other_does() -> None:
    assert marks()
    for folder, mark in marks().items():
        facts = (mark.tokenizer, mark.hidden_size, mark.layers, mark.vocabulary)
        for part in (MTP, DRAFT_MODEL):
            expected = folder / part if (folder / part).exists() else None
            assert shipped(part, *facts) == expected
            assert shipped(part, mark.tokenizer, mark.hidden_size + 1, *facts[2:]) is None
        assert corpus_for(mark.tokenizer) == (mark, folder / "answers.npz")
        assert corpus_for("another") is None
