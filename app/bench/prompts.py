"""Prompts from a JSON lines file in the Spec-Bench format, chosen evenly and cut into chunks."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import zip_longest
from pathlib import Path

import msgspec

from app.failures import SettingsError


class Prompt(msgspec.Struct, frozen=True):
    """One line. Only the first turn is used."""

    question_id: int | str
    category: str
    turns: tuple[str, ...]

    @property
    def text(self) -> str:
        return self.turns[0]


def read_prompts(
    name: str | Path | None, limit: int | None = None, categories: Sequence[str] = ()
) -> list[Prompt]:
    """The prompts of a file, at most `limit`, taken from the categories in turn so that each is
    there. Raises SettingsError on a missing file, a broken line or an unknown category."""
    if not name:
        raise SettingsError("--prompts is missing: give a JSON lines file, see --help.")
    path = Path(name)
    try:
        lines = path.read_text("utf-8").split("\n")  # a text may hold other line separators
    except (OSError, UnicodeDecodeError) as error:
        raise SettingsError(f"--prompts {path}: cannot read it: {error}") from None
    groups: dict[str, list[Prompt]] = {}
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            prompt = msgspec.json.decode(line, type=Prompt)
        except msgspec.MsgspecError as error:
            raise SettingsError(f"--prompts {path}, line {number}: {error}") from None
        if prompt.turns:
            groups.setdefault(prompt.category, []).append(prompt)
    unknown = set(categories) - set(groups)
    if unknown or not groups:
        raise SettingsError(
            f"--prompts {path}: no prompts of category {', '.join(sorted(unknown)) or 'any'}; "
            f"there are {', '.join(sorted(groups)) or 'none at all'}."
        )
    chosen = [groups[name] for name in (categories or groups)]
    in_turn = [prompt for row in zip_longest(*chosen) for prompt in row if prompt is not None]
    return in_turn[:limit]


MIXED = "mixed"


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
