"""Prompts for a benchmark: chosen evenly over their categories and cut into chunks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import zip_longest
from pathlib import Path

import msgspec

from app.bench import adversarial
from app.bench.workloads import Prompt, read_workload
from app.failures import SettingsError

MIXED = "mixed"


def read_prompts(
    name: str | Path | None,
    limit: int | None = None,
    categories: Sequence[str] = (),
    pool_below: int = 0,
) -> list[Prompt]:
    """The prompts of a file, or those that ship by their name (`adversarial`): at most `limit`,
    taken from the categories in turn so that each is there. Categories with fewer than `pool_below`
    prompts count as one, MIXED. Raises SettingsError on a missing file, a broken line or an unknown
    category."""
    if not name:
        raise SettingsError("--prompts is missing: give a file of prompts, see --help.")
    ships = str(name) == adversarial.NAME
    prompts = adversarial.adversarial() if ships else read_workload(Path(name))
    found = in_turn(prompts, categories, f"--prompts {name}")
    if pool_below:
        found = in_turn(pooled(found, pool_below), (), f"--prompts {name}")
    return found[:limit]


def pooled(prompts: Sequence[Prompt], least: int) -> list[Prompt]:
    """The prompts, those of categories with fewer than `least` as MIXED."""
    counts = Counter(prompt.category for prompt in prompts)
    return [
        msgspec.structs.replace(prompt, category=MIXED)
        if counts[prompt.category] < least
        else prompt
        for prompt in prompts
    ]


def in_turn(prompts: Sequence[Prompt], categories: Sequence[str], where: str) -> list[Prompt]:
    """The prompts of these categories (none named: of all), one of each category after the other.
    Raises SettingsError, which begins with `where`, when a category has none."""
    groups: dict[str, list[Prompt]] = {}
    for prompt in prompts:
        groups.setdefault(prompt.category, []).append(prompt)
    unknown = set(categories) - set(groups)
    if unknown or not groups:
        raise SettingsError(
            f"{where}: no prompts of category {', '.join(sorted(unknown)) or 'any'}; "
            f"there are {', '.join(sorted(groups)) or 'none at all'}."
        )
    chosen = [groups[name] for name in (categories or groups)]
    return [prompt for row in zip_longest(*chosen) for prompt in row if prompt is not None]


def chunks(prompts: Sequence[Prompt], size: int, concurrency: int) -> list[list[Prompt]]:
    """Chunks of at most `size` prompts, as equal in size as can be, each of one category. What
    is left of categories with fewer than 2 * concurrency prompts is pooled, since a chunk that
    short would not keep `concurrency` requests running."""
    groups: dict[str, list[Prompt]] = {}
    for prompt in prompts:
        groups.setdefault(prompt.category, []).append(prompt)
    if concurrency > 1:
        small = [name for name, group in groups.items() if len(group) < 2 * concurrency]
        pooled = [prompt for prompt in prompts if prompt.category in small]
        groups = {name: group for name, group in groups.items() if name not in small}
        if pooled:
            groups[MIXED] = pooled
    result = []
    for group in groups.values():
        count = -(-len(group) // size)
        result += [group[part::count] for part in range(count)]
    return result


def category(chunk: Sequence[Prompt]) -> str:
    """The category of a chunk's prompts, or MIXED."""
    names = {prompt.category for prompt in chunk}
    return names.pop() if len(names) == 1 else MIXED
