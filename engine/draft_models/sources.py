"""Where the files of a drafter with a model of its own lie."""

from __future__ import annotations

from pathlib import Path

from engine.errors import StartError
from engine.loading import Loaded
from engine.locate import find_model
from engine.shipped import DRAFT_MODEL, MTP, ROOT, shipped
from engine.text import Text

AUTO, OFF = "auto", "off"
NAMES = {"mtp": MTP, "draft_model": DRAFT_MODEL}
"""Drafters with a model of their own, and the part of what ships that is theirs."""


def find_source(
    name: str, source: str, target: Loaded, cache_dir: Path, option: str, root: Path = ROOT
) -> Path | None:
    """The folder; None for "off", and for "auto" when there is nothing for this target. option:
    what errors call the source. A Hugging Face id is downloaded. Raises StartError."""
    if source == OFF:
        return None
    if source == AUTO:
        return _auto(name, target, root)
    if not source:
        raise StartError("drafter_not_found", f'{option} is empty; give "auto" or a folder.')
    path = Path(source).expanduser()
    if name == "mtp":
        if not path.is_dir():
            raise StartError(
                "drafter_not_found",
                f"{option} {source}: no such folder. Give the one that `paceline train mtp` wrote, "
                "or a model folder that holds a head for this target.",
            )
        return path
    return find_model(source, cache_dir, option=option)


def _auto(name: str, target: Loaded, root: Path) -> Path | None:
    shape = target.decoder.shape
    tokenizer = Text(target.tokenizer).fingerprint()
    found = shipped(NAMES[name], tokenizer, shape.hidden, shape.layers, shape.vocabulary, root)
    if found is None and name == "mtp":
        from engine.mtp.opening import carries_head

        return target.path if carries_head(target.path) else None
    return found
