"""Output text from token ids, one by one, each at the same cost whatever came before."""

from __future__ import annotations

import codecs
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from engine.spelling import BYTE_TOKEN, byte_level, steps

ANCHOR = "a"
"""Stands before a token whose text after another one is asked for."""

PER_TOKEN = frozenset({"Replace", "Metaspace", "WordPiece"})
"""Decoders that rewrite each token by itself, the first one perhaps in another way."""

WINDOW = 8
"""Tokens before the new ones that a decoder without text per token is given again."""

MOST_PENDING = 32
"""Tokens without text for which such a decoder waits."""

Spell = Callable[[int], tuple[str, bytes]]


class Detokenizer(Protocol):
    """Incremental decoding of one output. What it gives in all, with `flush` at the end, is the
    tokenizer's own decoding without special tokens. Never raises, and releases text only at whole
    characters.

    Bytes that are no UTF-8 become U+FFFD, one for each longest part that could have begun a
    character (Unicode's practice, and what byte-level tokenizers give). Only here a tokenizer with
    byte fallback differs when it decodes all at once: it gives one for each byte of a run of byte
    tokens in which any is wrong, whole characters of that run too, which nobody can know early."""

    spell: Spell
    """Text and bytes of one token."""

    def add(self, token: int) -> str:
        """Text that this token completes; empty while a character is unfinished."""
        ...

    def flush(self) -> str:
        """What an unfinished character leaves at the end: a replacement character, or nothing."""
        ...


class Decoding:
    """How a tokenizer's ids become text; shared by all its streams."""

    def __init__(self, fast: Any, spell: Spell) -> None:
        """fast: the tokenizers.Tokenizer of the model."""
        self._fast = fast
        self._spell = spell
        added = fast.get_added_tokens_decoder()
        self._special = frozenset(token for token, one in added.items() if one.special)
        parts = steps(fast.decoder)
        self._byte_level = [part["type"] for part in parts] == ["ByteLevel"]
        self._byte_fallback = any(part["type"] == "ByteFallback" for part in parts)
        self._apart = self._byte_level or _is_apart(parts)
        self._first: dict[int, bytes | None] = {}
        self._later: dict[int, bytes | None] = {}

    def stream(self, before: Sequence[int] = ()) -> Detokenizer:
        """before: the last ids of what the output goes on from; without, it begins a text, of
        which some tokenizers strip a leading space."""
        if not self._apart:
            return WindowDetokenizer(self, before)
        begins = all(self.data(token, True) is None for token in before)
        return ByteDetokenizer(self, begins)

    def spell(self, token: int) -> tuple[str, bytes]:
        return self._spell(token)

    def is_text(self, token: int) -> bool:
        """False for special tokens and ids that the tokenizer does not use: they are left out."""
        return token not in self._special and self._fast.id_to_token(token) is not None

    def whole(self, ids: Sequence[int]) -> str:
        return self._fast.decode(ids, skip_special_tokens=True)

    def data(self, token: int, first: bool) -> bytes | None:
        """The bytes that a token adds to the text, of which it may be the first; None for a token
        that is no text."""
        known = self._first if first else self._later
        try:
            return known[token]
        except KeyError:
            made = known[token] = self._data(token, first) if self.is_text(token) else None
            return made

    def _data(self, token: int, first: bool) -> bytes:
        written = self._fast.id_to_token(token)
        if self._byte_level:
            return byte_level(written)
        if self._byte_fallback and (found := BYTE_TOKEN.fullmatch(written)):
            value = int(found[1], 16)
            if value >= 0x80:
                return bytes([value])
        decoder = self._fast.decoder
        if decoder is None:  # the library joins tokens with spaces
            return (written if first else f" {written}").encode()
        if first:
            return decoder.decode([written]).encode()
        both = decoder.decode([ANCHOR, written])
        return both[len(decoder.decode([ANCHOR])) :].encode()


class ByteDetokenizer:
    """For tokenizers of which every token has bytes of its own: almost all."""

    def __init__(self, decoding: Decoding, begins: bool) -> None:
        """begins: no text comes before."""
        self.spell = decoding.spell
        self._data = decoding.data
        self._first = begins
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def add(self, token: int) -> str:
        data = self._data(token, self._first)
        if data is None:
            return ""
        self._first = False
        return self._decoder.decode(data)

    def flush(self) -> str:
        return self._decoder.decode(b"", True)


class WindowDetokenizer:
    """For any other tokenizer: decodes the last few tokens with and without the new ones. Text
    that its decoder would still change after 32 more tokens stays as it is."""

    def __init__(self, decoding: Decoding, before: Sequence[int]) -> None:
        self.spell = decoding.spell
        self._decoding = decoding
        self._old = [token for token in before if decoding.is_text(token)][-WINDOW:]
        self._text = decoding.whole(self._old)
        self._new: list[int] = []

    def add(self, token: int) -> str:
        if not self._decoding.is_text(token):
            return ""
        self._new.append(token)
        text = self._decoding.whole([*self._old, *self._new])
        unfinished = text.endswith("\ufffd") or len(text) <= len(self._text)
        if unfinished and len(self._new) < MOST_PENDING:
            return ""
        return self._release(text)

    def flush(self) -> str:
        return self._release(self._decoding.whole([*self._old, *self._new]))

    def _release(self, text: str) -> str:
        released = text[len(self._text) :]
        self._old = [*self._old, *self._new][-WINDOW:]
        self._text = self._decoding.whole(self._old)
        self._new = []
        return released


def _is_apart(parts: Sequence[dict[str, Any]]) -> bool:
    """True for steps that rewrite tokens one by one, then perhaps turn byte tokens into bytes,
    join all and strip one leading character."""
    ends = ["ByteFallback", "Fuse", "Strip"]
    at = 0
    for part in parts:
        kind = part["type"]
        if kind in PER_TOKEN and at == 0:
            continue
        if kind not in ends[at:]:
            return False
        at = ends.index(kind) + 1
        if kind == "Strip":
            joined = any(other["type"] == "Fuse" for other in parts)
            if not joined or part["start"] > 1 or part["stop"] or part["content"] == ANCHOR:
                return False
    return True
