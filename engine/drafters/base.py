"""The drafter protocol: one call a step for all requests; and what some drafters do besides."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal, NamedTuple, Protocol, runtime_checkable

from controller.contract import Offer, ShadowScore
from engine.drafts import Draft

if TYPE_CHECKING:  # drafters that need no model run without torch
    from torch import Tensor

    from engine.batch import Batch
    from engine.request import Request


class Committed(NamedTuple):
    """What one request got from a step, told to one drafter.

    tokens: the committed ones; they are request.tokens from position `start` on. drafted and
    accepted: by this drafter, 0 when it did not run for the request. ended: the request is over.
    prefilled: the token came with the last rows of the prefill, where nothing could be drafted.
    scored: False when nobody asks what it would have got; an open shadow draft is then censored.

    rejected: the drafted tokens, whoever drafted them, from the first that was not kept on.
    targets: the target's token after each of them, given all before it; they may hold ids that
    were drawn, not only the most likely ones. Both are empty when every draft was kept, when there
    was none, or when the run was cut."""

    request: Request
    start: int
    tokens: Sequence[int]
    drafted: int = 0
    accepted: int = 0
    ended: bool = False
    prefilled: bool = False
    scored: bool = True
    rejected: Sequence[int] = ()
    targets: Sequence[int] = ()


class Drafter(Protocol):
    """Proposes tokens for requests. Drafts of model-free drafters are one-hot: they carry no q,
    and what they draft is a function of text that the target has verified, so any rule may shorten
    them.

    A drafter keeps its own state per request, from `admit` to `forget`. In a step come, in this
    order: `admit` for the requests that start, `offer`, `propose`, `commit`, and `forget` for those
    that are over. Requests that it does not know get no offer and no draft, and what is committed
    of them does not concern it.

    A call that raises costs its drafts for this step and nothing else; the requests of the call
    are then asked one by one until each has been answered. So a drafter may have missed a commit,
    or see one that it took in half: `Committed.start` tells it, and request.tokens is the text."""

    name: str
    kind: Literal["model_free", "model"]

    def admit(self, request: Request) -> None:
        """A request starts: its prompt is known, and its first rows run in this step.

        Taking in a prompt is bounded in each step. Until a drafter has caught up with the text it
        makes no offer for the request, and what is committed meanwhile is taken in unscored. Called
        again for a request that it knows it does nothing; with another request of the same id it
        starts afresh."""
        ...

    def offer(self, requests: Sequence[Request]) -> list[Offer | None]:
        """What it could draft after each request's text; None when it has nothing. Cheap."""
        ...

    def propose(self, requests: Sequence[Request], lengths: Sequence[int]) -> list[Draft]:
        """Drafts of at most the given lengths, one per request, for what this step's `offer`
        offered. Tokens that a device has drawn may stay there, see Unseen."""
        ...

    def commit(self, commits: Sequence[Committed]) -> list[tuple[ShadowScore, ...]]:
        """Take in what a step committed; called in every step, also when that is nothing.

        Returns, for each, the scores that it settled. Where this drafter did not run
        (drafted = 0) the tokens are scored first: what would it have got (shadow)? Not so tokens of
        a prefill or of a run of its own, and those that it is told not to score."""
        ...

    def forget(self, request: int) -> None:
        """Drop the state of a request; unknown ids have none."""
        ...


@runtime_checkable
class Tail(Protocol):
    """A drafter that can continue a draft of another."""

    def extend(
        self,
        requests: Sequence[Request],
        drafts: Sequence[Sequence[int]],
        lengths: Sequence[int],
    ) -> list[Sequence[int]]:
        """For each request, up to so many tokens that continue its committed text and then the
        draft; empty for none. They are a function of these two, and nothing is kept of them."""
        ...


@runtime_checkable
class Busy(Protocol):
    """A drafter with work of its own, such as indexing, that need not wait for a step."""

    def work(self) -> bool:
        """Do some of it, for a few milliseconds at most. False when there is nothing to do."""
        ...


class TextMemory(NamedTuple):
    """truncated: texts that were taken in only in part or not at all, since the start."""

    used_bytes: int
    limit_bytes: int
    truncated: int


@runtime_checkable
class Bounded(Protocol):
    """A drafter that keeps texts in a memory with a limit."""

    def text_memory(self) -> TextMemory: ...


@runtime_checkable
class Reads(Protocol):
    """A drafter that reads the target's hidden states."""

    taps: tuple[int, ...]
    """The target's layers whose input it reads; their number means the states after its norm."""

    def read(self, batch: Batch, features: Tensor) -> None:
        """Take in the states [T, k * d] of a forward's rows; they may be kept, nothing writes into
        them later. It is called when the forward is enqueued and must not wait for it; a forward
        that fails afterwards comes again, in parts or with fewer drafts."""
        ...


@runtime_checkable
class Follows(Protocol):
    """A drafter that computes on the text itself, so that it must take in prompts."""

    def follow(self, prefills: Sequence[tuple[Request, int]]) -> None:
        """Take in prompts along with the target: (request, tokens of it that the target will have
        computed after this step), of requests that are likely to be drafted for."""
        ...


class Memory(NamedTuple):
    """Of a loaded drafter, beside what the target takes."""

    weight_bytes: int
    kv_bytes: int


@runtime_checkable
class Weighty(Protocol):
    """A drafter that is a model, which can be loaded and unloaded while the engine runs."""

    @property
    def memory(self) -> Memory: ...

    @property
    def coverage(self) -> float:
        """Share of the target's vocabulary that it can draft, 0 to 1."""
        ...

    @property
    def pass_bytes(self) -> int:
        """Weights that it reads to draft one token."""
        ...

    def take_catch_up(self) -> int:
        """Rows of committed text that it computed since the last call, beyond those of its usual
        drafts, where the time of the calls is that of the rows."""
        ...

    def close(self) -> None:
        """Give its memory back; it is not called again."""
        ...
