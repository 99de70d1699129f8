"""Makes texts of a recording, filling in what the live run did not try.

A draft that was accepted in full, or cut, goes on at the rates of its drafter. A model is drawn at
its rates wherever it did not start. Drafters without a model are scored at every start, so they
have nothing where none is recorded, and inside a run that was right the rest of it; in steps that
asked none of them they have what they had at another place, of the same request where there is one.
Rates are those of the request, shrunk to those of all."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from controller.simulate.recording import Recorded, Recording, Start
from controller.simulate.texts import LONGEST, Numbers, Text

SHRINK = 8.0
"""Drafts that the rates of all requests count for beside the request's own."""


def recorded_texts(recording: Recording, seed: int) -> list[Text]:
    """One text for each request, in their order. Drafters: those that drafted or were scored."""
    rng = np.random.default_rng(seed)
    requests = recording.requests
    names = dict.fromkeys(
        name for one in requests for kind in (one.starts, one.tails) for name in kind
    )
    rates = {
        name: _rates([s for one in requests for s in one.starts.get(name, ())]) for name in names
    }
    models = {name for name in names if _is_model(name, recording)}
    texts = [_text(one, names, models, rates, rng) for one in requests]
    for name in names:
        if name not in models:
            _fill_blind(name, requests, texts, rng)
    return texts


def _is_model(name: str, recording: Recording) -> bool:
    """As the server said, else by whether its drafts came from matches."""
    kind = recording.kinds.get(name)
    if kind is not None:
        return kind == "model"
    return not any(
        name in one.tails or any(start.match for start in one.starts.get(name, ()))
        for one in recording.requests
    )


def _rates(starts: Sequence[Start], before: Sequence[float] | None = None) -> list[float]:
    """a_1 .. a_LONGEST: accepted over reached, shrunk to `before`; without that an unobserved
    position reads the one in front of it."""
    rates: list[float] = []
    value = 0.5
    for k in range(LONGEST):
        hits = sum(start.accepted > k for start in starts)
        misses = sum(start.accepted == k and start.wrong for start in starts)
        prior, weight = (value, 1.0) if before is None else (before[k], SHRINK)
        value = (hits + weight * prior) / (hits + misses + weight)
        rates.append(value)
    return rates


def _text(
    one: Recorded,
    names: Sequence[str] | dict[str, None],
    models: set[str],
    rates: dict[str, list[float]],
    rng: np.random.Generator,
) -> Text:
    accepted: dict[str, Numbers] = {}
    match: dict[str, Numbers] = {}
    source: dict[str, Numbers] = {}
    room = np.arange(one.length, 0, -1)
    for name in names:
        starts, model = one.starts.get(name, []), name in models
        curve = _rates(starts, rates[name])
        got = np.zeros(one.length, np.int64)
        found = np.zeros((2, one.length), np.int64)
        if model:
            got = np.array([_further(0, curve, rng) for _ in range(one.length)])
        tails = [] if model else one.tails.get(name, [])
        for start, behind in [(s, False) for s in starts] + [(s, True) for s in tails]:
            if start.place >= one.length or (behind and found[0, start.place]):
                continue
            whole = start.accepted if start.wrong else _further(start.accepted, curve, rng)
            reach = 1 if model else min(start.accepted + 1, one.length - start.place)
            span = slice(start.place, start.place + reach)
            got[span] = np.maximum(whole - np.arange(reach), 0)
            if not model:
                found[0, span] = max(start.match, 1) + np.arange(reach)
                found[1, span] = start.source
        accepted[name] = np.minimum(got, room)
        if not model:
            match[name], source[name] = found
    return Text(one.prompt, one.length, accepted, match, source)


def _fill_blind(
    name: str, requests: Sequence[Recorded], texts: Sequence[Text], rng: np.random.Generator
) -> None:
    """Places that nobody was asked at get what another place had, the whole of it."""
    seen = [
        np.array([p for p in range(1, one.length) if p not in one.blind], np.int64)
        for one in requests
    ]
    everywhere = [(i, p) for i, places in enumerate(seen) for p in places.tolist()]
    if not everywhere:
        return
    for number, (one, text) in enumerate(zip(requests, texts, strict=True)):
        for place in sorted(one.blind):
            if place >= one.length or text.match[name][place]:
                continue
            own = seen[number]
            other, there = number, 0
            if len(own):
                there = int(own[rng.integers(len(own))])
            else:
                other, there = everywhere[int(rng.integers(len(everywhere)))]
            text.match[name][place] = texts[other].match[name][there]
            text.source[name][place] = texts[other].source[name][there]
            got = texts[other].accepted[name][there]
            text.accepted[name][place] = min(got, one.length - place)


def _further(accepted: int, curve: Sequence[float], rng: np.random.Generator) -> int:
    """How far a draft goes on that was not wrong so far."""
    while accepted < LONGEST and rng.random() < curve[accepted]:
        accepted += 1
    return accepted
