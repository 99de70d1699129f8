"""Text in and out of token ids: chat template, encoding, decoding."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any

from engine.detokenizer import Decoding, Detokenizer
from engine.errors import RequestError
from engine.spelling import Spelling, steps
from engine.vocabulary import fingerprint
from engine.wire import Message

COMPOSED = 3
"""Bytes of text that canonical composition makes one byte of, at most: three Hangul letters of
three bytes become one syllable of three."""


class Text:
    """The tokenizer of the served model. Thread-safe: encoding keeps no state."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self._fast = tokenizer.backend_tokenizer
        self._fast.no_truncation()  # a file may bring settings of its training
        self._fast.no_padding()
        if getattr(self._fast.model, "dropout", None):
            self._fast.model.dropout = None
        self._begin: str = tokenizer.bos_token or ""
        self.spell = Spelling(self._fast)
        """Text and bytes of one token."""
        self._decoding = Decoding(self._fast, self.spell)

    def encode(self, text: str) -> list[int]:
        """Token ids of plain text; special tokens in it are recognised, none are added."""
        return self._fast.encode(text, add_special_tokens=False).ids

    def encode_aside(self, text: str) -> list[int]:
        """As `encode`, and other threads go on meanwhile; a little slower for short texts."""
        return self._fast.encode_batch_fast([text], add_special_tokens=False)[0].ids

    def encode_whole(self, text: str) -> list[int]:
        """Token ids of a whole text, with the special tokens that the tokenizer puts around one
        (often one for its beginning, which is not doubled)."""
        begun = bool(self._begin) and text.startswith(self._begin)
        return self._fast.encode(text, add_special_tokens=not begun).ids

    def render(self, messages: Sequence[Message]) -> list[int]:
        """Token ids of a chat through the model's own template, up to the assistant's turn."""
        return self.encode(self.write(messages))

    def write(self, messages: Sequence[Message]) -> str:
        """A chat as the model's own template writes it, up to the assistant's turn."""
        if not messages:
            raise RequestError(
                "invalid_request", "messages is empty; send at least one.", "messages"
            )
        if not self._tokenizer.chat_template:
            raise RequestError(
                "invalid_request",
                "this model has no chat template; use /v1/completions with a plain prompt.",
                "messages",
            )
        try:
            return self._tokenizer.apply_chat_template(
                [{"role": message.role, "content": message.content} for message in messages],
                add_generation_prompt=True,
                tokenize=False,
            )
        except Exception as error:  # templates raise their own errors for a bad order of roles
            raise RequestError(
                "invalid_request",
                f"the model's chat template refuses these messages: {str(error)[:200]}",
                "messages",
            ) from error

    @cached_property
    def most_bytes(self) -> int | None:
        """Bytes of text that one token may stand for, at most; None when there is no limit: an
        unknown token, or text that is dropped. Not counted: blanks that a special token may take
        in beside it, and bytes that a byte-level vocabulary lacks."""
        shrinks = _shrinks(self._fast)
        if shrinks is None or not self.spell.has_bytes:
            return None
        ids = self._fast.get_vocab(with_added_tokens=True).values()
        return shrinks * max((self.spell.length(token) for token in ids), default=1)

    def decode(self, ids: Sequence[int]) -> str:
        return self._fast.decode(list(ids), skip_special_tokens=True)

    def definition(self) -> str:
        """The tokenizer as the text of a tokenizer.json."""
        return self._fast.to_str()

    def fingerprint(self) -> str:
        """Tells whether token ids mean the same to another tokenizer: see engine.vocabulary."""
        return fingerprint(self._fast)

    def stream(self, before: Sequence[int] = ()) -> Detokenizer:
        """Decodes one output. before: the last ids of the text that it goes on from."""
        return self._decoding.stream(before)


def _shrinks(fast: Any) -> int | None:
    """Bytes of text per byte that comes to the tokenizer's model, at most; None when what comes
    before the model may drop any."""
    most = 1
    for part in steps(fast.normalizer):
        match part["type"]:
            case "NFC":
                most = COMPOSED
            case "Replace":
                pattern = part["pattern"].get("String")
                if pattern is None or len(part["content"].encode()) < len(pattern.encode()):
                    return None
            case "Prepend":
                pass
            case _:
                return None
    for part in steps(fast.pre_tokenizer):
        if part["type"] not in {"ByteLevel", "Metaspace", "Digits", "Split", "Punctuation"}:
            return None
        if part.get("behavior") == "Removed":
            return None
    return most
