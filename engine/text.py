"""Text in and out of token ids: chat template, encoding, decoding."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tokenizers.decoders import DecodeStream

from engine.errors import RequestError
from engine.spelling import Spelling
from engine.wire import Message


class Text:
    """The tokenizer of the served model. Thread-safe: encoding keeps no state."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self._fast = tokenizer.backend_tokenizer
        self.spell = Spelling(self._fast)
        """Text and bytes of one token."""

    def encode(self, text: str) -> list[int]:
        """Token ids of plain text; special tokens in it are recognised, none are added."""
        return self._fast.encode(text, add_special_tokens=False).ids

    def render(self, messages: Sequence[Message]) -> list[int]:
        """Token ids of a chat through the model's own template, up to the assistant's turn."""
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
            text = self._tokenizer.apply_chat_template(
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
        return self.encode(text)

    def decode(self, ids: Sequence[int]) -> str:
        return self._tokenizer.decode(list(ids), skip_special_tokens=True)

    def definition(self) -> str:
        """The tokenizer as the text of a tokenizer.json."""
        return self._fast.to_str()

    def stream(self) -> Detokenizer:
        return Detokenizer(self._fast, self)


class Detokenizer:
    """Incremental decoding of one output. Text is released only at whole UTF-8 characters."""

    def __init__(self, fast: Any, text: Text) -> None:
        self._fast = fast
        self._text = text
        self.spell = text.spell
        self._stream = DecodeStream(skip_special_tokens=True)
        self._pending: list[int] = []

    def add(self, token: int) -> str:
        """Text that this token completes; empty while a character is unfinished."""
        piece = self._stream.step(self._fast, token)
        if piece is None:
            self._pending.append(token)
            return ""
        self._pending.clear()
        return piece

    def flush(self) -> str:
        """What an unfinished character leaves at the end: replacement characters, or nothing."""
        left = self._text.decode(self._pending) if self._pending else ""
        self._pending.clear()
        return left
