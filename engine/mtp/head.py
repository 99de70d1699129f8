"""What every multi-token prediction head answers, whatever its family.

The row at slot j of a request takes its token t_j and the target's hidden state h_{j-1}, has the
rotary position j, writes its keys and values at slot j, and predicts t_{j+1}. Slot 0 has no row."""

from __future__ import annotations

from typing import Protocol

from torch import Tensor

from engine.shape import Attend, Shape
from engine.vocabulary import VocabularyMap


class Store(Protocol):
    """Writes one layer's keys and values of a step's rows to the pages, and attends to nothing."""

    def __call__(self, layer: int, k: Tensor, v: Tensor, /) -> None:
        """k [T, Hkv, Dk], v [T, Hkv, Dv]."""
        ...


class Head(Protocol):
    """One loaded head. Its layers count from 0, in a pool of its own."""

    @property
    def family(self) -> str:
        """The checkpoint's kind: paceline-mtp, or the target's model_type."""
        ...

    @property
    def shape(self) -> Shape:
        """Of its own layers; hidden is the target's d, vocabulary the n columns of its logits."""
        ...

    @property
    def taps(self) -> tuple[int, ...]:
        """Target layers whose input it reads, ascending; the number of layers stands for the
        hidden state after the target's final norm."""
        ...

    @property
    def vocabulary(self) -> VocabularyMap:
        """Which target ids the columns of its logits are. Fed are target ids."""
        ...

    @property
    def parameters(self) -> int:
        """Weights of its own, what it shares with the target not counted."""
        ...

    @property
    def bytes(self) -> int:
        """Memory of its matrices and tables, head rows of its own included."""
        ...

    @property
    def repeats(self) -> bool:
        """Whether `forward` and `logits` are the same kernels whatever the values, with nothing of
        the host's between them: a graph can repeat them."""
        ...

    def fuse(self, features: Tensor, /) -> Tensor:
        """Taps [T, k * d], in their order -> what is fed as hidden at the first step, [T, d]."""
        ...

    def forward(self, ids: Tensor, hidden: Tensor, positions: Tensor, attend: Attend, /) -> Tensor:
        """ids and positions int64 [T], hidden [T, d] -> [T, d]: what `logits` takes, and what is
        fed as hidden with the drafted token at the next step."""
        ...

    def write(self, ids: Tensor, hidden: Tensor, positions: Tensor, store: Store, /) -> None:
        """The keys and values of the rows, without what only a prediction needs."""
        ...

    def logits(self, hidden: Tensor, /) -> Tensor:
        """Output of `forward` [R, d] -> float32 [R, n]."""
        ...
