"""Prompts that a drafter can only lose on: random strings, and creative texts drawn hot."""

from __future__ import annotations

import random
import string

from app.bench.workloads import Prompt

NAME = "adversarial"
HOT = 1.2
"""Temperature of the creative texts."""
EACH = 24
LENGTH = 240
"""Characters of a random string."""
ALPHABETS = (string.ascii_letters + string.digits, string.hexdigits.lower(), string.printable[:94])
FORMS = (
    "Invent a dream that no one ever had, told by {}.",
    "Write a surreal poem without rhymes about {}.",
    "Write a stream of consciousness about {}. Never repeat a word if you can help it.",
    "Make up a myth in which {} explains why the sea is salt.",
)
THEMES = (
    "a clock that runs on regret", "an umbrella in a desert", "the last librarian",
    "a city of glass bees", "a piano under the ice", "two rivers that quarrel",
)  # fmt: skip


def adversarial() -> list[Prompt]:
    """EACH prompts of either kind, the same ones every time. Greedy: a model that is asked to go on
    with a random string finds little to copy."""
    chance = random.Random(1)
    found: list[Prompt] = []
    for number in range(EACH):
        letters = ALPHABETS[number % len(ALPHABETS)]
        text = "".join(chance.choice(letters) for _ in range(LENGTH))
        found.append(Prompt(f"random-{number}", "random strings", (f"Go on: {text}",)))
    for number in range(EACH):
        text = FORMS[number % len(FORMS)].format(THEMES[number // len(FORMS)])
        found.append(Prompt(f"creative-{number}", "creative", (text,), temperature=HOT))
    return found
