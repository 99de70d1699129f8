"""Recorded step outcomes of a live run as texts, to replay them under another policy.

JSON lines. The first is {"recording": 1}; each further one is a step:
{"requests": [{"request", "context", "drafter", "drafted", "accepted", "committed", "ended",
"match", "source", "shadows": [{"drafter", "accepted", "match", "source", "censored"}]}]},
the fields of StepOutcome that a replay needs; context: tokens of the request before the step.

What was not tried must be filled in. A draft that was accepted in full, or cut, goes on at the
drafter's own rates in the recording. A model is drawn at its rates wherever it did not start.
Drafters without a model are scored at every start, so they have nothing where none is recorded,
and inside a run that was right the rest of it."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from controller.simulate.texts import LONGEST, SOURCES, Numbers, Text

MOST_TOKENS = 1_000_000
MOST_LINE_BYTES = 16_000_000


@dataclass(frozen=True, slots=True)
class Start:
    """A draft before output position `place`: whether it was wrong behind `accepted`, or was not
    tried further. match: 0 of a model."""

    place: int
    accepted: int
    wrong: bool
    match: int
    source: int


@dataclass(slots=True)
class _Request:
    prompt: int
    length: int = 0
    starts: dict[str, list[Start]] = field(default_factory=dict)


def read_recording(path: Path, seed: int) -> list[Text]:
    """The recorded requests. ValueError with file and line for anything that is no recording."""
    requests: dict[object, _Request] = {}
    done: list[_Request] = []
    for number, record in _lines(path):
        try:
            for one in record["requests"]:
                if _take(requests, one):
                    done.append(requests.pop(one["request"]))
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise ValueError(f"{path.name}, line {number}: no recorded step: {error!r}") from None
    done += [one for one in requests.values() if one.length]
    if not done:
        raise ValueError(f"{path.name}: no request committed anything")
    rng = np.random.default_rng(seed)
    names = list(dict.fromkeys(name for one in done for name in one.starts))
    rates = {name: _rates([s for one in done for s in one.starts.get(name, ())]) for name in names}
    matched = {
        name for one in done for name, some in one.starts.items() if any(s.match for s in some)
    }
    return [_text(one, names, matched, rates, rng) for one in done]


def _lines(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    with path.open(encoding="utf-8") as lines:
        for number, line in enumerate(lines, 1):
            if len(line) > MOST_LINE_BYTES:
                raise ValueError(f"{path.name}, line {number}: it is longer than 16 MB")
            try:
                record = json.loads(line)
            except ValueError as error:
                raise ValueError(f"{path.name}, line {number}: {error}") from None
            if number == 1:
                if not isinstance(record, dict) or record.get("recording") != 1:
                    raise ValueError(f'{path.name}: the first line is not {{"recording": 1}}')
                continue
            yield number, record


def _take(requests: dict[object, _Request], one: dict[str, Any]) -> bool:
    """Take in one request's outcome; True when it ended."""
    context = _count(one["context"])
    mine = requests.get(one["request"])
    if mine is None:
        mine = requests[one["request"]] = _Request(context)
    begin, committed = mine.length, _count(one["committed"])
    mine.length += committed
    if mine.length > MOST_TOKENS:
        raise ValueError(f"a request of more than {MOST_TOKENS} tokens")
    drafted, accepted = _count(one["drafted"]), _count(one["accepted"])
    if accepted > drafted or drafted > LONGEST:
        raise ValueError(f"{accepted} of {drafted} drafted tokens accepted, at most {LONGEST}")
    if drafted:
        wrong = accepted < drafted and not one.get("cut", False)
        start = Start(begin, accepted, wrong, _count(one.get("match", 0)), _source(one))
        mine.starts.setdefault(one["drafter"], []).append(start)
    # A score says what was right, not where it began: the last was settled by the last token.
    ends: dict[str, int] = {}
    for score in reversed(one.get("shadows", ())):
        name, got = score["drafter"], _count(score["accepted"])
        last = ends.get(name, mine.length - (0 if score.get("censored") else 1))
        place = max(last - got, 0)
        ends[name] = place - 1
        found = Start(
            place, min(got, LONGEST), not score.get("censored", False), _count(score["match"]),
            _source(score),
        )  # fmt: skip
        mine.starts.setdefault(name, []).append(found)
    return bool(one.get("ended", False))


def _count(value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= 100_000_000:
        raise ValueError(f"{str(value)[:40]} is no count")
    return value


def _source(one: dict[str, Any]) -> int:
    name = one.get("source", "")
    return SOURCES.index(name) if name in SOURCES else len(SOURCES) - 1


def _rates(starts: Sequence[Start]) -> list[float]:
    """a_1 .. a_LONGEST: accepted over reached; an unobserved position reads the one before."""
    rates: list[float] = []
    value = 0.5
    for k in range(LONGEST):
        hits = sum(start.accepted > k for start in starts)
        misses = sum(start.accepted == k and start.wrong for start in starts)
        value = (hits + value) / (hits + misses + 1.0)
        rates.append(value)
    return rates


def _text(
    one: _Request,
    names: Sequence[str],
    matched: set[str],
    rates: dict[str, list[float]],
    rng: np.random.Generator,
) -> Text:
    accepted: dict[str, Numbers] = {}
    match: dict[str, Numbers] = {}
    source: dict[str, Numbers] = {}
    room = np.arange(one.length, 0, -1)
    for name in names:
        model, curve = name not in matched, rates[name]
        got = np.zeros(one.length, np.int64)
        found = np.zeros((2, one.length), np.int64)
        if model:
            got = np.array([_further(0, curve, rng) for _ in range(one.length)])
        for start in one.starts.get(name, ()):
            if start.place >= one.length:
                continue
            whole = start.accepted if start.wrong else _further(start.accepted, curve, rng)
            reach = 1 if model else min(start.accepted + 1, one.length - start.place)
            span = slice(start.place, start.place + reach)
            got[span] = np.maximum(whole - np.arange(reach), 0)
            found[0, span] = start.match + np.arange(reach)
            found[1, span] = start.source
        accepted[name] = np.minimum(got, room)
        if not model:
            match[name], source[name] = found
    return Text(one.prompt, one.length, accepted, match, source)


def _further(accepted: int, curve: Sequence[float], rng: np.random.Generator) -> int:
    """How far a draft goes on that was not wrong so far."""
    while accepted < LONGEST and rng.random() < curve[accepted]:
        accepted += 1
    return accepted
