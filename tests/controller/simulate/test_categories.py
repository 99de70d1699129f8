"""Texts by category: as easy to guess, and as much copied, as was measured of such texts."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from controller.simulate.categories import CATEGORIES, HEAD, LOOKUP, Copied, Entropy
from controller.simulate.synthetic import Rates, Recipe, make_texts, mixed_texts
from controller.simulate.texts import Text

SPEED_BENCH = (
    "coding", "humanities", "math", "multilingual", "qa", "rag", "reasoning", "roleplay", "stem",
    "summarization", "writing",
)  # fmt: skip


def tokens_per_step(texts: Sequence[Text], drafter: str, length: int) -> float:
    """Where every step drafts up to `length` tokens."""
    tokens = steps = 0
    for text in texts:
        at = 1
        while at < text.length:
            committed = 1 + min(int(text.accepted[drafter][at]), length, text.length - at - 1)
            at, tokens, steps = at + committed, tokens + committed, steps + 1
    return tokens / steps


def made(rates: Rates) -> list[Text]:
    return make_texts(Recipe({"one": rates}), 200, seed=2)


@pytest.mark.parametrize(("entropy", "measured"), [("low", 4.6), ("mixed", 3.2), ("high", 2.35)])
def test_a_head_guesses_as_well_as_measured(entropy: Entropy, measured: float) -> None:
    """EAGLE-3, seven drafted: the means of GSM8K, MATH and HumanEval, and of MT-Bench and Alpaca;
    mixed is between the two."""
    assert tokens_per_step(made(HEAD[entropy]), "one", 7) == pytest.approx(measured, rel=0.06)


@pytest.mark.parametrize(("copied", "measured"), [("little", 1.5), ("some", 2.0), ("much", 2.5)])
def test_a_lookup_copies_as_much_as_measured(copied: Copied, measured: float) -> None:
    """The n-gram drafter on Spec-Bench, eight drafted: docs/performance.md."""
    assert tokens_per_step(made(LOOKUP[copied]), "one", 8) == pytest.approx(measured, rel=0.06)


def test_there_is_a_recipe_for_each_of_speed_benchs_categories_and_chat() -> None:
    assert set(CATEGORIES) == {*SPEED_BENCH, "chat"}
    easy, hard = (make_texts(CATEGORIES[name], 50, seed=1) for name in ("math", "writing"))
    assert tokens_per_step(easy, "eagle", 3) > tokens_per_step(hard, "eagle", 3) + 0.5
    quoting = make_texts(CATEGORIES["rag"], 50, seed=1)
    assert tokens_per_step(quoting, "ngram", 8) > tokens_per_step(hard, "ngram", 8) + 0.5


def test_texts_of_several_recipes_come_in_turn() -> None:
    recipes = [Recipe({"eagle": HEAD["low"]}, 10**length, 20) for length in (2, 4, 6)]
    texts = mixed_texts(recipes, 8, seed=3)
    assert [len(str(2 * text.prompt // 3)) // 2 for text in texts] == [1, 2, 3, 1, 2, 3, 1, 2]
    assert [t.prompt for t in mixed_texts(recipes, 8, seed=3)] == [t.prompt for t in texts]
    assert [t.prompt for t in mixed_texts(recipes, 8, seed=4)] != [t.prompt for t in texts]


def test_a_recipe_that_stands_twice_in_a_list_makes_other_texts() -> None:
    texts = mixed_texts([CATEGORIES["rag"]] * 2, 8, seed=3)
    assert len({(text.prompt, text.length) for text in texts}) == 8


def test_a_recipe_that_would_have_no_text_is_an_error() -> None:
    with pytest.raises(ValueError, match="count: 2 texts are too few for 3 recipes"):
        mixed_texts([CATEGORIES["qa"]] * 3, 2, seed=0)
