"""The configuration file of `paceline simulate run`: checked TOML, made into a scenario."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import Annotated, TypeVar

import msgspec
import numpy as np
from msgspec import Meta

from app.failures import Failure
from app.simulate.tables import (
    BurstLoad,
    ClosedLoad,
    DrafterTable,
    MachineTable,
    OpenLoad,
    RampLoad,
    RecordedLoad,
    SettingTable,
    Table,
    TextsTable,
)
from app.simulate.texts import check_drafters, read_texts, recorded
from controller.contract import Setting
from controller.simulate import load
from controller.simulate.arrival_file import Came, read_arrivals
from controller.simulate.drafters import SimulatedDrafter, draft_model, head, lookup
from controller.simulate.fleet import Deal, Scenario
from controller.simulate.machine import Machine
from controller.simulate.machines import HARDWARE, MODELS, Hardware
from controller.simulate.policy import SERVES, Choice, check_named, parse_choice
from controller.simulate.recording import is_recording
from controller.simulate.step_cost import StepCost, roofline
from controller.simulate.texts import Library

T = TypeVar("T")
COSTS = {"lookup": (), "head": ("pass_ms", "rho"), "draft_model": ("model",)}
"""What a drafter's cost is said with, by kind: one of these."""


class Config(Table, frozen=True):
    """The whole file."""

    machine: MachineTable
    drafters: Annotated[tuple[DrafterTable, ...], Meta(min_length=1, max_length=8)]
    texts: Annotated[tuple[TextsTable, ...], Meta(min_length=1, max_length=64)]
    load: ClosedLoad | OpenLoad
    policies: Annotated[tuple[str, ...], Meta(min_length=1, max_length=64)] = (SERVES.label,)
    setting: SettingTable = SettingTable()
    seed: Annotated[int, Meta(ge=0, lt=2**31)] = 0

    @property
    def choices(self) -> list[Choice]:
        """ValueError for a policy, an option or a drafter that there is not."""
        found = [parse_choice(text) for text in self.policies]
        for choice in found:
            check_named(choice, [one.name for one in self.drafters])
        return found

    def scenario(self, folder: Path) -> Scenario:
        """folder: what paths in the file are relative to. ValueError for what does not fit
        together, OSError for a file that cannot be read."""
        machine = _machine(self.machine, self.drafters)
        corpora = {one.name: read_texts(one, folder, self.seed) for one in self.texts}
        if len(corpora) < len(self.texts):
            raise ValueError("texts: each needs a name of its own")
        check_drafters(self.drafters, corpora)
        texts = {name: corpus.texts for name, corpus in corpora.items()}
        phases: tuple[load.Phase, ...] = ()
        deal: Deal | None = None
        if isinstance(self.load, ClosedLoad):
            phases = tuple(load.Phase(p.requests, p.texts, p.tokens) for p in self.load.phases)
            most = max(phase.requests for phase in phases)
            if most > machine.max_batch:
                raise ValueError(
                    f"load.phases: {most} requests, but max_batch is {machine.max_batch}"
                )
            named = [phase.corpus for phase in phases]
        else:
            deal = _deal(self.load, folder, self.machine.replicas)
            named = [self.load.texts]
        for name in named:
            if name not in texts:
                raise ValueError(f"load: texts {name!r} are not one of {', '.join(texts)}")
        return Scenario(
            machine,
            Library(texts, [one.name for one in self.drafters]),
            _setting(self.setting),
            phases,
            deal,
            self.machine.replicas,
            min(self.machine.sample, self.machine.replicas),
            self.seed,
        )


def read_config(path: Path) -> Config:
    """Raises Failure with the field and what it takes for anything that is wrong."""
    try:
        return msgspec.toml.decode(path.read_bytes(), type=Config)
    except OSError as error:
        raise Failure(f"{path}: {error.strerror or error}") from None
    except (msgspec.DecodeError, ValueError) as error:
        raise Failure(f"{path}: {error}") from None
    except RecursionError:
        raise Failure(f"{path}: its values are nested too deeply") from None


