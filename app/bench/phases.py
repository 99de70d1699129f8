"""Phases of a benchmark: load and content that move while the server runs, from TOML or options."""

from __future__ import annotations

import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from app.bench.prompts import in_turn
from app.bench.workloads import Prompt
from app.failures import SettingsError

MOST_PHASES = 200


class Phase(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`requests` prompts of `categories` (none named: of all), `concurrency` at once, or arriving
    at `rate` a second (Poisson). temperature and max_tokens: instead of the run's."""

    name: Annotated[str, Meta(min_length=1, max_length=48)]
    requests: Annotated[int, Meta(ge=1, le=100_000)]
    categories: tuple[str, ...] = ()
    concurrency: Annotated[int, Meta(ge=1, le=4096)] = 1
    rate: Annotated[float, Meta(gt=0, le=10_000)] | None = None
    temperature: Annotated[float, Meta(ge=0, le=2)] | None = None
    max_tokens: Annotated[int, Meta(ge=1, le=1 << 20)] | None = None


class Script(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A TOML file of `[[phase]]` tables."""

    phase: Annotated[tuple[Phase, ...], Meta(min_length=1, max_length=MOST_PHASES)]


def read_phases(file: str | None, given: Sequence[str]) -> list[Phase]:
    """The phases of `--phases FILE`, then those of each `--phase`. Raises SettingsError."""
    found = [*(read_script(Path(file)) if file else ()), *(parse_phase(text) for text in given)]
    names = [phase.name for phase in found]
    twice = {name for name in names if names.count(name) > 1}
    if twice:
        raise SettingsError(f"Two phases are called {', '.join(sorted(twice))}: name them apart.")
    return found


def read_script(path: Path) -> tuple[Phase, ...]:
    try:
        return msgspec.convert(tomllib.loads(path.read_text("utf-8")), Script).phase
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise SettingsError(f"--phases {path}: cannot read it: {error}") from None
    except RecursionError:
        raise SettingsError(f"--phases {path}: its values are nested too deeply.") from None
    except msgspec.ValidationError as error:
        raise SettingsError(f"--phases {path}: {error}") from None


def parse_phase(text: str) -> Phase:
    """`name=chat,requests=20,categories=writing+qa,concurrency=8`. Raises SettingsError."""
    fields: dict[str, Any] = {}
    for part in text.split(","):
        name, equals, value = part.partition("=")
        if not equals or name.strip() in fields:
            raise SettingsError(f"--phase {text!r}: {part!r} is not FIELD=VALUE, once for a field")
        fields[name.strip()] = value.strip()
    if "categories" in fields:
        fields["categories"] = tuple(fields["categories"].split("+"))
    try:
        return msgspec.convert(fields, Phase, strict=False)
    except msgspec.ValidationError as error:
        raise SettingsError(f"--phase {text!r}: {error}") from None


def prompts_of(phases: Sequence[Phase], prompts: Sequence[Prompt]) -> list[list[Prompt]]:
    """The prompts of each phase. Phases of the same categories go on where the one before ended;
    after the last prompt the first comes again. Raises SettingsError on an unknown category."""
    used: dict[frozenset[str], int] = {}
    found: list[list[Prompt]] = []
    for phase in phases:
        pool = in_turn(prompts, phase.categories, f"Phase {phase.name}")
        key = frozenset(phase.categories)
        begin = used.get(key, 0)
        used[key] = begin + phase.requests
        found.append([pool[(begin + n) % len(pool)] for n in range(phase.requests)])
    return found
