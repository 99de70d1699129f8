"""The prompts of a completion: text or token ids, and how they read when they are echoed."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

from app.errors import bad_request
from app.inference.limits import TokenId
from app.service import Service
from engine.wire import Detokenize, Tokenize

# msgspec takes one list type in a union, so the lists are told apart by hand.
Prompt = str | list[str | TokenId | list[TokenId]]
One = str | tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Reading:
    """A prompt both ways: its text and its token ids."""

    text: str
    ids: list[int]


def prompts(value: Prompt) -> list[One]:
    """The prompts of a request, each text or token ids. Raises ApiError."""
    if isinstance(value, str):
        return [_not_empty(value)]
    if not value:
        raise bad_request("prompt must not be empty.", "prompt")
    if all(isinstance(item, int) for item in value):
        return [tuple(item for item in value if isinstance(item, int))]
    found: list[One] = []
    for item in value:
        if isinstance(item, int) or type(item) is not type(value[0]):
            raise bad_request("prompt must hold strings only or token ids only.", "prompt")
        found.append(_not_empty(item if isinstance(item, str) else tuple(item)))
    return found


async def readings(service: Service, found: Sequence[One]) -> list[Reading]:
    """Every prompt both ways. Raises ApiError for token ids outside the vocabulary."""
    return list(await asyncio.gather(*(_reading(service, prompt) for prompt in found)))


async def token_counts(service: Service, found: Sequence[One]) -> list[int]:
    """The number of tokens of every prompt, special ones included."""
    return list(await asyncio.gather(*(_count(service, prompt) for prompt in found)))


async def _count(service: Service, prompt: One) -> int:
    return len(await _ids(service, prompt) if isinstance(prompt, str) else prompt)


async def _ids(service: Service, prompt: str) -> list[int]:
    return (await service.call(Tokenize(prompt)))["tokens"]


async def _reading(service: Service, prompt: One) -> Reading:
    if isinstance(prompt, str):
        return Reading(prompt, await _ids(service, prompt))
    hello = service.engine.hello
    if hello is not None and any(token >= hello.vocabulary for token in prompt):
        top = hello.vocabulary - 1
        raise bad_request(f"prompt holds token ids outside 0..{top}.", "prompt")
    return Reading((await service.call(Detokenize(prompt)))["text"], list(prompt))


def _not_empty(prompt: One) -> One:
    if not prompt:
        raise bad_request("prompt must not be empty.", "prompt")
    return prompt
