"""Loading a model through transformers changes the default type of torch in the whole process. An
engine that serves meanwhile computes what it computed before."""

from __future__ import annotations

from dataclasses import replace

import torch

from controller.contract import Setting
from engine.attention_choice import open_attention
from engine.build import Target, adaptive, open_engine
from engine.config import EngineConfig
from engine.executor import Executor
from engine.wire import Failed, Message, Sampling, Submit

PROMPTS = ("Count from one to twenty.", "Repeat: red green blue red green blue red")


def answers(target: Target, config: EngineConfig, default: torch.dtype) -> list[list[int]]:
    """Tokens of answers drawn with a seed and a penalty, drafted by n-grams."""
    decoder, device, pool = target.loaded.decoder, target.device, target.pool
    torch.set_default_dtype(default)
    try:
        attention = open_attention(config, device, pool, decoder.shape)
        fresh = replace(target, executor=Executor(decoder, attention, device, pool.page_size))
        controller = adaptive(config, [])
        controller.configure(Setting("pinned", "ngram", 4))
        events: list[object] = []
        engine, intake = open_engine(config, fresh, controller, events.append)
        requests = [
            intake.request(
                Submit(
                    id=str(place),
                    sampling=Sampling(
                        temperature=0.8, top_p=0.9, seed=3, max_tokens=24, frequency_penalty=0.2,
                        logit_bias={40: -1.5},
                    ),
                    messages=(Message("user", prompt),),
                )
            )
            for place, prompt in enumerate(PROMPTS)
        ]  # fmt: skip
        for request in requests:
            engine.submit(request)
        while engine.step():
            pass
    finally:
        torch.set_default_dtype(torch.float32)
    assert not [event for event in events if isinstance(event, Failed)]
    return [request.tokens[request.prompt_length :] for request in requests]


def test_another_default_type_changes_nothing(target: Target, config: EngineConfig) -> None:
    usual = answers(target, config, torch.float32)
    assert answers(target, config, torch.bfloat16) == usual
    assert min(map(len, usual)) > 5
