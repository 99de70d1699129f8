"""The service's settings: one frozen object, read once from options and PACELINE_ variables."""

from __future__ import annotations

import argparse
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, get_type_hints

import msgspec
from msgspec import Meta

from app.failures import SettingsError, StartError
from controller.contract import MAX_DRAFT_BUDGET, MAX_SCHEDULE_REQUESTS, MAX_TPOT_TARGET_MS
from engine.config import EngineConfig, PolicyName, check_policy

EMBEDDED_NAME = "smollm2-135m-instruct"
PREFIX = "PACELINE_"
SECRETS = ("admin_key", "console_key", "database_url")
"""Settings that PACELINE_<NAME>_FILE can also give, as a file's content (container secrets)."""

MIN_KEY = 32
"""Shortest key that an operator may choose, in characters."""

Port = Annotated[int, Meta(ge=1, le=65535)]
Count = Annotated[int, Meta(ge=0, le=2**31)]


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """Every field is also an option of `paceline serve` (except the keys, which would show in
    the process list) and the variable PACELINE_<FIELD>. Lengths in tokens. Empty strings and 0
    mean "choose for me" where the description says so."""

    host: Annotated[str, Meta(description="address to listen on")] = "127.0.0.1"
    port: Annotated[Port, Meta(description="port of the API")] = 8000
    model: Annotated[
        str,
        Meta(
            description="a model folder, a GGUF file, a Hugging Face id, or 'embedded' "
            "(SmolLM2-135M-Instruct)"
        ),
    ] = "embedded"
    dtype: Annotated[
        Literal["auto", "float32", "bfloat16"],
        Meta(description="weights and activations; auto: bfloat16 where the device is fast at it"),
    ] = "auto"
    device: Annotated[Literal["auto", "cpu", "cuda"], Meta(description="where the model runs")] = (
        "auto"
    )
    attention: Annotated[
        Literal["auto", "torch", "flashinfer"], Meta(description="attention implementation")
    ] = "auto"
    threads: Annotated[
        Annotated[int, Meta(ge=0, le=1024)], Meta(description="CPU threads; 0: physical cores")
    ] = 0
    data_dir: Annotated[
        str, Meta(description="database, spill files and logs; default: the user's data directory")
    ] = ""
    cache_dir: Annotated[
        str, Meta(description="converted models, cost tables; default: the user's cache directory")
    ] = ""
    database_url: Annotated[
        str,
        Meta(
            description="SQLAlchemy URL, such as postgresql+asyncpg://user@host/name; "
            "default: SQLite in the data directory"
        ),
    ] = ""
    admin_key: str = ""
    console_key: str = ""
    max_batch: Annotated[
        Annotated[int, Meta(ge=1, le=1024)], Meta(description="requests decoded together")
    ] = 32
    max_waiting: Annotated[
        Annotated[int, Meta(ge=0, le=100_000)],
        Meta(description="requests that may wait; beyond it the answer is 503"),
    ] = 256
    scheduling_policy: Annotated[
        Literal["priority", "fcfs"],
        Meta(
            description="priority: requests may ask for a priority; fcfs: first come, first "
            "served, and a request that asks for one is refused"
        ),
    ] = "priority"
    max_draft_length: Annotated[
        Annotated[int, Meta(ge=0, le=64)], Meta(description="largest draft length D")
    ] = 16
    chunk_rows: Annotated[
        Annotated[int, Meta(ge=0, le=65536)],
        Meta(description="prompt tokens prefilled per step; 0: 256 on a CPU, 2,048 on a GPU"),
    ] = 0
    kv_tokens: Annotated[
        Count, Meta(description="size of the KV cache in tokens; 0: from memory_fraction")
    ] = 0
    prefix_cache: Annotated[
        Literal["shared", "tenant", "off"],
        Meta(
            description="who may reuse computed prompts: shared: everyone; tenant: each tenant its "
            "own, so that none can time what another sent; off: nobody"
        ),
    ] = "shared"
    memory_fraction: Annotated[
        Annotated[float, Meta(ge=0, le=0.95)],
        Meta(
            description="share of the free memory that the KV cache may take; 0: 0.4 on a CPU, "
            "0.85 on a GPU"
        ),
    ] = 0.0
    context_length: Annotated[Count, Meta(description="longest context; 0: the model's own")] = 0
    suffix_tree: Annotated[
        Literal["tenant", "shared", "off"],
        Meta(
            description="whose past answers the suffix drafter may draft from: tenant: those of "
            "the same API key; shared: everyone's; off: nobody's"
        ),
    ] = "tenant"
    suffix_memory_mb: Annotated[
        Annotated[int, Meta(ge=16, le=65_536)],
        Meta(description="memory of the suffix drafter for answers and corpora, in MiB"),
    ] = 384
    suffix_depth: Annotated[
        Annotated[int, Meta(ge=2, le=256)],
        Meta(description="longest run of tokens that the suffix drafter keeps, match and draft"),
    ] = 64
    suffix_max_age_s: Annotated[
        Annotated[int, Meta(ge=0, le=31_536_000)],
        Meta(description="seconds after which it forgets an answer; 0: when memory is short"),
    ] = 86_400
    mtp: Annotated[
        str,
        Meta(
            description="multi-token prediction head: auto: the one that ships for the model, or "
            "that its own checkpoint holds, if there is one; off; or a folder"
        ),
    ] = "auto"
    draft_model: Annotated[
        str,
        Meta(
            description="smaller model that drafts: auto: the one that ships for the model, if "
            "there is one; off; or a folder or Hugging Face id"
        ),
    ] = "auto"
    draft_vocabulary: Annotated[
        Annotated[int, Meta(ge=0, le=2**20)],
        Meta(
            description="how many of the most frequent tokens these two may draft; 0: as their "
            "checkpoint says"
        ),
    ] = 0
    warm_corpus: Annotated[
        Literal["auto", "off"],
        Meta(
            description="auto: load the texts that ship for the model as a corpus, if there are "
            "any, for the suffix drafter to copy from; off: start without"
        ),
    ] = "auto"
    corpus_limit_mb: Annotated[
        Annotated[int, Meta(ge=1, le=1024)],
        Meta(description="largest upload of a corpus in MiB; all of them may have 8 times that"),
    ] = 32
    corpus_tokens: Annotated[
        Annotated[int, Meta(ge=1_000, le=100_000_000)],
        Meta(description="tokens that all corpora together may have"),
    ] = 2_000_000
    calibration: Annotated[
        Literal["auto", "fresh", "off"],
        Meta(
            description="auto: use the cached cost table if there is one; fresh: measure; off: "
            "begin with an estimate from the machine's bandwidth and arithmetic"
        ),
    ] = "auto"
    step_timeout_s: Annotated[
        Annotated[float, Meta(ge=1, le=86_400)],
        Meta(description="seconds after which a step counts as hung and the engine is restarted"),
    ] = 60.0
    served_name: Annotated[
        str, Meta(description="model name that clients use; default: from the model")
    ] = ""
    mode: Annotated[
        Literal["auto", "pinned", "off"], Meta(description="speculation mode at start")
    ] = "auto"
    drafter: Annotated[str | None, Meta(description="drafter at start, for mode pinned")] = None
    draft_length: Annotated[
        Annotated[int, Meta(ge=0, le=64)] | None,
        Meta(description="draft length at start, for mode pinned; default: the controller picks"),
    ] = None
    draft_schedule: Annotated[
        str,
        Meta(
            description="draft length by decoding requests at start, for mode pinned: 4:2,8:1 is "
            "D = 2 up to 4 requests, 1 up to 8, then 0"
        ),
    ] = ""
    max_drafting_requests: Annotated[
        Annotated[int, Meta(ge=0, le=MAX_SCHEDULE_REQUESTS)] | None,
        Meta(description="nobody drafts while more requests decode; default: no limit"),
    ] = None
    tpot_target_ms: Annotated[
        Annotated[float, Meta(ge=0, le=MAX_TPOT_TARGET_MS)] | None,
        Meta(
            description="milliseconds per output token that drafting should keep for every "
            "request; default: no target"
        ),
    ] = None
    draft_budget: Annotated[
        Annotated[int, Meta(ge=0, le=MAX_DRAFT_BUDGET)] | None,
        Meta(description="most drafted tokens of a step, over all requests; default: no budget"),
    ] = None
    policy: Annotated[
        PolicyName, Meta(description="who chooses drafter and draft length; see docs/policies.md")
    ] = "adaptive"
    policy_options: Annotated[
        str, Meta(description="options of the policy: KEY=VALUE, with spaces in between")
    ] = ""
    ab_policy: Annotated[
        str,
        Meta(description="a second policy, for a share of the requests, to compare; default: none"),
    ] = ""
    ab_options: Annotated[str, Meta(description="options of the second policy")] = ""
    ab_share: Annotated[
        Annotated[float, Meta(ge=0, le=1)],
        Meta(description="share of the requests that the second policy gets"),
    ] = 0.5
    ui_port: Annotated[Port, Meta(description="port of the console")] = 8501
    ui_origin: Annotated[
        str,
        Meta(
            description="address of the console in browsers when it is not this host's, "
            "such as https://console.example.org"
        ),
    ] = ""
    log_level: Annotated[
        Literal["debug", "info", "warning", "error"], Meta(description="what is logged")
    ] = "info"

    @property
    def data_path(self) -> Path:
        return Path(self.data_dir)

    @property
    def url(self) -> str:
        """Address of the API for a client on this machine."""
        host = {"0.0.0.0": "127.0.0.1", "::": "::1", "": "127.0.0.1"}.get(self.host, self.host)
        return f"http://[{host}]:{self.port}" if ":" in host else f"http://{host}:{self.port}"

    def engine_config(self) -> EngineConfig:
        """What the engine process is told; the fields of the same name are passed on."""
        names = set(EngineConfig.__struct_fields__) & set(self.__struct_fields__)
        return EngineConfig(**{name: getattr(self, name) for name in names})


