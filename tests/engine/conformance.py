"""The suite that any drafter and any attention passes: the text is plain decoding's.

Through chunked prefill, a neighbour that is cancelled, preemption and prefix hits, for any
sequence of drafters and draft lengths."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM

from controller.contract import NONE, Wish
from engine.attention import Attention, TorchAttention
from engine.attention_cpu import CpuAttention
from engine.attention_flashinfer import FlashInferAttention
from engine.batch import Batch, Chunk, pack
from engine.config import EngineConfig
from engine.device import Device
from engine.drafters.base import Drafter
from engine.drafters.registry import DRAFTERS
from engine.drafts import Draft
from engine.draw import Draw
from engine.executor import Executor
from engine.kv import KvPool, empty_pool
from engine.loading import open_model
from engine.loop import Engine
from engine.output import Output
from engine.pages import Pages
from engine.request import Request
from engine.scheduler import Scheduler
from engine.shape import Attend, Model, Shape
from engine.wire import Deltas, Failed, Finished, PromptLogprobs
from tests.engine.exactness import TIE
from tests.engine.model_drafters import MakeDrafter
from tests.engine.scripted import PlainText, ScriptedController, ScriptedDrafter

VOCABULARY = 61
MODELS: dict[str, dict[str, Any]] = {
    "llama": {},
    "mistral": {"sliding_window": 6},
    # windows and soft cap, windows and sinks: layers of different kinds
    "gemma2": {
        "layer_types": ["sliding_attention", "full_attention"],
        "sliding_window": 6,
        "attn_logit_softcapping": 3.0,
        "query_pre_attn_scalar": 20,
    },
    "gpt_oss": {
        "layer_types": ["sliding_attention", "full_attention"],
        "sliding_window": 6,
        "num_local_experts": 4,
        "num_experts_per_tok": 2,
    },
}
CPU = Device(torch.device("cpu"), torch.float32)
MAX_DRAFT = 7
CONFIG = EngineConfig(max_draft_length=MAX_DRAFT, suffix_memory_mb=16)
SWITCHED_OFF = 0.2
"""Share of steps in which a request does not draft at all."""


# --- attentions -----------------------------------------------------------------------------------


class ScatteredPages:
    """An attention over pages that are hardly ever consecutive, so that it cannot read in place."""

    name = "scattered"

    def __init__(self, inner: Attention, pool: KvPool) -> None:
        self._inner = inner
        self._size = pool.page_size
        self._place = list(range(pool.pages))
        random.Random(0).shuffle(self._place)

    def plan(self, batch: Batch) -> Attend:
        chunks = tuple(
            replace(chunk, pages=[self._place[page] for page in chunk.pages])
            for chunk in batch.chunks
        )
        slots = [
            chunk.pages[position // self._size] * self._size + position % self._size
            for chunk in chunks
            for position in range(chunk.start, chunk.kv_length)
        ]
        moved = torch.tensor(slots, device=batch.slots.device)
        return self._inner.plan(replace(batch, chunks=chunks, slots=moved))


MakeAttention = Callable[[KvPool, Shape, Device], Attention]

ATTENTIONS: dict[str, MakeAttention] = {
    "torch": lambda pool, shape, device: TorchAttention(pool, shape),
    "torch, scattered pages": lambda pool, shape, device: ScatteredPages(
        TorchAttention(pool, shape), pool
    ),
    "compiled": lambda pool, shape, device: CpuAttention(pool, shape),
    "compiled, scattered pages": lambda pool, shape, device: ScatteredPages(
        CpuAttention(pool, shape), pool
    ),
    "flashinfer": FlashInferAttention,
}


# --- drafters -------------------------------------------------------------------------------------


class LawDrafter(ScriptedDrafter):
    """Draws from random laws and says so, as a draft model does."""

    def __init__(self, vocabulary: int, device: torch.device) -> None:
        super().__init__(lambda tokens, length: [], "law", MAX_DRAFT)
        self._vocabulary = vocabulary
        self._device = device
        self._generator = torch.Generator().manual_seed(0)

    def propose(self, requests: Sequence[Request], lengths: Sequence[int]) -> list[Draft]:
        drafts: list[Draft] = []
        for length in lengths:
            scores = torch.randn(length, self._vocabulary, generator=self._generator)
            q = (3 * scores).softmax(-1)
            tokens = torch.multinomial(q, 1, generator=self._generator).flatten()
            drafts.append(Draft([int(token) for token in tokens], q.to(self._device)))
        return drafts


def drafters(
    vocabulary: int, texts: Sequence[Sequence[int]], device: Device = CPU
) -> list[Drafter]:
    """Every registered drafter, and scripted ones that know the plain texts, to be right or wrong
    where it hurts."""
    chance = random.Random(0)

    def future(tokens: Sequence[int], length: int) -> list[int]:
        known = len(tokens)
        for text in texts:
            if list(text[:known]) == list(tokens) and len(text) > known:
                return list(text[known : known + length])
        return [0] * length  # a text that took the other side of a tie, or the neighbour's

    def wrong(tokens: list[int], length: int) -> list[int]:
        return [(token + 1) % vocabulary for token in future(tokens, length)]

    def wrong_from_somewhere(tokens: list[int], length: int) -> list[int]:
        right = chance.randrange(length)
        return future(tokens, length)[:right] + wrong(tokens, length)[right:]

    def unknown_ids(tokens: list[int], length: int) -> list[int]:
        good = future(tokens, chance.randrange(length + 1))
        return [*good, *chance.choices([-1, vocabulary, 1 << 40], k=length - len(good))]

    def broken(tokens: list[int], length: int) -> list[int]:
        if chance.random() < 0.5:
            raise RuntimeError("a drafter's own fault")
        return future(tokens, length)

    scripts: dict[str, Callable[[list[int], int], list[int]]] = {
        "always right": future,
        "always wrong": wrong,
        "wrong from somewhere on": wrong_from_somewhere,
        "any token": lambda tokens, length: [chance.randrange(vocabulary) for _ in range(length)],
        "fewer than asked": lambda tokens, length: future(tokens, chance.randrange(length + 1)),
        "more than asked": lambda tokens, length: future(tokens, length + 5),
        "ids the target lacks": unknown_ids,
        "raises": broken,
    }
    return [
        *(make(CONFIG, frozenset(), vocabulary) for make in DRAFTERS.values()),
        *(ScriptedDrafter(script, name, MAX_DRAFT) for name, script in scripts.items()),
        LawDrafter(vocabulary, device.torch_device),
    ]


NAMES = [drafter.name for drafter in drafters(2, [])]


# --- one run --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Subject:
    """A target and the texts it shall continue. length: tokens of each answer."""

    model: Model
    device: Device
    prompts: Sequence[Sequence[int]]
    length: int
    page_size: int = 4

    @property
    def vocabulary(self) -> int:
        return self.model.shape.vocabulary


def tiny(family: str, device: Device = CPU, head_dim: int = 8) -> Subject:
    """A random model of two layers whose greedy text is neither constant nor all one loop."""
    torch.manual_seed(3)
    config = AutoConfig.for_model(
        family,
        **{
            "vocab_size": VOCABULARY,
            "hidden_size": 32,
            "intermediate_size": 48,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "head_dim": head_dim,
            "max_position_embeddings": 256,
            "pad_token_id": 0,
            "bos_token_id": 1,
            "eos_token_id": 2,
            "initializer_range": 0.3,
            "tie_word_embeddings": False,
            "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
            **MODELS[family],
        },
    )
    module = AutoModelForCausalLM.from_config(config).eval()
    model = open_model(module.to(device.torch_device, device.dtype), config, device, 256)
    chance = random.Random(1)
    shared = [chance.randrange(VOCABULARY) for _ in range(17)]
    prompts = [
        [*shared, *(chance.randrange(VOCABULARY) for _ in range(length))] for length in (3, 8, 1)
    ]
    return Subject(model, device, [*prompts, [5, 6, 7]], length=26)


@dataclass(frozen=True)
class Scenario:
    """pages: of the pool, None for plenty. waves: how often the prompts are sent. cancelled: steps
    after which a neighbour's requests end, one after another."""

    pages: int | None = None
    chunk_rows: int = 4096
    waves: int = 1
    cancelled: tuple[int, ...] = ()


