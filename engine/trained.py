"""Checkpoints that Paceline trains for one target: config.json and model.safetensors."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, ClassVar, Protocol, TypeVar

import msgspec
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor

from engine.errors import StartError
from engine.folder import CONFIG, SINGLE, read_json
from engine.stored_header import FLOATS, Stored, read_header

DRAFT_IDS = "draft_ids"
"""int32 [n], ascending: the target id of each column of the logits."""
MOST = 1 << 24
"""Bounds the sizes of a config."""

Size = Annotated[int, msgspec.Meta(ge=1, le=MOST)]
Positive = Annotated[float, msgspec.Meta(gt=0, le=1e12)]


class TargetFacts(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The target that a checkpoint was trained for. tokenizer: engine.vocabulary.fingerprint."""

    layers: Size
    hidden_size: Size
    vocabulary: Size
    tokenizer: str


class TrainedConfig(Protocol):
    """A msgspec struct with the fields of config.json. command: what writes such folders."""

    FORMAT: ClassVar[str]
    COMMAND: ClassVar[str]

    @property
    def target(self) -> TargetFacts: ...

    def shapes(self, columns: int) -> dict[str, tuple[int, ...]]:
        """Name and shape of every tensor; columns: of the logits, the length of draft_ids."""
        ...


Config = TypeVar("Config", bound=TrainedConfig)


def save(folder: Path, config: TrainedConfig, tensors: Mapping[str, Tensor]) -> None:
    """Write a checkpoint: weights as bfloat16, draft_ids as int32. A folder that is there is
    replaced at once, so that a reader finds the old files or the new ones.

    Raises StartError when the tensors are not those of the config, OSError for a full disk."""
    check(folder, config, {name: tensor.shape for name, tensor in tensors.items()})
    check_values(folder, config, tensors)
    stored = {
        name: tensor.detach()
        .to("cpu", torch.int32 if name == DRAFT_IDS else torch.bfloat16)
        .contiguous()
        .clone()  # safetensors refuses tensors that share memory
        for name, tensor in tensors.items()
    }
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{folder.name}-", dir=folder.parent) as scratch:
        made = Path(scratch) / "made"
        made.mkdir()
        save_file(stored, made / SINGLE)
        (made / CONFIG).write_bytes(msgspec.json.format(msgspec.json.encode(config)) + b"\n")
        if folder.exists():
            for other in folder.iterdir():  # a model card, or what a run keeps beside
                if other.name not in {SINGLE, CONFIG}:
                    _copy(other, made / other.name)
            folder.rename(Path(scratch) / "old")
        made.rename(folder)


def load_config(folder: Path, kind: type[Config]) -> Config:
    """Raises StartError with what is wrong with config.json."""
    return convert_config(folder, read_json(folder / CONFIG), kind)


def convert_config(folder: Path, config: Mapping[str, Any], kind: type[Config]) -> Config:
    try:
        return msgspec.convert(config, kind)
    except msgspec.ValidationError as error:
        raise _broken(
            f"{folder / CONFIG} does not describe a {kind.FORMAT} checkpoint of version 1: "
            f"{error}. Take the file as `{kind.COMMAND}` wrote it."
        ) from error


def load_tensors(folder: Path, config: TrainedConfig) -> dict[str, Tensor]:
    """Every tensor as it is stored, on the CPU, in memory of its own.

    Raises StartError for a file that is broken, incomplete or not of its config."""
    check_stored(folder, config)
    tensors = {name: tensor.clone() for name, tensor in load_file(folder / SINGLE).items()}
    check_values(folder, config, tensors)
    return tensors


def check_stored(folder: Path, config: TrainedConfig) -> dict[str, Stored]:
    """What the weights' header tells. Raises StartError as load_tensors does, but for weights that
    are not finite: of the values only draft_ids are read."""
    file = folder / SINGLE
    if not file.exists():
        raise _broken(
            f"{folder} holds no {SINGLE}; take the folder as `{config.COMMAND}` wrote it."
        )
    stored = read_header(file)
    check(folder, config, {name: one.shape for name, one in stored.items()})
    for name, one in stored.items():
        if name != DRAFT_IDS and one.dtype not in FLOATS:
            raise _no_weights(f"{file}: {name}")
    with safe_open(file, "pt") as tensors:
        ids: Tensor = tensors.get_tensor(DRAFT_IDS)
    _check_draft_ids(f"{file}: {DRAFT_IDS}", ids, config.target.vocabulary)
    return stored