FIELDS: tuple[str, ...] = Settings.__struct_fields__


def load_settings(
    options: Mapping[str, object] | None = None, environ: Mapping[str, str] | None = None
) -> Settings:
    """Settings from `options` (None means not given), then the environment, then the defaults,
    with directories, database address and served name filled in. Raises SettingsError."""
    environ = os.environ if environ is None else environ
    given: dict[str, Any] = {}
    for name in FIELDS:
        value = (options or {}).get(name)
        if value is None:
            value = from_environment(name, environ)
        if value is not None:
            given[name] = value
    settings = checked(given)
    check_keys(settings)
    check_mode(settings)
    check_policies(settings)
    return complete(settings)


def check_keys(settings: Settings) -> None:
    for name in ("admin_key", "console_key"):
        if 0 < len(getattr(settings, name)) < MIN_KEY:
            raise SettingsError(
                f"{PREFIX}{name.upper()} is too short: give at least {MIN_KEY} characters"
            )
        if not sendable(getattr(settings, name)):
            raise SettingsError(
                f"{PREFIX}{name.upper()} cannot be a key: give one of ASCII letters, digits and "
                "signs only, without spaces; a client could not send it"
            )
    if settings.console_key and settings.console_key == settings.admin_key:
        raise SettingsError(
            f"{PREFIX}CONSOLE_KEY is the same as {PREFIX}ADMIN_KEY: give the console its own key"
        )


