"""Builds the engine from its config: device, model, pool, attention, calibration, controller."""

from __future__ import annotations

import logging
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import torch
from platformdirs import user_cache_path

from controller.contract import Controller, CostPoint, Setting
from controller.controller import AdaptiveController
from controller.cost import CostModel
from controller.policies import PolicyInputs
from controller.policies.switchable import Switchable
from controller.simulate.step_cost import StepCost
from engine.attention import TorchAttention
from engine.attention_choice import open_attention
from engine.calibration import cost_key, cost_points
from engine.compiler import Compiler
from engine.config import EngineConfig, policy_choice
from engine.device import Device, open_device
from engine.draft_models.opening import Opened, Ready, open_at_start, pages_at_start
from engine.draft_models.sources import AUTO, OFF
from engine.drafters.registry import DRAFTERS
from engine.errors import StartError
from engine.executor import Executor
from engine.intake import Intake, Limits
from engine.kernel_cache import keep_kernels
from engine.kv import KvPool, open_pool
from engine.loading import Loaded, load
from engine.locate import find_model
from engine.loop import Emit, Engine
from engine.pages import Pages
from engine.roofline import roofline_of
from engine.scheduler import Scheduler
from engine.text import Text

log = logging.getLogger(__name__)

Report = Callable[[str, float, str], None]
"""(stage, fraction 0..1, message)."""


@dataclass(frozen=True)
class Target:
    """A loaded model with its pool and executor: everything that is slow to make. drafters: those
    with a model of their own that were loaded with it; one that is unloaded is taken out."""

    loaded: Loaded
    device: Device
    pool: KvPool
    executor: Executor
    text: Text
    cache_dir: Path
    drafters: dict[str, Ready] = field(default_factory=dict)


@dataclass(frozen=True)
class Calibration:
    """The measured cost table, and what steps should take by arithmetic where it says nothing.
    cached: it came from the cache directory."""

    points: list[CostPoint]
    cached: bool
    roofline: StepCost | None = None


def open_target(config: EngineConfig, report: Report) -> Target:
    """Load the model and lay out its pages. Raises StartError."""
    device = open_device(config.device, config.dtype, config.threads)
    cache_dir = _cache_dir(config)
    with ThreadPoolExecutor(1, "model") as aside:  # checks a model's every byte, without Python
        finding = aside.submit(
            find_model, config.model, cache_dir, lambda done, text: report("model", done, text)
        )
        keep_kernels(cache_dir)
        if not device.is_cuda:
            _load_kernels(device.dtype)
        path = finding.result()
    report("load", 0.0, "Loading the model")
    loaded = load(path, device, config.context_length, cache_dir)
    shape = loaded.decoder.shape
    report("load", 0.9, "Loading the drafters")
    opened = open_at_start(config, loaded, device, cache_dir)
    pool = _pool_for(config, loaded, device, opened)
    attention = open_attention(config, device, pool, shape)
    executor = Executor(loaded.decoder, attention, device, config.page_size)
    text = Text(loaded.tokenizer)
    target = Target(loaded, device, pool, executor, text, cache_dir)
    for one in opened:
        drafter = pages_at_start(one, target, config)
        if drafter is not None:
            target.drafters[one.name] = Ready(one.source, drafter, one.note)
    report("load", 1.0, "Loaded the model")
    return target


def _pool_for(config: EngineConfig, loaded: Loaded, device: Device, opened: list[Opened]) -> KvPool:
    """Pages for the target and its drafters. Those that nobody asked for give way where memory
    does not suffice: they leave the list, and the memory. Raises StartError."""

    def pool() -> KvPool:
        return open_pool(
            loaded.decoder.shape,
            device,
            config.page_size,
            config.kv_tokens,
            config.memory_fraction,
            sum(one.kv_bytes_per_token(device, config.page_size) for one in opened),
        )

    try:
        return pool()
    except StartError as error:
        if all(one.source != AUTO for one in opened):
            raise
        log.warning("serving without drafters that nobody asked for: %s", error.message)
    opened[:] = [one for one in opened if one.source != AUTO]
    device.release()
    return pool()