@dataclass
class Run:
    """texts: prompt and answer of each request, in order."""

    texts: list[list[int]] = field(default_factory=list)
    preemptions: int = 0
    hit_tokens: int = 0
    prefill_steps: int = 0
    cancelled: int = 0
    drafted: int = 0
    accepted: int = 0
    drafters: set[str] = field(default_factory=set)


def decode(
    subject: Subject,
    make_attention: MakeAttention,
    scenario: Scenario,
    hands: Sequence[Drafter] = (),
    choose: Callable[[int, int, list[str]], tuple[str, int]] = lambda s, r, n: (NONE, 0),
    draw: Draw | None = None,
    models: Sequence[MakeDrafter] = (),
    most: int = MAX_DRAFT,
) -> Run:
    """Decode the subject's prompts; the pages add up after every step, and every step is one
    forward of the target. models: model drafters, made over pages like the target's. most: tokens
    of a draft."""
    size = subject.page_size
    needed = sum(-(-(len(prompt) + subject.length) // size) for prompt in subject.prompts)
    pages = Pages(scenario.pages or 4 * needed, size)
    pool = empty_pool(subject.model.shape, subject.device, pages.total, size)
    for storage in (*pool.keys, *pool.values):
        storage.fill_(float("nan"))  # what was never written must never be read
    attention = make_attention(pool, subject.model.shape, subject.device)
    executor = Executor(subject.model, attention, subject.device, size)
    events: list[Deltas | PromptLogprobs | Finished | Failed] = []
    scheduler = Scheduler(pages, 8, 64, scenario.chunk_rows)
    controller = ScriptedController(choose)
    engine = Engine(executor, scheduler, hands, controller, most, events.append)
    for make in models:
        engine.attach(make(pool, subject.device, most))
    run = Run()
    number = 0

    def submit(prompt: Sequence[int], name: str) -> Request:
        nonlocal number
        number += 1
        request = request_of(number, name, prompt, subject.length, draw or Draw())
        engine.submit(request)
        return request

    for wave in range(scenario.waves):
        last = subject.prompts[-1]
        neighbours = [submit(last[:-1], f"gone {wave} {at}") for at in scenario.cancelled]
        requests = [submit(prompt, f"{wave} {i}") for i, prompt in enumerate(subject.prompts)]
        begun = engine.steps
        while engine.step():
            pages.check()
            assert executor.forwards == engine.steps
            run.prefill_steps += any(not one.produced for one in requests)
            for after, neighbour in zip(scenario.cancelled, neighbours, strict=True):
                if engine.steps - begun == after and scheduler.find(neighbour.name):
                    engine.cancel(neighbour.name)
                    pages.check()
                    run.cancelled += 1
        for request in requests:
            run.texts.append(request.tokens)
            run.drafted += request.drafted
            run.accepted += request.accepted
            run.drafters.update(request.drafters)
    failed = [event for event in events if isinstance(event, Failed)]
    assert not failed, failed[0].message
    assert pages.free == pages.total
    run.preemptions = scheduler.preemptions
    run.hit_tokens = scheduler.prefix_hit_tokens
    return run


def request_of(number: int, name: str, prompt: Sequence[int], length: int, draw: Draw) -> Request:
    text: Any = PlainText()
    return Request(
        id=number,
        name=name,
        tokens=list(prompt),
        prompt_length=len(prompt),
        max_tokens=length,
        draw=draw,
        wish=Wish(),
        tenant="",
        output=Output(
            text,
            stop=(),
            end_ids=frozenset(),
            stop_token_ids=frozenset(),
            max_tokens=length,
            min_tokens=0,
        ),
        arrived=0.0,
    )


def at_random(
    seed: int, only: str | None = None, most: int = MAX_DRAFT
) -> Callable[[int, int, list[str]], tuple[str, int]]:
    """Any of the drafters on offer, or one of them, with any length, for each request and step."""
    chance = random.Random(seed)

    def choose(step: int, request: int, names: list[str]) -> tuple[str, int]:
        names = [name for name in names if only in (None, name)]
        if not names or chance.random() < SWITCHED_OFF:
            return NONE, 0
        return chance.choice(names), chance.randint(1, most)

    return choose


# --- the verdict ----------------------------------------------------------------------------------


def differences(
    subject: Subject, plain: Sequence[list[int]], texts: Sequence[list[int]], tie: float = TIE
) -> list[int]:
    """Which texts are not the plain ones. Where the two best logits of the plain text are closer
    than `tie`, either choice is right and the comparison of that text ends."""
    wrong: list[int] = []
    for number, text in enumerate(texts):
        wanted = plain[number % len(plain)]
        if text == wanted:
            continue
        same = next(
            (i for i, (one, other) in enumerate(zip(text, wanted, strict=False)) if one != other),
            min(len(text), len(wanted)),
        )
        if len(text) != len(wanted) or _gap(subject, wanted[:same]) >= tie:
            wrong.append(number)
    return wrong


def _gap(subject: Subject, tokens: list[int]) -> float:
    """Distance of the two best logits after `tokens`."""
    model, device, size = subject.model, subject.device, subject.page_size
    count = -(-len(tokens) // size)
    attention = TorchAttention(empty_pool(model.shape, device, count, size), model.shape)
    batch = pack([Chunk(0, tokens, 0, list(range(count)), Draw())], device, size)
    hidden = model.forward(batch.ids, batch.positions, attention.plan(batch))
    best = model.logits(hidden[-1:]).topk(2).values[0]
    return float(best[0] - best[1])
