"""Lets a drafter draft and follow a text that is known, without a target."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from controller.contract import ShadowScore, Wish
from engine.drafters.base import Committed, Drafter
from engine.draw import Draw
from engine.request import Request


def make_request(tokens: Sequence[int], number: int = 1, max_tokens: int = 1000) -> Request:
    output: Any = None
    return Request(
        id=number,
        name=f"r{number}",
        tokens=list(tokens),
        prompt_length=len(tokens),
        max_tokens=max_tokens,
        draw=Draw(),
        wish=Wish(),
        tenant="",
        output=output,
        arrived=0.0,
    )


def commit(
    drafter: Drafter,
    request: Request,
    run: Sequence[int],
    drafted: int = 0,
    accepted: int = 0,
    ended: bool = False,
) -> tuple[ShadowScore, ...]:
    """Commit one run of one request."""
    start = len(request.tokens)
    request.tokens.extend(run)
    return drafter.commit([Committed(request, start, list(run), drafted, accepted, ended)])[0]


def run_alone(
    drafter: Drafter, prompt: Sequence[int], text: Sequence[int], longest: int
) -> list[ShadowScore]:
    """Decode the text with the drafter live at every step: draft, compare, commit accepted + 1.
    Returns what each draft got."""
    scores: list[ShadowScore] = []
    request = make_request(prompt)
    drafter.admit(request)
    at = 0
    while at < len(text):
        (offer,) = drafter.offer([request])
        draft = drafter.propose([request], [longest])[0].tokens if offer else []
        accepted = 0
        while accepted < len(draft) and at + accepted < len(text):
            if draft[accepted] != text[at + accepted]:
                break
            accepted += 1
        run = text[at : at + accepted + 1]
        if offer:
            cut = accepted < len(draft) and at + accepted == len(text)
            scores.append(ShadowScore(drafter.name, len(draft), accepted, offer.features, cut))
        assert commit(drafter, request, run, len(draft), accepted) == ()
        at += len(run)
    drafter.forget(request.id)
    return scores


def follow(
    drafter: Drafter, prompt: Sequence[int], text: Sequence[int], sizes: Iterable[int]
) -> list[ShadowScore]:
    """Let the drafter watch the text committed in steps of these sizes, the last one of all that
    is left. Returns its shadow scores."""
    scores: list[ShadowScore] = []
    request = make_request(prompt)
    drafter.admit(request)
    at = 0
    for size in (*sizes, len(text)):
        run = text[at : at + size]
        at += len(run)
        scores += commit(drafter, request, run, ended=at == len(text))
        if at == len(text):
            break
    drafter.forget(request.id)
    return scores
