"""Reads a recording of a live run: JSON lines, the first {"recording": 2, ...}, then what came.

    {"s", "arrived": {"request", "prompt"}}
    {"s", "verify_ms", "draft_ms", "overhead_ms", "requests": [{"request", "context", "drafter",
      "drafted", "accepted", "committed", "cut", "match", "source", "chances",
      "margins": {"drafter", "sampled", "values"},
      "shadows": [{"drafter", "drafted", "accepted", "match", "source", "censored"}],
      "parts": [{"drafter", "drafted", "accepted", "chances"}]}],
      "proposals": [{"drafter", "requests", "depth", "ms"}]}
    {"s", "finished": {"request", "output"}}

s: seconds since the start. context: tokens of the request before the step. Other lines and fields
are passed over. What came of it as texts is `recorded_texts`."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from controller.contract import RECORDING_VERSION
from controller.simulate.json_lines import first_object, objects
from controller.simulate.texts import LONGEST, SOURCES

MOST_TOKENS = 1_000_000
"""Of a prompt, and of an output."""
LONGEST_NAME = 64
MOST_DRAFTERS = 64


@dataclass(frozen=True, slots=True)
class Start:
    """A draft before output position `place`: whether it was wrong behind `accepted`, or was not
    tried further. match: 0 of a model. chances: of what was verified, where its request's tokens
    are drawn without a seed. margins: of what a model drafted; sampled: of a request whose tokens
    are drawn."""

    place: int
    accepted: int
    wrong: bool
    match: int = 0
    source: int = 0
    chances: tuple[float, ...] = ()
    margins: tuple[float, ...] = ()
    sampled: bool = False


@dataclass(slots=True)
class Recorded:
    """One request. s: when it came. length: output tokens, of which the first came with the prompt.
    starts: by drafter; tails: drafts behind a model's that was right. chancy: its tokens are drawn
    without a seed, so that drafts have chances; sampled: they are drawn, with a seed or without."""

    prompt: int
    s: float
    length: int = 1
    steps: int = 0
    starts: dict[str, list[Start]] = field(default_factory=dict)
    tails: dict[str, list[Start]] = field(default_factory=dict)
    chancy: bool = False
    sampled: bool = False


@dataclass(slots=True)
class Recording:
    """head: what the first line says of the server. kinds: "model" or "model_free", by drafter that
    it had, drafted or was scored. requests: those that got output, in the order in which they came.
    steps: that had decoding requests. seconds: until the last of them.
    plain_ms: of the verify steps of one request without a draft. pass_ms: by drafter, what a
    drafted position took; both are sums with their count."""

    head: dict[str, Any]
    kinds: dict[str, str] = field(default_factory=dict)
    requests: list[Recorded] = field(default_factory=list)
    steps: int = 0
    seconds: float = 0.0
    plain_ms: tuple[float, int] = (0.0, 0)
    pass_ms: dict[str, tuple[float, int]] = field(default_factory=dict)


def read_recording(path: Path) -> Recording:
    """ValueError with file and line for anything that is no recording of this version, OSError
    where it cannot be read."""
    recording: Recording | None = None
    open_requests: dict[object, Recorded] = {}
    every: list[Recorded] = []
    for number, record in objects(path):
        if recording is None:
            _check_version(path, record.get("recording"))
            recording = Recording(record)
            continue
        try:
            if "verify_ms" in record:
                recording.steps += 1
                recording.seconds = max(recording.seconds, _seconds(record))
                for one in record["requests"]:
                    _take(open_requests[one["request"]], one)
                _measure(recording, record)
            elif "arrived" in record:
                came = record["arrived"]
                mine = Recorded(_count(came["prompt"], MOST_TOKENS), _seconds(record))
                open_requests[came["request"]] = mine
                every.append(mine)
            elif "finished" in record:
                done = record["finished"]
                found, output = open_requests.pop(done["request"], None), _count(done["output"])
                if found is not None and output:
                    found.steps = max(found.steps, 1)
        except (KeyError, TypeError, ValueError, AttributeError, RecursionError) as error:
            raise ValueError(f"{path.name}, line {number}: no recorded step: {error!r}") from None
    if recording is None or not recording.steps:
        raise ValueError(f"{path.name}: no request committed anything")
    recording.requests = [one for one in every if one.steps]
    try:
        recording.kinds = _kinds(recording)
    except ValueError as error:
        raise ValueError(f"{path.name}, drafters: {error}") from None
    return recording


def is_recording(path: Path) -> bool:
    """Whether the file begins like one, of whatever version."""
    return "recording" in first_object(path)


def _check_version(path: Path, version: object) -> None:
    if version is None:
        raise ValueError(f'{path.name}: the first line is not {{"recording": {RECORDING_VERSION}}}')
    if version != RECORDING_VERSION:
        told = str(version)[:20] if isinstance(version, int | float | str) else "unknown"
        raise ValueError(
            f"{path.name}: it is a recording of version {told}; this release reads version "
            f"{RECORDING_VERSION} alone. Record again, or replay it with the release that made it."
        )


def _kinds(recording: Recording) -> dict[str, str]:
    """As the server said. One that it did not name, because it was loaded later or disabled, is a
    model unless its drafts came from matches."""
    named = recording.head.get("drafters")
    named = named if isinstance(named, dict) else {}
    kinds = {
        _name(name): "model" if kind == "model" else "model_free" for name, kind in named.items()
    }
    for one in recording.requests:
        for name in (*one.starts, *one.tails):
            if name not in kinds:
                found = _is_model(name, recording.requests)
                kinds[_name(name)] = "model" if found else "model_free"
                if len(kinds) > MOST_DRAFTERS:
                    raise ValueError(f"there are more than {MOST_DRAFTERS}")
    return kinds


def _is_model(name: str, requests: list[Recorded]) -> bool:
    return not any(
        name in one.tails or any(start.match for start in one.starts.get(name, ()))
        for one in requests
    )


def _take(mine: Recorded, one: dict[str, Any]) -> None:
    """Take in what one request got from a step."""
    begin, committed = mine.length, _count(one["committed"])
    if not _count(one["context"]):
        raise ValueError("a step of a request without a token")
    mine.length += committed
    mine.steps += 1
    if mine.length > MOST_TOKENS:
        raise ValueError(f"a request of more than {MOST_TOKENS} tokens")
    ran, cut, parts = one["drafter"], one.get("cut", False), one.get("parts", ())
    drafted, accepted = _draft(one)
    told = one.get("margins") or {}
    margins, sampled = _numbers(told.get("values", ())), bool(told.get("sampled", False))
    mine.chancy = mine.chancy or bool(one.get("chances"))
    mine.sampled = mine.sampled or mine.chancy or sampled
    if not drafted:
        if margins:  # a bar kept all of a model's draft out
            start = Start(begin, 0, False, margins=margins, sampled=sampled)
            mine.starts.setdefault(told["drafter"], []).append(start)
        ran = None
    elif not parts:
        start = _start(begin, drafted, accepted, cut, one, margins, mine.sampled)
        mine.starts.setdefault(ran, []).append(start)
    place = begin
    for depth, part in enumerate(parts):
        drafted, accepted = _draft(part)
        if drafted:
            kept = mine.tails if depth else mine.starts
            whose = part if depth else {**one, "chances": part.get("chances", ())}
            ahead = () if depth else margins
            start = _start(place, drafted, accepted, cut, whose, ahead, mine.sampled)
            kept.setdefault(part["drafter"], []).append(start)
        place += drafted
        if accepted < drafted:  # what comes behind it was not reached
            break
    _score(mine, one.get("shadows", ()), begin, ran)


def _start(
    place: int,
    drafted: int,
    accepted: int,
    open_end: bool,
    one: dict[str, Any],
    margins: tuple[float, ...] = (),
    sampled: bool = False,
) -> Start:
    """open_end: the text, or the drafter's turn, ended inside the draft."""
    wrong = accepted < drafted and not open_end and accepted < LONGEST
    return Start(
        place,
        min(accepted, LONGEST),
        wrong,
        _count(one.get("match", 0)),
        _source(one),
        _numbers(one.get("chances", ())),
        margins,
        sampled,
    )


