"""Picks answers for the corpus that ships: some of every prompt before more of any."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from engine.errors import StartError

MOST_TOKENS = 900_000
MOST_BYTES = 2 * 1024 * 1024


def pick(
    prompts: NDArray[np.integer], lengths: NDArray[np.integer], most_tokens: int, seed: int
) -> NDArray[np.int64]:
    """Places of the answers to keep, in rising order: whole ones of together at most so many
    tokens. prompts: number of each one's prompt. In every round each prompt gives one answer, in an
    order that the seed decides, and those that do not fit any more are left out."""
    order = np.random.default_rng(seed).permutation(len(prompts))
    rounds = np.zeros(len(prompts), np.int64)
    taken: dict[int, int] = {}
    for place in order.tolist():
        prompt = int(prompts[place])
        rounds[place] = taken.get(prompt, 0)
        taken[prompt] = int(rounds[place]) + 1
    kept, tokens = [], 0
    for place in order[np.argsort(rounds[order], kind="stable")].tolist():
        if tokens + int(lengths[place]) <= most_tokens:
            kept.append(place)
            tokens += int(lengths[place])
    return np.array(sorted(kept), np.int64)


def make_corpus(
    answers: Path, out: Path, most_tokens: int = MOST_TOKENS, seed: int = 0
) -> tuple[int, int]:
    """Write `tokens` and `offsets` of the picked answers as a compressed .npz; how many answers and
    tokens they are. answers: an .npz with prompt_index, tokens and offsets, as `generate` makes it.
    Raises StartError."""
    try:
        with np.load(answers, allow_pickle=False) as arrays:
            prompts, tokens = arrays["prompt_index"], arrays["tokens"]
            offsets = arrays["offsets"].astype(np.int64)
    except (OSError, KeyError, ValueError) as error:
        raise StartError(
            "bad_answers",
            f"{answers} is not a file of answers with prompt_index, tokens and offsets: {error}.",
        ) from error
    places = pick(prompts, np.diff(offsets), most_tokens, seed)
    parts = [tokens[offsets[place] : offsets[place + 1]] for place in places.tolist()]
    ends = np.cumsum([0, *map(len, parts)], dtype=np.uint32)
    kind = np.uint16 if int(tokens.max(initial=0)) < 2**16 else np.uint32
    row = np.concatenate([*parts, np.zeros(0, tokens.dtype)]).astype(kind)
    np.savez_compressed(out, tokens=row, offsets=ends)
    if out.stat().st_size > MOST_BYTES:
        raise StartError(
            "corpus_too_large",
            f"{out} has {out.stat().st_size:,} bytes, above {MOST_BYTES:,}. Take fewer than "
            f"{most_tokens:,} tokens.",
        )
    return len(parts), len(row)
