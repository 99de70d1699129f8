"""Finds which kind of head a folder holds, and opens it over its target."""

from __future__ import annotations

from pathlib import Path

from engine.device import Device
from engine.errors import StartError
from engine.folder import CONFIG, read_json
from engine.loading import Loaded
from engine.mtp.checkpoint import Checkpoint, read_checkpoint
from engine.mtp.head import Head
from engine.mtp.layouts import MIMO
from engine.mtp.paceline import FORMAT
from engine.mtp.paceline_head import load_paceline, open_paceline
from engine.shape import Shape
from engine.trained import check_stored
from engine.vocabulary import Restrict


def carries_head(folder: Path) -> bool:
    """Whether a folder holds a head of a kind known here. Raises StartError for broken files."""
    if read_json(folder / CONFIG).get("format") == FORMAT:
        return True
    return read_checkpoint(folder).layout is not None


def open_head(
    folder: Path,
    target: Loaded,
    device: Device,
    fingerprint: str = "",
    restrict: Restrict = lambda whole: whole,
) -> Head:
    """The head that this folder holds: of Paceline's own format, or in the checkpoint of the
    target itself. fingerprint: of the target's tokenizer, which a head of ours names. restrict:
    takes ids out of the vocabulary of its logits.

    Raises StartError when there is none, when it is broken, and when it is another model's."""
    if read_json(folder / CONFIG).get("format") == FORMAT:
        return open_paceline(folder, target.decoder, device, fingerprint, restrict)
    checkpoint = _read_foreign(folder, target)
    if checkpoint.layout is MIMO:
        from engine.mtp.mimo import open_mimo

        return open_mimo(checkpoint, target.decoder, device, restrict)
    from engine.mtp.module_head import open_module_head

    return open_module_head(checkpoint, target.decoder, device, restrict)


def check_head(folder: Path, target: Loaded, fingerprint: str) -> None:
    """Raise StartError as `open_head` does, for all that is told without reading weights; of the
    blocks that transformers runs nothing but the config is."""
    if read_json(folder / CONFIG).get("format") == FORMAT:
        check_stored(folder, load_paceline(folder, target.decoder, fingerprint))
        return
    checkpoint = _read_foreign(folder, target)
    if checkpoint.layout is MIMO:
        from engine.mtp.mimo import check_mimo

        check_mimo(checkpoint, target.decoder)


def _read_foreign(folder: Path, target: Loaded) -> Checkpoint:
    """A checkpoint with a head for this target. Raises StartError."""
    checkpoint = read_checkpoint(folder)
    if checkpoint.layout is None:
        raise StartError(
            "drafter_unfit",
            f"{folder} holds no multi-token prediction head ({checkpoint.family!r}). Set --mtp "
            "off, or train one for this model: paceline train mtp.",
        )
    _check_target(checkpoint, target.decoder.shape)
    return checkpoint


def _check_target(checkpoint: Checkpoint, shape: Shape) -> None:
    stored = checkpoint.config
    differences = [
        f"{name} {theirs} where the served model has {ours}"
        for name, theirs, ours in (
            ("layers", checkpoint.layers, shape.layers),
            ("hidden size", stored.get("hidden_size"), shape.hidden),
            ("vocabulary", stored.get("vocab_size"), shape.vocabulary),
        )
        if theirs != ours
    ]
    if differences:
        raise StartError(
            "drafter_unfit",
            f"{checkpoint.path} holds the head of another model: {', '.join(differences)}. Serve "
            "that model, or set --mtp off.",
        )
