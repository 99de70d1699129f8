"""Colours of drafters and of a benchmark's arms."""

from __future__ import annotations

from ui import palette


def test_an_arm_has_its_drafters_colour_and_further_arms_of_it_lighter_ones() -> None:
    found = palette.arm_colours(["none", "ngram:4", "ngram:8", "auto", "rival"])
    assert found["none"] == palette.drafter_colour("none")
    assert found["ngram:4"] == palette.drafter_colour("ngram")
    assert found["auto"] == palette.INK
    assert found["ngram:8"] != found["ngram:4"]
    channels = [int(found["ngram:8"][at : at + 2], 16) for at in (1, 3, 5)]
    first = [int(found["ngram:4"][at : at + 2], 16) for at in (1, 3, 5)]
    assert all(one > other for one, other in zip(channels, first, strict=True))
    assert len(set(found.values())) == 5
