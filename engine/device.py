"""The device: where tensors live, how to copy to the host, and which dtype is fast there."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import torch

from engine.errors import StartError
from engine.host_memory import available_bytes


class Event(Protocol):
    def synchronize(self) -> None: ...


class Mark(Event, Protocol):
    """An event whose time counts."""

    def elapsed_time(self, end_event: Any, /) -> float:
        """Milliseconds of the device from this mark to a later one. Both must have happened."""
        ...


class _Done:
    """An event that has already happened: the CPU computes at once."""

    def synchronize(self) -> None:
        return

    def elapsed_time(self, end_event: Any, /) -> float:
        """Nothing was left to the device: the host's clock has all of it."""
        return 0.0


@dataclass(frozen=True)
class Device:
    """One compute device. On the CPU events are inert and pinned buffers are plain tensors."""

    torch_device: torch.device
    dtype: torch.dtype

    @property
    def is_cuda(self) -> bool:
        return self.torch_device.type == "cuda"

    def tensor(self, values: list[int] | list[float], dtype: torch.dtype) -> torch.Tensor:
        """Host values as a device tensor of shape [len(values)], copied without waiting."""
        host = torch.tensor(values, dtype=dtype, pin_memory=self.is_cuda)
        return host.to(self.torch_device, non_blocking=True) if self.is_cuda else host

    def upload(self, host: torch.Tensor) -> torch.Tensor:
        """A host tensor on the device, copied without waiting."""
        if not self.is_cuda or host.is_cuda:
            return host
        return host.pin_memory().to(self.torch_device, non_blocking=True)

    def to_host(self, value: torch.Tensor) -> torch.Tensor:
        """Start copying a device tensor to the host; complete after record().synchronize()."""
        if not self.is_cuda:
            return value
        host = torch.empty(value.shape, dtype=value.dtype, pin_memory=True)
        return host.copy_(value, non_blocking=True)

    def record(self) -> Event:
        """An event behind everything enqueued so far."""
        if not self.is_cuda:
            return _Done()
        event = torch.cuda.Event()
        event.record()
        return event

    def mark(self) -> Mark:
        """The same, and when the device came to it."""
        if not self.is_cuda:
            return _Done()
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def graph(self, body: Callable[[], None]) -> Callable[[], None]:
        """What does as `body` did, whenever it is called: on a GPU its kernels at one launch, with
        the values that their tensors hold then. Making one waits for the device."""
        if not self.is_cuda:
            return body
        graph = torch.cuda.CUDAGraph()
        # Another thread may be loading a drafter meanwhile.
        with torch.cuda.graph(graph, capture_error_mode="thread_local"):
            body()
        return graph.replay

    def free_bytes(self) -> int:
        """Memory that a page pool may be sized from."""
        if self.is_cuda:
            return torch.cuda.mem_get_info(self.torch_device)[0]
        return available_bytes()

    def release(self) -> None:
        """Give memory that nothing holds any more back to the system."""
        if self.is_cuda:
            torch.cuda.empty_cache()


def open_device(
    device: Literal["auto", "cpu", "cuda"],
    dtype: Literal["auto", "float32", "bfloat16"],
    threads: int,
) -> Device:
    """Choose the device and dtype. dtype auto is bfloat16 where it is fast, else float32."""
    cuda = torch.cuda.is_available()
    if device == "cuda" and not cuda:
        raise StartError(
            "no_cuda",
            "device cuda was asked for, but torch finds no CUDA GPU; "
            "use --device auto or cpu, or install a CUDA build of torch.",
        )
    place = torch.device("cuda" if cuda and device != "cpu" else "cpu")
    torch.set_num_threads(threads if threads > 0 else physical_cores())
    torch.set_grad_enabled(False)
    if dtype == "auto":
        chosen = torch.bfloat16 if has_fast_bfloat16(place) else torch.float32
    else:
        chosen = torch.float32 if dtype == "float32" else torch.bfloat16
    return Device(place, chosen)


def has_fast_bfloat16(device: torch.device) -> bool:
    """True when it multiplies bfloat16 natively; a CPU with AMX, AVX-512 BF16 or Arm BF16."""
    if device.type == "cuda":
        return torch.cuda.is_bf16_supported()
    capabilities = torch.cpu.get_capabilities()
    return any(capabilities.get(name) for name in ("amx_bf16", "avx512_bf16", "bf16"))


def physical_cores() -> int:
    """Physical cores this process may run on."""
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    physical = torch.cpu.get_capabilities().get("num_physical_cores") or usable
    return max(1, min(int(usable or 1), int(physical or 1)))
