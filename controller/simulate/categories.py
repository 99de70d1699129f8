"""Synthetic texts by category: those of SPEED-Bench, and chat.

Two things tell the categories apart: how well a head guesses the next tokens (entropy), and how
much of the text stood somewhere before (copied). Both have three levels, whose rates are fitted to
measured tokens per step; a category is a pair of levels and its lengths, no measurement itself."""

from __future__ import annotations

from typing import Literal

from controller.simulate.synthetic import Rates, Recipe

Entropy = Literal["low", "mixed", "high"]
Copied = Literal["little", "some", "much"]

HEAD: dict[Entropy, Rates] = {
    "low": Rates(hot=(0.9, 0.9), cold=(0.7, 0.75), heat=0.7),
    "mixed": Rates(hot=(0.82, 0.82), cold=(0.55, 0.6), heat=0.55),
    "high": Rates(hot=(0.72, 0.72), cold=(0.42, 0.48), heat=0.5),
}
"""4.7, 3.2 and 2.4 tokens per step of seven drafted. EAGLE-3 on Qwen3-4B as published: 5.1 on
GSM8K, 4.6 on MATH, 4.2 on HumanEval; 2.4 on MT-Bench, 2.3 on Alpaca."""
LOOKUP: dict[Copied, Rates] = {
    "little": Rates(hot=(0.65, 0.8), cold=(0.15, 0.55), heat=0.35, match=0.55),
    "some": Rates(hot=(0.8, 0.88), cold=(0.2, 0.65), heat=0.45, keep=25.0, match=0.65),
    "much": Rates(hot=(0.88, 0.92), cold=(0.25, 0.7), heat=0.5, keep=30.0, match=0.75),
}
"""1.5, 2.0 and 2.5 tokens per step of up to eight drafted, as the n-gram drafter has on Spec-Bench
in docs/performance.md."""


def _category(entropy: Entropy, copied: Copied, prompt: int, output: int) -> Recipe:
    return Recipe({"eagle": HEAD[entropy], "ngram": LOOKUP[copied]}, prompt, output)


CATEGORIES = {
    "coding": _category("low", "little", 200, 400),
    "humanities": _category("high", "little", 100, 400),
    "math": _category("low", "some", 100, 300),
    "multilingual": _category("mixed", "little", 100, 300),
    "qa": _category("high", "little", 100, 150),
    "rag": _category("mixed", "much", 1500, 150),
    "reasoning": _category("mixed", "little", 200, 400),
    "roleplay": _category("high", "little", 150, 400),
    "stem": _category("mixed", "little", 100, 400),
    "summarization": _category("mixed", "some", 1000, 200),
    "writing": _category("high", "little", 100, 500),
    "chat": _category("high", "little", 300, 250),
}
"""Recipes by name; all but the last are SPEED-Bench's eleven."""