def check(folder: Path, config: TrainedConfig, shapes: Mapping[str, Sequence[int]]) -> None:
    """Raise StartError when tensors of these shapes are not those of the config."""
    columns = (list(shapes.get(DRAFT_IDS, ())) or [1])[0]
    expected = config.shapes(columns)
    missing = sorted(expected.keys() - shapes.keys())
    strange = sorted(shapes.keys() - expected.keys())
    unfit = [
        f"{name} is {list(shapes[name])} instead of {list(shape)}"
        for name, shape in expected.items()
        if name in shapes and list(shapes[name]) != list(shape)
    ]
    faults = [
        *([f"it lacks {_few(missing)}"] if missing else []),
        *([f"it holds {_few(strange)}, which its {CONFIG} has no use for"] if strange else []),
        *unfit[:3],
    ]
    if faults:
        raise _broken(
            f"{folder / SINGLE} is not what its {CONFIG} describes: {'; '.join(faults)}. "
            f"Take both files from the same `{config.COMMAND}` run."
        )


def check_values(folder: Path, config: TrainedConfig, tensors: Mapping[str, Tensor]) -> None:
    """Raise StartError unless weights are finite numbers and draft_ids ascend within the target's
    vocabulary."""
    for name, tensor in tensors.items():
        place = f"{folder / SINGLE}: {name}"
        if name == DRAFT_IDS:
            _check_draft_ids(place, tensor, config.target.vocabulary)
        elif not tensor.is_floating_point():
            raise _no_weights(place)
        elif not bool(tensor.isfinite().all()):
            raise _broken(f"{place} holds numbers that are not finite; its training went astray.")


def check_target(
    folder: Path, config: TrainedConfig, hidden: int, vocabulary: int, tokenizer: str
) -> None:
    """Raise StartError unless the checkpoint was trained for a target of these facts. How many
    layers that had is not compared: what depends on them checks it."""
    facts = config.target
    faults = [
        f"its target has a hidden size of {facts.hidden_size}, this one of {hidden}"
        if facts.hidden_size != hidden
        else "",
        f"its target embeds {facts.vocabulary} tokens, this one {vocabulary}"
        if facts.vocabulary != vocabulary
        else "",
        "its target has another tokenizer" if facts.tokenizer != tokenizer else "",
    ]
    if found := [fault for fault in faults if fault]:
        raise StartError(
            "drafter_unfit",
            f"{folder} was trained for another model: {'; '.join(found)}. "
            f"Train one for this model with `{config.COMMAND}`, or switch it off.",
        )


def _check_draft_ids(place: str, ids: Tensor, vocabulary: int) -> None:
    if ids.is_floating_point() or ids.is_complex() or ids.dtype == torch.bool:
        raise _broken(f"{place} are {ids.dtype}, not int32.")
    ids = ids.long()
    if len(ids) == 0 or int(ids.min()) < 0 or int(ids.max()) >= vocabulary:
        raise _broken(f"{place} are not within the target's vocabulary 0..{vocabulary - 1}.")
    if bool((ids[1:] <= ids[:-1]).any()):
        raise _broken(f"{place} do not ascend; each is the target id of one column of the logits.")


def _copy(source: Path, place: Path) -> None:
    if source.is_dir():
        shutil.copytree(source, place)
    else:
        shutil.copy2(source, place)


def _broken(message: str) -> StartError:
    return StartError("drafter_broken", message)


def _no_weights(place: str) -> StartError:
    return _broken(f"{place} holds no floating-point numbers, so no weights.")


def _few(names: list[str]) -> str:
    shown = ", ".join(names[:3])
    return shown if len(names) <= 3 else f"{shown} and {len(names) - 3} more"
