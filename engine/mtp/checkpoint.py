"""The tensors of a head in its target's checkpoint, which may lie in several files."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from torch import Tensor

from engine.dense import StoredWeights
from engine.errors import StartError
from engine.folder import CONFIG, check_sizes, read_headers, read_json
from engine.mtp.layouts import LAYOUTS, Layout
from engine.stored_header import Stored

FLOATS = ("BF16", "F16", "F32")


@dataclass(frozen=True)
class Checkpoint:
    """config: config.json, that of the text model where there are several. stored: every tensor.
    layers: of the target."""

    path: Path
    family: str
    config: dict[str, Any]
    stored: dict[str, Stored]
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
        return layout if any(name.startswith(own) for name in self.stored) else None

    def require(self, names: Sequence[str]) -> None:
        """Raise StartError when any of these tensors is missing."""
        if missing := [name for name in names if name not in self.stored]:
            shown = ", ".join(missing[:3])
            raise broken(
                self.path,
                f"lacks {len(missing)} of the {len(names)} tensors of its multi-token prediction "
                f"head ({shown}{', ...' if len(missing) > 3 else ''})",
                "Download all files of the model's weights again",
            )

    def check(self, name: str, shape: Sequence[int] | None = None) -> None:
        """Raise StartError when a tensor is missing, has another shape or is quantised."""
        self.require([name])
        dtype, stored = self.stored[name]
        if shape is not None and list(shape) != stored:
            raise broken(
                self.path,
                f"stores {name} as {stored} where {list(shape)} fits config.json",
                "Take all files from the same model",
            )
        if dtype not in FLOATS:
            raise broken(
                self.path,
                f"stores {name} as {dtype}, which is quantised",
                "Take the model's bfloat16 release",
            )

    def tensor(self, name: str, shape: Sequence[int] | None = None) -> Tensor:
        """A stored tensor. Raises StartError as `check`."""
        self.check(name, shape)
        tensor = self.weights.get(name)
        assert tensor is not None
        return tensor


def read_checkpoint(path: Path) -> Checkpoint:
    """Reads config.json and the headers. Raises StartError for broken files."""
    config = read_json(path / CONFIG)
    family = str(config.get("model_type"))
    inner = config.get("text_config")
    text: dict[str, Any] = inner if isinstance(inner, dict) else config
    headers = read_headers(path, {entry.name for entry in path.iterdir()})
    stored = {name: one for header in headers.values() for name, one in header.items()}
    check_sizes(path / CONFIG, text, len(stored))
    files = {name: path / file for file, header in headers.items() for name in header}
    layers = text.get("num_hidden_layers")
    if not isinstance(layers, int):
        pattern = text.get("hybrid_override_pattern") or text.get("layers_block_type") or ()
        layers = len(pattern)
    return Checkpoint(path, family, text, stored, StoredWeights(files), layers)


def broken(path: Path, what: str, advice: str) -> StartError:
    return StartError("drafter_broken", f"{path} {what}. {advice}, or set --mtp off.")