def _load_kernels(dtype: torch.dtype) -> None:
    """Have the CPU's compiled layers ready before the model is; without numba there are none."""
    try:
        from engine.layers_cpu import can_list
    except ImportError:
        return
    can_list(dtype)


def calibrate(config: EngineConfig, target: Target, report: Report) -> Calibration:
    """Measure the target's cost table, or take it from the cache; or neither, where that is off."""
    roofline = roofline_of(target.loaded.decoder, target.device)
    if config.calibration == "off":
        return Calibration([], False, roofline)
    points, cached = cost_points(
        target.executor,
        target.pool,
        config.max_batch,
        config.max_draft_length,
        cost_key(target.executor, f"{target.loaded.architecture} {target.loaded.decoder.shape}"),
        _cache_dir(config),
        fresh=config.calibration == "fresh",
        progress=lambda fraction, message: report("calibrate", fraction, message),
    )
    return Calibration(points, cached, roofline)


def _cache_dir(config: EngineConfig) -> Path:
    return Path(config.cache_dir) if config.cache_dir else user_cache_path("paceline")


def adaptive(
    config: EngineConfig, points: list[CostPoint], roofline: StepCost | None = None
) -> AdaptiveController:
    """The controller over a measured cost table; roofline: see Calibration."""
    return AdaptiveController(
        drafters=tuple(DRAFTERS),
        tails=tuple(DRAFTERS),
        cost=CostModel(points, roofline),
        setting=Setting(max_draft_length=config.max_draft_length),
    )


def open_controller(
    config: EngineConfig,
    points: list[CostPoint],
    group: int | None = None,
    roofline: StepCost | None = None,
) -> Switchable:
    """The policy that the config names over a measured cost table. group: the target's query heads
    of a key-value head. roofline: see Calibration. Raises StartError."""
    inputs = PolicyInputs(
        drafters=tuple(DRAFTERS),
        tails=tuple(DRAFTERS),
        cost=CostModel(points, roofline),
        setting=Setting(max_draft_length=config.max_draft_length),
        group=group,
    )
    try:
        return Switchable(inputs, policy_choice(config))
    except ValueError as error:
        raise StartError("bad_policy", f"The policy cannot be made: {error}.") from None


def open_engine(
    config: EngineConfig, target: Target, controller: Controller, emit: Emit
) -> tuple[Engine, Intake]:
    """A fresh engine over a loaded target, and the door to it."""
    shape = target.loaded.decoder.shape
    stop_ids = target.loaded.stop_ids
    drafters = [make(config, stop_ids, shape.vocabulary) for make in DRAFTERS.values()]
    in_place = isinstance(target.executor.attention, TorchAttention)
    pages = Pages(target.pool.pages, target.pool.page_size, in_place=in_place)
    chunk_rows = config.chunk_rows or (2048 if target.device.is_cuda else 256)
    scheduler = Scheduler(
        pages, config.max_batch, config.max_waiting, chunk_rows, config.prefix_cache
    )
    engine = Engine(target.executor, scheduler, drafters, controller, config.max_draft_length, emit)
    for name, ready in target.drafters.items():
        if getattr(config, name) != OFF:
            engine.attach(ready.drafter)
    limits = Limits(
        context_length=shape.context_length,
        pool_tokens=target.pool.pages * target.pool.page_size,
        max_draft_length=config.max_draft_length,
        vocabulary=shape.vocabulary,
    )
    text = target.text
    compiler = Compiler(text.definition, text.encode, shape.vocabulary, stop_ids)
    is_enabled = engine.drafting.enabled.get
    intake = Intake(text, limits, stop_ids, is_enabled, compiler.constraint, compiler.knows)
    return engine, intake
