"""What a drafter proposes for one request in one step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Literal

from engine.unseen import leading

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, slots=True)
class Draft:
    """tokens: the proposed ids, in order; see Unseen for those that are still on the device. q:
    float32 [n <= len(tokens), V] on the target's device, the law that each of the first n tokens
    was drawn from; None for one-hot drafts. Tokens without a row in q are a function of the
    committed text and of the tokens before them. Those with one must each be a fresh draw from
    exactly it.

    head: how many tokens the first drafter of a chain drafted; the others are its tail's. None for
    a draft that nobody was asked to continue.

    refused: whose token came next, the "head"'s or the "tail"'s, and was ruled out by a mask of the
    request; such a draft was cut before it. "" where nothing was ruled out.

    margins: of a model's draft, how far the best token of the law at each place was ahead of the
    second best, as a difference of logits at the draw's temperature; each was known before the
    token of its place was drawn. Kept whole when the draft is cut."""

    tokens: Sequence[int] = field(default_factory=list)
    q: Tensor | None = None
    head: int | None = None
    margins: Sequence[float] = ()
    refused: Literal["", "head", "tail"] = ""

    def __len__(self) -> int:
        return len(self.tokens)

    def cut(self, length: int) -> Draft:
        """Its first `length` tokens."""
        if length >= len(self.tokens):
            return self
        q = None if self.q is None else self.q[:length]
        head = None if self.head is None else min(self.head, length)
        return Draft(leading(self.tokens, length), q, head, self.margins)

    def refuse(self, length: int) -> Draft:
        """Its first `length` tokens; a mask rules out the next one."""
        part = "head" if self.head is None or length < self.head else "tail"
        return replace(self.cut(length), refused=part)

    def extended(self, tokens: Sequence[int]) -> Draft:
        """The draft continued by a tail, which may be empty."""
        return Draft([*self.tokens, *tokens], self.q, len(self.tokens), self.margins)

    def drawn(self, place: int) -> bool:
        """Whether the token there was drawn from a row of q."""
        return self.q is not None and place < len(self.q)
