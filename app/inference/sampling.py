"""The sampling parameters that every endpoint takes, and what the engine makes of them."""

from __future__ import annotations

import msgspec

from app.errors import bad_request
from app.inference.formats import Alternatives, Schema, Source, StructuredOutputs
from app.inference.limits import (
    AllowedIds,
    BadWords,
    Biases,
    CacheSalt,
    MinP,
    MinTokens,
    Penalty,
    Priority,
    RepetitionPenalty,
    Seed,
    Speculation,
    Stop,
    StopIds,
    Temperature,
    TopK,
    TopP,
)
from app.inference.refused import Refused
from engine.wire import Grammar, Sampling

MAX_TOKEN_ID = 2**31 - 1


class Sampled(Refused, kw_only=True):
    """OpenAI's and vLLM's names. Everything left out has OpenAI's default; guided_… are the older
    names of structured_outputs. priority: lower runs first. cache_salt: only requests with the same
    one share computed prompts and past answers with it."""

    temperature: Temperature | None = None
    top_p: TopP | None = None
    top_k: TopK | None = None
    min_p: MinP | None = None
    presence_penalty: Penalty | None = None
    frequency_penalty: Penalty | None = None
    repetition_penalty: RepetitionPenalty | None = None
    logit_bias: Biases | None = None
    seed: Seed | None = None
    min_tokens: MinTokens | None = None
    stop: Stop | None = None
    stop_token_ids: StopIds | None = None
    bad_words: BadWords | None = None
    allowed_token_ids: AllowedIds | None = None
    ignore_eos: bool | None = None
    structured_outputs: StructuredOutputs | None = None
    guided_json: Schema | None = None
    guided_regex: Source | None = None
    guided_choice: Alternatives | None = None
    guided_grammar: Source | None = None
    priority: Priority | None = None
    cache_salt: CacheSalt | None = None
    speculation: Speculation | None = None

    def sampling(
        self,
        max_tokens: int | None,
        formatted: tuple[str, Grammar | None],
        logprobs: int | None = None,
        prompt_logprobs: int | None = None,
    ) -> Sampling:
        """formatted: the grammar of the endpoint's own field for it, and that field's name.
        Raises ApiError for what contradicts itself."""
        if max_tokens is not None and (self.min_tokens or 0) > max_tokens:
            raise bad_request("min_tokens must not exceed the largest answer.", "min_tokens")
        stop = self.stop
        return Sampling(
            temperature=1.0 if self.temperature is None else self.temperature,
            top_k=max(self.top_k or 0, 0),
            top_p=1.0 if self.top_p is None else self.top_p,
            min_p=self.min_p or 0.0,
            presence_penalty=self.presence_penalty or 0.0,
            frequency_penalty=self.frequency_penalty or 0.0,
            repetition_penalty=(
                1.0 if self.repetition_penalty is None else self.repetition_penalty
            ),
            logit_bias={_token_id(key): bias for key, bias in (self.logit_bias or {}).items()},
            seed=self.seed,
            max_tokens=max_tokens,
            min_tokens=self.min_tokens or 0,
            stop=(stop,) if isinstance(stop, str) else tuple(stop or ()),
            stop_token_ids=tuple(self.stop_token_ids or ()),
            ignore_eos=bool(self.ignore_eos),
            bad_words=tuple(self.bad_words or ()),
            allowed_token_ids=(
                None if self.allowed_token_ids is None else tuple(self.allowed_token_ids)
            ),
            logprobs=logprobs,
            prompt_logprobs=prompt_logprobs,
            grammar=self._grammar(*formatted),
        )

    def names(self, format_field: str) -> dict[str, str]:
        """The engine's names of fields -> those that this request used. format_field: the
        endpoint's own field for a grammar."""
        used = self._grammar_field() or format_field
        return {name: used for name in ("response_format", "structured_outputs") if name != used}

    def _grammar_field(self) -> str | None:
        fields = ("structured_outputs", *_GUIDED)
        return next((name for name in fields if getattr(self, name) is not None), None)

    def _grammar(self, format_field: str, formatted: Grammar | None) -> Grammar | None:
        asked = [(format_field, formatted)] if formatted is not None else []
        if self.structured_outputs is not None:
            name = "structured_outputs"
            asked.append((name, self.structured_outputs.as_grammar(name)))
        for name, key in _GUIDED.items():
            if (value := getattr(self, name)) is not None:
                asked.append((name, StructuredOutputs(**{key: value}).as_grammar(name)))
        if len(asked) > 1:
            names = " and ".join(name for name, _ in asked)
            raise bad_request(f"Give only one of {names}.", asked[1][0])
        return asked[0][1] if asked else None


def numbered(base: Sampling, index: int) -> Sampling:
    """The sampling of choice `index`: a seed is counted up, or all choices would be equal."""
    if base.seed is None or index == 0:
        return base
    top = 2**63
    return msgspec.structs.replace(base, seed=(base.seed + index + top) % (2 * top) - top)


_GUIDED = {
    "guided_json": "json",
    "guided_regex": "regex",
    "guided_choice": "choice",
    "guided_grammar": "grammar",
}


def _token_id(key: str) -> int:
    """A key of logit_bias, which JSON has as a string."""
    if not (key.isascii() and key.isdecimal() and len(key) <= 10 and int(key) <= MAX_TOKEN_ID):
        raise bad_request(
            f"logit_bias takes token ids as keys, such as \"50256\", not '{key[:32]}'.",
            "logit_bias",
        )
    return int(key)
