"""What a drafter with a model of its own will take in memory, told from its files alone."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from engine.errors import StartError
from engine.folder import CONFIG, read_json, read_shapes
from engine.shape import Shape
from engine.trained import DRAFT_IDS

OURS = ("paceline-mtp", "paceline-draft")
_LAYER = re.compile(r"^(?:model\.)?layers\.(\d+)\.")
_HEAD = re.compile(r"^(?:model\.)?mtp[._]")


@dataclass(frozen=True, slots=True)
class Needs:
    """parameters: weights of its own, rows of the target's that it copies, and the tables of its
    rotary positions. kv: numbers that its layers keep for each token; per_page: for each page
    beside that."""

    parameters: int
    kv: int
    per_page: int = 0

    def kv_bytes(self, pages: int, page_size: int, itemsize: int) -> int:
        return pages * (page_size * self.kv + self.per_page) * itemsize


def read_needs(name: str, folder: Path, target: Shape, draft_vocabulary: int) -> Needs:
    """Of drafter `name` from a checkpoint's folder, whose weights are not read. For formats of
    other makers an upper bound. Raises StartError where the files do not tell it."""
    try:
        names = {entry.name for entry in folder.iterdir()}
    except OSError as error:
        raise StartError(
            "drafter_not_found", f"{folder} cannot be read: {error.strerror or error}."
        ) from error
    if CONFIG not in names:
        raise StartError("drafter_unfit", f"{folder} holds no {CONFIG}: it is no checkpoint.")
    config = read_json(folder / CONFIG)
    shapes = {
        tensor: shape
        for header in read_shapes(folder, names).values()
        for tensor, shape in header.items()
    }
    try:
        if config.get("format") in OURS:
            return _of_ours(config, shapes, target)
        text = config["text_config"] if isinstance(config.get("text_config"), dict) else config
        if name == "mtp":
            return _of_head(text, shapes, target)
        return _of_model(text, shapes, target, draft_vocabulary)
    except (KeyError, TypeError, ValueError) as error:
        raise StartError(
            "drafter_unfit",
            f"{folder / CONFIG} does not tell the sizes of a drafter ({error!r}).",
        ) from error


def _of_ours(config: Mapping[str, Any], shapes: Mapping[str, list[int]], target: Shape) -> Needs:
    hidden, head_dim = int(config["hidden_size"]), int(config["head_dim"])
    own = sum(math.prod(shape) for name, shape in shapes.items() if name != DRAFT_IDS)
    rows = math.prod(shapes.get(DRAFT_IDS, [0]))
    kv = int(config.get("layers", 1)) * 2 * int(config["kv_heads"]) * head_dim
    tables = 2 * target.context_length * head_dim
    return Needs(own + rows * hidden + tables, kv, len(config.get("taps", ())) * hidden)


def _of_head(config: Mapping[str, Any], shapes: Mapping[str, list[int]], target: Shape) -> Needs:
    """Tensors of layers past the last one, or of a module called mtp, are the head's."""
    layers = int(config["num_hidden_layers"])

    def is_own(name: str) -> bool:
        layer = _LAYER.match(name)
        return int(layer[1]) >= layers if layer else _HEAD.match(name) is not None

    own = {name: shape for name, shape in shapes.items() if is_own(name)}
    if not own:
        raise StartError("drafter_unfit", "the checkpoint holds no multi-token prediction head.")
    last = target.kinds[-1]
    kv = last.kv_heads * (last.head_dim + last.value_dim)
    tables = 2 * target.context_length * last.head_dim
    return Needs(sum(map(math.prod, own.values())) + tables, kv, target.hidden)


def _of_model(
    config: Mapping[str, Any], shapes: Mapping[str, list[int]], target: Shape, rows: int
) -> Needs:
    def size(name: str, older: str) -> int:
        return int(config[name if config.get(name) is not None else older])

    hidden, heads = size("hidden_size", "n_embd"), size("num_attention_heads", "n_head")
    kv_heads = int(config.get("num_key_value_heads") or heads)
    head_dim = int(config.get("head_dim") or hidden // heads)
    kv = size("num_hidden_layers", "n_layer") * 2 * kv_heads * head_dim
    if not any(name.endswith(("lm_head.weight", "output.weight")) for name in shapes):
        rows = rows or target.vocabulary  # a tied head is packed beside its embedding
    copied = min(rows, target.vocabulary) * hidden + 2 * target.context_length * head_dim
    return Needs(sum(map(math.prod, shapes.values())) + copied, kv)
