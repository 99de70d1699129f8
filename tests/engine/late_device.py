"""A device on the CPU whose copies to the host arrive late, as a GPU's do."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from torch import Tensor

from engine.device import Device, Mark
from tests.engine.test_waits import WAITS

CPU = torch.device("cpu")


@dataclass
class Stream:
    """What was enqueued. copies: not arrived yet, (number, host tensor, what it will hold). seen:
    host tensors that have arrived. waits: who waited for something that had not happened."""

    enqueued: int = 0
    done: int = 0
    copies: list[tuple[int, Tensor, Tensor]] = field(default_factory=list)
    seen: list[Tensor] = field(default_factory=list)
    waits: list[str] = field(default_factory=list)

    def reach(self, number: int) -> None:
        self.done = max(self.done, number)
        for place, host, value in self.copies:
            if place <= self.done:
                host.copy_(value)
                self.seen.append(host)
        self.copies = [one for one in self.copies if one[0] > self.done]


@dataclass(frozen=True)
class _Event:
    """It has happened once the stream has come so far."""

    stream: Stream
    number: int

    def synchronize(self) -> None:
        if self.stream.done < self.number:
            self.stream.waits.append(sys._getframe(1).f_code.co_qualname)
            self.stream.reach(self.number)

    def elapsed_time(self, end_event: Any, /) -> float:
        """A millisecond for everything enqueued between."""
        assert self.stream.done >= end_event.number >= self.number
        return float(end_event.number - self.number)


@dataclass(frozen=True)
class LateDevice(Device):
    """Computes as the CPU does. What it copies to the host is rubbish there until somebody has
    waited for an event behind the copy."""

    torch_device: torch.device = CPU
    dtype: torch.dtype = torch.float32
    stream: Stream = field(default_factory=Stream)

    def tensor(self, values: list[int] | list[float], dtype: torch.dtype) -> Tensor:
        self.stream.enqueued += 1
        return super().tensor(values, dtype)

    def to_host(self, value: torch.Tensor) -> torch.Tensor:
        stream = self.stream
        stream.enqueued += 1
        host = torch.full_like(value, False if value.dtype == torch.bool else -(1 << 20))
        stream.copies.append((stream.enqueued, host, value.clone()))
        return host

    def record(self) -> Mark:
        self.stream.enqueued += 1
        return _Event(self.stream, self.stream.enqueued)

    def mark(self) -> Mark:
        return self.record()


def watch(patch: pytest.MonkeyPatch, stream: Stream, name: str) -> None:
    """From now on a look at a tensor that is on the device, or on its way, fails."""
    look: Callable[..., Any] = getattr(torch.Tensor, name)

    def watched(tensor: Tensor, *arguments: Any, **options: Any) -> Any:
        if stream.done < stream.enqueued and not any(one is tensor for one in stream.seen):
            raise AssertionError(f"a hidden wait for the device: Tensor.{name}")
        return look(tensor, *arguments, **options)

    patch.setattr(torch.Tensor, name, watched)


def watch_all(patch: pytest.MonkeyPatch, stream: Stream) -> None:
    for name in WAITS:
        watch(patch, stream, name)
