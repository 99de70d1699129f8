"""What a few tokens tell of a transformers module: how its layers attend, and if pages suffice."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from engine.attention import TorchAttention
from engine.batch import Chunk, pack
from engine.device import Device
from engine.draw import Draw
from engine.errors import StartError
from engine.fallback import NAME, Fallback, body_of, refused, run
from engine.families import windows
from engine.kv import empty_pool
from engine.shape import AttentionKind, Shape

HARMLESS = frozenset({"s_aux", "position_ids", "position_embeddings"})
"""Tensors a family may hand to its attention function without changing what it computes, sinks
apart, which we take."""

PROBE = ((3, 5, 7, 11, 13, 17, 19), (23, 29, 31, 37, 41))
PROBE_SHIFTS = (0, 20, 40)
PROBE_CUTS = (4, 3)
"""The probe's requests, and where each is cut into a prefill and a verify-like chunk."""
PROBE_PAGES = ((3, 1), (2, 0))
PROBE_PAGE_SIZE = 4
PROBE_ERROR = {torch.float32: 1e-3, torch.bfloat16: 0.1, torch.float16: 0.03}
"""Largest relative difference of the probe's logits from eager transformers."""


@torch.no_grad()
def open_fallback(
    model: Any, config: Any, device: Device, context_length: int, proven: bool
) -> Fallback:
    """Put the model's attention over pages. proven: its family is held equal to eager by tests;
    of any other, a few tokens are compared here.

    Raises StartError when the family cannot be served this way."""
    model.to(device.torch_device).eval()  # its dtypes stay: rotary tables must not be rounded
    model.set_attn_implementation(NAME)
    kinds = _kinds(model, config, device)
    first = kinds[0]
    shape = Shape(
        layers=len(kinds),
        heads=first.heads,
        kv_heads=first.kv_heads,
        head_dim=first.head_dim,
        hidden=config.hidden_size,
        vocabulary=config.vocab_size,
        context_length=context_length,
        kinds=kinds,
    )
    fallback = Fallback(model, shape)
    if not proven:
        _compare(fallback, model, device)
    return fallback


def _kinds(model: Any, config: Any, device: Device) -> tuple[AttentionKind, ...]:
    """How each layer attends, read off a call of the model with a few tokens."""
    hidden_keys = windows(config)
    calls: list[tuple[int, AttentionKind]] = []

    def record(module: Any, q: Tensor, k: Tensor, v: Tensor, keywords: dict[str, Any]) -> Tensor:
        layer = getattr(module, "layer_idx", None)
        if not isinstance(layer, int):
            raise refused(f"{type(module).__name__} does not say which layer it is")
        window = hidden_keys[layer] if layer < len(hidden_keys) else None
        kind = kind_of(module, q, k, v, keywords, window)
        calls.append((layer, kind))
        return q.new_zeros(len(q), kind.heads * kind.value_dim)

    ids = device.tensor(list(PROBE[0]), torch.int64)
    try:
        run(body_of(model), ids, torch.arange(len(ids), device=ids.device), record)
    except StartError:
        raise
    except Exception as error:  # whatever a module raises that needs more than ids and positions
        raise refused(
            f"its module does not run on packed rows ({type(error).__name__}: {str(error)[:200]})"
        ) from error
    if sorted(layer for layer, _ in calls) != list(range(len(calls))) or not calls:
        raise refused(
            f"its {config.num_hidden_layers} layers called attention {len(calls)} times "
            f"(layers {[layer for layer, _ in calls][:8]}); each must once"
        )
    return tuple(kind for _, kind in sorted(calls, key=lambda call: call[0]))


def kind_of(
    module: Any,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    keywords: dict[str, Any],
    window: int | None = None,
) -> AttentionKind:
    """How an attention module attends, from what it hands its attention function. window: where
    it hands none. Raises StartError for one that our attention does not compute."""
    odd = [
        name
        for name, given in keywords.items()
        if isinstance(given, Tensor) and name not in HARMLESS
    ]
    if odd:
        raise refused(f"{type(module).__name__} hands its attention {odd[0]}, not known here")
    if not keywords.get("is_causal", getattr(module, "is_causal", True)):
        raise refused(f"{type(module).__name__} attends to later tokens too")
    own = keywords.get("sliding_window")
    kind = AttentionKind(
        heads=q.shape[1],
        kv_heads=k.shape[1],
        head_dim=q.shape[2],
        value_dim=v.shape[2],
        scale=float(keywords.get("scaling") or q.shape[2] ** -0.5),
        window=window if own is None else own,
        softcap=keywords.get("softcap"),
        sinks=keywords.get("s_aux") is not None,
    )
    if kind.heads % kind.kv_heads or not len(q) == len(k) == len(v):
        raise refused(f"{type(module).__name__} attends with unequal rows or heads")
    return kind


def _compare(fallback: Fallback, model: Any, device: Device) -> None:
    """Raise StartError unless packed requests over scattered pages give eager's logits.

    One of several texts that does is enough: rounding may send a token to other experts, and
    then a sound model differs too; one that keeps something outside the pages always does."""
    errors: list[float] = []
    for shift in PROBE_SHIFTS:
        texts = [[token + shift for token in text] for text in PROBE]
        model.set_attn_implementation("eager")
        wanted = torch.cat(
            [_eager(model, text, device)[cut:] for text, cut in zip(texts, PROBE_CUTS, strict=True)]
        )
        model.set_attn_implementation(NAME)
        logits = _over_pages(fallback, texts, device)
        errors.append(float((logits - wanted).norm() / wanted.norm()))
        if errors[-1] <= PROBE_ERROR[device.dtype]:
            return
    raise refused(
        f"over pages its logits differ from transformers' own (relative error {min(errors):.2g}): "
        "it keeps something between tokens that does not live in pages"
    )


def _over_pages(fallback: Fallback, texts: list[list[int]], device: Device) -> Tensor:
    """Logits [R, V] of what follows the cuts, computed in two packed steps."""
    pool = empty_pool(fallback.shape, device, 4, PROBE_PAGE_SIZE)
    attention = TorchAttention(pool, fallback.shape)
    places = list(zip(texts, PROBE_CUTS, PROBE_PAGES, strict=True))
    heads = [
        Chunk(request, text[:cut], 0, pages, Draw())
        for request, (text, cut, pages) in enumerate(places)
    ]
    tails = [
        Chunk(request, text[cut:], cut, pages, Draw())
        for request, (text, cut, pages) in enumerate(places)
    ]
    for chunks in (heads, tails):
        batch = pack(chunks, device, PROBE_PAGE_SIZE)
        hidden = fallback.forward(batch.ids, batch.positions, attention.plan(batch))
    return fallback.logits(hidden)


def _eager(model: Any, text: list[int], device: Device) -> Tensor:
    """transformers' own logits [len(text), V] of one request."""
    ids = device.tensor(text, torch.int64).unsqueeze(0)
    return model(input_ids=ids, use_cache=False).logits.squeeze(0).float()
