"""Settings: precedence, names in the environment, secrets as files, clear errors."""

from __future__ import annotations

from pathlib import Path
from typing import get_args, get_type_hints

import pytest

from app.failures import SettingsError, StartError
from app.settings import FIELDS, SECRETS, Settings, load_settings, prepare_data_dir
from engine.config import EngineConfig
from engine.drafters.suffix.forest import MAX_BYTES, MIN_BYTES, SuffixForest
from engine.drafters.suffix.memory import MAX_DEPTH


def test_an_option_wins_over_the_environment_and_that_over_the_default() -> None:
    environment = {"PACELINE_PORT": "9001", "PACELINE_MAX_BATCH": "4"}
    settings = load_settings({"port": "9002", "max_batch": None}, environment)
    assert (settings.port, settings.max_batch, settings.host) == (9002, 4, "127.0.0.1")


@pytest.mark.parametrize("name", FIELDS)
def test_every_setting_is_a_variable(name: str, tmp_path: Path) -> None:
    example = {
        "port": "9", "ui_port": "9", "threads": "3", "max_batch": "3", "max_waiting": "3",
        "max_draft_length": "3", "chunk_rows": "33", "kv_tokens": "3", "memory_fraction": "0.3",
        "context_length": "3", "draft_length": "3", "drafter": "ngram", "dtype": "float32",
        "device": "cpu", "attention": "torch", "calibration": "fresh", "mode": "off",
        "log_level": "debug", "draft_schedule": "4:2,8:1", "max_drafting_requests": "3",
        "tpot_target_ms": "30.5", "draft_budget": "33",
        "step_timeout_s": "30.5", "prefix_cache": "tenant", "scheduling_policy": "fcfs",
        "suffix_tree": "off", "suffix_memory_mb": "33", "suffix_depth": "33",
        "suffix_max_age_s": "33", "corpus_limit_mb": "33", "corpus_tokens": "3333",
        "draft_vocabulary": "33", "warm_corpus": "off", "policy": "ucb",
        "policy_options": "draft_length=3", "ab_policy": "off", "ab_options": "draft_length=3",
        "ab_share": "0.3",
        "admin_key": "k" * 32, "console_key": "c" * 32, "data_dir": str(tmp_path),
        "cache_dir": str(tmp_path),
    }.get(name, "text")  # fmt: skip
    variables = {f"PACELINE_{name.upper()}": example}
    if name in ("drafter", "draft_length", "draft_schedule"):
        variables = {"PACELINE_MODE": "pinned", "PACELINE_DRAFTER": "ngram"} | variables
    if name in ("policy_options", "ab_options"):
        policy = {"policy_options": "PACELINE_POLICY", "ab_options": "PACELINE_AB_POLICY"}[name]
        variables |= {policy: "fixed"}
    settings = load_settings({}, variables)
    assert str(getattr(settings, name)) == example


def test_the_engine_gets_every_setting_that_it_knows() -> None:
    settings = load_settings({}, {"PACELINE_MAX_DRAFT_LENGTH": "5", "PACELINE_DTYPE": "float32"})
    config = settings.engine_config()
    for name in set(EngineConfig.__struct_fields__) & set(FIELDS):
        assert getattr(config, name) == getattr(settings, name)
    assert (config.max_draft_length, config.dtype) == (5, "float32")


@pytest.mark.parametrize("name", SECRETS)
def test_a_secret_can_come_from_a_file(name: str, tmp_path: Path) -> None:
    file = tmp_path / "secret"
    file.write_text("x" * 40 + "\n", "utf-8")
    settings = load_settings({}, {f"PACELINE_{name.upper()}_FILE": str(file)})
    assert getattr(settings, name) == "x" * 40


def test_a_missing_secret_file_is_named() -> None:
    with pytest.raises(SettingsError, match=r"PACELINE_ADMIN_KEY_FILE: cannot read gone"):
        load_settings({}, {"PACELINE_ADMIN_KEY_FILE": "gone"})


