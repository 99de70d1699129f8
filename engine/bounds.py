"""The bounds of every sampling value that a request may carry."""

from __future__ import annotations

import math
from collections.abc import Sized

from engine.errors import RequestError
from engine.logprobs import MAX_LOGPROBS
from engine.wire import Sampling

MAX_STOP_STRINGS = 16
MAX_STOP_CHARACTERS = 1024
MAX_STOP_IDS = 64
MAX_BIASES = 1024
MAX_BAD_WORDS = 64
MAX_BAD_WORD_CHARACTERS = 256
LOWEST_REPETITION_PENALTY = 0.01
HIGHEST_REPETITION_PENALTY = 100.0
HIGHEST_INTEGER = 2**31 - 1
MAX_SALT = 256


def check_sampling(sampling: Sampling, vocabulary: int) -> None:
    """Raises RequestError naming the field and its range."""
    between("temperature", sampling.temperature, 0.0, 2.0)
    between("top_k", sampling.top_k, 0, HIGHEST_INTEGER)
    between("top_p", sampling.top_p, 0.0, 1.0)
    if sampling.top_p == 0.0:
        raise invalid("top_p", "top_p must be more than 0.")
    between("min_p", sampling.min_p, 0.0, 1.0)
    between("presence_penalty", sampling.presence_penalty, -2.0, 2.0)
    between("frequency_penalty", sampling.frequency_penalty, -2.0, 2.0)
    between(
        "repetition_penalty",
        sampling.repetition_penalty,
        LOWEST_REPETITION_PENALTY,
        HIGHEST_REPETITION_PENALTY,
    )
    _at_most("logit_bias", sampling.logit_bias, MAX_BIASES, "token ids")
    _known_ids("logit_bias", sampling.logit_bias, vocabulary)
    for bias in sampling.logit_bias.values():
        between("logit_bias", bias, -100.0, 100.0)
    if sampling.seed is not None:
        between("seed", sampling.seed, -(2**63), 2**63 - 1)
    if sampling.max_tokens is not None:
        between("max_tokens", sampling.max_tokens, 1, HIGHEST_INTEGER)
    between("min_tokens", sampling.min_tokens, 0, HIGHEST_INTEGER)
    _texts("stop", sampling.stop, MAX_STOP_STRINGS, MAX_STOP_CHARACTERS)
    _at_most("stop_token_ids", sampling.stop_token_ids, MAX_STOP_IDS, "token ids")
    _known_ids("stop_token_ids", sampling.stop_token_ids, vocabulary)
    _texts("bad_words", sampling.bad_words, MAX_BAD_WORDS, MAX_BAD_WORD_CHARACTERS)
    allowed = sampling.allowed_token_ids
    if allowed is not None:
        if not allowed:
            raise invalid("allowed_token_ids", "allowed_token_ids must not be empty.")
        _at_most("allowed_token_ids", allowed, vocabulary, "token ids")
        _known_ids("allowed_token_ids", allowed, vocabulary)
    if sampling.logprobs is not None:
        between("logprobs", sampling.logprobs, 0, MAX_LOGPROBS)
    if sampling.prompt_logprobs is not None:
        between("prompt_logprobs", sampling.prompt_logprobs, 0, MAX_LOGPROBS)


def between(name: str, value: float, low: float, high: float) -> None:
    """Raises RequestError when value is not a number in low..high."""
    if math.isnan(value) or not low <= value <= high:
        raise invalid(name, f"{name} must be between {low} and {high}, not {value}.")


def invalid(name: str, message: str) -> RequestError:
    return RequestError("invalid_request", message, name)


def _at_most(name: str, values: Sized, most: int, things: str) -> None:
    if len(values) > most:
        raise invalid(name, f"{name} takes at most {most} {things}, not {len(values)}.")


def _known_ids(name: str, ids: tuple[int, ...] | dict[int, float], vocabulary: int) -> None:
    wrong = next((token for token in ids if not 0 <= token < vocabulary), None)
    if wrong is not None:
        raise invalid(name, f"{name} takes token ids between 0 and {vocabulary - 1}, not {wrong}.")


def _texts(name: str, texts: tuple[str, ...], most: int, characters: int) -> None:
    _at_most(name, texts, most, "texts")
    if any(not 0 < len(text) <= characters for text in texts):
        raise invalid(name, f"each text in {name} must have 1 to {characters} characters.")
