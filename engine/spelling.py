"""The text and bytes of single tokens, whichever way the tokenizer writes its vocabulary."""

from __future__ import annotations

import json
import re
from typing import Any

_BYTE = re.compile(r"<0x([0-9A-Fa-f]{2})>")


class Spelling:
    """Token id -> its own bytes, and their text with replacement characters where they are not
    whole UTF-8. Special tokens are spelled by their name.

    Byte-level vocabularies write a byte as a printable character, sentencepiece ones a space as
    U+2581 and a lone byte as <0x0A>, WordPiece ones the inside of a word with ##."""

    def __init__(self, fast: Any) -> None:
        """fast: the tokenizers.Tokenizer of the model."""
        self._fast = fast
        kinds = _kinds(fast)
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

    def _bytes(self, token: int) -> bytes:
        if token in self._added:
            return self._added[token].encode()
        written = self._fast.id_to_token(token)
        if written is None:
            return b""
        if self._byte_level:
            return b"".join(_BYTES.get(letter) or letter.encode() for letter in written)
        if self._byte_fallback and (byte := _BYTE.fullmatch(written)):
            return bytes([int(byte[1], 16)])
        if self._word_piece:
            written = written.removeprefix("##")
        return (written.replace("\u2581", " ") if self._marked else written).encode()


def _kinds(fast: Any) -> set[str]:
    """The types of the tokenizer's decoder and its parts."""
    if fast.decoder is None:
        return set()
    state = json.loads(fast.decoder.__getstate__())
    return {part["type"] for part in (state, *state.get("decoders", ()))}


def _byte_letters() -> dict[str, bytes]:
    """GPT-2's writing of bytes: printable ones stand for themselves, the others for U+0100 on."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    letters = {chr(byte): bytes([byte]) for byte in printable}
    others = [byte for byte in range(256) if byte not in printable]
    return letters | {chr(0x100 + place): bytes([byte]) for place, byte in enumerate(others)}


_BYTES = _byte_letters()