@pytest.mark.parametrize("name", SECRETS)
def test_a_secret_file_that_is_no_text_is_named(name: str, tmp_path: Path) -> None:
    file = tmp_path / "secret"
    file.write_bytes(b"\xff\xfe" + bytes(range(256)))
    variable = f"PACELINE_{name.upper()}_FILE"
    with pytest.raises(SettingsError, match=f"{variable}: {file} is not UTF-8 text"):
        load_settings({}, {variable: str(file)})


@pytest.mark.parametrize(
    ("variable", "value", "message"),
    [
        ("PACELINE_PORT", "many", r"--port \(PACELINE_PORT\) has a wrong value 'many'"),
        ("PACELINE_PORT", "0", "--port .* >= 1"),
        ("PACELINE_DTYPE", "int4", "--dtype .*'int4'"),
        ("PACELINE_MEMORY_FRACTION", "2", "--memory-fraction .* <= 0.95"),
        ("PACELINE_MAX_DRAFT_LENGTH", "-1", "--max-draft-length .* >= 0"),
        ("PACELINE_ADMIN_KEY", "short", "PACELINE_ADMIN_KEY is too short.* 32"),
        ("PACELINE_CONSOLE_KEY", "short", "PACELINE_CONSOLE_KEY is too short.* 32"),
        ("PACELINE_CONSOLE_KEY", "k" * 40 + "é", "PACELINE_CONSOLE_KEY cannot be a key: .* ASCII"),
        ("PACELINE_ADMIN_KEY", "two words " * 4, "PACELINE_ADMIN_KEY cannot be a key: .* spaces"),
        ("PACELINE_MODE", "pinned", "mode pinned needs a drafter"),
        ("PACELINE_DRAFTER", "ngram", "--drafter .* --mode pinned only, and the mode is auto"),
        ("PACELINE_DRAFT_LENGTH", "4", "--draft-length .* --mode pinned only"),
        ("PACELINE_DRAFT_SCHEDULE", "4:2", "--draft-schedule .* --mode pinned only"),
        ("PACELINE_MAX_DRAFTING_REQUESTS", "-1", "--max-drafting-requests .* >= 0"),
        ("PACELINE_TPOT_TARGET_MS", "-1", r"--tpot-target-ms \(PACELINE_TPOT_TARGET_MS\) .* >= 0"),
        ("PACELINE_TPOT_TARGET_MS", "nan", "--tpot-target-ms .* has a wrong value 'nan'"),
        ("PACELINE_TPOT_TARGET_MS", "1e400", "--tpot-target-ms .* out of range"),
        ("PACELINE_TPOT_TARGET_MS", "600001", "--tpot-target-ms .* <= 600000"),
        ("PACELINE_TPOT_TARGET_MS", "true", "--tpot-target-ms .* has a wrong value 'true'"),
        ("PACELINE_DRAFT_BUDGET", "2.5", "--draft-budget .* has a wrong value '2.5'"),
        ("PACELINE_DRAFT_BUDGET", "1000001", "--draft-budget .* <= 1000000"),
    ],
)
def test_a_wrong_value_names_option_variable_and_what_is_allowed(
    variable: str, value: str, message: str
) -> None:
    with pytest.raises(SettingsError, match=message):
        load_settings({}, {variable: value})


