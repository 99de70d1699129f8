"""What a drafter proposes for one request in one step."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, slots=True)
class Draft:
    """tokens: the proposed ids, in order. q: float32 [len(tokens), V] on the target's device, the
    law that each token was drawn from; None for one-hot drafts, whose tokens are a function of
    the committed text. With q, each token must be a fresh draw from exactly its row."""

    tokens: list[int] = field(default_factory=list)
    q: Tensor | None = None

    def __len__(self) -> int:
        return len(self.tokens)

    def cut(self, length: int) -> Draft:
        """Its first `length` tokens."""
        if length >= len(self.tokens):
            return self
        return Draft(self.tokens[:length], None if self.q is None else self.q[:length])
