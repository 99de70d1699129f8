"""The file of a target's answers: prompts and answers as token ids, in one .npz."""

from __future__ import annotations

import os
import zipfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from engine.errors import RequestError, StartError
from engine.text import Text
from engine.training.journal import UNREADABLE, Ids, flat, offsets_of
from engine.training.prompts import read_prompts
from engine.training.undisturbed import undisturbed
from engine.wire import Message


@dataclass(frozen=True)
class Answers:
    """Prompt i is prompts[i], under the model's chat template up to the answer. Answer j is
    tokens[j], its end token kept where it has one, to prompts[prompt_index[j]], drawn at
    temperature[j]. tokenizer: fingerprint of the one that the ids are of, "" if it is unknown."""

    prompts: list[Ids]
    prompt_index: NDArray[np.int64]
    temperature: NDArray[np.float64]
    tokens: list[Ids]
    tokenizer: str = ""

    def __len__(self) -> int:
        return len(self.tokens)

    @property
    def token_count(self) -> int:
        return sum(map(len, self.tokens))

    def text(self, place: int) -> tuple[Ids, int]:
        """Prompt and answer as one text, and where the answer begins in it."""
        prompt = self.prompts[self.prompt_index[place]]
        return np.concatenate((prompt, self.tokens[place])), len(prompt)

    def only(self, kept: NDArray[np.bool_]) -> Answers:
        """Those of the answers for which it is True."""
        tokens = [self.tokens[place] for place in np.flatnonzero(kept)]
        index, temperature = self.prompt_index[kept], self.temperature[kept]
        return Answers(self.prompts, index, temperature, tokens, self.tokenizer)


def write_answers(path: Path, answers: Answers, vocabulary: int, run: str) -> None:
    """Write the file in one go. run: what its content depends on. Raises OSError."""
    kind = np.uint16 if vocabulary <= 1 << 16 else np.uint32
    arrays: dict[str, NDArray[np.generic]] = {
        "prompts": flat(answers.prompts).astype(kind),
        "prompt_offsets": offsets_of(answers.prompts),
        "prompt_index": answers.prompt_index.astype(np.uint32),
        "temperature": answers.temperature.astype(np.float16),
        "offsets": offsets_of(answers.tokens),
        "tokens": flat(answers.tokens).astype(kind),
        "tokenizer": np.array(answers.tokenizer),
        "run": np.array(run),
    }
    write_arrays(path, arrays)


def write_arrays(path: Path, arrays: Mapping[str, NDArray[np.generic]]) -> None:
    """Write a compressed .npz of exactly this name: it is there whole or not at all. Raises
    OSError."""
    scratch = path.with_name(path.name + ".tmp")
    try:
        with undisturbed():
            with zipfile.ZipFile(scratch, "w", zipfile.ZIP_DEFLATED) as stored:
                for name, array in arrays.items():
                    with stored.open(f"{name}.npy", "w", force_zip64=True) as file:
                        np.lib.format.write_array(file, array, allow_pickle=False)
            os.replace(scratch, path)
    except OSError:
        with suppress(OSError):
            scratch.unlink()
        raise


def read_answers(path: Path, text: Text, vocabulary: int, prompts: str = "") -> Answers:
    """Read a file of answers. prompts: the JSON lines that prompt_index counts, for a file that
    has no prompts of its own. Raises StartError when it is none, or of another tokenizer."""
    arrays = read_arrays(path)
    try:
        offsets = arrays["offsets"].astype(np.int64)
        index = arrays["prompt_index"].astype(np.int64)
        temperature = arrays["temperature"].astype(np.float64)
        tokens = cut(path, arrays["tokens"], offsets, vocabulary)
        if "prompts" in arrays:
            places = arrays["prompt_offsets"].astype(np.int64)
            asked = cut(path, arrays["prompts"], places, vocabulary)
        else:
            asked = _rendered(path, text, prompts, vocabulary)
    except KeyError as error:
        raise broken(path, f"it lacks the array {error}") from None
    except (ValueError, TypeError) as error:
        raise broken(path, str(error)) from None
    if not len(tokens) == len(index) == len(temperature):
        raise broken(path, "prompt_index, temperature and offsets differ in length")
    if len(index) and not 0 <= index.min() <= index.max() < len(asked):
        raise broken(
            path, f"prompt_index goes to {index.max()}, and there are {len(asked)} prompts"
        )
    tokenizer = str(arrays["tokenizer"]) if "tokenizer" in arrays else ""
    if tokenizer and tokenizer != text.fingerprint():
        raise StartError(
            "other_tokenizer",
            f"{path} was generated with another tokenizer than the model's. Give the model that "
            "it was generated with, or generate answers with this one.",
        )
    return Answers(asked, index, temperature, tokens, tokenizer)


