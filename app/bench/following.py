"""What a server says of itself while it is disturbed, and where that comes to rest."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Literal, TypeVar

import httpx
import msgspec

from app.failures import Failure
from app.foreign_json import decode
from app.remote import reason, unlike_ours

ANSWER_S = 60.0
CONTEXT = 256
"""Tokens of context at which the price of a step is asked."""
NEAR = 0.15
NEAR_LENGTH = 0.3
"""Tokens: mean draft lengths closer than this are the same plan."""

T = TypeVar("T")
Stage = Literal["before", "loaded", "after"]


class Point(msgspec.Struct, frozen=True):
    """A second of the server, at_s from the arm's start. predicted_ms: what the live table says
    that a plain step of `batch` requests takes; step_ms: what steps took (median of the second),
    drafts included. draft_length: mean of the requests' steps."""

    arm: str
    stage: Stage
    at_s: float
    predicted_ms: float
    step_ms: float
    batch: float
    tokens_per_s: float
    draft_length: float


class Followed(msgspec.Struct, frozen=True):
    """A stage of an arm. Medians of its last third; table_s and plan_s: seconds from its beginning
    until the predicted milliseconds, and the mean draft length, are where they stay; None when they
    do not come to rest."""

    arm: str
    stage: Stage
    predicted_ms: float
    step_ms: float
    draft_length: float
    tokens_per_s: float
    table_s: float | None
    plan_s: float | None


class Live(msgspec.Struct, frozen=True):
    """The server's last second; None where nothing was decoded."""

    step_ms_p50: float | None
    batch_mean: float | None
    tokens_per_s: float | None
    draft_length_mean: float | None


class State(msgspec.Struct, frozen=True):
    """Of /api/state, what is needed here."""

    live: Live | None


class Candidate(msgspec.Struct, frozen=True):
    draft_length: float
    predicted_ms: float


class WhatIf(msgspec.Struct, frozen=True):
    """Of /api/what-if, what is needed here."""

    candidates: list[Candidate]

    @property
    def plain_ms(self) -> float | None:
        """The price of a step without drafts."""
        return next((one.predicted_ms for one in self.candidates if not one.draft_length), None)


async def look(client: httpx.AsyncClient, arm: str, stage: Stage, at_s: float) -> Point | None:
    """The server's last second beside what its table says; None while nothing decodes. Raises
    Failure when the key may not look, and when the server does not answer, or not like ours."""
    live = (await got(client, "/api/state", State)).live
    if live is None or not live.step_ms_p50 or (live.batch_mean or 0.0) < 0.5:
        return None
    batch_mean = live.batch_mean or 0.0
    where = f"/api/what-if?batch_size={round(batch_mean)}&context_len={CONTEXT}"
    plain_ms = (await got(client, where, WhatIf)).plain_ms
    if plain_ms is None:
        raise unlike_ours(f"{client.base_url}{where}")
    return Point(
        arm=arm,
        stage=stage,
        at_s=round(at_s, 2),
        predicted_ms=plain_ms,
        step_ms=live.step_ms_p50,
        batch=batch_mean,
        tokens_per_s=live.tokens_per_s or 0.0,
        draft_length=live.draft_length_mean or 0.0,
    )


async def got(client: httpx.AsyncClient, path: str, kind: type[T]) -> T:
    try:
        answer = await client.get(path, timeout=ANSWER_S)
        if answer.status_code == 200:
            return decode(answer.content, kind)
        why = f"answers HTTP {answer.status_code}: {reason(answer)}"
    except httpx.HTTPError as error:
        why = f"is not answered any more: {type(error).__name__}: {error}"
    except msgspec.MsgspecError:
        raise unlike_ours(f"{client.base_url}{path}") from None
    raise Failure(f"{path} {why}")


def followed(points: Sequence[Point]) -> list[Followed]:
    """What each stage of each arm came to, in order. The first stage's beginning is the start."""
    found: list[Followed] = []
    places: list[tuple[str, Stage]] = [(point.arm, point.stage) for point in points]
    for arm, stage in dict.fromkeys(places):
        mine = [one for one in points if (one.arm, one.stage) == (arm, stage)]
        before = [one for one in points if one.arm == arm and one.at_s < mine[0].at_s]
        begin = before[-1].at_s if before else 0.0
        last = mine[-max(1, len(mine) // 3) :]
        table = statistics.median(one.predicted_ms for one in last)
        length = statistics.median(one.draft_length for one in last)
        found.append(
            Followed(
                arm=arm,
                stage=stage,
                predicted_ms=round(table, 3),
                step_ms=round(statistics.median(one.step_ms for one in last), 3),
                draft_length=round(length, 3),
                tokens_per_s=round(statistics.median(one.tokens_per_s for one in last), 2),
                table_s=rests(
                    [(p.at_s - begin, p.predicted_ms) for p in mine], table, NEAR * table
                ),
                plan_s=rests(
                    [(p.at_s - begin, p.draft_length) for p in mine],
                    length,
                    max(NEAR_LENGTH, NEAR * length),
                ),
            )
        )
    return found


def rests(values: Sequence[tuple[float, float]], goal: float, band: float) -> float | None:
    """The time of the first of (time, value) from which on all but one in ten are within `band` of
    the goal; None when there is no such before the last third."""
    inside = [abs(value - goal) <= band for _, value in values]
    for place, (at, _) in enumerate(values[: max(1, 2 * len(values) // 3)]):
        rest = inside[place:]
        if inside[place] and sum(rest) >= 0.9 * len(rest):
            return round(at, 2)
    return None
