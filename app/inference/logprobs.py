"""Log probabilities of an answer, as OpenAI's and vLLM's clients read them."""

from __future__ import annotations

import codecs
from collections.abc import Iterable, Sequence
from typing import Any

from engine.wire import Alternative, Logprob, Piece

LEAST = -9999.0
"""Stands for minus infinity, which JSON cannot say."""


def contents(pieces: Iterable[Piece]) -> list[dict[str, Any]]:
    """One entry per token, in the form that chat and responses share."""
    return [
        {**_entry(found.chosen), "top_logprobs": [_entry(one) for one in found.top]}
        for piece in pieces
        if (found := piece.logprob) is not None
    ]


def prompt_entries(items: Sequence[Logprob | None], top: int) -> list[dict[str, Any] | None]:
    """vLLM's prompt_logprobs: of every prompt token, itself and the `top` most likely, by id."""
    return [None if item is None else _by_id(item, top) for item in items]


class TextLogprobs:
    """The logprobs of one choice of a completion, made in parts.

    text_offset counts characters from the start of the choice's text, an echoed prompt included."""

    def __init__(self) -> None:
        self._offset = 0

    def prompt(self, text: str, items: Sequence[Logprob | None], top: int) -> dict[str, Any]:
        """Of the echoed prompt with this text. Of its first token there is no log probability."""
        first = _first(text, items)
        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        offsets, at = [], 0
        for item in items:
            offsets.append(min(at, len(text)))
            data = first.encode() if item is None else item.chosen.data
            at += len(decoder.decode(data))
        self.skip(text)
        return {
            "tokens": [first if item is None else item.chosen.text for item in items],
            "token_logprobs": [None if i is None else _finite(i.chosen.logprob) for i in items],
            "top_logprobs": [None if item is None else _by_text(item, top) for item in items],
            "text_offset": offsets,
        }

    def skip(self, text: str) -> None:
        """Text of the choice that no entry describes."""
        self._offset += len(text)

    def output(self, pieces: Iterable[Piece], top: int) -> dict[str, Any]:
        """Of the next tokens of the answer."""
        found: dict[str, Any] = {
            "tokens": [],
            "token_logprobs": [],
            "top_logprobs": [],
            "text_offset": [],
        }
        for piece in pieces:
            if piece.logprob is not None:
                found["tokens"].append(piece.logprob.chosen.text)
                found["token_logprobs"].append(_finite(piece.logprob.chosen.logprob))
                found["top_logprobs"].append(_by_text(piece.logprob, top))
                found["text_offset"].append(self._offset)
            self._offset += len(piece.text)
        return found


def joined(one: dict[str, Any], other: dict[str, Any]) -> dict[str, Any]:
    """Two parts of a choice's logprobs as one."""
    return {key: [*one[key], *other[key]] for key in one}


def _first(text: str, items: Sequence[Logprob | None]) -> str:
    """The text of the first token: what the others leave of the prompt. Empty when the text does
    not say it, as that of token ids without its special tokens."""
    whole, rest = text.encode(), b"".join(item.chosen.data for item in items if item is not None)
    return whole.removesuffix(rest).decode("utf-8", "replace") if whole.endswith(rest) else ""


def _entry(one: Alternative) -> dict[str, Any]:
    return {"token": one.text, "logprob": _finite(one.logprob), "bytes": list(one.data)}


def _by_text(item: Logprob, top: int) -> dict[str, float]:
    """The most likely tokens and the token itself; of those with one text, the most likely."""
    found: dict[str, float] = {}
    for one in (*item.top[:top], item.chosen):
        found.setdefault(one.text, _finite(one.logprob))
    return found


def _by_id(item: Logprob, top: int) -> dict[str, Any]:
    ranked = [(item.rank, item.chosen), *enumerate(item.top[:top], 1)]
    return {
        str(one.token): {"logprob": _finite(one.logprob), "rank": rank, "decoded_token": one.text}
        for rank, one in ranked
    }


def _finite(logprob: float) -> float:
    return max(logprob, LEAST)
