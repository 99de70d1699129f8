"""Which kind of checkpoint a folder is, by its config.json."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from engine.draft_models.tied import FORMAT as DRAFT
from engine.errors import StartError
from engine.folder import CONFIG, read_json
from engine.mtp.paceline import FORMAT as MTP

OURS = {"mtp": MTP, "draft_model": DRAFT}
"""The format of the folders that Paceline writes for each drafter."""


def read_kind(name: str, folder: Path) -> tuple[bool, dict[str, Any]]:
    """Whether a folder for drafter `name` is of Paceline's own format, rather than a transformers
    model; and its config.json. Raises StartError when it is neither, or of the other drafter."""
    file = folder / CONFIG
    if not file.exists() and not file.is_symlink():
        raise StartError("drafter_unfit", f"{folder} holds no {CONFIG}: it is no checkpoint.")
    config = read_json(file)
    told, own = config.get("format"), OURS[name]
    if told == own:
        return True, config
    for other, theirs in OURS.items():
        if told == theirs:
            raise StartError(
                "drafter_unfit",
                f"{file} describes a {theirs} checkpoint: load it as drafter {other}, not {name}.",
            )
    family = config.get("model_type")
    if isinstance(family, str) and family:
        return False, config
    which = "no format" if told is None else f"the unknown format {str(told)[:64]!r}"
    raise StartError(
        "drafter_unfit",
        f"{file} names {which} and no model_type, so what the folder holds is not known. A "
        f'checkpoint for {name} has "format": "{own}", or a model_type of transformers.',
    )
