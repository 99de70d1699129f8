"""Opens a draft model: the folder of any causal language model, or one that Paceline trained."""

from __future__ import annotations

import logging
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor

from engine.decoder import Decoder
from engine.device import Device
from engine.draft_models.model import DraftModel
from engine.draft_models.tied import is_tied, load_tied, open_tied
from engine.errors import StartError
from engine.fusing import with_head
from engine.intersection import SAMPLE, Match, Tokens, match, read_tokens
from engine.loading import Loaded, check_folder, load
from engine.mtp.target import head_weights
from engine.shape import Model, weight_bytes
from engine.trained import check_stored
from engine.vocabulary import VocabularyMap, restricted

log = logging.getLogger(__name__)

WORTH = 0.9
"""A head of which more than this share is used stays whole: a copy of its rows would cost more
memory than it saves time."""


def open_draft_model(
    path: Path,
    target: Loaded,
    device: Device,
    draft_vocabulary: int = 0,
    ranking: Tensor | None = None,
    cache_dir: Path | None = None,
) -> DraftModel:
    """Load the draft model of a folder for a target.

    draft_vocabulary: draft only so many of the target's ids, its special and end ids always among
    them; 0: all that the model can. ranking: as for engine.vocabulary.restricted. cache_dir: as
    for engine.loading.load. A model with a shorter context than the target's is loaded with its
    own, see DraftModel. Raises StartError for a folder that cannot be loaded, or when its
    tokenizer shares too little with the target's."""

    def restrict(whole: VocabularyMap) -> VocabularyMap:
        if not draft_vocabulary:
            return whole
        always = _tokens(target).special | target.stop_ids
        return restricted(whole, draft_vocabulary, always, ranking)

    if is_tied(path):
        return open_tied(path, target, device, restrict)
    loaded = _load(path, target, device, cache_dir)
    found = _matched(path, target, _tokens(loaded))
    log.info("draft model %s has %s", path, found.note)
    decoder, vocabulary = _reduced_head(loaded.decoder, restrict(found.vocabulary))
    return DraftModel(
        decoder=decoder,
        vocabulary=vocabulary.to(device.torch_device),
        source=str(path),
        note=found.note,
        weight_bytes=_weight_bytes(decoder),
    )


def check_draft_model(path: Path, target: Loaded) -> None:
    """Raise StartError as `open_draft_model` does, for all that is told by config, headers and
    tokenizer."""
    if is_tied(path):
        check_stored(path, load_tied(path, target))
        return
    words = check_folder(path)
    _matched(path, target, read_tokens(words.tokenizer, words.vocabulary, words.stop_ids))


def _matched(path: Path, target: Loaded, draft: Tokens) -> Match:
    sample = target.tokenizer.backend_tokenizer.encode(SAMPLE, add_special_tokens=False).ids
    return match(_tokens(target), draft, torch.tensor(sample), str(path))


def _load(path: Path, target: Loaded, device: Device, cache_dir: Path | None) -> Loaded:
    try:
        return load(path, device, target.decoder.shape.context_length, cache_dir)
    except StartError as error:
        if error.code != "context_too_long":
            raise
    loaded = load(path, device, 0, cache_dir)
    context = loaded.decoder.shape.context_length
    log.warning("draft model %s reads %d tokens and drafts nothing in longer texts", path, context)
    return loaded


def _tokens(loaded: Loaded) -> Tokens:
    return read_tokens(loaded.tokenizer, loaded.decoder.shape.vocabulary, loaded.stop_ids)


def _reduced_head(decoder: Model, vocabulary: VocabularyMap) -> tuple[Model, VocabularyMap]:
    """The decoder with a head of the kept columns only, where it is lean and that saves enough;
    another one computes all and they are taken out."""
    few = vocabulary.size <= WORTH * decoder.shape.vocabulary
    if not few or not isinstance(decoder, Decoder):
        return decoder, vocabulary
    kept = torch.arange(vocabulary.size) if vocabulary.kept is None else vocabulary.kept
    rows, bias = head_weights(decoder, kept.to(decoder.embedding.device))
    return with_head(decoder, rows, bias), replace(vocabulary, kept=None)


def _weight_bytes(decoder: Model) -> int:
    """Bytes of weights and rotary tables; what is shared counts once."""
    if isinstance(decoder, Decoder):
        tables = (decoder.embedding, decoder.cos, decoder.sin)
        extents = {(each.data_ptr(), each.nbytes) for each in tables}
        return sum(size for _, size in extents | {each.extent for each in decoder.linears})
    return weight_bytes(decoder)
