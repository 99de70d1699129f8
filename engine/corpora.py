"""The engine's door for corpora: checks what comes and hands it to the drafter that takes it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import asdict

import numpy as np
from numpy.typing import NDArray

from engine.drafters.corpus import CorpusHolder
from engine.errors import RequestError
from engine.wire import MAX_CORPUS_CHARACTERS, MAX_CORPUS_TOKENS, EncodeCorpus, PutCorpus

MAX_NAME = 64


def put_corpus(drafters: Iterable[object], body: PutCorpus, vocabulary: int) -> dict[str, object]:
    """Raises RequestError: invalid_request, corpus_refused."""
    if not 1 <= len(body.name) <= MAX_NAME:
        raise _invalid("name", f"name must be 1 to {MAX_NAME} characters.")
    tokens = np.frombuffer(body.tokens, "<i4") if len(body.tokens) % 4 == 0 else None
    lengths = _lengths(body)
    if (
        tokens is None
        or lengths is None
        or not 1 <= len(tokens) <= MAX_CORPUS_TOKENS
        or lengths.sum() != len(tokens)
    ):
        raise _invalid(
            "tokens",
            f"tokens must be 1 to {MAX_CORPUS_TOKENS} int32 ids, as many as lengths says.",
        )
    outside = np.flatnonzero((tokens < 0) | (tokens >= vocabulary))
    if len(outside):
        place = int(outside[0])
        raise _invalid(
            "tokens",
            f"token {place} is {tokens[place]}; the model's ids are 0 to {vocabulary - 1}.",
        )
    ids = tokens.astype(np.int32)  # a copy: the frame's bytes are freed
    try:
        _holder(drafters).put_corpus(body.name, ids, lengths, body.first)
    except ValueError as error:
        raise RequestError("corpus_refused", str(error)) from error
    return {}


def drop_corpus(drafters: Iterable[object], name: str) -> dict[str, object]:
    for drafter in drafters:
        if isinstance(drafter, CorpusHolder):
            drafter.drop_corpus(name)
    return {}


def corpus_states(drafters: Iterable[object]) -> dict[str, object]:
    """{"corpora": {name: the fields of a CorpusState}}."""
    return {
        "corpora": {
            name: asdict(state)
            for drafter in drafters
            if isinstance(drafter, CorpusHolder)
            for name, state in drafter.corpora().items()
        }
    }


def encode_corpus(encode: Callable[[str], list[int]], body: EncodeCorpus) -> dict[str, object]:
    """Runs beside the loop. Raises RequestError."""
    if sum(map(len, body.texts)) > MAX_CORPUS_CHARACTERS:
        raise _invalid("texts", f"texts must have at most {MAX_CORPUS_CHARACTERS} characters.")
    encoded = [encode(text) for text in body.texts]
    return {
        "lengths": [len(ids) for ids in encoded],
        "tokens": np.array([token for ids in encoded for token in ids], "<i4").tobytes(),
    }


def _lengths(body: PutCorpus) -> NDArray[np.int64] | None:
    """None when they are not 1 to MAX_CORPUS_TOKENS of such numbers."""
    if not 1 <= len(body.lengths) <= MAX_CORPUS_TOKENS:
        return None
    if min(body.lengths) < 1 or max(body.lengths) > MAX_CORPUS_TOKENS:
        return None
    return np.array(body.lengths, dtype=np.int64)


def _holder(drafters: Iterable[object]) -> CorpusHolder:
    for drafter in drafters:
        if isinstance(drafter, CorpusHolder):
            return drafter
    raise RequestError(
        "corpus_refused",
        "no drafter of this server takes corpora; the suffix drafter would.",
    )


def _invalid(param: str, message: str) -> RequestError:
    return RequestError("invalid_request", message, param)
