"""The stage that picks which tokens a drafter may draft, by how often the target writes them."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from engine.build import Target, open_target
from engine.errors import StartError
from engine.training.answers import Answers, read_all
from engine.training.job import Say, Vocabulary, without_drafters
from engine.training.journal import Ids, flat
from engine.vocabulary import VocabularyMap, identity, ranked, restricted

HELD_OUT = 10
"""One text of so many is kept apart to tell how much of unseen text can be drafted."""


def pick_vocabulary(job: Vocabulary, say: Say) -> dict[str, Any]:
    """Write the ids int32 [size], ascending. Raises StartError."""
    target = open_target(without_drafters(job.config), say)
    vocabulary = target.loaded.decoder.shape.vocabulary
    answers = read_all(job.answers, job.prompts, target.text, vocabulary)
    always = special_ids(target)
    found = pick(answers, vocabulary, job.size, always)
    write_ids(Path(job.out), found.to_target.numpy())
    return {
        "out": job.out,
        "size": found.size,
        "special": len(always),
        "distinct": len(ranked(torch.from_numpy(flat(answers.tokens)), vocabulary)),
        "tokens": answers.token_count,
        "coverage": held_out_coverage(answers, vocabulary, job.size, always),
    }


def pick(answers: Answers, vocabulary: int, size: int, always: Iterable[int]) -> VocabularyMap:
    """The map of a drafter that may draft `size` ids: those of `always`, then the most frequent
    ones of the answers, then the lowest."""
    ranking = ranked(torch.from_numpy(flat(answers.tokens)), vocabulary)
    return restricted(identity(vocabulary), size, always, ranking)


def held_out_coverage(answers: Answers, vocabulary: int, size: int, always: Iterable[int]) -> float:
    """Share of the tokens of every HELD_OUT-th prompt's answers that a vocabulary picked from the
    others can draft; of all answers where there are too few to keep some apart."""
    apart = answers.prompt_index % HELD_OUT == HELD_OUT - 1
    seen, unseen = answers.only(~apart), answers.only(apart)
    if not len(seen) or not len(unseen):
        seen = unseen = answers
    counts = torch.bincount(torch.from_numpy(flat(unseen.tokens)).long(), minlength=vocabulary)
    return round(pick(seen, vocabulary, size, always).share(counts), 4)


def special_ids(target: Target) -> list[int]:
    """Ids of the target's special tokens and of those that end its texts, rising."""
    added = target.loaded.tokenizer.backend_tokenizer.get_added_tokens_decoder()
    found = {token for token, one in added.items() if one.special} | set(target.loaded.stop_ids)
    vocabulary = target.loaded.decoder.shape.vocabulary
    return sorted(token for token in found if token < vocabulary)


def write_ids(path: Path, ids: NDArray[np.integer]) -> None:
    """Write target ids as int32, in one go. Raises StartError."""
    scratch = path.with_name(path.name + ".tmp")
    try:
        with scratch.open("wb") as file:
            np.save(file, ids.astype(np.int32))
        os.replace(scratch, path)
    except OSError as error:
        raise StartError(
            "out_not_writable", f"cannot write {path}: {error.strerror or error}."
        ) from error


def read_ids(path: Path, vocabulary: int) -> Ids:
    """Rising target ids int32 [n] as write_ids wrote them. Raises StartError."""
    try:
        ids = np.load(path, allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        raise StartError(
            "draft_ids_broken", f"cannot read token ids from {path}: {error}."
        ) from None
    if (
        ids.ndim != 1
        or ids.dtype.kind not in "iu"
        or not len(ids)
        or (np.diff(ids.astype(np.int64)) <= 0).any()
        or not 0 <= int(ids[0]) <= int(ids[-1]) < vocabulary
    ):
        raise StartError(
            "draft_ids_broken",
            f"{path} does not hold rising token ids of a model that has {vocabulary} of them. "
            "Write it with `paceline train vocabulary`.",
        )
    return ids.astype(np.int32)
