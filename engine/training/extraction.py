"""The stage that writes what the target sees in its own answers to shards."""

from __future__ import annotations

import shutil
from array import array
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from engine.build import open_target
from engine.errors import StartError
from engine.host_memory import size_text
from engine.training.answers import Answers, read_all
from engine.training.extract import TOP, extract
from engine.training.job import Extract, Say, without_drafters
from engine.training.shards import PATTERN

SPARE_BYTES = 256 << 20
"""Disk space that is left free."""


def extraction(job: Extract, say: Say) -> dict[str, Any]:
    """Write the shards that are not there yet. Raises StartError."""
    target = open_target(without_drafters(job.config), say)
    shape = target.loaded.decoder.shape
    answers = read_all(job.answers, job.prompts, target.text, shape.vocabulary)
    taps = job.taps or default_taps(shape.layers)
    check_taps(taps, shape.layers)
    texts = choose(answers, job.most_tokens, job.seed, shape.context_length)
    folder = Path(job.out)
    tokens = sum(len(text) for text, _ in texts)
    taught = sum(len(text) - answer for text, answer in texts)
    check_space(folder, shard_bytes(tokens, taught, len(taps), shape.hidden))
    shards = extract(
        target,
        texts,
        taps,
        folder,
        target.text.fingerprint(),
        lambda done, whole: say("extract", done / max(whole, 1), f"{done:,} of {whole:,} tokens"),
    )
    return {
        "out": job.out,
        "shards": shards,
        "texts": len(texts),
        "tokens": tokens,
        "left_out": len(answers) - len(texts),
        "answer_tokens": taught,
        "taps": list(taps),
    }


def choose(
    answers: Answers, most_tokens: int, seed: int, context_length: int
) -> list[tuple[array[int], int]]:
    """Texts and where their answers begin, in an order that the seed decides: all that the target
    can take in, or of these the first that have most_tokens tokens. Raises StartError for none."""
    found: list[tuple[array[int], int]] = []
    room = most_tokens or sum(map(len, answers.tokens)) + len(answers) * context_length
    for place in np.random.default_rng(seed).permutation(len(answers)).tolist():
        text, answer = answers.text(place)
        if 0 < answer < len(text) <= context_length:
            room -= len(text)
            if room < 0:
                break
            found.append((array("i", text.tobytes()), answer))
    if not found:
        raise StartError(
            "training_data_missing",
            "the answers hold no text that can be used: all are empty or longer than the model's "
            f"{context_length} tokens of context, or --most-tokens is too small.",
        )
    return found


def default_taps(layers: int) -> tuple[int, ...]:
    """The middle layer, the last one, whose input a head's training starts with, and what follows
    the last norm."""
    return tuple(sorted({layers // 2, layers - 1, layers}))


def check_taps(taps: Sequence[int], layers: int) -> None:
    """Raise StartError unless they rise from 0 to the number of layers."""
    if list(taps) != sorted(set(taps)) or not 0 <= taps[0] <= taps[-1] <= layers:
        raise StartError(
            "bad_taps",
            f"--taps {','.join(map(str, taps))}: give rising numbers from 0 to {layers}, which "
            f"stands for what follows the last norm; {','.join(map(str, default_taps(layers)))} "
            "for instance.",
        )


def shard_bytes(tokens: int, taught: int, taps: int, hidden: int) -> int:
    """Bytes of shards with so many tokens, of which so many are of answers: int32 ids and bfloat16
    features for each, ids and float16 log probabilities of the TOP likeliest for those."""
    return tokens * (4 + 2 * taps * hidden) + taught * TOP * (4 + 2)


def check_space(folder: Path, needed: int) -> None:
    """Raise StartError when the disk has no room for what is still to be written."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        have = sum(path.stat().st_size for path in folder.glob(PATTERN))
        free = shutil.disk_usage(folder).free
    except OSError as error:
        raise StartError(
            "out_not_writable", f"cannot write to {folder}: {error.strerror or error}."
        ) from error
    if needed - have > free - SPARE_BYTES:
        raise StartError(
            "disk_full",
            f"the shards take {size_text(needed)}, and {size_text(free)} are free in {folder}. "
            "Extract fewer with --most-tokens, or fewer --taps, or give another folder.",
        )
