"""The text and bytes of single tokens, whichever way the tokenizer writes its vocabulary."""

from __future__ import annotations

import json
import re
from typing import Any

BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")


class Spelling:
    """Token id -> its own bytes, and their text with replacement characters where they are not
    whole UTF-8. Special tokens are spelled by their name.

    Byte-level vocabularies write a byte as a printable character, sentencepiece ones a space as
    U+2581 and a lone byte as <0x0A>, WordPiece ones the inside of a word with ##."""

    def __init__(self, fast: Any) -> None:
        """fast: the tokenizers.Tokenizer of the model."""
        self._fast = fast
        kinds = {step["type"] for step in steps(fast.decoder)}
        self._byte_level = "ByteLevel" in kinds
        self._byte_fallback = "ByteFallback" in kinds
        self._word_piece = "WordPiece" in kinds
        self._marked = bool(kinds & {"Metaspace", "Replace"})
        added = fast.get_added_tokens_decoder()
        self._added: dict[int, str] = {token: one.content for token, one in added.items()}
        self._known: dict[int, tuple[str, bytes]] = {}

    def __call__(self, token: int) -> tuple[str, bytes]:
        """Text and bytes of a token; both empty for ids that the tokenizer does not use."""
        known = self._known.get(token)
        if known is None:
            data = self._bytes(token)
            known = self._known[token] = data.decode("utf-8", "replace"), data
        return known

    def all(self) -> dict[int, bytes]:
        """The bytes of every token that the tokenizer uses."""
        vocabulary = self._fast.get_vocab(with_added_tokens=True)
        return {token: self._written(token, text) for text, token in vocabulary.items()}

    @property
    def has_bytes(self) -> bool:
        """True when letters without a token of their own are written byte by byte."""
        if self._byte_level:
            return True
        names = [f"<0x{byte:02X}>" for byte in range(256)]
        return self._byte_fallback and all(self._fast.token_to_id(one) is not None for one in names)

    def length(self, token: int) -> int:
        """Bytes of text that a token stands for, at most."""
        if self._byte_level:
            return len(self._bytes(token))
        return len((self._fast.id_to_token(token) or "").encode())

    def _bytes(self, token: int) -> bytes:
        written = self._fast.id_to_token(token)
        return b"" if written is None else self._written(token, written)

    def _written(self, token: int, written: str) -> bytes:
        if token in self._added:
            return self._added[token].encode()
        if self._byte_level:
            return byte_level(written)
        if self._byte_fallback and (byte := BYTE_TOKEN.fullmatch(written)):
            return bytes([int(byte[1], 16)])
        if self._word_piece:
            written = written.removeprefix("##")
        return (written.replace("\u2581", " ") if self._marked else written).encode()


def byte_level(written: str) -> bytes:
    """The bytes of a token of a byte-level vocabulary; of one that is written in other letters,
    as added ones may be, its text."""
    try:
        return written.translate(_BYTES).encode("latin-1")
    except UnicodeEncodeError:
        return written.encode()


def steps(part: Any) -> list[dict[str, Any]]:
    """What a part of a tokenizer (decoder, normalizer, pre-tokenizer) does, as in its file."""
    if part is None:
        return []
    state = json.loads(part.__getstate__())
    if state["type"] != "Sequence":
        return [state]
    return next(value for value in state.values() if isinstance(value, list))


def _byte_letters() -> dict[int, int]:
    """GPT-2's writing of bytes: printable ones stand for themselves, the others for U+0100 on.
    Code of a letter -> the byte; -> beyond them all for those that stand for none."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    letters = {byte: byte for byte in printable}
    letters |= {0x100 + place: byte for place, byte in enumerate(others)}
    return dict.fromkeys(others, 0xFFFF) | letters


_BYTES = _byte_letters()
