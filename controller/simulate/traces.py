"""Reads acceptance traces: for each output position what one step started there emitted.

JSON lines with `prompt_token_ids`, `generated_token_ids` and `acc_<drafter>: {"acc_len": [...]}`,
tokens emitted by a step with the drafter (1: nothing accepted), as SpecDecode-Bench publishes them.
The n-gram drafter of these traces looks up at least 3 tokens: where it finds a match, how long and
where it lies follows from the token ids, as a serving engine would know it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from controller.simulate.json_lines import first_object, objects
from controller.simulate.texts import LONGEST, Numbers, Text

NGRAM, EAGLE = "ngram", "eagle"
HEAD = "acc_"
"""Of the field that a drafter's acceptance is in."""
LOOKED_UP = 3
"""Shortest n-gram that the traces' drafter looks up; longer ones are found by comparing on."""
MATCH_CAP = 32


def read_traces(path: Path) -> list[Text]:
    """The file's texts. Those whose lists are not as long as their output are left out, because
    which position an entry belongs to is not known. ValueError with file and line for anything
    that is not such a trace."""
    texts: list[Text] = []
    for number, record in objects(path):
        try:
            text = _text(record)
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise ValueError(f"{path.name}, line {number}: no acceptance trace: {error}") from None
        if text is not None:
            texts.append(text)
    if not texts:
        raise ValueError(f"{path.name}: no text has an entry for every output position")
    return texts


def _text(record: dict[str, Any]) -> Text | None:
    """None for a text with a list that is not aligned."""
    prompt, output = (_list(record[key]) for key in ("prompt_token_ids", "generated_token_ids"))
    accepted: dict[str, Numbers] = {}
    for key, found in record.items():
        if key.startswith(HEAD):
            emitted = _list(found["acc_len"])
            if len(emitted) != len(output):
                return None
            if not all(type(one) is int and 1 <= one <= LONGEST + 1 for one in emitted):
                raise ValueError(f"{key}: a step emits 1 to {LONGEST + 1} tokens")
            accepted[key.removeprefix(HEAD)] = np.array(emitted, np.int64) - 1
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


def _list(value: object) -> list[Any]:
    if not isinstance(value, list):
        raise ValueError(f"{str(value)[:40]} is no list")
    return value


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


def traced_drafters(path: Path) -> tuple[str, ...]:
    """Of an acceptance trace, by its first text; none of a file that is no trace."""
    first = first_object(path)
    if not {"prompt_token_ids", "generated_token_ids"} <= first.keys():
        return ()
    return tuple(key.removeprefix(HEAD) for key in first if key.startswith(HEAD))
