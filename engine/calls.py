"""Answers the calls of the API process: controller, drafters, text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Protocol

from controller.contract import NONE, Setting
from controller.policies.switchable import PolicyChoice, Switchable
from engine.corpora import corpus_states, drop_corpus, encode_corpus, put_corpus
from engine.drafters.base import Bounded
from engine.errors import RequestError
from engine.loop import Engine
from engine.text import Text
from engine.tuning import parameter_states, tune
from engine.wire import (
    CallBody,
    ControllerState,
    Detokenize,
    DrafterState,
    DropCorpus,
    EncodeCorpus,
    GetCorpora,
    GetReport,
    GetWhatIf,
    LoadDrafter,
    MemoryState,
    ModelState,
    PutCorpus,
    SetController,
    SetDrafter,
    SetPolicy,
    StartRecording,
    StopRecording,
    Tokenize,
    UnloadDrafter,
)

MAX_WHAT_IF_BATCH = 4096
MAX_WHAT_IF_CONTEXT = 10_000_000


class Models(Protocol):
    """Says which drafters with a model of their own can be loaded, and how far each is."""

    def names(self) -> Sequence[str]: ...

    def state(self, name: str) -> ModelState | None:
        """None for a drafter without a model of its own."""
        ...


def answer(body: CallBody, engine: Engine, text: Text, models: Models | None = None) -> object:
    """The reply's result as msgpack-able values, of calls that can be answered at once. Raises
    RequestError."""
    match body:
        case SetController():
            return set_controller(engine, body)
        case SetPolicy():
            return set_policy(engine, body)
        case SetDrafter():
            return set_drafter(engine, body, models)
        case GetReport():
            return engine.controller.report()
        case GetWhatIf(batch_size=batch_size, context_len=context_len):
            if not 1 <= batch_size <= MAX_WHAT_IF_BATCH:
                message = f"batch_size must be between 1 and {MAX_WHAT_IF_BATCH}."
                raise RequestError("invalid_request", message, "batch_size")
            if not 0 <= context_len <= MAX_WHAT_IF_CONTEXT:
                message = f"context_len must be between 0 and {MAX_WHAT_IF_CONTEXT}."
                raise RequestError("invalid_request", message, "context_len")
            return asdict(engine.controller.what_if(batch_size, context_len))
        case Tokenize(messages=messages, prompt=prompt, add_special_tokens=whole):
            written = text.write(messages) if messages is not None else prompt or ""
            if whole is None:
                whole = messages is None
            return {"tokens": text.encode_whole(written) if whole else text.encode(written)}
        case Detokenize(tokens=tokens):
            top = engine.executor.decoder.shape.vocabulary
            if any(not 0 <= token < top for token in tokens):
                message = f"tokens must be ids between 0 and {top - 1}."
                raise RequestError("invalid_request", message, "tokens")
            return {"text": text.decode(tokens)}
        case PutCorpus():
            vocabulary = engine.executor.decoder.shape.vocabulary
            return put_corpus(engine.drafting.drafters.values(), body, vocabulary)
        case DropCorpus(name=name):
            return drop_corpus(engine.drafting.drafters.values(), name)
        case GetCorpora():
            return corpus_states(engine.drafting.drafters.values())
        case EncodeCorpus():
            return encode_corpus(text.encode_aside, body)
        case StopRecording():
            engine.recorder.stop()
            return {}
        case LoadDrafter() | UnloadDrafter():
            message = "this engine loads and unloads no drafters."
            raise RequestError("drafter_not_loadable", message, "name")
        case StartRecording():
            raise RequestError("invalid_request", "there is nobody to send a recording to.")


def set_drafter(engine: Engine, body: SetDrafter, models: Models | None = None) -> DrafterState:
    """Apply a change of one drafter, or nothing of it; it holds from the next step on."""
    drafter = engine.drafting.drafters.get(body.name)
    if drafter is None:
        if models is not None and body.name in models.names():
            message = f"drafter {body.name} is not loaded; load it first."
            raise RequestError("drafter_not_loaded", message, "name")
        raise RequestError("unknown_drafter", _unknown(engine, body.name), "name")
    tune(body.name, drafter, body.parameters)
    if body.enabled is not None:
        engine.drafting.set_enabled(body.name, body.enabled)
    return drafter_state(engine, body.name, models)


def set_controller(engine: Engine, body: SetController) -> ControllerState:
    """Check and apply an operator's setting; it holds from the next step on."""
    if (
        body.drafter is not None
        and body.drafter != NONE
        and body.drafter not in engine.drafting.drafters
    ):
        raise RequestError("unknown_drafter", _unknown(engine, body.drafter), "drafter")
    length, largest = body.draft_length, engine.drafting.max_draft_length
    if length is not None and not 0 <= length <= largest:
        message = f"draft_length must be between 0 and {largest}, not {length}."
        raise RequestError("draft_length_out_of_range", message, "draft_length")
    if body.mode == "pinned" and body.drafter is None:
        message = (
            "mode pinned needs a drafter: " + ", ".join([NONE, *engine.drafting.drafters]) + "."
        )
        raise RequestError("bad_setting", message, "drafter")
    if body.mode != "pinned" and (body.drafter is not None or length is not None):
        message = f"mode {body.mode} takes neither drafter nor draft_length; use mode pinned."
        raise RequestError("bad_setting", message, "mode")
    setting = Setting(
        body.mode,
        body.drafter,
        length,
        largest,
        body.schedule,
        body.max_drafting_requests,
        body.tpot_target_ms or None,
        body.draft_budget or None,
    )
    try:
        engine.controller.configure(setting)
    except ValueError as error:
        field, _, message = str(error).partition(": ")
        raise RequestError("bad_setting", f"{field} {message}.", field) from error
    return controller_state(engine)


