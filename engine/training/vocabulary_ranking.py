"""The stage that picks which tokens a drafter may draft, by how often the target writes them."""

from __future__ import annotations

import os
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from platformdirs import user_cache_path

from engine.errors import StartError
from engine.loading import Words, load_words
from engine.locate import find_model
from engine.text import Text
from engine.training.answers import Answers, read_all
from engine.training.job import Say, Vocabulary
from engine.training.journal import UNREADABLE, Ids, flat
from engine.training.undisturbed import undisturbed
from engine.vocabulary import VocabularyMap, identity, ranked, restricted

HELD_OUT = 10
"""One text of so many is kept apart to tell how much of unseen text can be drafted."""


def pick_vocabulary(job: Vocabulary, say: Say) -> dict[str, Any]:
    """Write the ids int32 [size], ascending. Raises StartError."""
    cache_dir = Path(job.config.cache_dir or user_cache_path("paceline"))
    folder = find_model(job.config.model, cache_dir, lambda done, text: say("model", done, text))
    say("vocabulary", 0.0, "reading the tokenizer")
    words = load_words(folder)
    vocabulary = words.vocabulary
    say("vocabulary", 0.3, "reading the answers")
    answers = read_all(job.answers, job.prompts, Text(words.tokenizer), vocabulary)
    say("vocabulary", 0.8, "counting")
    always = special_ids(words)
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


def special_ids(words: Words) -> list[int]:
    """Ids of the target's special tokens and of those that end its texts, rising."""
    added = words.tokenizer.backend_tokenizer.get_added_tokens_decoder()
    found = {token for token, one in added.items() if one.special} | words.stop_ids
    return sorted(token for token in found if token < words.vocabulary)


def write_ids(path: Path, ids: NDArray[np.integer]) -> None:
    """Write target ids as int32, in one go. Raises StartError."""
    scratch = path.with_name(path.name + ".tmp")
    try:
        with undisturbed():
            with scratch.open("wb") as file:
                np.save(file, ids.astype(np.int32))
            os.replace(scratch, path)
    except OSError as error:
        with suppress(OSError):
            scratch.unlink()
        raise StartError(
            "out_not_writable", f"cannot write {path}: {error.strerror or error}."
        ) from error


def read_ids(path: Path, vocabulary: int) -> Ids:
    """Rising target ids int32 [n] as write_ids wrote them. Raises StartError."""
    try:
        with path.open("rb") as file:
            ids = np.lib.format.read_array(file, allow_pickle=False)
    except UNREADABLE as error:
        raise StartError(
            "draft_ids_broken",
            f"cannot read token ids from {path}: {error}. Write it with `paceline train "
            "vocabulary`.",
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
