"""The drafter protocol."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, Protocol

from controller.contract import Offer, ShadowScore
from engine.drafts import Draft
from engine.request import Request


class Drafter(Protocol):
    """Proposes tokens for requests. Drafts of model-free drafters are one-hot: they carry no q,
    and what they draft is a function of the committed text, so any rule may shorten them.

    A drafter keeps its own state per request, from `admit` to `forget`."""

    name: str
    kind: Literal["model_free", "model"]

    def admit(self, request: Request) -> None:
        """Take in the prompt of a request that starts decoding."""
        ...

    def offer(self, request: Request) -> Offer | None:
        """What it could draft after the committed text; None when it has nothing. Cheap."""
        ...

    def propose(self, requests: Sequence[Request], lengths: Sequence[int]) -> list[Draft]:
        """Drafts of at most the given lengths, one list per request."""
        ...

    def commit(
        self, request: Request, tokens: Sequence[int], drafted: int, accepted: int, ended: bool
    ) -> tuple[ShadowScore, ...]:
        """Take in committed tokens. drafted > 0: this drafter ran live for the request in this
        step. Otherwise the tokens are scored first: what would it have got (shadow)?
        ended: the request is over, so a shadow draft not settled yet is censored."""
        ...

    def forget(self, request: int) -> None:
        """Drop the state of a request; unknown ids have none."""
        ...