def _score(mine: Recorded, scores: list[dict[str, Any]], begin: int, ran: str | None) -> None:
    """A score says what was right, not where it began. The last of a drafter was settled by the
    step's last token; the one that its own turn interrupted ended before the step."""
    last: dict[str, int] = {}
    for one in reversed(scores):
        name, censored = one["drafter"], bool(one.get("censored", False))
        drafted, accepted = _draft(one)
        whole = accepted == drafted
        if censored:
            end = begin if name == ran else mine.length
        else:
            end = last.get(name, mine.length) - (0 if whole else 1)
        place = max(end - accepted, 1)
        last[name] = place
        found = _start(place, drafted, accepted, censored, one)
        mine.starts.setdefault(name, []).append(found)


def _measure(recording: Recording, record: dict[str, Any]) -> None:
    """Add up what plain steps of one request and what drafted positions took."""
    ms = _number(record["verify_ms"])
    rows, proposals = record["requests"], record.get("proposals", ())
    if len(rows) == 1 and not rows[0]["drafted"] and not record.get("prefill_rows", 0):
        total, count = recording.plain_ms
        recording.plain_ms = (total + ms, count + 1)
    for one in proposals:
        depth = _count(one["depth"])
        if depth and not one.get("catch_up", 0):
            total, count = recording.pass_ms.get(one["drafter"], (0.0, 0))
            recording.pass_ms[one["drafter"]] = (total + _number(one["ms"]), count + depth)


def _draft(one: dict[str, Any]) -> tuple[int, int]:
    """(drafted, accepted)."""
    drafted, accepted = _count(one["drafted"]), _count(one["accepted"])
    if accepted > drafted:
        raise ValueError(f"{accepted} of {drafted} drafted tokens accepted")
    return drafted, accepted


def _name(value: object) -> str:
    """A drafter's. The file names them, and they are printed."""
    if not isinstance(value, str) or not 0 < len(value) <= LONGEST_NAME or not value.isprintable():
        raise ValueError(f"{str(value)[:40]!r} is no drafter's name")
    return value


def _count(value: object, most: int = 100_000_000) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= most:
        raise ValueError(f"{str(value)[:40]} is no count from 0 to {most:,}")
    return value


def _numbers(values: Any) -> tuple[float, ...]:
    """Those of a draft's first LONGEST places."""
    return tuple([_number(value) for value in values[:LONGEST]])


def _seconds(record: dict[str, Any]) -> float:
    return _number(record.get("s", 0.0))


def _number(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= 1e9:
        raise ValueError(f"{str(value)[:40]} is no number from 0 on")
    return float(value)


def _source(one: dict[str, Any]) -> int:
    name = one.get("source", "")
    return SOURCES.index(name) if name in SOURCES else len(SOURCES) - 1
