"""The prompts that a drafter can only lose on."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from app.bench.adversarial import EACH, HOT, LENGTH
from app.bench.prompts import read_prompts


def test_half_are_random_strings_and_half_creative_texts_drawn_hot() -> None:
    prompts = read_prompts("adversarial")
    assert Counter(one.category for one in prompts) == {"random strings": EACH, "creative": EACH}
    assert {one.temperature for one in prompts if one.category == "creative"} == {HOT}
    assert {one.temperature for one in prompts if one.category != "creative"} == {None}
    assert len({one.text for one in prompts}) == len({one.question_id for one in prompts})
    assert len({one.text for one in prompts}) == 2 * EACH
    assert [one.category for one in read_prompts("adversarial", 3)].count("creative") == 1


def test_they_are_the_same_every_time() -> None:
    assert read_prompts("adversarial") == read_prompts("adversarial")


@pytest.mark.parametrize("size", [4, 8])
def test_a_random_string_holds_nothing_to_copy(size: int) -> None:
    for one in read_prompts("adversarial", None, ("random strings",)):
        text = one.text.removeprefix("Go on: ")
        assert len(text) == LENGTH
        parts = [text[at : at + size] for at in range(LENGTH - size + 1)]
        assert len(set(parts)) >= 0.99 * len(parts)


def test_a_file_of_another_name_is_read_as_a_file(tmp_path: Path) -> None:
    path = tmp_path / "adversarial.txt"
    path.write_text("only one\n", "utf-8")
    assert [one.text for one in read_prompts(path)] == ["only one"]
