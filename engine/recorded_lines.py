"""The lines of a recording as values: what the controller is told of a step, without any text.

docs/simulate.md says what the fields mean; controller/simulate/recording.py reads them."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from controller.contract import Margins, RequestOutcome, ShadowScore, StepOutcome
from controller.contract import Part as DraftedPart

MOST_MARGIN = 1000.0
"""Larger margins are recorded as this: a JSON number is never infinite."""


class Score(msgspec.Struct, frozen=True, omit_defaults=True):
    """A shadow score: `drafted` tokens from a step start, of which the first `accepted` were right.
    censored: the text, or the shadow's turn, ended inside them."""

    drafter: str
    drafted: int
    accepted: int
    match: int = 0
    source: str = ""
    censored: bool = False


class Part(msgspec.Struct, frozen=True, omit_defaults=True):
    """What one drafter of a chain got. chances: see Row."""

    drafter: str
    drafted: int
    accepted: int
    chances: tuple[float, ...] = ()


class Told(msgspec.Struct, frozen=True):
    """The margins of a model's draft, as the controller is told them, also where nothing of the
    draft was verified. sampled: at the temperature of a request whose tokens are drawn."""

    drafter: str
    sampled: bool
    values: tuple[float, ...]


class Row(msgspec.Struct, frozen=True, omit_defaults=True):
    """One request in a step. context: its tokens before the step. chances: that what was verified
    would be accepted, see RequestOutcome."""

    request: int
    context: int
    drafter: str
    drafted: int
    accepted: int
    committed: int
    cut: bool = False
    match: int = 0
    source: str = ""
    shadows: tuple[Score, ...] = ()
    parts: tuple[Part, ...] = ()
    chances: tuple[float, ...] = ()
    margins: Told | None = None


class Proposed(msgspec.Struct, frozen=True, omit_defaults=True):
    """One drafter's drafting in a step, in ms for all its requests."""

    drafter: str
    requests: int
    depth: int
    ms: float
    catch_up: int = 0


class StepLine(msgspec.Struct, frozen=True, omit_defaults=True):
    """s: seconds since the start."""

    s: float
    verify_ms: float
    draft_ms: float
    overhead_ms: float
    requests: tuple[Row, ...]
    proposals: tuple[Proposed, ...] = ()
    prefill_rows: int = 0


class Arrived(msgspec.Struct, frozen=True):
    """prompt: its tokens. Of a request that ran before the recording: when it first decoded, and
    its tokens until then but for one, which stands for the first token of an output."""

    request: int
    prompt: int


class ArrivalLine(msgspec.Struct, frozen=True):
    s: float
    arrived: Arrived


class Done(msgspec.Struct, frozen=True):
    request: int
    output: int


class DoneLine(msgspec.Struct, frozen=True):
    """output: all tokens that it was given, also before the recording."""

    s: float
    finished: Done


def step_line(s: float, outcome: StepOutcome, rows: Sequence[Row]) -> StepLine:
    """s: seconds since the start."""
    proposals = tuple(
        Proposed(one.drafter, one.requests, one.depth, round(one.ms, 4), one.catch_up)
        for one in outcome.proposals
    )
    return StepLine(
        s,
        round(outcome.verify_ms, 4),
        round(outcome.draft_ms, 4),
        round(outcome.overhead_ms, 4),
        tuple(rows),
        proposals,
        outcome.prefill_rows,
    )


def row(one: RequestOutcome, context: int) -> Row:
    """context: the request's tokens before the step."""
    features = one.features
    return Row(
        one.request,
        context,
        one.drafter,
        one.drafted,
        one.accepted,
        one.committed,
        one.cut,
        features.match_length,
        features.source,
        tuple(map(_score, one.shadows)),
        tuple(map(_part, one.parts)),
        _numbers(one.chances),
        None if one.margins is None else _told(one.margins),
    )


def _score(one: ShadowScore) -> Score:
    features = one.features
    return Score(
        one.drafter,
        one.drafted,
        one.accepted,
        features.match_length,
        features.source,
        one.censored,
    )


def _part(one: DraftedPart) -> Part:
    return Part(one.drafter, one.drafted, one.accepted, _numbers(one.chances))


def _told(margins: Margins) -> Told:
    return Told(margins.drafter, margins.sampled, _numbers(margins.values))


def _numbers(values: Sequence[float]) -> tuple[float, ...]:
    """From 0 to MOST_MARGIN; what is no number is 0, as the controller takes it."""
    return tuple([round(min(value, MOST_MARGIN), 4) if value > 0.0 else 0.0 for value in values])