def test_a_draft_length_above_the_largest_is_refused() -> None:
    given = {"mode": "pinned", "drafter": "ngram", "draft_length": "9", "max_draft_length": "8"}
    with pytest.raises(SettingsError, match=r"--draft-length .* is 9, above --max-draft-length 8"):
        load_settings(given, {})
    assert load_settings(given | {"draft_length": "8"}, {}).draft_length == 8


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"draft_schedule": "4=2"}, "'4=2' is not REQUESTS:LENGTH"),
        ({"draft_schedule": "8:2,4:1"}, "must rise"),
        ({"draft_schedule": "0:2,4:1"}, "must rise"),
        ({"draft_schedule": "4:17"}, "above --max-draft-length 16"),
        ({"draft_schedule": "4:2", "draft_length": "2"}, "takes the place of --draft-length"),
    ],
)
def test_a_draft_schedule_without_sense_is_refused(given: dict[str, str], message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        load_settings({"mode": "pinned", "drafter": "ngram"} | given, {})


@pytest.mark.parametrize("name", ["max_drafting_requests", "tpot_target_ms", "draft_budget"])
def test_a_limit_has_no_effect_in_mode_off_and_is_refused(name: str) -> None:
    option = "--" + name.replace("_", "-")
    with pytest.raises(SettingsError, match=f"{option} has no effect in mode off"):
        load_settings({"mode": "off", name: "2"}, {})


def test_a_target_or_budget_of_0_is_none_in_mode_off_too() -> None:
    given = {"mode": "off", "tpot_target_ms": "0", "draft_budget": "0"}
    settings = load_settings(given, {})
    assert not settings.tpot_target_ms
    assert not settings.draft_budget


def test_the_console_may_not_share_the_admin_key() -> None:
    keys = {"PACELINE_ADMIN_KEY": "k" * 32, "PACELINE_CONSOLE_KEY": "k" * 32}
    with pytest.raises(SettingsError, match="PACELINE_CONSOLE_KEY is the same"):
        load_settings({}, keys)


@pytest.mark.parametrize(
    ("host", "url"),
    [
        ("127.0.0.1", "http://127.0.0.1:8000"),
        ("0.0.0.0", "http://127.0.0.1:8000"),
        ("::", "http://[::1]:8000"),
        ("fe80::1", "http://[fe80::1]:8000"),
        ("server.example", "http://server.example:8000"),
    ],
)
def test_the_address_for_clients_on_this_machine(host: str, url: str) -> None:
    assert load_settings({"host": host}, {}).url == url


def test_the_served_name_follows_the_model(tmp_path: Path) -> None:
    folder = tmp_path / "my-model"
    folder.mkdir()
    assert load_settings({}, {}).served_name == "smollm2-135m-instruct"
    assert load_settings({"model": str(folder)}, {}).served_name == "my-model"
    assert load_settings({"model": "org/name"}, {}).served_name == "org/name"
    assert load_settings({"served_name": "x"}, {}).served_name == "x"


def test_the_database_lies_in_the_data_directory_unless_a_url_is_given(tmp_path: Path) -> None:
    settings = load_settings({"data_dir": str(tmp_path)}, {})
    assert settings.database_url == f"sqlite+aiosqlite:///{tmp_path}/paceline.db"
    given = load_settings({}, {"PACELINE_DATABASE_URL": "postgresql+asyncpg://h/d"})
    assert given.database_url == "postgresql+asyncpg://h/d"


def test_a_data_directory_that_is_a_file_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.touch()
    with pytest.raises(StartError, match="Cannot write to the data directory"):
        prepare_data_dir(load_settings({"data_dir": str(file)}, {}))


def bounds(name: str) -> tuple[int, int]:
    """Least and largest value of a setting of whole numbers."""
    found = get_args(get_type_hints(Settings, include_extras=True)[name])[1:]
    (low,) = [one.ge for one in found if one.ge is not None]
    (high,) = [one.le for one in found if one.le is not None]
    return low, high


def test_the_suffix_drafter_takes_every_memory_and_depth_that_may_be_set() -> None:
    low, high = bounds("suffix_memory_mb")
    assert low << 20 >= MIN_BYTES
    assert high << 20 == MAX_BYTES
    assert bounds("suffix_depth") == (2, MAX_DEPTH)
    for memory, depth in ((low, 2), (low, MAX_DEPTH)):
        assert SuffixForest(memory << 20, depth).depth == depth
    with pytest.raises(SettingsError, match=r"suffix-memory-mb .*<= 65536"):
        load_settings({}, {"PACELINE_SUFFIX_MEMORY_MB": "65537"})
