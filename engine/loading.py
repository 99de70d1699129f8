"""Loads a model and its tokenizer through transformers into the lean decoder, or the fallback.

The engine's transformers calls live here, in engine/fallback.py, in engine/conversion.py and in
engine/stored_tokenizer.py. A dense model that was loaded before needs the last one only."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from engine.device import Device
from engine.errors import StartError
from engine.families import LEAN, PAGED, SERVED_AS, context_limit, refusal
from engine.folder import Folder, read_folder
from engine.fusing import build, describe, fits, fuse, module_angles
from engine.host_memory import available_bytes, size_text
from engine.prepared import Prepared, keep, note_key, recall
from engine.shape import Model
from engine.stored_tokenizer import StoredTokenizer

log = logging.getLogger(__name__)

_SAME_MODEL = "Check that its files are of the same model."


@dataclass(frozen=True)
class Loaded:
    """A model ready to run. stop_ids: end-of-sequence token ids. path: its folder."""

    decoder: Model
    tokenizer: Any
    stop_ids: frozenset[int]
    architecture: str
    path: Path


@dataclass(frozen=True)
class Words:
    """What there is of a model without its weights. stop_ids: end-of-sequence token ids.
    vocabulary: how many token ids the model has."""

    tokenizer: Any
    stop_ids: frozenset[int]
    vocabulary: int


def load_words(path: Path) -> Words:
    """Read the tokenizer and the config of a Hugging Face folder. Raises StartError with what is
    wrong."""
    folder = read_folder(path)
    config = read_config(folder)
    tokenizer = _tokenizer(folder, config)
    stop_ids = _stop_ids(_generation(path), config, tokenizer)
    return Words(tokenizer, _known(stop_ids, config.vocab_size), config.vocab_size)


def load(path: Path, device: Device, context_length: int, cache_dir: Path | None = None) -> Loaded:
    """Load a Hugging Face folder. context_length 0 means the model's own. cache_dir: where what
    the next start needs of a dense model is kept; None keeps nothing.

    Raises StartError with what is wrong."""
    folder = read_folder(path)
    key = note_key(folder, device.dtype) if cache_dir is not None else ""
    if cache_dir is not None and (kept := recall(folder, key, cache_dir)) is not None:
        try:
            return _load_kept(folder, kept, device, context_length)
        except StartError:
            raise
        except Exception as error:  # whatever it is, the files themselves are the judge
            log.warning("loading %s anew: what was kept of it does not fit (%r)", path, error)
    from transformers.utils import logging as quiet  # a broken folder is told without this import

    quiet.set_verbosity_error()
    quiet.disable_progress_bar()
    config = read_config(folder)
    limit = context_limit(config)
    context = _context(folder.family, limit, context_length)
    _check_memory(folder, device)
    tokenizer = _tokenizer(folder, config)
    model = _model(folder, config, device)
    stop_ids = _stop_ids(getattr(model, "generation_config", None), config, tokenizer)
    if cache_dir is not None and fits(model, config):
        dense, angles = describe(model, config), module_angles(model, context)
        keep(folder, key, device.dtype, cache_dir, model, dense, angles, tokenizer, stop_ids, limit)
    decoder = open_model(model, config, device, context)
    known = _known(stop_ids, config.vocab_size)
    return Loaded(decoder, tokenizer, known, folder.family, path)


def check_folder(path: Path) -> Words:
    """`load_words`, and StartError as `load` raises it for all that the headers of the weights
    tell."""
    words = load_words(path)
    folder = read_folder(path)
    _check_tensors(folder, read_config(folder))
    return words


def _check_tensors(folder: Folder, config: Any) -> None:
    """Raise StartError when stored tensors are missing or of other shapes than the config's. Of a
    family outside the lean decoder transformers may rename and join what is stored, so it is only
    told when nothing of it is there."""
    from transformers import AutoModelForCausalLM

    try:
        with torch.device("meta"):
            model: Any = AutoModelForCausalLM.from_config(config, trust_remote_code=False)
    except Exception as error:  # each family checks its fields in its own way
        raise _broken(folder.path, error, _SAME_MODEL) from error
    base = f"{model.base_model_prefix}."  # which files of the model without its head leave out
    tied = {"lm_head.weight"} if config.tie_word_embeddings else set[str]()
    stored = folder.stored
    known = False
    missing: list[str] = []
    unfit: list[tuple[str, list[int], list[int]]] = []
    for name, tensor in model.state_dict().items():
        found = stored.get(name) or stored.get(name.removeprefix(base))
        known = known or found is not None
        if found is None:
            missing += [] if name in tied else [name]
        elif found.shape != list(tensor.shape):
            unfit.append((name, found.shape, list(tensor.shape)))
    if folder.family in LEAN or not known:
        _check_report(folder.path, missing, unfit)


def _load_kept(folder: Folder, kept: Prepared, device: Device, context_length: int) -> Loaded:
    context = _context(folder.family, kept.context_limit, context_length)
    _check_memory(folder, device)
    tokenizer = StoredTokenizer(kept.vocabulary)
    decoder = build(kept.dense, kept.weights(folder), kept.dense.angles(context), device)
    known = _known(kept.stop_ids, kept.dense.vocabulary)
    return Loaded(decoder, tokenizer, known, folder.family, folder.path)


def open_model(model: Any, config: Any, device: Device, context_length: int) -> Model:
    """The lean decoder or the fallback over a loaded transformers causal LM."""
    if fits(model, config):
        return fuse(model, config, device, context_length)
    from engine.probe import open_fallback

    family = config.model_type
    try:
        return open_fallback(model, config, device, context_length, family in PAGED)
    except StartError as error:
        raise StartError(
            error.code, f"{family!r} models are not served: {error.message}."
        ) from error


def read_config(folder: Folder) -> Any:
    """The folder's transformers config; raises StartError for a family that is not served."""
    from transformers import AutoConfig
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    family, path = folder.family, folder.path
    served = SERVED_AS.get(family, family)
    if served not in CONFIG_MAPPING:
        code = " Its folder brings Python code of its own (auto_map), which is never run."
        raise StartError(
            "model_unsupported",
            f"{path} is a {family!r} model, a family that the installed transformers does not "
            f"have.{code if 'auto_map' in folder.config else ''}",
        )
    try:
        if served == family:
            config = AutoConfig.from_pretrained(path, trust_remote_code=False)
        else:
            foreign = {"model_type", "auto_map", "architectures"}
            fields = {name: field for name, field in folder.config.items() if name not in foreign}
            config = AutoConfig.for_model(served, **fields)
    except Exception as error:  # each family checks its fields in its own way
        raise _broken(path, error, "Check config.json against the model's own.") from error
    if reason := refusal(config, causal_lm(config)):
        raise StartError("model_unsupported", f"{path} is a {family!r} model: {reason}.")
    return config