def _named(kind: str, name: str, table: dict[str, T]) -> T:
    found = table.get(name)
    if found is None:
        raise ValueError(f"{kind}: {name!r} is not one of {', '.join(table)}")
    return found


def _setting(table: SettingTable) -> Setting:
    if table.mode != "pinned" and not (table.drafter is table.draft_length is None):
        raise ValueError(f"setting: drafter and draft_length are of mode pinned, not {table.mode}")
    return Setting(
        table.mode,
        table.drafter,
        table.draft_length,
        table.max_draft_length,
        max_drafting_requests=table.max_drafting_requests,
        tpot_target_ms=table.tpot_target_ms or None,
        draft_budget=table.draft_budget or None,
    )


def _machine(table: MachineTable, drafters: tuple[DrafterTable, ...]) -> Machine:
    hardware = _named("machine.hardware", table.hardware, HARDWARE)
    model = _named("machine.model", table.model, MODELS)
    cost = roofline(hardware, model, table.devices)
    names = [one.name for one in drafters]
    if len(set(names)) < len(names):
        raise ValueError("drafters: each needs a name of its own")
    overhead = hardware.overhead_ms if table.overhead_ms is None else table.overhead_ms
    return Machine(
        cost=cost,
        drafters=[_drafter(one, cost, hardware, table) for one in drafters],
        overhead_ms=overhead,
        decision_ms=table.decision_ms,
        noise=table.noise,
        row_limit=max(table.row_limit, table.max_batch),
        chunk_rows=table.chunk_rows,
        max_batch=table.max_batch,
        chains=table.chains,
        slowdowns=table.slowdowns,
    )


def _drafter(
    table: DrafterTable, cost: StepCost, hardware: Hardware, machine: MachineTable
) -> SimulatedDrafter:
    given = [name for name in ("pass_ms", "rho", "model") if getattr(table, name) is not None]
    fields = COSTS[table.kind]
    if len(given) > 1 or any(name not in fields for name in given):
        raise ValueError(
            f"drafters.{table.name}: a {table.kind} takes {' or '.join(fields) or 'no cost'}, not "
            f"{' and '.join(given)}"
        )
    if table.kind == "lookup":
        return lookup(table.name)
    plain_ms = cost.step_ms(1, 1, 0)
    if table.kind == "head":
        pass_ms = table.pass_ms or (table.rho or 0.0) * plain_ms
        if not pass_ms:
            raise ValueError(f"drafters.{table.name}: a head needs pass_ms or rho")
        return head(table.name, pass_ms, plain_ms)
    own = _named(f"drafters.{table.name}.model", table.model or "", MODELS)
    return draft_model(table.name, own, MODELS[machine.model], hardware)


@lru_cache(maxsize=4)
def _came(path: Path, seconds: float, speed: float) -> list[Came]:
    """Read once for all policies and replicas."""
    return read_arrivals(path, seconds, speed, load.MOST_ARRIVALS)


def _deal(table: OpenLoad, folder: Path, replicas: int) -> Deal:
    """Arrivals of one replica: of a rate its share, of recorded ones those dealt to it in turn."""

    def read(library: Library, replica: int, rng: np.random.Generator) -> list[load.Arrival]:
        assert isinstance(table, RecordedLoad)
        path = folder / table.arrivals
        if is_recording(path):
            found = load.replayed(
                recorded(path), table.texts, library, seconds=table.seconds, speed=table.speed
            )
        else:
            came = _came(path, table.seconds, table.speed)
            found = load.recorded(came, table.texts, library, rng)
        return load.thin(found, replicas, replica)

    if isinstance(table, RecordedLoad):
        return read
    last = table.last_rate if isinstance(table, RampLoad) else table.rate
    rate, peak = load.ramp(table.rate, last, table.seconds), max(table.rate, last)
    if isinstance(table, BurstLoad):
        rate = load.bursts(table.rate, table.peak, table.every, table.share)
        peak = max(table.rate, table.peak)

    def random(library: Library, replica: int, rng: np.random.Generator) -> list[load.Arrival]:
        times = load.poisson(
            lambda second: rate(second) / replicas, peak / replicas, table.seconds, rng
        )
        return load.arrivals(times, table.texts, library, rng)

    return random
