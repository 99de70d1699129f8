"""The tensors of a head in its target's checkpoint, which may lie in several files."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from engine.dense import StoredWeights
from engine.errors import StartError
from engine.folder import CONFIG, read_json, read_shapes
from engine.mtp.layouts import LAYOUTS, Layout

FLOATS = (torch.bfloat16, torch.float16, torch.float32)


@dataclass(frozen=True)
class Checkpoint:
    """config: config.json, that of the text model where there are several. shapes: of every stored
    tensor. layers: of the target."""

    path: Path
    family: str
    config: dict[str, Any]
    shapes: dict[str, list[int]]
    weights: StoredWeights
    layers: int

    def name(self, pattern: str, block: int = 0, last: int = 0) -> str:
        return pattern.format(layers=self.layers, block=block, last=last)

    @cached_property
    def layout(self) -> Layout | None:
        """None where the checkpoint holds no head, or one of a kind not known here."""
        layout = LAYOUTS.get(self.family)
        if layout is None:
            return None
        # Any tensor of it: a damaged head is told as such, not as none.
        prefix = self.name(layout.blocks)
        own = (prefix, self.name(layout.project), self.name(layout.norm))
        return layout if any(name.startswith(own) for name in self.shapes) else None

    def require(self, names: Sequence[str]) -> None:
        """Raise StartError when any of these tensors is missing."""
        if missing := [name for name in names if name not in self.shapes]:
            shown = ", ".join(missing[:3])
            raise broken(
                self.path,
                f"lacks {len(missing)} of the {len(names)} tensors of its multi-token prediction "
                f"head ({shown}{', ...' if len(missing) > 3 else ''})",
                "Download all files of the model's weights again",
            )

    def tensor(self, name: str, shape: Sequence[int] | None = None) -> Tensor:
        """A stored tensor. Raises StartError when it has another shape or is quantised."""
        self.require([name])
        if shape is not None and list(shape) != self.shapes[name]:
            raise broken(
                self.path,
                f"stores {name} as {self.shapes[name]} where {list(shape)} fits config.json",
                "Take all files from the same model",
            )
        tensor = self.weights.get(name)
        assert tensor is not None
        if tensor.dtype not in FLOATS:
            dtype = str(tensor.dtype).removeprefix("torch.")
            raise broken(
                self.path,
                f"stores {name} as {dtype}, which is quantised",
                "Take the model's bfloat16 release",
            )
        return tensor


def read_checkpoint(path: Path) -> Checkpoint:
    """Reads config.json and the headers. Raises StartError for broken files."""
    config = read_json(path / CONFIG)
    family = str(config.get("model_type"))
    inner = config.get("text_config")
    text: dict[str, Any] = inner if isinstance(inner, dict) else config
    headers = read_shapes(path, {entry.name for entry in path.iterdir()})
    shapes = {name: shape for header in headers.values() for name, shape in header.items()}
    files = {name: path / file for file, header in headers.items() for name in header}
    layers = text.get("num_hidden_layers")
    if not isinstance(layers, int):
        pattern = text.get("hybrid_override_pattern") or text.get("layers_block_type") or ()
        layers = len(pattern)
    return Checkpoint(path, family, text, shapes, StoredWeights(files), layers)


def broken(path: Path, what: str, advice: str) -> StartError:
    return StartError("drafter_broken", f"{path} {what}. {advice}, or set --mtp off.")
