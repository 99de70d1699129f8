"""Extracts what the target sees in texts: hidden states and its most likely tokens, in shards."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from torch import Tensor

from engine.batch import Chunk, pack
from engine.build import Target
from engine.decoder import Decoder
from engine.draw import Draw
from engine.errors import StartError
from engine.pages import Pages
from engine.training.model_digest import template_digest, weights_digest
from engine.training.shards import About, Shard, path_of, read, write

TOP = 64
SHARD_TOKENS = 1 << 16
STEP_ROWS = 2048
"""Rows of one forward: memory for their logits is taken in blocks."""
LOGIT_ROWS = 128

Progress = Callable[[int, int], None]
"""(tokens done, tokens in all)."""


def extract(
    target: Target,
    sequences: Sequence[tuple[Sequence[int], int]],
    taps: Sequence[int],
    folder: Path,
    fingerprint: str,
    progress: Progress,
) -> int:
    """Write the shards of the texts (tokens, where the answer begins) that are not there yet.

    Texts go to shards in their order, so an interrupted run goes on where it stopped. fingerprint:
    of the target's tokenizer. Returns how many shards there are. Raises StartError when the folder
    holds shards of other data, cannot be written, or the model cannot tell its inner states."""
    decoder = target.executor.decoder
    if not isinstance(decoder, Decoder):
        raise StartError(
            "model_unsupported",
            "hidden states are extracted from dense Llama-like models only (docs/training.md).",
        )
    folder.mkdir(parents=True, exist_ok=True)
    about = About(
        tuple(taps),
        decoder.shape.hidden,
        fingerprint,
        TOP,
        weights_digest(target.loaded.path),
        template_digest(target.text),
    )
    groups = _groups(sequences)
    total = sum(len(tokens) for tokens, _ in sequences)
    done = 0
    for index, group in enumerate(groups):
        count = sum(len(tokens) for tokens, _ in group)
        path = path_of(folder, index)
        if path.exists():
            _check(path, group, about)
        else:
            write(path, _shard(target, decoder, group, about), about)
        done += count
        progress(done, total)
    return len(groups)


def _groups(
    sequences: Sequence[tuple[Sequence[int], int]],
) -> list[list[tuple[Sequence[int], int]]]:
    groups: list[list[tuple[Sequence[int], int]]] = []
    room = 0
    for one in sequences:
        if not groups or len(one[0]) > room:
            groups.append([])
            room = SHARD_TOKENS
        groups[-1].append(one)
        room -= len(one[0])
    return groups


def _check(path: Path, group: list[tuple[Sequence[int], int]], about: About) -> None:
    shard, stored = read(path)
    tokens = [token for one, _ in group for token in one]
    if stored != about or shard.tokens.tolist() != tokens:
        raise StartError(
            "training_data_differs",
            f"{path} holds other texts, another target or other layers. Choose an empty folder, "
            "or remove its shards.",
        )


@torch.no_grad()
def _shard(
    target: Target, decoder: Decoder, group: list[tuple[Sequence[int], int]], about: About
) -> Shard:
    offsets, answers = [0], [answer for _, answer in group]
    for tokens, _ in group:
        offsets.append(offsets[-1] + len(tokens))
    features: list[Tensor] = []
    ids: list[Tensor] = []
    logprobs: list[Tensor] = []
    step: list[tuple[Sequence[int], int]] = []
    for one in [*group, None]:
        if one is None or sum(len(tokens) for tokens, _ in step) + len(one[0]) > STEP_ROWS:
            if step:
                seen, wanted = _forward(target, decoder, step, about)
                features.append(seen)
                for block in wanted.split(LOGIT_ROWS):
                    scores = decoder.logits(block)
                    best = (scores - scores.logsumexp(-1, keepdim=True)).topk(about.top, -1)
                    ids.append(best.indices.int().cpu())
                    logprobs.append(best.values.half().cpu())
            step = []
        if one is not None:
            step.append(one)
    return Shard(
        tokens=torch.tensor([token for tokens, _ in group for token in tokens], dtype=torch.int32),
        offsets=torch.tensor(offsets),
        answers=torch.tensor(answers),
        features=torch.cat(features),
        top_ids=torch.cat(ids),
        top_logprobs=torch.cat(logprobs),
    )


def _forward(
    target: Target, decoder: Decoder, step: list[tuple[Sequence[int], int]], about: About
) -> tuple[Tensor, Tensor]:
    """Features bfloat16 [T, k * d] of the texts, and the hidden states [A, d] that predict their
    answers' tokens."""
    pool, device = target.pool, target.device
    pages = Pages(pool.pages, pool.page_size)
    chunks: list[Chunk] = []
    rows: list[int] = []
    first = 0
    for index, (tokens, answer) in enumerate(step):
        held = pages.allocate(index, pages.needed(len(tokens)))
        if held is None:
            raise StartError(
                "memory_too_small",
                f"a text of {len(tokens)} tokens does not fit into the KV cache of "
                f"{pool.pages * pool.page_size} tokens; raise --kv-tokens.",
            )
        chunks.append(Chunk(index, list(tokens), 0, held, Draw(), wanted=False))
        rows.extend(range(first + answer - 1, first + len(tokens) - 1))
        first += len(tokens)
    batch = pack(chunks, device, pool.page_size)
    plan = target.executor.attention.plan(batch)
    hidden, seen = decoder.features(batch.ids, batch.positions, plan, about.taps)
    wanted = hidden.index_select(0, torch.tensor(rows, device=hidden.device))
    return seen.bfloat16().cpu(), wanted
