"""Synthetic texts have the acceptance that their recipe says."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from controller.simulate.synthetic import RECIPES, Rates, Recipe, make_texts
from controller.simulate.texts import Library, Numbers, Text

STEADY = Rates(hot=(0.6, 0.8), cold=(0.6, 0.8))


def joined(texts: Sequence[Text], drafter: str, begin: int = 0, end: int = 10**6) -> Numbers:
    """Accepted at the places from begin to end, without texts' last ones, which cut drafts."""
    return np.concatenate([t.accepted[drafter][begin : min(end, t.length - 21)] for t in texts])


def test_conditional_acceptance_by_position_is_the_recipes() -> None:
    got = joined(make_texts(Recipe({"eagle": STEADY}), 100, seed=0), "eagle")
    rates = [float((got > k).sum() / (got >= k).sum()) for k in range(3)]
    assert rates == pytest.approx([0.6, 0.8, 0.8], abs=0.02)


def test_states_keep_for_a_while_and_hold_their_share() -> None:
    rates = Rates(hot=(1.0,), cold=(0.0,), heat=0.3, keep=25.0)
    got = joined(make_texts(Recipe({"eagle": rates}, output=2000), 60, seed=0), "eagle") > 0
    changes = float((got[1:] != got[:-1]).mean())
    assert got.mean() == pytest.approx(0.3, abs=0.04)
    # A hot stretch lasts keep / 2(1 - heat), a cold one keep / 2 heat.
    assert changes == pytest.approx(4 * 0.3 * 0.7 / 25.0, rel=0.2)


def test_only_a_match_gets_something_and_matches_have_their_share() -> None:
    texts = make_texts(RECIPES["prose"], 60, seed=1)
    match = np.concatenate([t.match["ngram"] for t in texts])
    got = np.concatenate([t.accepted["ngram"] for t in texts])
    assert (match > 0).mean() == pytest.approx(0.3, abs=0.03)
    assert not got[match == 0].any()
    assert match[match > 0].min() >= 3
    assert "eagle" not in texts[0].match


def test_a_planted_break_changes_the_rates_from_its_place_on() -> None:
    texts = make_texts(RECIPES["breaks"], 60, seed=1)
    before = (joined(texts, "eagle", 0, 300) > 0).mean()
    after = (joined(texts, "eagle", 300) > 0).mean()
    assert before > 0.6
    assert after == pytest.approx(0.05, abs=0.02)


def test_no_draft_reaches_beyond_the_text() -> None:
    for text in make_texts(RECIPES["edits"], 20, seed=2):
        for got in text.accepted.values():
            assert (got <= np.arange(text.length, 0, -1)).all()


def test_the_seed_makes_the_texts() -> None:
    one, two, three = (make_texts(RECIPES["mixed"], 3, seed) for seed in (1, 1, 2))
    assert [t.accepted["eagle"].tolist() for t in one] == [
        t.accepted["eagle"].tolist() for t in two
    ]
    assert [t.length for t in one] != [t.length for t in three]


@pytest.mark.parametrize("rates", [((1.1,), (0.5,)), ((), (0.5,)), ((0.5,), (-0.1,))])
def test_rates_that_are_no_chances_are_refused(
    rates: tuple[tuple[float, ...], tuple[float, ...]],
) -> None:
    with pytest.raises(ValueError, match="from 0 to 1"):
        Rates(*rates)


@pytest.mark.parametrize(
    ("breaks", "problem"),
    [
        ([(300, "eagle"), (200, "eagle")], "later position"),
        ([(300, "eagle"), (300, "eagle")], "later position"),
        ([(200, "ngram")], "ngram gets other rates at 200, but drafters.ngram has none"),
    ],
)
def test_breaks_that_would_not_hold_are_refused(
    breaks: list[tuple[int, str]], problem: str
) -> None:
    with pytest.raises(ValueError, match=f"breaks: .*{problem}"):
        Recipe({"eagle": STEADY}, breaks=[(at, {name: STEADY}) for at, name in breaks])


# --- the library ----------------------------------------------------------------------------------


def test_decoding_begins_behind_the_token_that_comes_with_the_prompt() -> None:
    library = Library({"mixed": make_texts(RECIPES["mixed"], 3, seed=1)}, ("ngram", "eagle"))
    assert (library.begin - library.first).tolist() == [1, 1, 1]
    assert (library.context - library.prompts).tolist() == [1, 1, 1]


def test_the_next_start_is_the_next_match_of_the_same_text() -> None:
    texts = make_texts(RECIPES["prose"], 4, seed=1)
    library = Library({"prose": texts}, ("ngram", "eagle"))
    match, following = library.match["ngram"], library.next_start["ngram"]
    for first, last in zip(library.first.tolist(), library.last.tolist(), strict=True):
        for place in range(first, last):
            wanted = next((p for p in range(place, last) if match[p]), last)
            assert following[place] == wanted


def test_an_empty_corpus_and_lists_of_another_length_are_refused() -> None:
    with pytest.raises(ValueError, match="no text"):
        Library({"nothing": []}, ("eagle",))
    with pytest.raises(ValueError, match="2 values for a text of 3"):
        Text(1, 3, {"eagle": np.zeros(2, np.int64)})
