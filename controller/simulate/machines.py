"""Hardware profiles and model shapes that step costs are derived from. Public data-sheet values."""

from __future__ import annotations

from dataclasses import dataclass

GB = 1e9
TB = 1e12


@dataclass(frozen=True, slots=True)
class Hardware:
    """One device. peak: dense bf16 FLOP/s. bandwidth and link: bytes/s of its memory and to its
    peers. launch_ms: of one forward, whatever it computes. overhead_ms: of a step beside it. tile:
    rows that a forward is padded to a multiple of (captured graphs, matrix tiles)."""

    peak: float
    bandwidth: float
    memory: float
    link: float
    launch_ms: float = 0.25
    overhead_ms: float = 1.2
    tile: int = 8


HARDWARE = {
    "A100": Hardware(312e12, 2.04 * TB, 80 * GB, 300 * GB),
    "H100": Hardware(989e12, 3.35 * TB, 80 * GB, 450 * GB),
    "H200": Hardware(989e12, 4.8 * TB, 141 * GB, 450 * GB),
    "B200": Hardware(2250e12, 8.0 * TB, 192 * GB, 900 * GB),
    "L40S": Hardware(362e12, 0.864 * TB, 48 * GB, 32 * GB),
    # Two cores with matrix units, fitted to measured steps of the embedded model.
    "CPU": Hardware(1.2e12, 0.1 * TB, 64 * GB, 10 * GB, 7.5, 0.5, 1),
}


@dataclass(frozen=True, slots=True)
class Experts:
    """Of a mixture of experts: how many each of `layers` has and uses per token, and the weights
    of one."""

    count: int
    used: int
    parameters: float
    layers: int


@dataclass(frozen=True, slots=True)
class Model:
    """dense: weights that every token uses. group: query heads per key-value head (the tile of
    the attention). kv_values: keys and values kept per token and layer. head_flops: FLOP of the
    attention per token of context, layer and query row of all heads."""

    layers: int
    hidden: int
    dense: float
    group: int
    kv_values: int
    head_flops: float
    weight_bytes: float = 2.0
    experts: Experts | None = None

    @property
    def active(self) -> float:
        """Weights that one token uses."""
        if self.experts is None:
            return self.dense
        used = self.experts
        return self.dense + used.layers * used.used * used.parameters

    @property
    def parameters(self) -> float:
        if self.experts is None:
            return self.dense
        all_of = self.experts
        return self.dense + all_of.layers * all_of.count * all_of.parameters


def grouped(
    layers: int,
    hidden: int,
    heads: int,
    kv_heads: int,
    head_size: int,
    dense: float,
    experts: Experts | None = None,
) -> Model:
    """A model with grouped-query attention, in bf16."""
    return Model(
        layers=layers,
        hidden=hidden,
        dense=dense,
        group=heads // kv_heads,
        kv_values=2 * kv_heads * head_size,
        head_flops=4.0 * heads * head_size,
        experts=experts,
    )


MODELS = {
    "smollm2-135m": grouped(30, 576, 9, 3, 64, 0.1345e9),
    "qwen3-0.6b": grouped(28, 1024, 16, 8, 128, 0.6e9),
    "llama-1b": grouped(16, 2048, 32, 8, 64, 1.24e9),
    "llama-8b": grouped(32, 4096, 32, 8, 128, 8.03e9),
    "qwen3-32b": grouped(64, 5120, 64, 8, 128, 32.8e9),
    "llama-70b": grouped(80, 8192, 64, 8, 128, 70.6e9),
    "qwen3-30b-a3b": grouped(48, 2048, 32, 4, 128, 1.54e9, Experts(128, 8, 4.72e6, 48)),
    "qwen3-235b-a22b": grouped(94, 4096, 64, 4, 128, 7.8e9, Experts(128, 8, 18.87e6, 94)),
    # Latent attention: 512 + 64 values per token serve all 128 heads; weights in 8 bits.
    "deepseek-v3": Model(
        layers=61,
        hidden=7168,
        dense=16.6e9,
        group=128,
        kv_values=576,
        head_flops=2.0 * 128 * (576 + 512),
        weight_bytes=1.0,
        experts=Experts(256, 8, 44.04e6, 58),
    ),
}
