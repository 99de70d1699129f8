"""Synthetic texts: position-Markov acceptance with planted breaks, and drafters that are useless.

Along a text a hidden state per drafter is hot or cold and keeps for a while, which gives the
streaks of real text; the chance that position k of a draft is accepted depends on the state."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np

from controller.simulate.texts import LONGEST, Numbers, Text

SHORT_MATCH = 3
MEAN_MATCH = 5.0
PROMPT, OUTPUT = 200, 250
"""Mean tokens of a text where nothing else is said."""


@dataclass(frozen=True, slots=True)
class Rates:
    """hot and cold: a_1, a_2, ... of drafts, the last repeated. heat: share of places that are
    hot; keep: mean length of a state in tokens. match: share of places with a draft; below 1 for
    drafters without a model, None for a model, which always drafts."""

    hot: Sequence[float]
    cold: Sequence[float]
    heat: float = 0.5
    keep: float = 20.0
    match: float | None = None

    def __post_init__(self) -> None:
        values = (*self.hot, *self.cold, self.heat, 0.0 if self.match is None else self.match)
        if not self.hot or not self.cold or not all(0.0 <= value <= 1.0 for value in values):
            raise ValueError("rates: give chances from 0 to 1 for hot and cold, at least one each")
        if self.keep < 1.0:
            raise ValueError("rates: a state is kept for 1 token or longer")


@dataclass(frozen=True, slots=True)
class Recipe:
    """Texts of mean lengths `prompt` and `output`. drafters: their rates. breaks: (output position,
    rates by drafter) from which on other rates hold, of drafters that have some; the positions
    rise."""

    drafters: dict[str, Rates]
    prompt: int = PROMPT
    output: int = OUTPUT
    breaks: Sequence[tuple[int, dict[str, Rates]]] = field(default_factory=tuple)

    def __post_init__(self) -> None:
        if any(one[0] >= after[0] for one, after in pairwise(self.breaks)):
            raise ValueError("breaks: each must be at a later position than the one before it")
        for at, rates in self.breaks:
            for name in rates:
                if name not in self.drafters:
                    raise ValueError(
                        f"breaks: {name} gets other rates at {at}, but drafters.{name} has none "
                        "to begin with"
                    )


def make_texts(recipe: Recipe, count: int, seed: int | Sequence[int]) -> list[Text]:
    """`count` texts with lengths of half to one and a half times the mean."""
    rng = np.random.default_rng(seed)
    texts: list[Text] = []
    for _ in range(count):
        length = int(rng.integers(max(recipe.output // 2, 1), recipe.output * 3 // 2 + 1))
        prompt = int(rng.integers(max(recipe.prompt // 2, 1), recipe.prompt * 3 // 2 + 1))
        texts.append(_text(recipe, prompt, length, rng))
    return texts


def mixed_texts(recipes: Sequence[Recipe], count: int, seed: int) -> list[Text]:
    """`count` texts, one of each recipe in turn. ValueError where some would have none."""
    if len(recipes) == 1:
        return make_texts(recipes[0], count, seed)
    if count < len(recipes):
        raise ValueError(f"count: {count} texts are too few for {len(recipes)} recipes")
    kinds = [
        make_texts(recipe, len(range(number, count, len(recipes))), [seed, number])
        for number, recipe in enumerate(recipes)
    ]
    return [kinds[at % len(kinds)][at // len(kinds)] for at in range(count)]


def _text(recipe: Recipe, prompt: int, length: int, rng: np.random.Generator) -> Text:
    accepted: dict[str, Numbers] = {}
    match: dict[str, Numbers] = {}
    source: dict[str, Numbers] = {}
    for name, first in recipe.drafters.items():
        spans = [(0, first), *((at, rates[name]) for at, rates in recipe.breaks if name in rates)]
        ends = [*(at for at, _ in spans[1:]), length]
        parts = [
            _drafts(rates, min(end, length) - begin, rng)
            for (begin, rates), end in zip(spans, ends, strict=True)
            if begin < min(end, length)
        ]
        got, matched = (np.concatenate(column) for column in zip(*parts, strict=True))
        room = np.arange(length, 0, -1)
        accepted[name] = np.minimum(got, room)
        if first.match is not None:
            match[name] = matched
            source[name] = np.where(matched > 0, 2, 0)
    return Text(prompt, length, accepted, match, source)


def _drafts(rates: Rates, length: int, rng: np.random.Generator) -> tuple[Numbers, Numbers]:
    """(accepted, match length) by place."""
    hot = _states(rates, length, rng)
    table = np.array([_curve(rates.cold), _curve(rates.hot)])[hot.astype(np.intp)]
    got = np.minimum.accumulate(rng.random((length, LONGEST)) < table, axis=1).sum(axis=1)
    if rates.match is None:
        return got, np.zeros(length, np.int64)
    matched = SHORT_MATCH + rng.geometric(1.0 / (MEAN_MATCH - SHORT_MATCH + 1.0), length) - 1
    matched[rng.random(length) >= rates.match] = 0
    got[matched == 0] = 0
    return got, matched


def _states(rates: Rates, length: int, rng: np.random.Generator) -> np.ndarray:
    """bool [length]: a two-state chain with the stationary share `heat`."""
    leave_hot = min((1.0 - rates.heat) * 2.0 / rates.keep, 1.0)
    leave_cold = min(rates.heat * 2.0 / rates.keep, 1.0)
    states = np.zeros(length, bool)
    hot = bool(rng.random() < rates.heat)
    draws = rng.random(length)
    for place in range(length):
        states[place] = hot
        if draws[place] < (leave_hot if hot else leave_cold):
            hot = not hot
    return states


def _curve(rates: Sequence[float]) -> list[float]:
    return [rates[min(k, len(rates) - 1)] for k in range(LONGEST)]


EAGLE_RATES = Rates(hot=(0.85, 0.82), cold=(0.55, 0.6), heat=0.5)
NGRAM_RATES = Rates(hot=(0.8, 0.92), cold=(0.2, 0.7), heat=0.3, match=0.6)
USELESS = Rates(hot=(0.05,), cold=(0.05,), heat=0.5)
FALSE_MATCHES = Rates(hot=(0.05,), cold=(0.05,), heat=0.5, match=0.9)

RECIPES = {
    "mixed": Recipe({"eagle": EAGLE_RATES, "ngram": NGRAM_RATES}),
    "edits": Recipe(
        {
            "eagle": EAGLE_RATES,
            "ngram": Rates(hot=(0.95, 0.97), cold=(0.5, 0.8), heat=0.8, keep=60.0, match=0.95),
        }
    ),
    "prose": Recipe(
        {
            "eagle": Rates(hot=(0.75, 0.75), cold=(0.5, 0.5)),
            "ngram": Rates(hot=(0.4, 0.6), cold=(0.1, 0.4), heat=0.2, match=0.3),
        }
    ),
    "useless": Recipe({"eagle": USELESS, "ngram": FALSE_MATCHES}),
    "breaks": Recipe(
        {"eagle": EAGLE_RATES, "ngram": NGRAM_RATES},
        output=600,
        breaks=((300, {"eagle": USELESS, "ngram": FALSE_MATCHES}),),
    ),
}
"""Recipes by name: streaks of both drafters; code edits; prose; 5 % acceptance with false matches;
and texts whose drafters fail from the 300th token on."""