def read_all(names: Sequence[str], prompts: str, text: Text, vocabulary: int) -> Answers:
    """Several files as one. prompts: as for read_answers. Raises StartError."""
    files = [read_answers(Path(name), text, vocabulary, prompts) for name in names]
    before = np.cumsum([0, *(len(one.prompts) for one in files)])
    return Answers(
        prompts=[prompt for one in files for prompt in one.prompts],
        prompt_index=np.concatenate(
            [one.prompt_index + first for one, first in zip(files, before, strict=False)]
        ),
        temperature=np.concatenate([one.temperature for one in files]),
        tokens=[tokens for one in files for tokens in one.tokens],
        tokenizer=text.fingerprint(),
    )


def read_corpus(name: str, vocabulary: int) -> list[list[int]]:
    """The texts of an .npz with tokens and offsets; none for no name. Raises StartError."""
    if not name:
        return []
    path = Path(name)
    arrays = read_arrays(path)
    try:
        offsets = arrays["offsets"].astype(np.int64)
        texts = cut(path, arrays["tokens"], offsets, vocabulary)
    except KeyError as error:
        raise broken(path, f"it lacks the array {error}") from None
    except (ValueError, TypeError) as error:
        raise broken(path, str(error)) from None
    return [text.tolist() for text in texts if len(text)]


def run_of(path: Path) -> str:
    """What the content of a file depends on, as it was written; "" if it does not say."""
    arrays = read_arrays(path)
    return str(arrays["run"]) if "run" in arrays else ""


def read_arrays(path: Path) -> dict[str, NDArray[np.generic]]:
    """All arrays of an .npz. Raises StartError."""
    try:
        with np.load(path, allow_pickle=False) as stored:
            return {name: stored[name] for name in stored.files}
    except UNREADABLE as error:
        raise StartError(
            "answers_unreadable",
            f"cannot read answers from {path}: {error}. Give another file, or remove it.",
        ) from None


def cut(
    path: Path, flat: NDArray[np.generic], offsets: NDArray[np.int64], vocabulary: int
) -> list[Ids]:
    if flat.ndim != 1 or flat.dtype.kind not in "iu" or offsets.ndim != 1 or not len(offsets):
        raise broken(path, "tokens and prompts must be rows of whole numbers, with offsets")
    if offsets[0] != 0 or (np.diff(offsets) < 0).any() or offsets[-1] != len(flat):
        raise broken(path, "offsets must rise from 0 to the number of tokens")
    ids = flat.astype(np.int32)
    if len(ids) and not 0 <= ids.min() <= ids.max() < vocabulary:
        raise broken(path, f"it has ids outside of the model's 0 to {vocabulary - 1}")
    return [ids[begin:end] for begin, end in pairwise(offsets)]


def _rendered(path: Path, text: Text, prompts: str, vocabulary: int) -> list[Ids]:
    if not prompts:
        raise StartError(
            "prompts_missing",
            f"{path} holds no prompts of its own: give the JSON lines file that it answers "
            "with --prompts.",
        )
    try:
        return [
            np.array(text.render((Message("user", one.text),)), dtype=np.int32)
            for one in read_prompts(prompts)
        ]
    except RequestError as error:
        raise StartError("template_unusable", f"{prompts}: {error.message}") from error


def broken(path: Path, reason: str) -> StartError:
    return StartError(
        "answers_broken", f"{path} is no file of answers: {reason}. Generate it again."
    )
