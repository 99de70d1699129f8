"""How a request's tokens are drawn from the target's distribution."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Draw:
    """How one request's next tokens are drawn. temperature 0 is greedy; top_k 0, top_p 1.0 and
    min_p 0.0 are no filter; seed None draws from the engine's own stream.

    logit_bias: (token id, added logit). bad_words: token sequences that must not appear in the
    output. allowed_token_ids None: all. end_ids: ids that end the request, masked while fewer
    than min_tokens tokens are out. logprobs and prompt_logprobs: how many alternatives to score,
    None for no log probabilities."""

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    seed: int | None = None
    min_p: float = 0.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logit_bias: tuple[tuple[int, float], ...] = ()
    bad_words: tuple[tuple[int, ...], ...] = ()
    allowed_token_ids: tuple[int, ...] | None = None
    min_tokens: int = 0
    end_ids: tuple[int, ...] = ()
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    fixed: bool = field(init=False)
    penalised: bool = field(init=False)
    shaped: bool = field(init=False)
    """fixed: some logits change by the same amount at every row. penalised: a penalty is set.
    shaped: anything but the grammar changes logits before the filters."""

    def __post_init__(self) -> None:
        single = any(len(word) == 1 for word in self.bad_words)
        fixed = bool(self.logit_bias) or self.allowed_token_ids is not None or single
        penalised = (
            self.presence_penalty != 0.0
            or self.frequency_penalty != 0.0
            or self.repetition_penalty != 1.0
        )
        shaped = fixed or penalised or bool(self.bad_words) or self.min_tokens > 0
        object.__setattr__(self, "fixed", fixed)
        object.__setattr__(self, "penalised", penalised)
        object.__setattr__(self, "shaped", shaped)

    @property
    def greedy(self) -> bool:
        return self.temperature < 1e-5
