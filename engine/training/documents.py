"""Prompts made of documents: a passage and what is asked about it."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path
from random import Random

from engine.errors import StartError
from engine.training.overlap import words_of
from engine.training.prompts import read_texts
from engine.training.seeds import seed_of
from engine.training.undisturbed import undisturbed

PLACE = "{text}"
SENTENCE = re.compile(r"(?<=[.!?])\s+")


def passages(document: str, low: int, high: int, random: Random) -> list[str]:
    """Whole sentences of the document in a row, of low to high words each; how many `random` says,
    so that there are short and long ones. A sentence of more than `high` words, and what is left
    around it and at the end with fewer than `low`, is left out."""
    found: list[str] = []
    taken: list[str] = []
    wanted = random.randint(low, high)

    def end() -> None:
        nonlocal wanted
        passage = " ".join(taken)
        if len(passage.split()) >= low:
            found.append(passage)
            wanted = random.randint(low, high)
        taken.clear()

    words = 0
    for sentence in SENTENCE.split(document.strip()):
        more = len(sentence.split())
        if words + more > high:
            end()
            words = 0
        if more <= high:
            taken.append(sentence)
            words += more
        if words >= wanted:
            end()
            words = 0
    end()
    return found


def prompts_of(
    documents: Sequence[str], asks: Sequence[str], low: int, high: int, most: int, seed: int
) -> list[str]:
    """At most so many prompts, each one of the asks with a passage in the place of {text}. One
    passage of every document is used before a second of any, none twice; the order is random."""
    rounds: list[tuple[int, float, str]] = []
    seen: set[tuple[str, ...]] = set()
    for document in documents:
        random = Random(seed_of(seed, "document", document))  # a copy is cut alike
        found = passages(document, low, high, random)
        random.shuffle(found)
        for turn, passage in enumerate(found):
            words = words_of(passage)
            if words not in seen:
                seen.add(words)
                rounds.append((turn, random.random(), passage))
    rounds.sort()
    random = Random(seed_of(seed, "asks"))
    kept = [passage for _, _, passage in rounds[:most]]
    random.shuffle(kept)
    return [random.choice(asks).replace(PLACE, passage) for passage in kept]


def make_prompts(
    documents: Sequence[str],
    out: Path,
    asks: Sequence[str],
    words: tuple[int, int],
    most: int,
    category: str,
    seed: int,
) -> tuple[int, int]:
    """Write JSON lines with `turns` and `category`; how many documents there were and how many
    prompts were made. documents: JSON lines files with `text` or `turns`, every one of which is a
    document. Raises StartError."""
    low, high = words
    if low > high:
        raise StartError("words_wrong", f"--words {low}:{high}: the first is above the second.")
    for ask in asks:
        if PLACE not in ask:
            raise StartError("ask_wrong", f"--ask {ask!r}: {PLACE} stands nowhere in it.")
    texts = read_texts(documents, "the file")
    prompts = prompts_of(texts, asks, low, high, most, seed)
    if not prompts:
        raise StartError(
            "prompts_empty",
            f"none of the {len(texts):,} documents holds a passage of {low:,} to {high:,} words in "
            "whole sentences. Give other --words.",
        )
    lines = (
        json.dumps({"category": category, "turns": [prompt]}, ensure_ascii=False) + "\n"
        for prompt in prompts
    )
    scratch = out.with_name(out.name + ".tmp")
    try:
        with undisturbed():
            scratch.write_text("".join(lines), "utf-8", newline="")
            scratch.replace(out)
    except OSError as error:
        raise StartError(
            "out_not_writable", f"cannot write {out}: {error.strerror or error}."
        ) from error
    return len(texts), len(prompts)
