"""Opens the drafters with a model of their own over a loaded target."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from engine.attention_choice import open_attention
from engine.config import EngineConfig
from engine.device import Device
from engine.draft_models.formats import read_kind
from engine.draft_models.model import DraftModel
from engine.draft_models.needs import MOST_BYTES, read_needs
from engine.draft_models.sources import AUTO, NAMES, find_source
from engine.drafters.base import Drafter, Weighty
from engine.errors import StartError
from engine.host_memory import size_text
from engine.kv import bytes_per_token, empty_pool
from engine.loading import Loaded
from engine.shape import Shape
from engine.shipped import corpus_for
from engine.text import Text
from engine.vocabulary import Restrict, ranked, restricted
from engine.wire import LoadPlan

if TYPE_CHECKING:
    from engine.build import Target  # it builds what is opened here into the engine
    from engine.mtp.head import Head

log = logging.getLogger(__name__)

LOAD_SHARE = 0.9
"""Of the free memory that a drafter which is loaded while serving may take."""


@dataclass(frozen=True)
class Opened:
    """The loaded weights of a drafter, which has no pages yet. source: what was asked for."""

    name: str
    source: str
    model: Head | DraftModel

    @property
    def shape(self) -> Shape:
        return self.model.decoder.shape if isinstance(self.model, DraftModel) else self.model.shape

    @property
    def note(self) -> str:
        """How a draft model's tokens fit the target's, as a sentence; "" for a head."""
        return f"Vocabulary: {self.model.note}." if isinstance(self.model, DraftModel) else ""

    def kv_bytes_per_token(self, device: Device, page_size: int) -> int:
        """Of its layers, and its share of what a head keeps for each page."""
        size = bytes_per_token(self.shape, device.dtype)
        if not isinstance(self.model, DraftModel):
            kept = len(self.model.taps) * self.shape.hidden * device.dtype.itemsize
            size += -(-kept // page_size)
        return size


@dataclass(frozen=True)
class Ready:
    """A drafter with pages. source: what was asked for. note: what an operator should know."""

    source: str
    drafter: Drafter
    note: str = ""


@torch.no_grad()  # a thread of its own does not inherit it
def open_weights(
    name: str,
    source: str,
    folder: Path,
    target: Loaded,
    device: Device,
    config: EngineConfig,
    cache_dir: Path,
) -> Opened:
    """Raises StartError for a checkpoint that cannot draft for this target.

    What it needs is imported here: an engine without such drafters starts without it."""
    read_kind(name, folder)
    if name == "mtp":
        from engine.mtp.opening import open_head

        tokenizer = Text(target.tokenizer).fingerprint()
        model = open_head(folder, target, device, tokenizer, _restrict(target, config))
    else:
        from engine.draft_models.checkpoint import open_draft_model

        model = open_draft_model(
            folder, target, device, config.draft_vocabulary, _ranking(target, config), cache_dir
        )
    return Opened(name, source, model)


def _restrict(target: Loaded, config: EngineConfig) -> Restrict:
    """Takes ids out of the vocabulary of a head's logits, as the config asks."""
    if not config.draft_vocabulary:
        return lambda whole: whole
    from engine.intersection import read_tokens

    size = target.decoder.shape.vocabulary
    always = read_tokens(target.tokenizer, size, target.stop_ids).special | target.stop_ids
    ranking = _ranking(target, config)
    return lambda whole: restricted(whole, config.draft_vocabulary, always, ranking)


def _ranking(target: Loaded, config: EngineConfig) -> Tensor | None:
    """The target's ids, the most frequent of the text that ships for it first; None without one."""
    found = corpus_for(Text(target.tokenizer).fingerprint()) if config.draft_vocabulary else None
    if found is None:
        return None
    with np.load(found[1], allow_pickle=False) as arrays:
        tokens = torch.from_numpy(arrays["tokens"].astype(np.int64))
    return ranked(tokens, target.decoder.shape.vocabulary)


@torch.no_grad()
def with_pages(opened: Opened, target: Target, config: EngineConfig) -> Drafter:
    """The drafter, whose layers get keys and values in as many pages as the target's."""
    pool, device = target.pool, target.device
    own = empty_pool(opened.shape, device, pool.pages, pool.page_size)
    attention = open_attention(config, device, own, opened.shape)
    keyed = config.prefix_cache != "off"
    if isinstance(opened.model, DraftModel):
        from engine.draft_models.draft_model import DraftModelDrafter

        rows = config.chunk_rows or (2048 if device.is_cuda else 256)
        return DraftModelDrafter(
            opened.model, attention, own, device, config.max_draft_length, rows, keyed
        )
    from engine.draft_models.mtp import MtpDrafter

    return MtpDrafter(opened.model, attention, own, device, config.max_draft_length, keyed)


