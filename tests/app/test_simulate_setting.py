"""The operator's limits in the simulator's configuration file."""

from __future__ import annotations

from pathlib import Path

import pytest

from app.failures import Failure
from app.simulate.config import read_config
from tests.app.test_simulate_command import CLOSED


def written(tmp_path: Path, fields: str) -> Path:
    path = tmp_path / "run.toml"
    path.write_text(f"{CLOSED}[setting]\n{fields}\n")
    return path


def test_every_policy_gets_them(tmp_path: Path) -> None:
    path = written(tmp_path, "tpot_target_ms = 20\ndraft_budget = 8\nmax_drafting_requests = 3")
    setting = read_config(path).scenario(tmp_path).setting
    assert (setting.tpot_target_ms, setting.draft_budget) == (20.0, 8)
    assert setting.max_drafting_requests == 3


def test_0_is_none(tmp_path: Path) -> None:
    path = written(tmp_path, "tpot_target_ms = 0.0\ndraft_budget = 0")
    setting = read_config(path).scenario(tmp_path).setting
    assert (setting.tpot_target_ms, setting.draft_budget) == (None, None)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        *(("tpot_target_ms", value) for value in ("-1", "nan", "inf", "true", '"20"', "600001")),
        *(("draft_budget", value) for value in ("-1", "2.5", "true", '"2"', "1000001")),
    ],
)
def test_what_is_no_limit_is_refused_by_name(tmp_path: Path, field: str, value: str) -> None:
    with pytest.raises(Failure, match=field):
        read_config(written(tmp_path, f"{field} = {value}"))


@pytest.mark.parametrize("mode", ["auto", "off"])
@pytest.mark.parametrize("field", ['drafter = "eagle"', "draft_length = 3"])
def test_a_pin_that_would_have_no_effect_is_refused(tmp_path: Path, field: str, mode: str) -> None:
    path = written(tmp_path, f'mode = "{mode}"\n{field}')
    with pytest.raises(
        ValueError, match=f"drafter and draft_length are of mode pinned, not {mode}"
    ):
        read_config(path).scenario(tmp_path)


def test_a_pin_is_the_setting(tmp_path: Path) -> None:
    path = written(tmp_path, 'mode = "pinned"\ndrafter = "eagle"\ndraft_length = 3')
    setting = read_config(path).scenario(tmp_path).setting
    assert (setting.mode, setting.drafter, setting.draft_length) == ("pinned", "eagle", 3)
