"""A drafter without a model where it found a match, else the model.

The common hybrid: llama.cpp's ordered list of drafters, vLLM #24344 (n-gram else EAGLE), SGLang's
suffix router #27628, TensorRT-LLM's `use_sa_spec` (a match of at least 4 replaces the model's
draft). No cost and no acceptance is looked at.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar

from controller.contract import NONE, Allotment
from controller.policies.base import Policy, Step
from controller.policies.inputs import PolicyInputs
from controller.policies.leading import Leading
from controller.policies.openings import Opening
from controller.policies.options import AUTO, LONGEST_DRAFT, OptionError
from controller.policies.placing import PLAIN, Pick
from controller.policies.reasons import RULE
from controller.policies.recorder import Stand


class NgramElseModel(Policy):
    """Options: matcher (auto: all drafters without a model, in their order), least_match (1 token),
    match_draft_length (8), model (auto: the first), draft_length (3, of the model)."""

    name: ClassVar[str] = "ngram_else_model"

    def __init__(self, inputs: PolicyInputs) -> None:
        super().__init__(inputs)
        options = self.options
        self._matcher = options.drafter("matcher")
        self._least = options.whole("least_match", 1, 1, 10_000)
        self._match_length = options.whole("match_draft_length", 8, 1, LONGEST_DRAFT)
        self._model = options.drafter("model")
        self._length = options.whole("draft_length", 3, 0, LONGEST_DRAFT)
        self._leading = Leading()

    def choose(self, step: Step) -> list[Pick]:
        matchers, model = self._matchers(), self._writer()
        return [self._pick(one, matchers, model) for one in step.openings]

    def preferred(self, opening: Opening) -> str | None:
        drafter, _ = self._pick(opening, self._matchers(), self._writer())
        return None if drafter == NONE else drafter

    def check_options(self) -> None:
        if self._matcher in self.models:
            raise OptionError(
                f"matcher: {self._matcher} is a model, which matches no text; name a drafter "
                f"without a model, or {AUTO}"
            )
        if self._model in self.drafters and self._model not in self.models:
            raise OptionError(f"model: {self._model} has no model; name one that has, or {AUTO}")

    def forgotten(self, drafter: str) -> None:
        self._leading.forget(drafter)

    def _matchers(self) -> Sequence[str]:
        if self._matcher != AUTO:
            return [self._matcher]
        return [name for name in self.drafters if name not in self.models]

    def _writer(self) -> str:
        if self._model != AUTO:
            return self._model
        return next((name for name in self.models if name in self._enabled), "")

    def _pick(self, opening: Opening, matchers: Sequence[str], model: str) -> Pick:
        for name in matchers:
            offer = opening.offers.get(name)
            if offer is not None and offer.features.match_length >= self._least:
                return name, self._match_length
        if model in opening.offers and self._length:
            return model, self._length
        if opening.asked:
            return next(iter(opening.offers)), self._length
        return PLAIN

    def stand(self, step: Step, allotments: Sequence[Allotment]) -> Stand:
        leading = self._leading
        leading.add(allotments)
        text = (
            f"A match drafts {self._match_length} tokens, the model {self._length} where there is "
            f"none; lately most drafts are by {leading.drafter}, {leading.length:.1f} tokens per "
            "request and step."
        )
        if self._matcher in self.models:
            text += f" {self._matcher} is a model and never matches."
        return Stand(leading.drafter, leading.length, RULE, text)

    def describe(self) -> Mapping[str, object]:
        return self._leading.describe()