def causal_lm(config: Any) -> Any:
    """The transformers class of a config's causal language model, or None."""
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING

    return MODEL_FOR_CAUSAL_LM_MAPPING.get(type(config), None)


def _context(family: str, limit: int | None, asked: int) -> int:
    if limit is None and not asked:
        raise StartError(
            "context_unknown",
            f"this {family!r} model does not tell its longest context; set --context-length.",
        )
    if limit is not None and asked > limit:
        raise StartError(
            "context_too_long",
            f"--context-length {asked} is more than the model's {limit} tokens; "
            f"set {limit} or less.",
        )
    return asked or limit or 0


def _check_memory(folder: Folder, device: Device) -> None:
    """Raise StartError when the weights alone are larger than the free memory. A GPU's pass
    through the host's."""
    needed = folder.parameters * device.dtype.itemsize
    places = [(str(device.torch_device), device.free_bytes())]
    if device.is_cuda:
        places.append(("the host, through which they are loaded", available_bytes()))
    for place, free in places:
        if needed > free:
            dtype = str(device.dtype).removeprefix("torch.")
            raise StartError(
                "memory_too_small",
                f"{folder.path} needs {size_text(needed)} for its {folder.parameters:,} "
                f"weights in {dtype}, and {size_text(free)} are free on {place}. "
                "Free memory, choose a smaller model"
                + ("." if device.dtype.itemsize == 2 else ", or set --dtype bfloat16."),
            )


