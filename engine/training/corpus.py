"""Picks answers for the corpus that ships: some of every prompt before more of any."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from engine.errors import StartError
from engine.training.answers import broken, cut, read_arrays, write_arrays
from engine.training.journal import flat, offsets_of

MOST_TOKENS = 900_000
MOST_VOCABULARY = 1 << 31
"""Ids are stored in 32 bits."""


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
    arrays = read_arrays(answers)
    try:
        prompts = arrays["prompt_index"].astype(np.int64)
        texts = cut(answers, arrays["tokens"], arrays["offsets"].astype(np.int64), MOST_VOCABULARY)
    except KeyError as error:
        raise broken(answers, f"it lacks the array {error}") from None
    except (ValueError, TypeError) as error:
        raise broken(answers, str(error)) from None
    if prompts.shape != (len(texts),):
        raise broken(answers, "prompt_index and offsets differ in length")
    lengths = np.array([len(text) for text in texts], np.int64)
    kept = [texts[place] for place in pick(prompts, lengths, most_tokens, seed).tolist()]
    row = flat(kept)
    kind = np.uint16 if int(row.max(initial=0)) < 2**16 else np.uint32
    ends = offsets_of(kept).astype(np.uint32)
    try:
        write_arrays(out, {"tokens": row.astype(kind), "offsets": ends})
    except OSError as error:
        raise StartError(
            "out_not_writable", f"cannot write {out}: {error.strerror or error}."
        ) from error
    return len(kept), len(row)
