"""Reads acceptance traces: for each output position what one step started there emitted.

JSON lines with `prompt_token_ids`, `generated_token_ids` and `acc_<drafter>: {"acc_len": [...]}`,
tokens emitted by a step with the drafter (1: nothing accepted), as SpecDecode-Bench publishes them.
The n-gram drafter of these traces looks up at least 3 tokens: where it finds a match, how long and
where it lies follows from the token ids, as a serving engine would know it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from controller.simulate.texts import LONGEST, Numbers, Text

NGRAM, EAGLE = "ngram", "eagle"
LOOKED_UP = 3
"""Shortest n-gram that the traces' drafter looks up; longer ones are found by comparing on."""
MATCH_CAP = 32
MOST_LINE_BYTES = 16_000_000


def read_traces(path: Path) -> list[Text]:
    """The file's texts. Those whose lists are not as long as their output are left out, because
    which position an entry belongs to is not known. ValueError with file and line for anything
    that is not such a trace."""
    texts: list[Text] = []
    with path.open(encoding="utf-8") as lines:
        for number, line in enumerate(lines, 1):
            if not line.strip():
                continue
            if len(line) > MOST_LINE_BYTES:
                raise ValueError(f"{path.name}, line {number}: it is longer than 16 MB")
            try:
                text = _text(json.loads(line))
            except (ValueError, KeyError, TypeError, AttributeError) as error:
                raise ValueError(
                    f"{path.name}, line {number}: no acceptance trace: {error}"
                ) from None
            if text is not None:
                texts.append(text)
    if not texts:
        raise ValueError(f"{path.name}: no text has an entry for every output position")
    return texts


def _text(record: dict[str, Any]) -> Text | None:
    """None for a text with a list that is not aligned."""
    prompt, output = record["prompt_token_ids"], record["generated_token_ids"]
    accepted: dict[str, Numbers] = {}
    for key, found in record.items():
        if key.startswith("acc_"):
            emitted = np.array(found["acc_len"], np.int64)
            if len(emitted) != len(output):
                return None
            if emitted.size and (emitted.min() < 1 or emitted.max() > LONGEST + 1):
                raise ValueError(f"{key}: a step emits 1 to {LONGEST + 1} tokens")
            accepted[key.removeprefix("acc_")] = emitted - 1
    if not accepted or not output:
        return None
    match: dict[str, Numbers] = {}
    source: dict[str, Numbers] = {}
    if NGRAM in accepted:
        match[NGRAM], source[NGRAM] = matches(prompt, output)
        # What was accepted was drafted, whatever the tie-break of the index that drafted it.
        missed = (match[NGRAM] == 0) & (accepted[NGRAM] > 0)
        match[NGRAM][missed], source[NGRAM][missed] = LOOKED_UP, 1
    return Text(len(prompt), len(output), accepted, match, source)


def matches(prompt: Sequence[int], output: Sequence[int]) -> tuple[Numbers, Numbers]:
    """By output position: length of the latest match of the text's end, capped at 32 (0: fewer
    than 3 tokens), and 1 where it lies in the prompt, 2 in the output."""
    tokens = [*prompt, *output]
    begin = len(prompt)
    found = np.zeros((2, len(output)), np.int64)
    latest: dict[tuple[int, ...], int] = {}
    for end in range(LOOKED_UP, len(tokens)):
        key = tuple(tokens[end - LOOKED_UP : end])
        if end >= begin:
            start = latest.get(key, 0)
            if start:
                length, most = LOOKED_UP, min(MATCH_CAP, start)
                while length < most and tokens[start - length - 1] == tokens[end - length - 1]:
                    length += 1
                found[:, end - begin] = length, 1 if start < begin else 2
        latest[key] = end
    return found[0], found[1]


def is_trace(path: Path) -> bool:
    """Whether the file begins like an acceptance trace."""
    try:
        with path.open(encoding="utf-8") as lines:
            first = json.loads(lines.readline(MOST_LINE_BYTES))
    except (OSError, ValueError):
        return False
    return (
        isinstance(first, dict)
        and {"prompt_token_ids", "generated_token_ids"} <= first.keys()
        and any(key.startswith("acc_") for key in first)
    )
