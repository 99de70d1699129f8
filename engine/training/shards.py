"""Shards of training data on disk: texts, what the target saw in them, and what it predicted."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from engine.errors import StartError
from engine.training.undisturbed import undisturbed

VERSION = 2
PATTERN = "shard-*.safetensors"
_BROKEN = (
    OSError, SafetensorError, ValueError, KeyError, TypeError, AttributeError, RuntimeError,
)  # fmt: skip


@dataclass(frozen=True)
class About:
    """What every shard of a folder has in common. taps: the target's layers whose residual stream
    is stored. hidden: d. target: fingerprint of the target's tokenizer. top: K. weights and
    template: which target it is, see model_digest."""

    taps: tuple[int, ...]
    hidden: int
    target: str
    top: int
    weights: str
    template: str


@dataclass(frozen=True)
class Shard:
    """S texts of T tokens in all, A of them answers' tokens.

    tokens: int32 [T]; text s is tokens[offsets[s]:offsets[s + 1]], its answer begins at its own
    token answers[s] >= 1. features: bfloat16 [T, k * d]. For every answer token, in order: top_ids
    int32 [A, K] and top_logprobs float16 [A, K], the K most likely tokens there and their log
    probabilities under the target at temperature 1, the most likely first."""

    tokens: Tensor
    offsets: Tensor
    answers: Tensor
    features: Tensor
    top_ids: Tensor
    top_logprobs: Tensor


def path_of(folder: Path, index: int) -> Path:
    return folder / f"shard-{index:05d}.safetensors"


def write(path: Path, shard: Shard, about: About) -> None:
    """Write a shard in one go: it is there whole or not at all. Raises StartError."""
    scratch = path.with_suffix(".part")
    tensors = {name: getattr(shard, name).contiguous() for name in Shard.__dataclass_fields__}
    told = {"version": VERSION, **about.__dict__}
    try:
        with undisturbed():
            save_file(tensors, scratch, metadata={"paceline": json.dumps(told)})
            scratch.replace(path)
    except (OSError, SafetensorError) as error:
        with suppress(OSError):
            scratch.unlink()
        raise StartError(
            "out_not_writable",
            f"cannot write {path}: {error}. Free space there and run the stage again: it goes on "
            "after the last whole shard.",
        ) from error


def read(path: Path) -> tuple[Shard, About]:
    """Read a shard. Raises StartError when the file is none."""
    try:
        with safe_open(path, "pt") as stored:
            about = _about(stored.metadata())
            shard = Shard(*(stored.get_tensor(name) for name in Shard.__dataclass_fields__))
        _check(shard, about)
    except _BROKEN as error:
        raise _broken(path, error) from error
    return shard, about


def _check(shard: Shard, about: About) -> None:
    """Raise ValueError when the tensors do not belong together."""
    tokens, offsets, answers = shard.tokens, shard.offsets.tolist(), shard.answers.tolist()
    if offsets[:1] != [0] or offsets[-1] != len(tokens) or len(offsets) != len(answers) + 1:
        raise ValueError("its offsets do not fit its tokens and answers")
    lengths = [end - begin for begin, end in pairwise(offsets)]
    if any(not 0 < answer < length for answer, length in zip(answers, lengths, strict=True)):
        raise ValueError("it has answers that lie outside of their texts")
    taught = sum(lengths) - sum(answers)
    shapes = (shard.features.shape, shard.top_ids.shape, shard.top_logprobs.shape)
    wide = (len(tokens), len(about.taps) * about.hidden)
    if shapes != (wide, (taught, about.top), (taught, about.top)):
        raise ValueError("its features or likeliest tokens do not fit its texts")
    if min(int(tokens.min()), int(shard.top_ids.min())) < 0:
        raise ValueError("it has negative token ids")


def about_all(files: Sequence[Path]) -> About:
    """What all of them have in common, from their headers. Raises StartError when they differ."""
    found: About | None = None
    for path in files:
        try:
            with safe_open(path, "pt") as stored:
                about = _about(stored.metadata())
        except _BROKEN as error:
            raise _broken(path, error) from error
        if found is not None and about != found:
            raise StartError(
                "training_data_differs",
                f"{path} is of another target or other layers than {files[0]}. Extract all shards "
                "of a folder in one run.",
            )
        found = about
    assert found is not None, "a folder has shards"
    return found


def _about(metadata: dict[str, str] | None) -> About:
    told = json.loads((metadata or {})["paceline"])
    if told.pop("version") != VERSION:
        raise ValueError("another version")
    return About(**{**told, "taps": tuple(told["taps"])})


def _broken(path: Path, error: Exception) -> StartError:
    return StartError(
        "training_data_broken",
        f"{path} is no shard of training data ({error}). Remove it, and run the extract stage "
        "again.",
    )


def paths(folder: Path) -> list[Path]:
    """The shards of a folder in order. Raises StartError when there is none."""
    found = sorted(folder.glob(PATTERN))
    if not found:
        raise StartError(
            "training_data_missing", f"{folder} has no shards. Run the extract stage first."
        )
    return found


def texts(shard: Shard) -> Iterator[tuple[slice, slice, int]]:
    """For each text: its tokens' place, its answer's place in the top arrays, and where its answer
    begins."""
    offsets, answers = shard.offsets.tolist(), shard.answers.tolist()
    used = 0
    for begin, end, answer in zip(offsets, offsets[1:], answers, strict=False):
        count = end - begin - answer
        yield slice(begin, end), slice(used, used + count), answer
        used += count


def empty_features(rows: int, width: int) -> Tensor:
    return torch.empty((rows, width), dtype=torch.bfloat16)
