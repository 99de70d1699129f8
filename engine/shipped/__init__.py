"""What ships for particular targets: trained drafters and a text to copy from."""

from __future__ import annotations

from pathlib import Path

import msgspec

ROOT = Path(__file__).parent
TARGET = "target.json"
MTP, DRAFT_MODEL, CORPUS = "mtp", "draft_model", "answers.npz"
"""What a target's folder may hold, each or none: two checkpoints and a file of token ids."""


class Mark(msgspec.Struct, frozen=True):
    """What tells a target: the hash of its tokenizer and its sizes. name: for people, and of its
    corpus."""

    name: str
    tokenizer: str
    hidden_size: int
    layers: int
    vocabulary: int


def marks(root: Path = ROOT) -> dict[Path, Mark]:
    """The targets that something ships for, by their folders."""
    return {
        path.parent: msgspec.json.decode(path.read_bytes(), type=Mark)
        for path in sorted(root.glob(f"*/{TARGET}"))
    }


def shipped(
    part: str, tokenizer: str, hidden_size: int, layers: int, vocabulary: int, root: Path = ROOT
) -> Path | None:
    """Where this part lies for the target that has all of these; None when there is none."""
    wanted = (tokenizer, hidden_size, layers, vocabulary)
    for folder, mark in marks(root).items():
        found = (mark.tokenizer, mark.hidden_size, mark.layers, mark.vocabulary)
        if found == wanted and (folder / part).exists():
            return folder / part
    return None


def corpus_for(tokenizer: str, root: Path = ROOT) -> tuple[Mark, Path] | None:
    """The text for targets with this tokenizer, whatever their sizes."""
    for folder, mark in marks(root).items():
        if mark.tokenizer == tokenizer and (folder / CORPUS).exists():
            return mark, folder / CORPUS
    return None
