"""What a verify step costs by arithmetic: a simulated machine's truth, a serving engine's prior.

In a simulation the controller never sees this formula, only noisy times that come of it. Additive
roofline (weights read + arithmetic + keys and values read + launch + exchange between devices) over
rows padded to the machine's tile. A mixture of experts reads the union of the experts its rows use.
The attention of a request computes whole tiles of 128 query rows, group x (1 + D) are used.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from controller.simulate.machines import Experts, Hardware, Model

BANDWIDTH_SHARE, PEAK_SHARE = 0.85, 0.77
"""Of the data sheet's values that kernels reach; with these an H100 and Llama-3.1-8B come to the
5.886 ms + 21.0 us per row that were measured (SpecDecode-Bench, arXiv 2601.11580)."""
KV_VALUE_BYTES = 2.0
ATTENTION_TILE = 128
HOP_MS = 0.008
"""Latency of one exchange between devices; each layer has two."""
WITHIN = 0.75
"""Rows of one request share experts: n of them use as many as n ** .75 unrelated ones (fitted to
22, 36 and 56 distinct experts at 4, 8 and 16 rows)."""

Counts = NDArray[np.int64]
Times = NDArray[np.float64]
Number = TypeVar("Number", float, Times)


class Parts(NamedTuple):
    """Of a step, or of steps side by side: what its kinds of work take, in milliseconds, and the
    attention per token of context that each request has."""

    fixed: float
    rows: Any
    experts: Any
    attention: Any


@dataclass(frozen=True, slots=True)
class StepCost:
    """Milliseconds of a verify step. base_ms: with no row. row_ms: a row. kv_ms: a token of
    context that is read. tile: rows are padded to a multiple of it. tile_kv_ms: a tile of query
    rows against a token of context, where the arithmetic of the attention is the limit; group:
    query rows of a tile that one row fills. expert_ms: reading one expert in all layers."""

    base_ms: float
    row_ms: float
    kv_ms: float
    tile: int = 1
    group: int = 1
    tile_kv_ms: float = 0.0
    experts: Experts | None = None
    expert_ms: float = 0.0

    def verify_ms(self, rows: Counts, context: Counts, prefill_rows: int = 0) -> Times:
        """rows, context: int [..., B], 1 + D and tokens of context of each request, 0 where there
        is none. Returns [...]."""
        total = rows.sum(axis=-1) + prefill_rows
        padded = -(-total // self.tile) * self.tile if self.tile > 1 else total
        ms: Times = self.base_ms + self.row_ms * padded
        if self.tile_kv_ms:
            tiles = -(-self.group * rows // ATTENTION_TILE)
            ms = ms + (context * np.maximum(self.kv_ms, tiles * self.tile_kv_ms)).sum(axis=-1)
        else:
            ms = ms + self.kv_ms * context.sum(axis=-1)
        if self.experts is not None:
            unrelated = (rows.astype(np.float64) ** WITHIN).sum(axis=-1) + prefill_rows**WITHIN
            missed = (1.0 - self.experts.used / self.experts.count) ** unrelated
            ms = ms + self.expert_ms * self.experts.count * (1.0 - missed)
        return ms

    def parts(self, requests: int, rows: Number) -> Parts:
        """rows: of a step in all, or of steps side by side [S], spread evenly over its requests."""
        each, more = rows // requests, rows % requests
        padded = -(-rows // self.tile) * self.tile
        experts: Any = 0.0
        if self.experts is not None:
            unrelated = (requests - more) * each**WITHIN + more * (each + 1.0) ** WITHIN
            missed = (1.0 - self.experts.used / self.experts.count) ** unrelated
            experts = self.expert_ms * self.experts.count * (1.0 - missed)
        attention: Any = self.kv_ms * requests
        if self.tile_kv_ms:
            some, others = self._over_kv(each + 1.0), self._over_kv(each)
            attention = attention + more * some + (requests - more) * others
        return Parts(self.base_ms, self.row_ms * padded, experts, attention)

    def _over_kv(self, rows: Number) -> Number:
        """What a request's tiles of query rows take beyond reading a token of context."""
        tiles = -(-self.group * rows // ATTENTION_TILE)
        over = tiles * self.tile_kv_ms - self.kv_ms
        return over * (over > 0.0)

    def step_ms(self, requests: int, rows_each: int, context: int) -> float:
        """A step of equal requests."""
        shape = (requests,)
        return float(self.verify_ms(np.full(shape, rows_each), np.full(shape, context)))


FITTED = StepCost(base_ms=5.886, row_ms=0.021, kv_ms=39.3e-6)
"""Measured fit of Llama-3.1-8B on one H100, vLLM (SpecDecode-Bench)."""


def roofline(hardware: Hardware, model: Model, devices: int = 1) -> StepCost:
    """The cost of a model on `devices` equal devices with tensor parallelism. ValueError when its
    weights do not fit their memory."""
    weights = model.parameters * model.weight_bytes
    if weights > 0.95 * hardware.memory * devices:
        raise ValueError(
            f"the weights take {weights / 1e9:,.0f} GB, more than the {devices} x "
            f"{hardware.memory / 1e9:,.0f} GB of the devices; give more devices."
        )
    read = 1e3 / (hardware.bandwidth * devices)
    compute = 1e3 / (hardware.peak * devices)
    hops = 2 * model.layers if devices > 1 else 0
    moved = 2.0 * model.hidden * 2 * (devices - 1) / devices
    row_ms = 2.0 * model.active * compute / PEAK_SHARE + hops * moved * 1e3 / hardware.link
    optional: dict[str, Any] = {}
    if model.experts is not None:
        optional["experts"] = model.experts
        expert = model.experts.parameters * model.weight_bytes * model.experts.layers
        optional["expert_ms"] = expert * read / BANDWIDTH_SHARE
    tile_flops = model.layers * model.head_flops * ATTENTION_TILE / model.group
    return StepCost(
        base_ms=hardware.launch_ms
        + hops * HOP_MS
        + model.dense * model.weight_bytes * read / BANDWIDTH_SHARE,
        row_ms=row_ms,
        kv_ms=model.layers * model.kv_values * KV_VALUE_BYTES * read,
        tile=hardware.tile,
        group=model.group,
        tile_kv_ms=tile_flops * compute / PEAK_SHARE,
        **optional,
    )
