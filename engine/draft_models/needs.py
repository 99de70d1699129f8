"""What a drafter with a model of its own will take in memory, told from its files alone."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from engine.draft_models.formats import read_kind
from engine.draft_models.tied import DraftConfig
from engine.errors import StartError
from engine.folder import CONFIG, MOST, check_sizes, read_headers
from engine.mtp.paceline import PacelineConfig
from engine.shape import Shape
from engine.stored_header import Stored
from engine.trained import DRAFT_IDS, check_stored, load_config

MOST_BYTES = 1 << 60
"""More than any machine has, and what a message can hold."""
_LAYER = re.compile(r"^(?:model\.)?layers\.(\d{1,9})\.")
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
    other makers an upper bound. Raises StartError as loading does, for a config or headers that
    are broken."""
    try:
        names = {entry.name for entry in folder.iterdir()}
    except OSError as error:
        raise StartError(
            "drafter_not_found", f"{folder} cannot be read: {error.strerror or error}."
        ) from error
    ours, config = read_kind(name, folder)
    if ours:
        return _of_head(folder, target) if name == "mtp" else _of_layers(folder, target)
    headers = read_headers(folder, names)
    stored = {tensor: one for header in headers.values() for tensor, one in header.items()}
    inner = config.get("text_config")
    sizes = _Sizes(folder / CONFIG, inner if isinstance(inner, dict) else config, len(stored))
    if name == "mtp":
        return _of_foreign_head(folder, sizes, stored, target)
    return _of_model(sizes, stored, target, draft_vocabulary)


def _of_head(folder: Path, target: Shape) -> Needs:
    config = load_config(folder, PacelineConfig)
    kept = len(config.taps) * config.hidden_size
    return _of_ours(check_stored(folder, config), config, 1, target, kept)


def _of_layers(folder: Path, target: Shape) -> Needs:
    config = load_config(folder, DraftConfig)
    return _of_ours(check_stored(folder, config), config, config.layers, target, 0)


def _of_ours(
    stored: Mapping[str, Stored],
    config: PacelineConfig | DraftConfig,
    layers: int,
    target: Shape,
    per_page: int,
) -> Needs:
    own = _count(one for name, one in stored.items() if name != DRAFT_IDS)
    rows = stored[DRAFT_IDS].shape[0] * config.hidden_size
    tables = 2 * target.context_length * config.head_dim
    return Needs(own + rows + tables, layers * 2 * config.kv_heads * config.head_dim, per_page)


class _Sizes:
    """The sizes in a transformers config, each within its bounds."""

    def __init__(self, file: Path, config: Mapping[str, Any], tensors: int) -> None:
        check_sizes(file, config, tensors)
        self._file = file
        self._config = config

    def find(self, *names: str) -> int | None:
        """The first that is there of the names that a size has. Raises StartError."""
        for name in names:
            value = self._config.get(name)
            if value is None:
                continue
            if not isinstance(value, int) or isinstance(value, bool):
                most = MOST[name]
                told = f"{name} is {str(value)[:64]!r}, not a whole number of 1 to {most:,}"
                raise StartError("drafter_unfit", f"{self._file}: {told}.")
            return value
        return None

    def get(self, *names: str) -> int:
        value = self.find(*names)
        if value is None:
            raise StartError(
                "drafter_unfit",
                f"{self._file} tells no {names[0]}. Take the file of the model itself.",
            )
        return value


def _of_foreign_head(
    folder: Path, sizes: _Sizes, stored: Mapping[str, Stored], target: Shape
) -> Needs:
    """Tensors of layers past the last one, or of a module called mtp, are the head's."""
    layers = sizes.get("num_hidden_layers")

    def is_own(name: str) -> bool:
        layer = _LAYER.match(name)
        return int(layer[1]) >= layers if layer else _HEAD.match(name) is not None

    own = [one for name, one in stored.items() if is_own(name)]
    if not own:
        raise StartError("drafter_unfit", f"{folder} holds no multi-token prediction head.")
    last = target.kinds[-1]
    kv = last.kv_heads * (last.head_dim + last.value_dim)
    tables = 2 * target.context_length * last.head_dim
    return Needs(_count(own) + tables, kv, target.hidden)


def _of_model(sizes: _Sizes, stored: Mapping[str, Stored], target: Shape, rows: int) -> Needs:
    hidden = sizes.get("hidden_size", "n_embd")
    heads = sizes.get("num_attention_heads", "n_head")
    kv_heads = sizes.find("num_key_value_heads") or heads
    head_dim = sizes.find("head_dim") or max(1, hidden // heads)
    kv = sizes.get("num_hidden_layers", "n_layer") * 2 * kv_heads * head_dim
    if not any(name.endswith(("lm_head.weight", "output.weight")) for name in stored):
        rows = rows or target.vocabulary  # a tied head is packed beside its embedding
    copied = min(rows, target.vocabulary) * hidden + 2 * target.context_length * head_dim
    return Needs(_count(stored.values()) + copied, kv)


def _count(stored: Iterable[Stored]) -> int:
    return sum(math.prod(one.shape) for one in stored)
