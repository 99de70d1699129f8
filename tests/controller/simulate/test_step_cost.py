"""What steps cost on simulated machines."""

from __future__ import annotations

import numpy as np
import pytest

from controller.simulate.calibration import calibrate
from controller.simulate.machines import HARDWARE, MODELS
from controller.simulate.step_cost import FITTED, StepCost, roofline

FITS = {
    "smollm2-135m": 1, "qwen3-0.6b": 1, "llama-1b": 1, "llama-8b": 1, "qwen3-32b": 2,
    "llama-70b": 4, "qwen3-30b-a3b": 2, "qwen3-235b-a22b": 16, "deepseek-v3": 32,
}  # fmt: skip


def test_the_roofline_of_an_8b_on_an_h100_is_what_was_measured() -> None:
    cost = roofline(HARDWARE["H100"], MODELS["llama-8b"])
    assert cost.base_ms == pytest.approx(FITTED.base_ms, rel=0.02)
    assert cost.row_ms == pytest.approx(FITTED.row_ms, rel=0.02)
    assert cost.kv_ms == pytest.approx(FITTED.kv_ms, rel=0.02)


@pytest.mark.parametrize("hardware", HARDWARE)
@pytest.mark.parametrize("model", MODELS)
def test_every_model_costs_more_with_rows_and_context(hardware: str, model: str) -> None:
    cost = roofline(HARDWARE[hardware], MODELS[model], 2 * FITS[model])
    times = [cost.step_ms(8, rows, 1000) for rows in range(1, 30)]
    assert times == sorted(times)
    assert times[-1] > times[0]
    assert cost.step_ms(8, 1, 4000) > cost.step_ms(8, 1, 1000)


def test_a_model_that_does_not_fit_is_refused_with_the_numbers() -> None:
    with pytest.raises(ValueError, match="141 GB, more than the 1 x 80 GB"):
        roofline(HARDWARE["H100"], MODELS["llama-70b"], 1)


def test_rows_are_padded_to_the_tile() -> None:
    cost = StepCost(1.0, 0.1, 0.0, tile=8)
    assert cost.step_ms(1, 2, 0) == cost.step_ms(1, 8, 0)
    assert cost.step_ms(1, 9, 0) == pytest.approx(1.0 + 1.6)


def test_experts_cost_a_first_draft_more_than_a_further_one_and_rows_of_one_request_share() -> None:
    """The tax of a mixture of experts at small batches, and its free band in the middle."""
    cost = roofline(HARDWARE["B200"], MODELS["qwen3-30b-a3b"], 1)
    plain = [cost.step_ms(batch, 1, 0) for batch in (1, 64)]
    drafted = [cost.step_ms(batch, 5, 0) for batch in (1, 64)]
    assert drafted[0] / plain[0] > 1.5
    assert drafted[1] / plain[1] < 1.2
    assert cost.step_ms(1, 8, 0) < cost.step_ms(8, 1, 0)


def test_distinct_experts_are_what_was_measured() -> None:
    """22, 36 and 56 of 256 with 8 used, at 4, 8 and 16 rows of one request."""
    cost = roofline(HARDWARE["B200"], MODELS["deepseek-v3"], 8)
    free = StepCost(cost.base_ms, cost.row_ms, cost.kv_ms, tile=cost.tile)
    for rows, distinct in ((4, 22), (8, 36), (16, 56)):
        experts = (cost.step_ms(1, rows, 0) - free.step_ms(1, rows, 0)) / cost.expert_ms
        assert experts == pytest.approx(distinct, rel=0.05)


def test_a_full_attention_tile_makes_every_drafted_row_cost_attention() -> None:
    """Latent attention fills a tile with one row; grouped queries have room for drafts."""
    full = roofline(HARDWARE["H200"], MODELS["deepseek-v3"], 8)
    roomy = roofline(HARDWARE["H200"], MODELS["llama-8b"], 1)

    def added(cost: StepCost, rows: int) -> float:
        near, far = cost.step_ms(1, rows, 0), cost.step_ms(1, rows, 100_000)
        return (far - near) / (cost.step_ms(1, 1, 100_000) - cost.step_ms(1, 1, 0))

    assert added(full, 4) > 2.0
    assert added(roomy, 16) == pytest.approx(1.0)


def test_steps_are_priced_side_by_side_as_one_by_one() -> None:
    cost = roofline(HARDWARE["H200"], MODELS["qwen3-235b-a22b"], 8)
    rng = np.random.default_rng(0)
    rows, context = rng.integers(0, 9, (4, 6)), rng.integers(1, 3000, (4, 6))
    context[rows == 0] = 0
    together = cost.verify_ms(rows, context)
    assert together.tolist() == pytest.approx(
        [float(cost.verify_ms(rows[i], context[i])) for i in range(4)]
    )


def test_the_calibration_measures_with_noise_around_the_truth() -> None:
    exact = calibrate(FITTED, 8, 0.0, np.random.default_rng(0))
    noisy = calibrate(FITTED, 8, 0.02, np.random.default_rng(0))
    assert max(point.requests for point in exact) == 8
    for true, measured in zip(exact, noisy, strict=True):
        assert true.ms == pytest.approx(FITTED.step_ms(
            true.requests, true.rows // true.requests, true.context_len
        ))  # fmt: skip
        assert measured.ms == pytest.approx(true.ms, rel=0.1)
    assert any(a.ms != b.ms for a, b in zip(exact, noisy, strict=True))
