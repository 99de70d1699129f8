"""Loaded heads draft in the engine what they would draft afresh, and leave the text as it is."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from engine.device import Device
from engine.draft_models.mtp import MtpDrafter
from engine.drafters.base import Drafter
from engine.kv import KvPool
from engine.mtp.head import Head
from engine.mtp.opening import open_head
from engine.mtp.paceline import PacelineConfig
from engine.trained import TargetFacts, save
from tests.engine.conformance import ATTENTIONS, Scenario, Subject, decode, differences, tiny
from tests.engine.heads import FLOAT, loaded
from tests.engine.model_drafters import MakeDrafter, own_pool
from tests.engine.test_model_drafters import SCENARIOS, CheckedHead, always, checked
from tests.engine.test_mtp_native import FAMILIES, native

MOST = 4


@pytest.fixture(autouse=True)
def _no_grad() -> Any:
    with torch.no_grad():
        yield


def paceline_head(subject: Subject, folder: Path) -> Head:
    shape = subject.model.shape
    config = PacelineConfig(
        hidden_size=shape.hidden, heads=4, kv_heads=2, head_dim=8, intermediate_size=40,
        taps=(0, 1, 2), target=TargetFacts(2, shape.hidden, shape.vocabulary, "theirs"),
    )  # fmt: skip
    ids = torch.arange(0, shape.vocabulary, 2, dtype=torch.int32)
    weights = {
        name: torch.randn(size) * 2 * size[-1] ** -0.5
        for name, size in config.shapes(len(ids)).items()
    }
    save(folder, config, {**weights, "draft_ids": ids})
    return open_head(folder, loaded(subject.model, folder), FLOAT, "theirs")


@pytest.mark.parametrize("name", ["alone", "all at once"])
def test_a_head_of_ours_drafts_what_it_would_afresh(name: str, tmp_path: Path) -> None:
    subject, made = tiny("llama"), list[CheckedHead]()
    head: Any = paceline_head(subject, tmp_path)
    assert head.decoder.compiled is not None
    plain = decode(subject, ATTENTIONS["torch"], Scenario())
    models = [checked(subject, head, made)]
    found = decode(
        subject, ATTENTIONS["compiled"], SCENARIOS[name], (), always(MOST), models=models, most=MOST
    )
    assert differences(subject, plain.texts, found.texts) == []
    assert sum(drafter.checked for drafter in made) > 50


@pytest.mark.parametrize("family", FAMILIES)
def test_the_head_of_a_transformers_module_leaves_its_text_as_it_is(
    family: str, tmp_path: Path
) -> None:
    model = native(family, tmp_path)[2]
    head = open_head(tmp_path, loaded(model, tmp_path, family), FLOAT)

    def make(like: KvPool, device: Device, most: int) -> Drafter:
        pool = own_pool(head.shape, device, like)
        return MtpDrafter(head, ATTENTIONS["torch"](pool, head.shape, device), pool, device, most)

    models: list[MakeDrafter] = [make]
    subject = Subject(model, FLOAT, [[5, 6, 7], [8, 9, 10, 11, 12, 13, 14], [20, 3]], length=12)
    plain = decode(subject, ATTENTIONS["torch"], Scenario())
    found = decode(
        subject, ATTENTIONS["torch"], SCENARIOS["all at once"], (), always(MOST), models=models,
        most=MOST,
    )  # fmt: skip
    assert differences(subject, plain.texts, found.texts) == []
    assert found.drafted > 30
