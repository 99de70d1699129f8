"""Prompts for training: read from JSON lines, and how the chat template frames a user's text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from engine.errors import RequestError, StartError
from engine.text import Text
from engine.wire import Message

_MARK = "paceline0users0text"


class _Line(msgspec.Struct):
    turns: tuple[str, ...] = ()
    text: str = ""
    category: str = ""


@dataclass(frozen=True)
class Prompt:
    """The first turn of a line, and the line's category."""

    text: str
    category: str = ""


def read_prompts(name: str, option: str = "--prompts") -> list[Prompt]:
    """The prompts of a JSON lines file with `turns`, in order. Raises StartError."""
    return [
        Prompt(line.turns[0], line.category)
        for line in _lines(name, option)
        if line.turns and line.turns[0].strip()
    ]


def read_texts(names: Sequence[str], option: str = "--exclude") -> list[str]:
    """Every turn and text of JSON lines files. Raises StartError."""
    return [
        text
        for name in names
        for line in _lines(name, option)
        for text in (*line.turns, line.text)
        if text
    ]


def _lines(name: str, option: str) -> list[_Line]:
    path = Path(name)
    try:
        lines = path.read_text("utf-8").split("\n")  # a text may hold other line separators
    except (OSError, UnicodeDecodeError) as error:
        raise StartError(
            "prompts_unreadable", f"{option} {path}: cannot read it: {error}."
        ) from None
    found: list[_Line] = []
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            found.append(msgspec.json.decode(line, type=_Line))
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise StartError(
                "prompts_broken",
                f"{option} {path}, line {number}: {error}. Give one JSON object a line, "
                'such as {"turns": ["What is a tide?"]}.',
            ) from None
    if not any(line.turns or line.text for line in found):
        raise StartError(
            "prompts_empty",
            f"{option} {path} holds no prompts. Give one JSON object a line, "
            'such as {"turns": ["What is a tide?"]}.',
        )
    return found


@dataclass(frozen=True)
class Frame:
    """What the chat template writes before a user's text, as token ids, and the ids that end the
    user's turn."""

    before: list[int]
    end_ids: frozenset[int]


def frame(text: Text, stop_ids: frozenset[int]) -> Frame:
    """The frame of a single user turn. Raises StartError for a template that has none."""
    try:
        written = text.write((Message("user", _MARK),))
    except RequestError as error:
        raise StartError(
            "template_unusable", f"the target cannot write prompts itself: {error.message}"
        ) from error
    before, mark, after = written.partition(_MARK)
    if not mark or _MARK in after or not before.strip():
        raise StartError(
            "template_unusable",
            "the target cannot write prompts itself: its chat template puts nothing before the "
            "user's text, or changes it. Give --prompts instead of --own-prompts.",
        )
    ends = set(stop_ids)
    following = text.encode(after.lstrip())
    if following and text.decode(following[:1]) == "":  # a special token
        ends.add(following[0])
    if not ends:
        raise StartError(
            "template_unusable",
            "the target cannot write prompts itself: nothing marks the end of a user's turn in "
            "its chat template. Give --prompts instead of --own-prompts.",
        )
    return Frame(text.encode(before), frozenset(ends))
