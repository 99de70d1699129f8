"""Reads a recording of a live run: JSON lines, the first {"recording": 1, ...}, then what came.

    {"s", "arrived": {"request", "prompt"}}
    {"s", "verify_ms", "draft_ms", "overhead_ms", "looked", "requests": [{"request", "context",
      "drafter", "drafted", "accepted", "committed", "cut", "match", "source",
      "shadows": [{"drafter", "drafted", "accepted", "match", "source", "censored"}],
      "parts": [{"drafter", "drafted", "accepted"}]}]}
    {"s", "finished": {"request", "output"}}

s: seconds since the start. context: tokens of the request before the step. Other lines and fields
are passed over. What came of it as texts is `recorded_texts`."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from controller.simulate.texts import LONGEST, SOURCES

MOST_TOKENS = 1_000_000
MOST_LINE_BYTES = 16_000_000


@dataclass(frozen=True, slots=True)
class Start:
    """A draft before output position `place`: whether it was wrong behind `accepted`, or was not
    tried further. match: 0 of a model."""

    place: int
    accepted: int
    wrong: bool
    match: int = 0
    source: int = 0


@dataclass(slots=True)
class Recorded:
    """One request. s: when it came. length: output tokens, of which the first came with the prompt.
    starts: by drafter; tails: drafts behind a model's that was right; blind: places of which no
    drafter without a model was asked."""

    prompt: int
    s: float
    length: int = 1
    steps: int = 0
    starts: dict[str, list[Start]] = field(default_factory=dict)
    tails: dict[str, list[Start]] = field(default_factory=dict)
    blind: set[int] = field(default_factory=set)


@dataclass(frozen=True, slots=True)
class Recording:
    """kinds: of the drafters that the server had, "model" or "model_free". requests: those that got
    output, in the order in which they came. steps: that had decoding requests."""

    kinds: dict[str, str]
    requests: list[Recorded]
    steps: int


def read_recording(path: Path) -> Recording:
    """ValueError with file and line for anything that is no recording, OSError where it cannot be
    read."""
    kinds: dict[str, str] = {}
    open_requests: dict[object, Recorded] = {}
    every: list[Recorded] = []
    steps = 0
    for number, record in _lines(path):
        try:
            if number == 1:
                kinds = _kinds(record)
            elif "requests" in record:
                steps += 1
                for one in record["requests"]:
                    mine = open_requests.get(one["request"])
                    if mine is None:  # it came before the recording began
                        mine = Recorded(_context(one) - 1, _seconds(record))
                        open_requests[one["request"]] = mine
                        every.append(mine)
                    _take(mine, one, record.get("looked", True) is not False)
            elif "arrived" in record:
                came = record["arrived"]
                mine = Recorded(_count(came["prompt"]), _seconds(record))
                open_requests[came["request"]] = mine
                every.append(mine)
            elif "finished" in record:
                done = record["finished"]
                found = open_requests.pop(done["request"], None)
                if found is not None and not found.steps and not _count(done["output"]):
                    every.remove(found)
                elif found is not None:
                    found.steps = max(found.steps, 1)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise ValueError(f"{path.name}, line {number}: no recorded step: {error!r}") from None
    requests = [one for one in every if one.steps]
    if not steps:
        raise ValueError(f"{path.name}: no request committed anything")
    return Recording(kinds, requests, steps)


def is_recording(path: Path) -> bool:
    """Whether the file begins like one."""
    try:
        with path.open(encoding="utf-8") as lines:
            first = json.loads(lines.readline(MOST_LINE_BYTES))
    except (OSError, ValueError):
        return False
    return isinstance(first, dict) and first.get("recording") == 1


def _lines(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    with path.open(encoding="utf-8") as lines:
        for number, line in enumerate(lines, 1):
            if len(line) > MOST_LINE_BYTES:
                raise ValueError(f"{path.name}, line {number}: it is longer than 16 MB")
            try:
                record = json.loads(line)
            except ValueError as error:
                raise ValueError(f"{path.name}, line {number}: {error}") from None
            if not isinstance(record, dict):
                raise ValueError(f"{path.name}, line {number}: it is no JSON object")
            if number == 1 and record.get("recording") != 1:
                raise ValueError(f'{path.name}: the first line is not {{"recording": 1}}')
            yield number, record


def _kinds(head: dict[str, Any]) -> dict[str, str]:
    return {str(name): str(kind) for name, kind in head.get("drafters", {}).items()}


def _take(mine: Recorded, one: dict[str, Any], looked: bool) -> None:
    """Take in what one request got from a step."""
    begin, committed = mine.length, _count(one["committed"])
    _context(one)
    mine.length += committed
    mine.steps += 1
    if mine.length > MOST_TOKENS:
        raise ValueError(f"a request of more than {MOST_TOKENS} tokens")
    if not looked:
        mine.blind.update(range(begin, mine.length))
    ran, cut = one["drafter"], one.get("cut", False)
    drafted, accepted = _draft(one)
    parts = one.get("parts", ())
    if not drafted:
        ran = None
    elif not parts:
        start = _start(begin, drafted, accepted, cut, one)
        mine.starts.setdefault(ran, []).append(start)
    place = begin
    for depth, part in enumerate(parts):
        drafted, accepted = _draft(part)
        if drafted:
            kept = mine.tails if depth else mine.starts
            start = _start(place, drafted, accepted, cut, part if depth else one)
            kept.setdefault(part["drafter"], []).append(start)
        place += drafted
        if accepted < drafted:  # what comes behind it was not reached
            break
    _score(mine, one.get("shadows", ()), begin, ran if looked else None, looked)


def _start(place: int, drafted: int, accepted: int, open_end: bool, one: dict[str, Any]) -> Start:
    """open_end: the text, or the drafter's turn, ended inside the draft."""
    wrong = accepted < drafted and not open_end and accepted < LONGEST
    return Start(place, min(accepted, LONGEST), wrong, _count(one.get("match", 0)), _source(one))


