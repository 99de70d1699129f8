"""The tables of a `paceline simulate run` configuration: their fields and bounds."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from controller.contract import (
    MAX_DRAFT_BUDGET,
    MAX_SCHEDULE_REQUESTS,
    MAX_TPOT_TARGET_MS,
    Mode,
)
from controller.simulate.texts import LONGEST

Name = Annotated[str, Meta(min_length=1, max_length=64)]
Size = Annotated[int, Meta(ge=1, le=1_000_000)]
Seconds = Annotated[float, Meta(gt=0.0, le=1e7)]
Rate = Annotated[float, Meta(gt=0.0, le=1e7)]
Chance = Annotated[float, Meta(ge=0.0, le=1.0)]
Ms = Annotated[float, Meta(ge=0.0, le=1e6)]


class Table(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """A table of the file; what it does not know is an error."""


class MachineTable(Table, frozen=True):
    hardware: Name
    model: Name
    devices: Annotated[int, Meta(ge=1, le=4096)] = 1
    replicas: Size = 1
    sample: Annotated[int, Meta(ge=1, le=64)] = 1
    max_batch: Annotated[int, Meta(ge=1, le=4096)] = 256
    row_limit: Annotated[int, Meta(ge=1, le=65536)] = 512
    chunk_rows: Annotated[int, Meta(ge=1, le=65536)] = 2048
    noise: Annotated[float, Meta(ge=0.0, le=0.5)] = 0.01
    overhead_ms: Ms | None = None
    decision_ms: tuple[Ms, Ms] = (0.0, 0.0)
    chains: bool = True
    slowdowns: tuple[tuple[Seconds, Annotated[float, Meta(ge=0.1, le=100.0)]], ...] = ()


class DrafterTable(Table, frozen=True):
    name: Name
    kind: Literal["lookup", "head", "draft_model"]
    pass_ms: Ms | None = None
    rho: Annotated[float, Meta(gt=0.0, le=10.0)] | None = None
    model: Name | None = None


class RatesTable(Table, frozen=True):
    hot: tuple[Chance, ...]
    cold: tuple[Chance, ...]
    heat: Chance = 0.5
    keep: Annotated[float, Meta(ge=1.0, le=1e6)] = 20.0
    match: Chance | None = None


class BreakTable(Table, frozen=True):
    at: Size
    drafters: dict[Name, RatesTable]


class TextsTable(Table, frozen=True):
    name: Name
    trace: str | None = None
    recording: str | None = None
    synthetic: Name | Annotated[tuple[Name, ...], Meta(min_length=1, max_length=64)] | None = None
    drafters: dict[Name, RatesTable] = {}
    breaks: tuple[BreakTable, ...] = ()
    prompt: Size | None = None
    output: Size | None = None
    count: Annotated[int, Meta(ge=1, le=10_000)] | None = None


class PhaseTable(Table, frozen=True):
    requests: Annotated[int, Meta(ge=1, le=4096)]
    texts: Name
    tokens: Size


class ClosedLoad(Table, frozen=True, tag_field="kind", tag="closed"):
    phases: Annotated[tuple[PhaseTable, ...], Meta(min_length=1, max_length=1000)]


class PoissonLoad(Table, frozen=True, tag_field="kind", tag="poisson"):
    texts: Name
    seconds: Seconds
    rate: Rate


class BurstLoad(Table, frozen=True, tag_field="kind", tag="bursts"):
    texts: Name
    seconds: Seconds
    rate: Rate
    peak: Rate
    every: Seconds
    share: Chance = 0.2


class RampLoad(Table, frozen=True, tag_field="kind", tag="ramp"):
    texts: Name
    seconds: Seconds
    rate: Rate
    last_rate: Rate


class RecordedLoad(Table, frozen=True, tag_field="kind", tag="recorded"):
    texts: Name
    arrivals: str
    seconds: Seconds = 60.0
    speed: Annotated[float, Meta(gt=0.0, le=1e4)] = 1.0


OpenLoad = PoissonLoad | BurstLoad | RampLoad | RecordedLoad


class SettingTable(Table, frozen=True):
    mode: Mode = "auto"
    drafter: Name | None = None
    draft_length: Annotated[int, Meta(ge=0, le=LONGEST)] | None = None
    max_draft_length: Annotated[int, Meta(ge=0, le=LONGEST)] = 16
    max_drafting_requests: Annotated[int, Meta(ge=0, le=MAX_SCHEDULE_REQUESTS)] | None = None
    tpot_target_ms: Annotated[float, Meta(ge=0.0, le=MAX_TPOT_TARGET_MS)] | None = None
    draft_budget: Annotated[int, Meta(ge=0, le=MAX_DRAFT_BUDGET)] | None = None
