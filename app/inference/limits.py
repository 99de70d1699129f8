"""Bounds of request values, and the values that more than one endpoint takes."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from app.errors import MAX_BODY_BYTES as MAX_BODY_BYTES
from app.errors import ApiError, bad_request
from controller.contract import Wish

MAX_CHOICES = 8
MAX_PROMPTS = 64
MAX_STOPS = 4
MAX_STOP_CHARS = 256
MAX_STOP_IDS = 64
MAX_BIASES = 1024
MAX_BAD_WORDS = 64
MAX_ALLOWED_IDS = 300_000
MAX_LOGPROBS = 20

Temperature = Annotated[float, Meta(ge=0, le=2)]
TopP = Annotated[float, Meta(gt=0, le=1)]
TopK = Annotated[int, Meta(ge=-1, le=1_000_000)]
MinP = Annotated[float, Meta(ge=0, le=1)]
Penalty = Annotated[float, Meta(ge=-2, le=2)]
RepetitionPenalty = Annotated[float, Meta(ge=0.01, le=100)]
Bias = Annotated[float, Meta(ge=-100, le=100)]
Biases = Annotated[dict[str, Bias], Meta(max_length=MAX_BIASES)]
Seed = Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)]
Tokens = Annotated[int, Meta(ge=1, le=2**31 - 1)]
MinTokens = Annotated[int, Meta(ge=0, le=2**31 - 1)]
Choices = Annotated[int, Meta(ge=1, le=MAX_CHOICES)]
TokenId = Annotated[int, Meta(ge=0, le=2**31 - 1)]
StopString = Annotated[str, Meta(min_length=1, max_length=MAX_STOP_CHARS)]
Stop = StopString | Annotated[list[StopString], Meta(max_length=MAX_STOPS)]
StopIds = Annotated[list[TokenId], Meta(max_length=MAX_STOP_IDS)]
BadWords = Annotated[list[StopString], Meta(max_length=MAX_BAD_WORDS)]
AllowedIds = Annotated[list[TokenId], Meta(min_length=1, max_length=MAX_ALLOWED_IDS)]
Logprobs = Annotated[int, Meta(ge=0, le=MAX_LOGPROBS)]
CacheSalt = Annotated[str, Meta(min_length=1, max_length=256)]
Priority = Annotated[int, Meta(ge=-(2**31), le=2**31 - 1)]
Name = Annotated[str, Meta(min_length=1, max_length=256)]


class Speculation(msgspec.Struct, forbid_unknown_fields=True):
    """What the request asks of speculation; the operator's limits still hold.

    Without drafter the controller chooses it, without draft_length it chooses D."""

    enabled: bool = True
    drafter: Annotated[str, Meta(min_length=1, max_length=64)] | None = None
    draft_length: int | None = None


class StreamOptions(msgspec.Struct):
    """include_usage adds a last chunk with usage and metrics, and with continuous_usage_stats every
    other chunk has the usage so far; include_provenance adds x_spec."""

    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None
    include_provenance: bool | None = None

    @property
    def continuous(self) -> bool:
        """Whether every chunk has usage; as in vLLM, continuous_usage_stats alone does nothing."""
        return bool(self.include_usage and self.continuous_usage_stats)


def wish(speculation: Speculation | None) -> Wish:
    """The request's wish as the engine takes it."""
    if speculation is None:
        return Wish()
    return Wish(speculation.enabled, speculation.drafter, speculation.draft_length)


def check_draft_length(length: int | None, largest: int, param: str) -> None:
    """Raise a 400 when this D was asked for and is not within the server's limit."""
    if length is not None and not 0 <= length <= largest:
        raise ApiError(
            400,
            "draft_length_out_of_range",
            f"draft_length must be between 0 and {largest}.",
            param,
        )


def check_stream_options(stream: bool | None, options: StreamOptions | None) -> StreamOptions:
    """The options, or the defaults. Raises ApiError when they come without stream."""
    if options is not None and not stream:
        raise bad_request("stream_options needs stream to be true.", "stream_options")
    return options or StreamOptions()