def _score(
    mine: Recorded, scores: list[dict[str, Any]], begin: int, ran: str | None, looked: bool
) -> None:
    """A score says what was right, not where it began. The last of a drafter was settled by the
    step's last token; the one that its own turn, or a step that asked nobody, interrupted ended
    before the step."""
    last: dict[str, int] = {}
    for one in reversed(scores):
        name, censored = one["drafter"], bool(one.get("censored", False))
        drafted, accepted = _draft(one)
        whole = accepted == drafted
        if censored:
            end = begin if name == ran or not looked else mine.length
        else:
            end = last.get(name, mine.length) - (0 if whole else 1)
        place = max(end - accepted, 1)
        last[name] = place
        found = _start(place, drafted, accepted, censored, one)
        mine.starts.setdefault(name, []).append(found)


def _draft(one: dict[str, Any]) -> tuple[int, int]:
    """(drafted, accepted)."""
    drafted, accepted = _count(one["drafted"]), _count(one["accepted"])
    if accepted > drafted:
        raise ValueError(f"{accepted} of {drafted} drafted tokens accepted")
    return drafted, accepted


def _context(one: dict[str, Any]) -> int:
    found = _count(one["context"])
    if not found:
        raise ValueError("a step of a request without a token")
    return found


def _count(value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= 100_000_000:
        raise ValueError(f"{str(value)[:40]} is no count")
    return value


def _seconds(record: dict[str, Any]) -> float:
    value = record.get("s", 0.0)
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= 1e9:
        raise ValueError(f"{str(value)[:40]} is no time in seconds")
    return float(value)


def _source(one: dict[str, Any]) -> int:
    name = one.get("source", "")
    return SOURCES.index(name) if name in SOURCES else len(SOURCES) - 1
