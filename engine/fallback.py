"""Any family outside the lean decoder: its transformers module, attending over our pages.

transformers calls a registered attention function from every attention module and hands it any
keyword that the model was called with; the step's attention travels as one such keyword."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

from torch import Tensor, nn
from transformers import AttentionInterface

from engine.errors import StartError
from engine.shape import Attend, Shape

NAME = "paceline_pages"
"""Our name in the attention registry. transformers builds no mask for a name it does not know."""

CALL = "paceline_step"
"""The keyword that carries a step's attention through the model."""

OnLayer = Callable[[Any, Tensor, Tensor, Tensor, dict[str, Any]], Tensor]
"""(attention module, q, k, v as [T, H, D], other keywords) -> [T, Hq * Dv]."""


def attend_pages(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Any = None,
    **keywords: Any,
) -> tuple[Tensor, None]:
    """The registered function. q, k, v [1, H, T, D] after rope -> [1, T, Hq, Dv]."""
    on_layer: OnLayer | None = keywords.pop(CALL, None)
    if on_layer is None:
        raise refused(
            f"{type(module).__name__} does not pass keywords on to its attention function, so it "
            "cannot be told where its keys and values lie"
        )
    if attention_mask is not None:
        raise refused(f"{type(module).__name__} attends through a mask of its own")
    q, k, v = (part.squeeze(0).transpose(0, 1) for part in (query, key, value))
    return on_layer(module, q, k, v, keywords).unflatten(1, (q.shape[1], -1)).unsqueeze(0), None


AttentionInterface.register(NAME, attend_pages)


class Fallback:
    """Answers the lean decoder's calls with a transformers causal LM, `model`."""

    def __init__(self, model: nn.Module, shape: Shape) -> None:
        self.shape = shape
        self.model = model
        self._body = body_of(model)
        self._given = _Given()
        # A causal LM's head is what it does to its body's output: this shallow copy of it gets
        # the rows that need logits in place of the body.
        self._head = copy.copy(model)
        self._head._modules = {**model._modules, _body_name(model): self._given}

    def forward(self, ids: Tensor, positions: Tensor, attend: Attend) -> Tensor:
        """ids and positions int64 [T] -> hidden states after the final norm, [T, d]."""

        def on_layer(
            module: Any, q: Tensor, k: Tensor, v: Tensor, keywords: dict[str, Any]
        ) -> Tensor:
            return attend(module.layer_idx, q, k, v, keywords.get("s_aux"))

        return run(self._body, ids, positions, on_layer)

    def logits(self, hidden: Tensor) -> Tensor:
        """Hidden states [R, d] -> float32 logits [R, V]."""
        self._given.hidden = hidden.unsqueeze(0)
        return self._head(input_ids=None, use_cache=False).logits.squeeze(0).float()


class _Given(nn.Module):
    """Stands where a model's body stood and outputs what it is given."""

    hidden: Tensor

    def forward(self, *_: Any, **__: Any) -> _Given:
        return self

    @property
    def decoder(self) -> _Given:
        return self

    @property
    def last_hidden_state(self) -> Tensor:
        return self.hidden

    def __getitem__(self, index: int) -> Tensor:
        return (self.hidden,)[index]

    def __getattr__(self, name: str) -> Any:
        return None  # the caches and attentions of an output: there are none


def run(body: Any, ids: Tensor, positions: Tensor, on_layer: OnLayer) -> Tensor:
    """One packed row through a model without its head -> hidden states [T, d]."""
    output: Any = body(
        input_ids=ids.unsqueeze(0),
        position_ids=positions.unsqueeze(0),
        use_cache=False,
        return_dict=True,
        **{CALL: on_layer},
    )
    return output.last_hidden_state.squeeze(0)


def _body_name(model: Any) -> str:
    return model.base_model_prefix


def body_of(model: Any) -> nn.Module:
    """The model without its head."""
    return getattr(model, _body_name(model))


def refused(reason: str) -> StartError:
    return StartError("model_unsupported", reason)
