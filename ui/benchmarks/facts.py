"""What was measured where: the sentences of a recorded benchmark. Pure functions."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from ui.shaping import MISSING, counted, day_and_clock, number

Json = Mapping[str, Any]

ALL = "all"


def began(record: Json) -> str:
    """When it was measured, without the seconds."""
    text = day_and_clock(record.get("began"))
    return text if text == MISSING else text[:-3]


def machine(record: Json) -> str:
    """`2 cores, Intel Xeon, 16 GB, NVIDIA H200`."""
    told: Json = record.get("machine") or {}
    memory = told.get("memory_gb")
    parts = (
        told.get("gpu"),
        told.get("processor"),
        counted(told["cores"], "core") if isinstance(told.get("cores"), int) else None,
        number(memory, 0, " GB") if isinstance(memory, int | float) else None,
    )
    return ", ".join(str(part) for part in parts if part) or MISSING


def versions(record: Json) -> str:
    """What ran: source revision and packages."""
    told: Json = record.get("machine") or {}
    packages = told.get("packages")
    named: Json = packages if isinstance(packages, Mapping) else {}
    parts = [f"{name} {version}" for name, version in named.items() if version]
    if told.get("git"):
        parts.insert(0, f"source {told['git']}")
    return ", ".join(parts) or MISSING


def arms(record: Json) -> list[str]:
    """The arms as they were asked for: modes of our server, other servers, peers."""
    settings: Json = record.get("settings") or {}
    return [
        str(one) for name in ("modes", "arms", "peers") for one in several(settings.get(name) or ())
    ]


def workload(record: Json) -> str:
    """`prompts.jsonl, 40 prompts, 1 and 8 at once, 128 tokens, temperature 0`."""
    settings: Json = record.get("settings") or {}
    parts: list[str] = []
    if settings.get("trace"):
        parts.append(f"trace {settings['trace']}")
    if settings.get("prompts"):
        parts.append(str(settings["prompts"]))
    if isinstance(settings.get("prompts_used"), int):
        parts.append(counted(settings["prompts_used"], "prompt"))
    if settings.get("categories"):
        parts.append(listed(settings["categories"]))
    parts.append(load(settings))
    if settings.get("max_tokens"):
        parts.append(f"up to {counted(settings['max_tokens'], 'token')}")
    if isinstance(settings.get("temperature"), int | float):
        parts.append(f"temperature {settings['temperature']:g}")
    repeat = settings.get("repeat")
    if isinstance(repeat, int) and repeat > 1:
        parts.append(f"{repeat} repeats")
    if settings.get("interrupted"):
        parts.append("interrupted")
    return ", ".join(part for part in parts if part) or MISSING


def load(settings: Json) -> str:
    """How requests came; "" when the settings do not say."""
    if settings.get("phases") or settings.get("phase"):
        return "phases"
    if settings.get("trace"):
        return ""
    if settings.get("rate"):
        return f"{listed(settings['rate'])} requests/s"
    return f"{listed(settings['concurrency'])} at once" if settings.get("concurrency") else ""


def listed(values: Any) -> str:
    """`1, 4 and 16`."""
    texts = [f"{one:g}" if isinstance(one, float) else str(one) for one in several(values)]
    return texts[0] if len(texts) == 1 else f"{', '.join(texts[:-1])} and {texts[-1]}"


def several(values: Any) -> list[Any]:
    """What a list or a mapping's keys are; anything else is one value."""
    return [values] if isinstance(values, str | int | float) else list(values)


def list_row(record: Json) -> dict[str, str]:
    """The columns of a run in the list."""
    return {
        "Measured (UTC)": began(record),
        "Arms": ", ".join(arms(record)) or MISSING,
        "Workload": workload(record),
        "Model": str(record.get("model") or MISSING),
        "Machine": machine(record),
        "Kind": str(record.get("kind") or MISSING),
    }


def title(record: Json) -> str:
    """A run in one line, as lists to choose from have it."""
    return f"{began(record)} · {', '.join(arms(record)) or record.get('kind')} · {workload(record)}"


def differences(one: Json, other: Json) -> list[str]:
    """What makes two runs hard to compare: which of these differ."""
    told = {
        "model": [record.get("model") for record in (one, other)],
        "machine": [machine(record) for record in (one, other)],
        "versions": [versions(record) for record in (one, other)],
        "base": [record.get("base") for record in (one, other)],
        "workload": [workload(record) for record in (one, other)],
    }
    return [f"{name}: {a} and {b}" for name, (a, b) in told.items() if a != b]


def document(record: Json) -> str:
    """The record as JSON that `paceline bench record` reads again."""
    return json.dumps({**record, "time": record.get("began")}, indent=1)


def load_label(row: Json) -> str:
    """`c8`, `2/s`, `rush c16` or `all phases`: what load a row was measured under."""
    concurrency, rate = row.get("concurrency") or 0, row.get("rate") or 0.0
    phase = row.get("phase") or ""
    if phase == ALL:
        return "all phases"
    text = f"{concurrency} at once" if concurrency else f"{rate:.3g} requests/s" if rate else ""
    return ": ".join(part for part in (phase, text) if part) or "one load"


def loads(rows: Sequence[Json]) -> list[str]:
    """The loads in the order of the rows."""
    return list(dict.fromkeys(load_label(row) for row in rows))