def _tokenizer(folder: Folder, config: Any) -> Any:
    from transformers import AutoTokenizer

    path = folder.path
    try:
        tokenizer = AutoTokenizer.from_pretrained(path, trust_remote_code=False)
    except Exception as error:  # transformers and tokenizers raise many types for a bad file
        raise _broken(path, error, "Check the tokenizer's files.") from error
    if tokenizer.vocab_size > config.vocab_size:
        raise StartError(
            "model_broken",
            f"{path}: the tokenizer has {tokenizer.vocab_size} tokens and the model embeds "
            f"{config.vocab_size}. They are of different models; take both from the same one.",
        )
    return tokenizer


def _model(folder: Folder, config: Any, device: Device) -> Any:
    from transformers import AutoModelForCausalLM

    path = folder.path
    try:
        loaded: Any = AutoModelForCausalLM.from_pretrained(
            path,
            config=config,
            dtype=device.dtype,
            trust_remote_code=False,
            use_safetensors=True,
            ignore_mismatched_sizes=True,  # it reports them, and then they are told below
            output_loading_info=True,
        )
    except Exception as error:  # transformers and safetensors raise many types for a bad folder
        raise _broken(path, error, _SAME_MODEL) from error
    model, report = loaded
    _check_report(path, report["missing_keys"], report["mismatched_keys"])
    return model


def _check_report(
    path: Path,
    missing: Iterable[str],
    mismatched: Iterable[tuple[str, Iterable[int], Iterable[int]]],
) -> None:
    """Raise StartError for tensors that are missing, which transformers fills in at random, or
    stored in another shape: (name, stored, expected)."""
    unfit = sorted(
        f"{name} {list(stored)} instead of {list(expected)}"
        for name, stored, expected in mismatched
    )
    if faults := [*sorted(missing), *unfit]:
        named = ", ".join(faults[:3])
        raise StartError(
            "model_broken",
            f"{path}: weights are missing or do not fit config.json ({named}). "
            "Check that every file of the folder is complete and of the same model.",
        )


def _broken(path: Path, error: Exception, advice: str) -> StartError:
    return StartError("model_broken", f"{path} cannot be loaded: {_reason(error)}. {advice}")


def _reason(error: Exception) -> str:
    """What a library said, as a sentence part."""
    if isinstance(error, KeyError):
        return f"transformers does not know {str(error)[:100]}"
    if isinstance(error, RecursionError):
        return "one of its files is nested too deeply"
    text = str(error).strip()
    return text.splitlines()[0][:300].rstrip(".") if text else type(error).__name__


def _generation(path: Path) -> Any:
    """The folder's generation config, None when it has none that can be read."""
    from transformers import GenerationConfig

    try:
        return GenerationConfig.from_pretrained(path)
    except Exception:  # it has none, or fields that are none
        return None


def _stop_ids(generation: Any, config: Any, tokenizer: Any) -> tuple[int, ...]:
    """The end-of-sequence ids that the folder's files name. generation: its generation config."""
    ids: set[int] = set()
    for source in (
        getattr(generation, "eos_token_id", None),
        getattr(config, "eos_token_id", None),
        tokenizer.eos_token_id,
    ):
        if isinstance(source, int):
            ids.add(source)
        elif source:
            ids.update(int(value) for value in source)
    return tuple(sorted(ids))


def _known(ids: tuple[int, ...], vocabulary: int) -> frozenset[int]:
    """Those that the model has logits for: the others can never be drawn."""
    known = frozenset(token for token in ids if 0 <= token < vocabulary)
    if unknown := [token for token in ids if token not in known]:
        log.warning(
            "ignored end-of-sequence ids %s: the model's vocabulary is 0..%d",
            unknown,
            vocabulary - 1,
        )
    return known