def set_policy(engine: Engine, body: SetPolicy) -> ControllerState:
    """Switch to another policy; it holds from the next step on."""
    controller = engine.controller
    if not isinstance(controller, Switchable):
        raise RequestError("bad_setting", "this engine's policy cannot be changed.", "policy")
    choice = PolicyChoice(
        body.policy, body.policy_options, body.ab_policy, body.ab_options, body.ab_share
    )
    try:
        controller.switch(choice)
    except ValueError as error:
        field, _, message = str(error).partition(": ")
        raise RequestError("bad_setting", f"{field}: {message}.", field) from error
    return controller_state(engine)


def controller_state(engine: Engine) -> ControllerState:
    controller, setting = engine.controller, engine.controller.setting
    choice = controller.choice if isinstance(controller, Switchable) else PolicyChoice()
    return ControllerState(
        setting.mode,
        setting.drafter,
        setting.draft_length,
        setting.max_draft_length,
        setting.schedule,
        setting.max_drafting_requests,
        setting.tpot_target_ms,
        setting.draft_budget,
        **asdict(choice),
    )


def drafter_states(engine: Engine, models: Models | None = None) -> tuple[DrafterState, ...]:
    """Plain decoding first, then every drafter, then those that could be loaded."""
    known = engine.drafting.drafters
    idle = [name for name in (models.names() if models is not None else ()) if name not in known]
    plain = DrafterState(NONE, "none", True, 0)
    return (plain, *(drafter_state(engine, name, models) for name in (*known, *idle)))


def drafter_state(engine: Engine, name: str, models: Models | None) -> DrafterState:
    """Of a drafter that the engine has or could load."""
    model = None if models is None else models.state(name)
    drafter = engine.drafting.drafters.get(name)
    if drafter is None:
        return DrafterState(name, "model", False, 0, model=model)
    return DrafterState(
        name,
        drafter.kind,
        engine.drafting.enabled[name],
        engine.drafting.max_draft_length,
        parameter_states(drafter),
        _memory(drafter),
        model,
    )


def _memory(drafter: object) -> MemoryState | None:
    return MemoryState(*drafter.text_memory()) if isinstance(drafter, Bounded) else None


def _unknown(engine: Engine, name: str) -> str:
    known = ", ".join([NONE, *engine.drafting.drafters])
    return f"there is no drafter {name[:64]!r}; choose one of {known}."
