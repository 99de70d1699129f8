"""How a request's tokens are drawn from the target's distribution."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Draw:
    """How one request's next tokens are drawn. temperature 0 is greedy; top_k 0 and top_p 1.0
    are no filter; seed None draws from the engine's own stream."""

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    seed: int | None = None

    @property
    def greedy(self) -> bool:
        return self.temperature < 1e-5
