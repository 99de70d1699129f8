"""A dense decoder's layers on the CPU as compiled lists of operations, around any attention."""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor

from engine import kernels_float, kernels_product
from engine.kernels_product import packed_bytes
from engine.linear import TOLERANCES, Linear, PackedLinear, can_pack
from engine.norm import MirroredNorm, Norm
from engine.program import (
    ADD_NORM,
    GATE,
    HEADER,
    PRODUCT,
    STEP,
    TURN,
    compiled,
    scratch_floats,
)
from engine.shape import Attend
from engine.team import Team

if TYPE_CHECKING:
    from engine.decoder import Decoder, Layer, Taps

MOST_ROWS = 64
"""Rows up to which the compiled products are faster than oneDNN's."""
ALONE = 1 << 14
"""Numbers of a row operation up to which one thread is faster than several."""

Step = tuple[int, ...]
"""One operation of engine.program."""


def serves(decoder: Decoder) -> bool:
    """Whether the compiled code computes every layer of the decoder."""
    norms = [decoder.norm]
    for layer in decoder.layers:
        norms += [layer.input_norm, layer.mlp_norm]
        norms += [norm for norm in (layer.q_norm, layer.k_norm) if norm is not None]
    number = decoder.embedding.dtype in (torch.bfloat16, torch.float32)
    return number and all(isinstance(norm, MirroredNorm) for norm in norms)


@dataclass(frozen=True, slots=True)
class _Plan:
    """Steps of few rows over the shared buffers. lists: before each layer's attention, and after
    the last. places: the words that take the address of each layer's attention output. stream: the
    residual stream."""

    lists: list[Any]
    places: list[tuple[Any, int]]
    qkv: tuple[Tensor, Tensor, Tensor]
    positions: Tensor
    stream: Tensor
    hidden: Tensor