def open_model_drafter(name: str, source: str, target: Target, config: EngineConfig) -> Drafter:
    """The drafter of this name from a source. Raises StartError, also when "auto" finds none."""
    folder = find_folder(name, source, target)
    opened = open_weights(
        name, source, folder, target.loaded, target.device, config, target.cache_dir
    )
    return with_pages(opened, target, config)


def open_at_start(
    config: EngineConfig, target: Loaded, device: Device, cache_dir: Path
) -> list[Opened]:
    """Those that the config asks for. What "auto" finds and cannot be opened is left out; raises
    StartError for what was named."""
    opened: list[Opened] = []
    for name in NAMES:
        source: str = getattr(config, name)
        option = "--" + name.replace("_", "-")
        try:
            folder = find_source(name, source, target, cache_dir, option)
            if folder is not None:
                opened.append(open_weights(name, source, folder, target, device, config, cache_dir))
        except Exception as error:  # a family nobody has tried may fail in any way
            found = _given_up(name, source, error, device)
            if found is not None:
                raise StartError(found.code, f"{option} {source}: {found.message}") from error
    return opened


def pages_at_start(opened: Opened, target: Target, config: EngineConfig) -> Drafter | None:
    """`with_pages` at start: None for one that nobody asked for and that gets none. Raises
    StartError for one that was named."""
    try:
        return with_pages(opened, target, config)
    except Exception as error:  # no memory, or an attention that does not serve its layers
        found = _given_up(opened.name, opened.source, error, target.device)
        if found is not None:
            raise found from error
        return None


def _given_up(name: str, source: str, error: Exception, device: Device) -> StartError | None:
    """What to raise; None for a drafter that nobody asked for, without which the target serves."""
    if source == AUTO:
        log.warning("serving without the drafter %s", name, exc_info=error)
        device.release()
        return None
    if isinstance(error, StartError):
        return error
    return StartError("drafter_failed", f"it cannot be opened ({type(error).__name__}: {error}).")


def plan_load(name: str, source: str, target: Target, config: EngineConfig) -> LoadPlan:
    """What loading would take; no weights are read, but a Hugging Face id is downloaded. Raises
    StartError, also for what loading would refuse, as far as config, headers and tokenizer tell."""
    folder = find_folder(name, source, target)
    plan = measure(name, source, folder, target, config)
    if name == "mtp":
        from engine.mtp.opening import check_head

        check_head(folder, target.loaded, Text(target.loaded.tokenizer).fingerprint())
    else:
        from engine.draft_models.checkpoint import check_draft_model

        check_draft_model(folder, target.loaded)
    return plan


def find_folder(name: str, source: str, target: Target) -> Path:
    """Raises StartError, also when "auto" finds none."""
    folder = find_source(name, source, target.loaded, target.cache_dir, "source")
    if folder is None:
        raise StartError(
            "drafter_not_found",
            f"nothing ships for this model that drafter {name} could be opened from; give a "
            "folder.",
        )
    return folder


def measure(name: str, source: str, folder: Path, target: Target, config: EngineConfig) -> LoadPlan:
    """The memory that loading would take. Raises StartError when the files do not tell it."""
    shape, pool = target.loaded.decoder.shape, target.pool
    needs = read_needs(name, folder, shape, config.draft_vocabulary)
    size, free = target.device.dtype.itemsize, target.device.free_bytes()
    if not target.device.is_cuda:
        free = max(0, free - untouched_bytes(target))
    weights = needs.parameters * size
    kv = needs.kv_bytes(pool.pages, pool.page_size, size)
    if weights + kv > MOST_BYTES:
        raise StartError(
            "memory_too_small",
            f"{folder} describes a drafter of more than {size_text(MOST_BYTES)}, which no device "
            "has. Check its config.json against the model's own.",
        )
    fits = weights + kv <= LOAD_SHARE * free
    return LoadPlan(name, source, str(folder), weights, kv, free, fits)


def untouched_bytes(target: Target) -> int:
    """At most so much of what the system calls free is promised: a host gives memory to pages of
    keys and values when they are first written."""
    pools = sum(each.nbytes for each in (*target.pool.keys, *target.pool.values))
    drafters = (ready.drafter for ready in target.drafters.values())
    return pools + sum(one.memory.kv_bytes for one in drafters if isinstance(one, Weighty))
