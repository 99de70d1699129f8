"""Makes texts of a recording, filling in what the live run did not try.

A draft that was accepted in full, or cut, goes on at the rates of its drafter, or where a bar kept
the rest out as its margins promise. A model is drawn at its rates wherever it did not start.
Drafters without a model are scored in every step, so they have nothing where none is recorded, and
inside a run that was right the rest of it. Rates are those of the request, shrunk to those of all.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from controller.simulate.confidence import Confidence
from controller.simulate.recording import Recorded, Recording, Start
from controller.simulate.texts import LONGEST, Numbers, Reals, Text

SHRINK = 8.0
"""Drafts that the rates of all requests count for beside the request's own."""


def recorded_texts(recording: Recording, seed: int) -> list[Text]:
    """One text for each request, in their order. Drafters: those that drafted or were scored."""
    rng = np.random.default_rng(seed)
    requests = recording.requests
    names = dict.fromkeys(
        name for one in requests for kind in (one.starts, one.tails) for name in kind
    )
    told = {
        name: Confidence(
            start
            for one in requests
            for kind in (one.starts, one.tails)
            for start in kind.get(name, ())
        )
        for name in names
    }
    rates = {
        name: _rates([s for one in requests for s in one.starts.get(name, ())], told[name])
        for name in names
    }
    models = {name for name in names if recording.kinds[name] == "model"}
    return [_text(one, models, rates, told, rng) for one in requests]


def _rates(
    starts: Sequence[Start], told: Confidence, before: Sequence[float] | None = None
) -> list[float]:
    """a_1 .. a_LONGEST: accepted over reached, shrunk to `before`; without that an unobserved
    position reads the one in front of it. A token that was not verified counts as its margin
    promises: a bar keeps out the worst ones."""
    hits, reached = [0.0] * LONGEST, [0.0] * LONGEST
    for start in starts:
        for k in range(start.accepted):
            hits[k] += 1.0
            reached[k] += 1.0
        if start.accepted < LONGEST:
            promise = 0.0 if start.wrong else told.promise(start, start.accepted)
            if promise is not None:
                hits[start.accepted] += promise
                reached[start.accepted] += 1.0
    rates: list[float] = []
    value = 0.5
    for k in range(LONGEST):
        prior, weight = (value, 1.0) if before is None else (before[k], SHRINK)
        value = (hits[k] + weight * prior) / (reached[k] + weight)
        rates.append(value)
    return rates


def _text(
    one: Recorded,
    models: set[str],
    rates: dict[str, list[float]],
    told: dict[str, Confidence],
    rng: np.random.Generator,
) -> Text:
    accepted: dict[str, Numbers] = {}
    match: dict[str, Numbers] = {}
    source: dict[str, Numbers] = {}
    margins: dict[str, Reals] = {}
    chances: dict[str, Reals] = {}
    room = np.arange(one.length, 0, -1)
    for name in rates:
        starts, model, confidence = one.starts.get(name, []), name in models, told[name]
        curve = _rates(starts, confidence, rates[name])
        got = np.zeros(one.length, np.int64)
        found = np.zeros((2, one.length), np.int64)
        if model:
            right = rng.random((one.length, LONGEST)) < curve
            got = np.multiply.accumulate(right, axis=1).sum(axis=1, dtype=np.int64)
        tails = [] if model else one.tails.get(name, [])
        for start, behind in [(s, False) for s in starts] + [(s, True) for s in tails]:
            if start.place >= one.length or (behind and found[0, start.place]):
                continue
            whole = start.accepted
            if not start.wrong:
                whole = _further(start, curve, confidence, rng)
            reach = 1 if model else min(start.accepted + 1, one.length - start.place)
            span = slice(start.place, start.place + reach)
            got[span] = np.maximum(whole - np.arange(reach), 0)
            if not model:
                found[0, span] = max(start.match, 1) + np.arange(reach)
                found[1, span] = start.source
        ahead, chance = confidence.of_text(got, [*tails, *starts], one.sampled, one.chancy, rng)
        if ahead is not None:
            margins[name] = ahead
        if chance is not None:
            chances[name] = chance
        accepted[name] = np.minimum(got, room)
        if not model:
            match[name], source[name] = found
    return Text(one.prompt, one.length, accepted, match, source, margins, chances, one.sampled)


def _further(
    start: Start, curve: Sequence[float], told: Confidence, rng: np.random.Generator
) -> int:
    """How many tokens of a draft are right that was not wrong so far."""
    accepted = start.accepted
    while accepted < LONGEST:
        promise = told.promise(start, accepted)
        if rng.random() >= (curve[accepted] if promise is None else promise):
            break
        accepted += 1
    return accepted
