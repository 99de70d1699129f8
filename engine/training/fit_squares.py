"""A head's start by least squares: its block begins as a layer of the target, with its input."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

from engine.training.fit_mtp import MtpHead
from engine.training.shards import Shard, read, texts

MOST_ROWS = 1 << 16
BLOCK_ROWS = 1 << 12
RIDGE = 1e-4
"""Added to the diagonal, as a share of its mean: columns that hardly vary get no large weights."""


@torch.no_grad()
def start_linear(head: MtpHead, files: Sequence[Path], tap: int) -> None:
    """Set the matrices before the head's block, `fuse` and `project`, such that the block's input
    at slot j comes close to what the target's layer gets there.

    tap: which of the shards' taps holds that layer's input; the head's block must be a copy of the
    layer. A row of slot j knows the token t_j and the taps of slot j - 1, and its error is measured
    against the size of what it should be, since the block norms its input. Solved in two steps,
    because the fused taps are normed in between. Takes the first shards, 65,536 rows in all."""
    device, d = head.embedding.device, head.sizes.hidden
    fused = head.sizes.taps > 1
    if fused:
        both = _solve(
            (torch.cat((embedded, taps), -1), wanted)
            for embedded, taps, wanted in _blocks(head, files, tap)
        )
        head.weights["fuse"].copy_(both[d:].T.to(device))

    def pairs() -> Iterator[tuple[Tensor, Tensor]]:
        for embedded, taps, wanted in _blocks(head, files, tap):
            hidden = head.linear("fuse", taps.to(device)).cpu() if fused else taps
            yield torch.cat((embedded, _normed(head, "hidden_norm", hidden)), -1), wanted

    head.weights["project"].copy_(_solve(pairs()).T.to(device))


def _blocks(
    head: MtpHead, files: Sequence[Path], tap: int
) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """The rows to solve over, BLOCK_ROWS at a time: those of a large model do not fit in memory."""
    rows = 0
    for path in files:
        shard = read(path)[0]
        places = _places(shard)[: MOST_ROWS - rows]
        for some in places.split(BLOCK_ROWS):
            yield _block(head, shard, some, tap)
        rows += len(places)
        if rows >= MOST_ROWS:
            return


def _places(shard: Shard) -> Tensor:
    """Of the tokens that follow another one of their text."""
    found = [torch.arange(place.start + 1, place.stop) for place, _, _ in texts(shard)]
    return torch.cat(found) if found else torch.zeros(0, dtype=torch.int64)


def _block(head: MtpHead, shard: Shard, places: Tensor, tap: int) -> tuple[Tensor, Tensor, Tensor]:
    """Normed embeddings [N, d], normed taps of the slot before [N, k * d], and the wanted input of
    the block [N, d], on the CPU."""
    d = head.sizes.hidden
    tokens = shard.tokens[places].long().to(head.embedding.device)
    embedded = F.embedding(tokens, head.embedding).float().cpu()
    before = shard.features[places - 1].float().split(d, -1)
    if head.sizes.taps > 1:
        before = [_normed(head, f"tap_norms.{index}", one) for index, one in enumerate(before)]
    wanted = shard.features[places, tap * d : (tap + 1) * d].float()
    return _normed(head, "embedding_norm", embedded), torch.cat(list(before), -1), wanted


def _normed(head: MtpHead, name: str, x: Tensor) -> Tensor:
    return head.norm(name, x.to(head.embedding.device)).float().cpu()


def _solve(pairs: Iterable[tuple[Tensor, Tensor]]) -> Tensor:
    """Weighted ridge regression of [N, d] on [N, m] -> [m, d]."""
    squares: Tensor | float = 0.0
    products: Tensor | float = 0.0
    for given, wanted in pairs:
        share = wanted.pow(2).mean(-1, keepdim=True).clamp_min(1e-12).rsqrt()
        given = given * share
        squares = squares + (given.T @ given).double()
        products = products + (given.T @ (wanted * share)).double()
    assert isinstance(squares, Tensor)
    assert isinstance(products, Tensor)
    ridge = RIDGE * squares.diagonal().mean()
    squares.diagonal().add_(ridge)
    return torch.linalg.solve(squares, products).float()