class CpuLayers:
    """Runs the layers of a decoder that `serves` accepts; one thread at a time."""

    def __init__(self, decoder: Decoder) -> None:
        self._decoder = decoder
        self._shape = decoder.shape
        self._dtype = decoder.embedding.dtype
        self._body = compiled(self._dtype == torch.bfloat16)
        self._team = Team()
        self._scratch_floats = scratch_floats(decoder.shape.head_dim)
        self._scratch = torch.empty(self._team.size * self._scratch_floats, dtype=torch.float32)
        self._one = _bits(1.0)
        self._plans: dict[int, _Plan] = {}
        self._buffers: list[Tensor] = []
        linears = [
            one
            for each in decoder.layers
            for one in (each.qkv, each.output, each.gate_up, each.down)
        ]
        self._listed = all(listed(each) for each in linears)

    def forward(
        self, x: Tensor, positions: Tensor, attend: Attend, taps: Taps | None = None
    ) -> Tensor:
        """x [T, d] and positions int64 [T] -> hidden states after the final norm, [T, d]."""
        if self._listed and len(x) <= MOST_ROWS:
            return self._few(x, positions, attend, taps)
        return self._many(x, positions, attend, taps)

    def multiply(self, linear: Linear, x: Tensor) -> Tensor:
        """linear(x)."""
        if not isinstance(linear, PackedLinear) or len(x) > MOST_ROWS or not listed(linear):
            return linear(x)
        x = x.contiguous()
        out = x.new_empty((len(x), linear.outputs))
        self._run([product_step(linear, x, out)], alone=False)
        return out

    # --- few rows: everything between two attentions is one list ----------------------------------

    def _few(self, x: Tensor, positions: Tensor, attend: Attend, taps: Taps | None) -> Tensor:
        plan = self._planned(len(x))
        x = x.contiguous()
        plan.positions.copy_(positions)
        plan.lists[0][HEADER + 2] = x.data_ptr()
        q, k, v = plan.qkv
        run, body = self._team.run, self._body
        for layer, (words, place) in enumerate(plan.places):
            run(body, plan.lists[layer])
            if taps is not None and taps.wants(layer):
                taps.take(layer, plan.stream.clone())
            attended = attend(layer, q, k, v).contiguous()
            words[place] = attended.data_ptr()
        run(body, plan.lists[-1])
        return plan.hidden.clone()

    def _planned(self, rows: int) -> _Plan:
        plan = self._plans.get(rows)
        if plan is None:
            plan = self._plans[rows] = self._plan(rows)
        return plan

    def _plan(self, rows: int) -> _Plan:
        decoder = self._decoder
        self._buffers = self._buffers or self._allocate()
        x, middle, normed, qkv, branch, pair, gated, positions = (
            each[:rows] for each in self._buffers
        )
        attended = torch.empty(0, dtype=self._dtype)  # its address comes from each attention
        lists: list[Any] = []
        steps = self._begin(x, normed)
        for index, layer in enumerate(decoder.layers):
            last = index + 1 == len(decoder.layers)
            following = decoder.norm if last else decoder.layers[index + 1].input_norm
            steps.append(product_step(layer.qkv, normed, qkv))
            steps += self._turns(layer, qkv, positions)
            lists.append(self._list(steps))
            steps = [
                product_step(layer.output, attended, branch, rows),
                self._add_norm(x, branch, middle, layer.mlp_norm, normed),
                product_step(layer.gate_up, normed, pair),
                (GATE, rows, pair.data_ptr(), gated.shape[1], gated.data_ptr()),
                product_step(layer.down, gated, branch),
                self._add_norm(middle, branch, x, following, normed),
            ]
        lists.append(self._list(steps))
        places = [(words, HEADER + 2) for words in lists[1:]]
        return _Plan(lists, places, self._split(qkv), positions, x, normed)

    def _begin(self, x: Tensor, normed: Tensor) -> list[Step]:
        """From what `forward` is given to the first layer's x and its norm. The first operation's
        input is put in at each call."""
        return [self._add_norm(x, None, x, self._decoder.layers[0].input_norm, normed)]

    def _allocate(self) -> list[Tensor]:
        """What lies between the operations, for MOST_ROWS rows."""
        shape, layer = self._shape, self._decoder.layers[0]
        qkv = (shape.heads + 2 * shape.kv_heads) * shape.head_dim
        gated = layer.down.inputs if isinstance(layer.down, PackedLinear) else 0
        sizes = (shape.hidden, shape.hidden, shape.hidden, qkv, shape.hidden, 2 * gated, gated)
        buffers = [torch.empty(MOST_ROWS, size, dtype=self._dtype) for size in sizes]
        return [*buffers, torch.empty(MOST_ROWS, dtype=torch.int64)]

    # --- many rows, or products that are not ours -------------------------------------------------

    def _many(self, x: Tensor, positions: Tensor, attend: Attend, taps: Taps | None) -> Tensor:
        decoder, positions = self._decoder, positions.contiguous()
        x, branch = x.contiguous(), None
        total, middle, normed = (torch.empty_like(x) for _ in range(3))
        for index, layer in enumerate(decoder.layers):
            self._run([self._add_norm(x, branch, total, layer.input_norm, normed)])
            if taps is not None and taps.wants(index):
                taps.take(index, total.clone())
            qkv = self.multiply(layer.qkv, normed)
            self._run(self._turns(layer, qkv, positions))
            attended = attend(index, *self._split(qkv))
            branch = self.multiply(layer.output, attended)
            self._run([self._add_norm(total, branch, middle, layer.mlp_norm, normed)])
            x = middle
            pair = self.multiply(layer.gate_up, normed)
            gated = x.new_empty((len(x), pair.shape[1] // 2))
            self._run([(GATE, len(x), pair.data_ptr(), gated.shape[1], gated.data_ptr())])
            branch = self.multiply(layer.down, gated)
        self._run([self._add_norm(x, branch, total, decoder.norm, normed)])
        return normed

    # --- operations -------------------------------------------------------------------------------

    def _run(self, steps: Sequence[Step], *, alone: bool | None = None) -> None:
        if not steps:
            return
        if alone is None:
            alone = steps[0][1] * self._shape.hidden <= ALONE
        words = self._list(steps, alone=alone)
        if alone:
            self._body.ctypes(words)
        else:
            self._team.run(self._body, words)

    def _list(self, steps: Sequence[Step], *, alone: bool = False) -> Any:
        """The words of a list: its header, then its operations."""
        flat = [word for step in steps for word in (*step, *[0] * (STEP - len(step)))]
        words = (ctypes.c_int64 * (HEADER + len(flat)))()
        words[HEADER:] = flat
        words[:7] = (
            ctypes.addressof(words) + 8 * HEADER,
            len(steps),
            self._scratch.data_ptr(),
            self._scratch_floats,
            *((0, 0, 0) if alone else self._team.addresses),
        )
        return words

    def _add_norm(
        self, x: Tensor, branch: Tensor | None, total: Tensor, norm: Norm, normed: Tensor
    ) -> Step:
        assert isinstance(norm, MirroredNorm)
        return (
            ADD_NORM,
            len(x),
            x.data_ptr(),
            0 if branch is None else branch.data_ptr(),
            _bits(self._decoder.scales.residual),
            norm.weight.data_ptr(),
            _bits(norm.epsilon),
            x.shape[1],
            total.data_ptr(),
            normed.data_ptr(),
        )

    def _turns(self, layer: Layer, qkv: Tensor, positions: Tensor) -> list[Step]:
        """Norm and rope of the queries and keys in qkv [T, (Hq + 2 Hkv) D]."""
        shape, decoder = self._shape, self._decoder
        dim = shape.head_dim
        tables = (decoder.cos.data_ptr(), decoder.sin.data_ptr()) if layer.rope else (0, 0)
        parts = [(0, shape.heads, layer.q_norm), (shape.heads, shape.kv_heads, layer.k_norm)]
        if layer.q_norm is None and layer.k_norm is None:
            if not layer.rope:
                return []
            parts = [(0, shape.heads + shape.kv_heads, None)]
        steps: list[Step] = []
        for first, heads, norm in parts:
            weight, epsilon = 0, 0
            if norm is not None:
                assert isinstance(norm, MirroredNorm)
                weight, epsilon = norm.weight.data_ptr(), _bits(norm.epsilon)
            address = qkv.data_ptr() + first * dim * qkv.element_size()
            steps.append(
                (TURN, len(qkv), address, qkv.stride(0), heads, weight, epsilon,
                 positions.data_ptr(), *tables, dim)
            )  # fmt: skip
        return steps

    def _split(self, qkv: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        shape = self._shape
        heads = qkv.view(len(qkv), -1, shape.head_dim)
        q, k, v = heads.split([shape.heads, shape.kv_heads, shape.kv_heads], dim=1)
        return q, k, v


def listed(linear: Linear) -> bool:
    """Whether PRODUCT computes this layer."""
    if not isinstance(linear, PackedLinear) or not can_list(linear.dtype):
        return False
    if linear.dtype == torch.float32:
        return linear.panel > 0
    even = linear.inputs % 2 == 0
    return even and linear.extent[1] == packed_bytes(linear.outputs, linear.inputs)


@cache
def can_list(dtype: torch.dtype) -> bool:
    """Whether this machine multiplies the dtype fast and oneDNN packs as our code reads: compared
    on a layer of more than one panel with a rest, for what several rows give."""
    kernels = kernels_product if dtype == torch.bfloat16 else kernels_float
    if dtype not in TOLERANCES or not (kernels.multiplies() and can_pack(dtype)):
        return False
    x = torch.linspace(-1, 1, 5 * 96).view(5, 96).to(dtype)
    weight = torch.linspace(1, -2, 150 * 96).sin().view(150, 96).to(dtype)
    layer = PackedLinear(weight, torch.linspace(0, 1, 150).to(dtype))
    if dtype == torch.bfloat16 and layer.extent[1] != packed_bytes(150, 96):
        return False
    if dtype == torch.float32 and not layer.panel:
        return False
    out = torch.empty(5, 150, dtype=dtype)
    scratch = torch.empty(scratch_floats(0), dtype=torch.float32)
    words = (ctypes.c_int64 * (HEADER + STEP))(
        0, 1, scratch.data_ptr(), 0, 0, 0, 0, 0, *product_step(layer, x, out)
    )
    words[0] = ctypes.addressof(words) + 8 * HEADER
    compiled(dtype == torch.bfloat16).ctypes(words)
    rtol, atol = TOLERANCES[dtype]
    wanted = F.linear(x, weight, layer.bias).float()
    return torch.allclose(out.float(), wanted, rtol=rtol, atol=atol)


def product_step(linear: Any, x: Tensor, out: Tensor, rows: int = 0) -> Step:
    bias = 0 if linear.bias is None else linear.bias.data_ptr()
    return (
        PRODUCT,
        rows or len(x),
        x.data_ptr(),
        linear.inputs,
        linear.extent[0],
        bias,
        out.data_ptr(),
        linear.outputs,
        linear.panel,
    )


def _bits(number: float) -> int:
    """The bits of a float32."""
    return struct.unpack("I", struct.pack("f", number))[0]
