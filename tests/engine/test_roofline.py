"""What a target's steps should take by arithmetic, by its shape and the device."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from controller.simulate.machines import HARDWARE, MODELS
from controller.simulate.step_cost import roofline
from engine import roofline as module
from engine.build import calibrate, open_controller
from engine.config import EngineConfig
from engine.device import Device
from engine.roofline import roofline_of
from engine.shape import AttentionKind, Shape

CPU = Device(torch.device("cpu"), torch.float32)
GPU = Device(torch.device("cuda"), torch.bfloat16)
LLAMA = Shape(32, 32, 8, 128, 4096, 128_256, 8192)


def target(shape: Shape, parameters: float, value_bytes: int = 2, config: Any = None) -> Any:
    """A model of that shape with so many weights; with a config it is a transformers module."""
    nbytes = round(parameters * value_bytes)
    if config is None:
        return SimpleNamespace(shape=shape, linears=[SimpleNamespace(extent=(0, nbytes))])
    weights = [SimpleNamespace(nbytes=nbytes)]
    return SimpleNamespace(
        shape=shape, model=SimpleNamespace(config=config, parameters=lambda: weights)
    )


@pytest.fixture
def gpu_name(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    names = ["NVIDIA H100 80GB HBM3"]
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: names[0])
    return names


def test_a_known_gpu_and_a_dense_target_are_the_simulators_roofline(gpu_name: list[str]) -> None:
    cost = roofline_of(target(LLAMA, 8.03e9), GPU)
    assert cost is not None
    expected = roofline(HARDWARE["H100"], MODELS["llama-8b"])
    for requests, each, context in ((1, 1, 0), (8, 5, 1000), (64, 2, 8000)):
        assert cost.step_ms(requests, each, context) == pytest.approx(
            expected.step_ms(requests, each, context)
        )
    gpu_name[0] = "NVIDIA H200"
    faster = roofline_of(target(LLAMA, 8.03e9), GPU)
    assert faster is not None
    assert faster.base_ms < cost.base_ms


def test_without_a_calibration_the_roofline_prices_the_first_plan(gpu_name: list[str]) -> None:
    loaded = SimpleNamespace(decoder=target(LLAMA, 8.03e9))
    found = calibrate(
        EngineConfig(calibration="off"),
        SimpleNamespace(loaded=loaded, device=GPU),  # type: ignore[arg-type]
        lambda stage, fraction, message: None,
    )
    assert (found.points, found.cached) == ([], False)
    cost = open_controller(EngineConfig(), found.points, 4, found.roofline).what_if(8, 1000)
    plain = next(one for one in cost.candidates if one.drafter == "none")
    expected = roofline(HARDWARE["H100"], MODELS["llama-8b"]).step_ms(8, 1, 1000)
    assert 8000.0 / plain.goodput == pytest.approx(expected, rel=0.05)


def test_a_mixture_of_experts_is_told_by_its_config(gpu_name: list[str]) -> None:
    gpu_name[0] = "NVIDIA H200"
    shape = Shape(48, 32, 4, 128, 2048, 151_936, 8192)
    config = SimpleNamespace(num_experts=128, num_experts_per_tok=8, moe_intermediate_size=768)
    mixture = MODELS["qwen3-30b-a3b"]
    cost = roofline_of(target(shape, mixture.parameters, config=config), GPU)
    expected = roofline(HARDWARE["H200"], mixture)
    assert cost is not None
    assert cost.step_ms(4, 3, 500) == pytest.approx(expected.step_ms(4, 3, 500), rel=0.01)


def test_layers_with_a_window_do_not_grow_with_the_context(gpu_name: list[str]) -> None:
    def kind(window: int | None) -> AttentionKind:
        return AttentionKind(32, 8, 128, 128, 0.1, window)

    windowed = Shape(32, 32, 8, 128, 4096, 10, 8192, (kind(4096), kind(None)) * 16)
    half = roofline_of(target(windowed, 8.03e9), GPU)
    whole = roofline_of(target(LLAMA, 8.03e9), GPU)
    assert half is not None
    assert whole is not None
    assert half.kv_ms == pytest.approx(whole.kv_ms / 2)


def test_a_device_nobody_knows_is_measured_and_has_a_knee(
    gpu_name: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    times = iter((1e-3, 1e3))  # a copy, and a product that something disturbed
    monkeypatch.setattr(module, "_shortest", lambda device, work: next(times))
    cost = roofline_of(target(LLAMA, 1e9, 4), CPU)
    assert cost is not None
    layers = 32 * module.LAYER_MS
    assert cost.base_ms > layers
    assert 0.0 < cost.row_ms < (cost.base_ms - layers) / 4


def test_a_real_cpu_is_measured_in_well_under_a_second() -> None:
    cost = roofline_of(target(LLAMA, 1e9, 4), CPU)
    assert cost is not None
    assert 0.0 < cost.step_ms(1, 1, 100) < cost.step_ms(8, 4, 100) < 1e6
    for context in (0, 1000):  # rows of a CPU's attention fill no tiles
        rows = cost.step_ms(1, 40, context) - cost.step_ms(1, 1, context)
        assert rows == pytest.approx(39 * cost.row_ms)


def test_a_model_that_does_not_tell_its_weights_has_none() -> None:
    assert roofline_of(SimpleNamespace(shape=LLAMA), CPU) is None  # type: ignore[arg-type]