def sendable(key: str) -> bool:
    """Whether a key can stand in a header: ASCII, without spaces and control characters."""
    return all("!" <= character <= "~" for character in key)


def check_mode(settings: Settings) -> None:
    """The controller's setting at start must be one that the engine can take."""
    length, largest = settings.draft_length, settings.max_draft_length
    if settings.mode == "pinned" and not settings.drafter:
        raise SettingsError("mode pinned needs a drafter: give --drafter or PACELINE_DRAFTER")
    for name in ("drafter", "draft_length", "draft_schedule"):
        if settings.mode != "pinned" and getattr(settings, name) not in (None, ""):
            raise SettingsError(
                f"--{name.replace('_', '-')} ({PREFIX}{name.upper()}) works with --mode pinned "
                f"only, and the mode is {settings.mode}"
            )
    if length is not None and length > largest:
        raise SettingsError(
            f"--draft-length ({PREFIX}DRAFT_LENGTH) is {length}, above --max-draft-length {largest}"
        )
    if settings.draft_schedule and length is not None:
        raise SettingsError("--draft-schedule takes the place of --draft-length: give one of them")
    limits = {
        "--max-drafting-requests": settings.max_drafting_requests is not None,
        "--tpot-target-ms": bool(settings.tpot_target_ms),
        "--draft-budget": bool(settings.draft_budget),
    }
    for option, given in limits.items():
        if given and settings.mode == "off":
            raise SettingsError(f"{option} has no effect in mode off: leave it out")
    schedule(settings)


def check_policies(settings: Settings) -> None:
    """The policies at start must be ones that the engine can make."""
    names = ("policy", "policy_options", "ab_policy", "ab_options")
    if all(getattr(settings, name) in ("", "adaptive") for name in names):
        return
    try:
        check_policy(settings.engine_config())
    except ValueError as error:
        name, _, reason = str(error).partition(": ")
        option = "--" + name.replace("_", "-")
        raise SettingsError(f"{option} ({PREFIX}{name.upper()}): {reason}") from None


