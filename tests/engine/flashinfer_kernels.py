"""FlashInfer on a machine without CUDA: its own Python runs, torch takes the kernels' place."""

from __future__ import annotations

from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

PLAN_ARGUMENTS = (
    "float_workspace",
    "int_workspace",
    "pinned_workspace",
    "query_ends",
    "page_ends",
    "lengths",
    "total_rows",
    "batch",
    "heads",
    "kv_heads",
    "page_size",
    "graph",
    "head_dim",
    "value_dim",
    "causal",
    "window_left",
    "fixed_split_size",
    "disable_split_kv",
)
"""What the compiled `plan` of the fa2 kernels is called with, by place."""


@dataclass
class Kernels:
    """planned: arguments of every compiled `plan`, by name; ran: the plan of every kernel run."""

    planned: list[dict[str, Any]] = field(default_factory=list, repr=False)
    ran: list[dict[str, Any]] = field(default_factory=list, repr=False)
    ignore_window: bool = False

    def module(self, sinks: bool) -> SimpleNamespace:
        """A compiled kernel module; one for sinks is called with (sinks, scale) at the end."""

        def plan(*arguments: Any) -> dict[str, Any]:
            told: dict[str, Any] = dict(zip(PLAN_ARGUMENTS, arguments, strict=False))
            for name in ("query_ends", "page_ends", "lengths"):
                assert told[name].dtype == torch.int32
                assert told[name].device.type == "cpu"
            assert told["causal"] is True
            self.planned.append(told)
            return told

        def paged_run(*arguments: Any) -> None:
            self._run(*arguments[:16], sinks=sinks, rest=arguments[16:])

        return SimpleNamespace(plan=plan, paged_run=paged_run)

    def _run(
        self,
        float_workspace: Tensor,
        int_workspace: Tensor,
        told: dict[str, Any],
        q: Tensor,
        keys: Tensor,
        values: Tensor,
        query_ends: Tensor,
        page_ends: Tensor,
        indices: Tensor,
        last_page: Tensor,
        out: Tensor,
        lse: Tensor | None,
        mask_mode: int,
        layout: int,
        window_left: int,
        pdl: bool,
        *,
        sinks: bool,
        rest: tuple[Any, ...],
    ) -> None:
        """What the fa2 kernel computes, in float32, after checking what it relies on."""
        self.ran.append(told)
        for part in (query_ends, page_ends, indices, last_page):
            assert part.dtype == torch.int32
            assert part.is_contiguous()
        assert float_workspace is told["float_workspace"]
        assert int_workspace is told["int_workspace"]
        assert (mask_mode, layout) == (1, 0)  # causal, NHD
        assert window_left == told["window_left"]
        page_size = told["page_size"]
        shape = (told["kv_heads"], told["head_dim"])
        assert q.is_contiguous()
        assert q.shape == (told["total_rows"], told["heads"], told["head_dim"])
        assert keys.shape[1:] == values.shape[1:] == (page_size, *shape)
        assert keys.stride() == values.stride()
        assert keys.is_contiguous()
        queries, pages = query_ends.tolist(), page_ends.tolist()
        assert queries == told["query_ends"].tolist()
        assert pages == told["page_ends"].tolist()
        assert queries[0] == pages[0] == 0
        assert queries[-1] == len(q)
        if told["graph"]:  # the buffer is as long as any list, and the rest of it is old
            assert pages[-1] <= len(indices)
            assert told["total_rows"] == told["batch"] == len(q)
        else:
            assert pages[-1] == len(indices)
        if sinks:
            sink, scale, softcap = rest[0], rest[1], 0.0
            assert sink.dtype == torch.float32
            assert told["disable_split_kv"] is True
        else:
            sink, softcap, scale = None, rest[6], rest[7]
        window = window_left if window_left >= 0 and not self.ignore_window else 1 << 30
        group = told["heads"] // told["kv_heads"]
        for request in range(told["batch"]):
            held = indices[pages[request] : pages[request + 1]].long()
            last = int(last_page[request])
            assert len(held) >= 1
            assert 1 <= last <= page_size
            assert 0 <= int(held.min()) <= int(held.max()) < len(keys)
            length = (len(held) - 1) * page_size + last
            assert length == int(told["lengths"][request])
            first, end = queries[request], queries[request + 1]
            assert 1 <= end - first <= length  # the rows being appended are counted
            key = keys[held].flatten(0, 1)[:length].float().repeat_interleave(group, 1)
            value = values[held].flatten(0, 1)[:length].float().repeat_interleave(group, 1)
            scores = torch.einsum("rhd,lhd->hrl", q[first:end].float(), key) * scale
            if softcap > 0:
                scores = softcap * torch.tanh(scores / softcap)
            place = torch.arange(length - (end - first), length).unsqueeze(1)
            distance = place - torch.arange(length)
            hidden = (distance < 0) | (distance > window)
            scores = scores.masked_fill(hidden, float("-inf"))
            if sink is not None:
                column = sink.view(-1, 1, 1).expand(-1, end - first, 1)
                scores = torch.cat([scores, column], dim=-1)
            weights = scores.softmax(-1)[..., :length]
            out[first:end] = torch.einsum("hrl,lhd->rhd", weights, value).to(out.dtype)


def replace_kernels(monkeypatch: pytest.MonkeyPatch) -> Kernels:
    """Replace the compiled kernels of the installed FlashInfer, and its pinned memory."""
    from flashinfer import prefill
    from flashinfer.jit import utils

    kernels = Kernels()
    empty = torch.empty

    def unpinned(*size: Any, pin_memory: bool = False, **options: Any) -> Tensor:
        return empty(*size, **options)

    replacements = {
        "device_support_pdl": lambda device: False,
        "get_batch_prefill_module": lambda backend, *arguments: kernels.module(sinks=False),
        "get_customize_batch_prefill_module": lambda backend, *arguments, **options: None,
        "get_batch_prefill_jit_module": lambda name, module: kernels.module(sinks=True),
    }
    monkeypatch.setattr(torch, "empty", unpinned)
    # The real kernels have no float32; the exactness of texts is tested in it.
    for names in ("filename_safe_dtype_map", "dtype_map_kv"):
        monkeypatch.setitem(getattr(utils, names, {}), torch.float32, "f32")
    for name, replacement in replacements.items():
        monkeypatch.setattr(prefill, name, replacement)
    return kernels
