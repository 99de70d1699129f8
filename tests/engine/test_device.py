"""What a device is good at."""

from __future__ import annotations

import pytest
import torch

from engine.device import has_fast_bfloat16
from engine.training.fit_options import Options

CPU = torch.device("cpu")


@pytest.mark.parametrize(
    ("able", "precision"),
    [({"avx512_bf16": True}, "bfloat16"), ({"amx_bf16": True}, "bfloat16"), ({}, "float32")],
)
def test_auto_takes_bfloat16_only_where_it_is_fast(
    able: dict[str, bool], precision: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: able)
    assert has_fast_bfloat16(CPU) == bool(able)
    assert Options().on(CPU).precision == precision
    assert Options(precision="float32").on(CPU).precision == "float32"
    assert Options(precision="bfloat16").on(CPU).precision == "bfloat16"
