"""Whatever the policy, the text is plain decoding's: real engine steps on a scripted target."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from itertools import cycle

import pytest

from controller.contract import Wish
from controller.policies.switchable import PolicyChoice, Switchable
from engine.draw import Draw
from engine.request import Request
from tests.controller.policies.test_obedience import CHOICES, IDS, made
from tests.engine.scripted import Harness, ScriptedDrafter

VOCABULARY = 13
TOKENS = 40
WISHES = (Wish(), Wish(), Wish(drafter="mtp", draft_length=3), Wish(draft_length=2))


def best(token: int, position: int) -> int:
    """The likeliest next token depends on the last one and on the position."""
    return (3 * token + position // 5 + 1) % VOCABULARY


def logits(token: int, position: int) -> list[float]:
    likeliest = best(token, position)
    return [5.0 if k == likeliest else k / 100.0 for k in range(VOCABULARY)]


def right(tokens: Sequence[int], length: int, wrong_from: int) -> list[int]:
    """The target's own continuation, with a wrong token at one place."""
    draft: list[int] = []
    token = tokens[-1]
    for place in range(length):
        token = best(token, len(tokens) - 1 + place)
        draft.append((token + 1) % VOCABULARY if place == wrong_from else token)
    return draft


def drafters() -> list[ScriptedDrafter]:
    """Sometimes good, useless, and good."""
    return [
        ScriptedDrafter(lambda tokens, n: right(tokens, n, len(tokens) % 4), "ngram"),
        ScriptedDrafter(lambda tokens, n: right(tokens, n, 0), "suffix"),
        ScriptedDrafter(lambda tokens, n: right(tokens, n, 5), "mtp"),
    ]


DRAWS = (Draw(), Draw(0.9, seed=7), Draw(), Draw())


def run(controller: Switchable | None) -> tuple[list[Request], Harness]:
    """Greedy and seeded requests, two with a wish, three at a time."""
    harness = Harness(VOCABULARY, logits, drafters(), max_batch=3)
    if controller is not None:
        harness.engine.controller = harness.engine.drafting.controller = controller
    requests: list[Request] = []
    for number, (draw, wish) in enumerate(zip(DRAWS, WISHES, strict=True)):
        request = harness.add([1 + number, 4, 2], TOKENS, draw)
        if controller is not None:
            request.wish = wish
        requests.append(request)
    return requests, harness


@cache
def plain() -> tuple[list[list[int]], int]:
    """The texts of plain decoding and the forwards that it took."""
    requests, harness = run(None)
    harness.drain()
    return [one.tokens for one in requests], harness.executor.forwards


@pytest.mark.parametrize("choice", CHOICES, ids=IDS)
def test_the_text_is_the_plain_one(choice: PolicyChoice) -> None:
    wanted, forwards = plain()
    found, harness = run(made(choice))
    harness.drain()
    assert [one.tokens for one in found] == wanted
    assert sum(one.accepted for one in found) > 0
    if choice.policy in ("fixed", "batch_table", "tensorrt_schedule", "ema_tiers"):
        assert harness.executor.forwards < forwards


def test_the_text_is_the_plain_one_while_the_policy_changes_at_every_step() -> None:
    subject = made(PolicyChoice())
    found, harness = run(subject)
    choices = cycle(CHOICES)
    steps = 0
    while harness.engine.step():
        steps += 1
        subject.switch(next(choices))
    assert steps > len(CHOICES)
    assert [one.tokens for one in found] == plain()[0]


def test_requests_of_both_arms_end_with_the_plain_text_and_are_counted() -> None:
    subject = made(PolicyChoice("fixed", "drafter=ngram", "off"))
    found, harness = run(subject)
    harness.drain()
    report = subject.report()["ab"]
    assert isinstance(report, dict)
    ended = [arm["requests"] for arm in report["arms"].values()]
    assert sum(ended) == len(found)
    assert min(ended) > 0