def schedule(settings: Settings) -> tuple[tuple[int, int], ...]:
    """draft_schedule as (largest number of decoding requests, D). Raises SettingsError."""
    entries: list[tuple[int, int]] = []
    for part in filter(None, settings.draft_schedule.split(",")):
        match = re.fullmatch(r"\s*(\d{1,7})\s*:\s*(\d{1,2})\s*", part)
        if match is None:
            raise SettingsError(
                f"--draft-schedule ({PREFIX}DRAFT_SCHEDULE): {part.strip()[:40]!r} is not "
                "REQUESTS:LENGTH; write for instance 4:2,8:1"
            )
        entries.append((int(match[1]), int(match[2])))
    sizes = [size for size, _ in entries]
    if sizes != sorted(set(sizes)) or any(not 1 <= size <= MAX_SCHEDULE_REQUESTS for size in sizes):
        raise SettingsError(
            f"--draft-schedule ({PREFIX}DRAFT_SCHEDULE): the numbers of requests must rise, from 1 "
            f"to {MAX_SCHEDULE_REQUESTS}"
        )
    if any(length > settings.max_draft_length for _, length in entries):
        raise SettingsError(
            f"--draft-schedule ({PREFIX}DRAFT_SCHEDULE) has a draft length above "
            f"--max-draft-length {settings.max_draft_length}"
        )
    return tuple(entries)


def settings_of(options: argparse.Namespace) -> Settings:
    """Settings from a parsed command line, whichever of the options the command has."""
    return load_settings({name: getattr(options, name, None) for name in FIELDS})


def from_environment(name: str, environ: Mapping[str, str]) -> str | None:
    """The variable's value; for secrets also the content of the file that <NAME>_FILE names."""
    variable = PREFIX + name.upper()
    value = environ.get(variable)
    path = environ.get(f"{variable}_FILE") if name in SECRETS else None
    if value or not path:
        return value or None
    try:
        return Path(path).read_text("utf-8").strip()
    except OSError as error:
        raise SettingsError(
            f"{variable}_FILE: cannot read {path}: {error.strerror}. Check the path and its rights."
        ) from error
    except UnicodeDecodeError:
        raise SettingsError(
            f"{variable}_FILE: {path} is not UTF-8 text. Write the secret there as text."
        ) from None


def checked(given: dict[str, Any]) -> Settings:
    hints = get_type_hints(Settings, include_extras=True)
    for name, value in given.items():
        try:
            given[name] = msgspec.convert(value, hints[name], strict=False)
        except msgspec.ValidationError as error:
            reason = str(error).removesuffix(" - at `$`")
            option = "--" + name.replace("_", "-")
            raise SettingsError(
                f"{option} ({PREFIX}{name.upper()}) has a wrong value {value!r}: {reason}"
            ) from None
    return Settings(**given)


def complete(settings: Settings) -> Settings:
    """Fill in what depends on the machine and on other fields."""
    import platformdirs

    data = settings.data_dir or platformdirs.user_data_dir("paceline", appauthor=False)
    cache = settings.cache_dir or platformdirs.user_cache_dir("paceline", appauthor=False)
    data, cache = os.path.abspath(data), os.path.abspath(cache)
    name = settings.served_name
    if not name:
        model = settings.model
        local = Path(model).exists()
        name = EMBEDDED_NAME if model == "embedded" else Path(model).stem if local else model
        if local and Path(model).is_dir():
            name = Path(model).resolve().name
    return msgspec.structs.replace(
        settings,
        data_dir=data,
        cache_dir=cache,
        database_url=settings.database_url or f"sqlite+aiosqlite:///{data}/paceline.db",
        served_name=name,
    )


def prepare_data_dir(settings: Settings) -> None:
    """Create the data directory, for its owner only, with its subfolders. Raises StartError."""
    try:
        for path in (settings.data_path, settings.data_path / "logs", settings.data_path / "spill"):
            path.mkdir(mode=0o700, parents=True, exist_ok=True)
        probe = settings.data_path / ".writable"
        probe.touch()
        probe.unlink()
    except OSError as error:
        raise StartError(
            f"Cannot write to the data directory {settings.data_dir}: {error.strerror}. "
            "Choose another with --data-dir or change its owner."
        ) from error
