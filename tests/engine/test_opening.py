"""Drafters with a model of their own: found, opened at start, and loaded while requests run."""

from __future__ import annotations

import json
import logging
import os
import queue
import shutil
import struct
import threading
import weakref
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from safetensors.torch import load_file, save_file

from controller.contract import CostPoint, Setting, Wish
from engine.build import Target, adaptive, open_engine
from engine.calls import drafter_states, set_drafter
from engine.config import EngineConfig
from engine.device import Device
from engine.draft_models import live, opening
from engine.draft_models.live import LiveModels
from engine.draft_models.needs import read_needs
from engine.draft_models.opening import open_at_start, open_model_drafter, plan_load
from engine.draft_models.sources import find_source
from engine.draft_models.tied import DraftConfig
from engine.drafters.base import Weighty
from engine.errors import RequestError, StartError
from engine.frames import encode
from engine.intake import Intake
from engine.kv import bytes_per_token, open_pool
from engine.loop import Engine
from engine.mtp.paceline import PacelineConfig
from engine.outbox import Outbox
from engine.shipped import TARGET, Mark
from engine.traffic import reply
from engine.trained import TargetFacts, save
from engine.wire import (
    Call,
    Deltas,
    LoadDrafter,
    LoadPlan,
    Reply,
    Sampling,
    SetDrafter,
    Submit,
    UnloadDrafter,
)

COLUMNS = 200
PROMPT = "Write a list of ten fruits, one per line."


@pytest.fixture(scope="module")
def heads(target: Target, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folders mtp and draft_model with random weights for the target."""
    shape = target.loaded.decoder.shape
    facts = TargetFacts(shape.layers, shape.hidden, shape.vocabulary, target.text.fingerprint())
    sizes: dict[str, Any] = {
        "hidden_size": shape.hidden, "heads": 2, "kv_heads": 1, "head_dim": 16,
        "intermediate_size": 32, "target": facts,
    }  # fmt: skip
    root = tmp_path_factory.mktemp("heads")
    for name, config in (
        ("mtp", PacelineConfig(taps=(shape.layers // 2, shape.layers), **sizes)),
        ("draft_model", DraftConfig(layers=2, **sizes)),
    ):
        torch.manual_seed(0)
        weights = {
            key: torch.randn(sides) * sides[-1] ** -0.5
            for key, sides in config.shapes(COLUMNS).items()
        }
        save(root / name, config, {**weights, "draft_ids": torch.arange(COLUMNS).int()})
    return root


class Served:
    """An engine whose loop the test runs. errands: what other threads want of it."""

    def __init__(self, target: Target, config: EngineConfig) -> None:
        self.events: list[Any] = []
        self.target = target
        controller = adaptive(config, [CostPoint(1, rows, 256, 30 + rows) for rows in (1, 8, 17)])
        self.engine: Engine
        self.intake: Intake
        self.engine, self.intake = open_engine(config, target, controller, self.events.append)
        self.errands: queue.Queue[Callable[[], None]] = queue.Queue()
        self.models = LiveModels(config, target, self.engine, self.errands.put)

    def submit(self, name: str, drafter: str | None = None) -> None:
        wish = Wish(drafter=drafter, draft_length=3) if drafter else Wish()
        sampling = Sampling(temperature=0.0, max_tokens=10, ignore_eos=True)
        submit = Submit(name, sampling, prompt=PROMPT, speculation=wish)
        self.engine.submit(self.intake.request(submit))

    def load(self, name: str, source: object) -> Any:
        """The answer."""
        answers: list[Any] = []
        self.models.load(LoadDrafter(name, str(source)), answers.append)
        self.errands.get(timeout=60)()
        return answers[0]

    def text(self, name: str) -> str:
        """All of a request, whose every step leaves the pages in order."""
        while self.engine.step():
            self.engine.scheduler.pages.check()
        return "".join(
            delta.text
            for event in self.events
            if isinstance(event, Deltas)
            for delta in event.items
            if delta.id == name
        )

    def drafters(self, name: str) -> set[str]:
        """Who drafted for a request."""
        return {
            delta.drafter
            for event in self.events
            if isinstance(event, Deltas)
            for delta in event.items
            if delta.id == name and delta.drafted
        }


@pytest.fixture
def served(target: Target, config: EngineConfig) -> Served:
    return Served(target, config)


@pytest.fixture(scope="module")
def plain(target: Target, config: EngineConfig) -> str:
    """The text without any of these drafters."""
    served = Served(target, config)
    served.submit("plain")
    return served.text("plain")


# --- sources --------------------------------------------------------------------------------------


def shipping(root: Path, target: Target, **other: Any) -> Path:
    """A folder as the package has one, for this target but for what `other` says."""
    shape = target.loaded.decoder.shape
    mark = Mark("t", target.text.fingerprint(), shape.hidden, shape.layers, shape.vocabulary)
    folder = root / "some-target"
    folder.mkdir()
    mark = msgspec.structs.replace(mark, **other)
    (folder / TARGET).write_bytes(msgspec.json.encode(mark))
    for part in ("mtp", "draft_model"):
        (folder / part).mkdir()
    return folder


@pytest.mark.parametrize("name", ["mtp", "draft_model"])
def test_auto_finds_what_ships_for_the_target_and_nothing_for_another(
    name: str, target: Target, tmp_path: Path
) -> None:
    find = partial(find_source, name, "auto", target.loaded, target.cache_dir, "option")
    assert find(root=tmp_path) is None
    folder = shipping(tmp_path, target)
    assert find(root=tmp_path) == folder / name
    (folder / name).rmdir()
    assert find(root=tmp_path) is None
    assert find_source(name, "off", target.loaded, target.cache_dir, "option", tmp_path) is None


@pytest.mark.parametrize(
    "other", [{"tokenizer": "x"}, {"hidden_size": 1}, {"layers": 1}, {"vocabulary": 1}]
)
def test_what_ships_for_a_target_of_other_sizes_is_not_taken(
    other: Any, target: Target, tmp_path: Path
) -> None:
    shipping(tmp_path, target, **other)
    args = ("mtp", "auto", target.loaded, target.cache_dir, "option", tmp_path)
    assert find_source(*args) is None


@pytest.mark.parametrize(
    ("name", "source", "says"),
    [
        ("mtp", "/no/such/folder", "--mtp /no/such/folder: no such folder"),
        ("mtp", "", "is empty"),
        ("draft_model", "/no/such/folder", "--draft-model /no/such/folder: no such folder"),
    ],
)
def test_a_source_that_is_not_there_is_named(
    name: str, source: str, says: str, target: Target, config: EngineConfig
) -> None:
    asked = msgspec.structs.replace(config, **{name: source})
    with pytest.raises(StartError, match=says):
        open_at_start(asked, target.loaded, target.device, target.cache_dir)


# --- at start -------------------------------------------------------------------------------------


def test_what_is_named_is_opened_and_a_broken_one_stops_the_start(
    target: Target, config: EngineConfig, heads: Path, tmp_path: Path
) -> None:
    asked = msgspec.structs.replace(
        config, mtp=str(heads / "mtp"), draft_model=str(heads / "draft_model")
    )
    found = open_at_start(asked, target.loaded, target.device, target.cache_dir)
    assert [(one.name, one.source) for one in found] == [
        ("mtp", str(heads / "mtp")),
        ("draft_model", str(heads / "draft_model")),
    ]
    (tmp_path / "config.json").write_text("{}", "utf-8")
    asked = msgspec.structs.replace(config, mtp=str(tmp_path))
    with pytest.raises(StartError, match=f"--mtp {tmp_path}"):
        open_at_start(asked, target.loaded, target.device, target.cache_dir)


def test_a_broken_one_that_nobody_named_is_left_out_and_logged(
    target: Target,
    config: EngineConfig,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    shipping(tmp_path, target)
    monkeypatch.setattr(opening, "find_source", partial(find_source, root=tmp_path))
    asked = msgspec.structs.replace(config, mtp="auto", draft_model="auto")
    with caplog.at_level(logging.WARNING):
        assert open_at_start(asked, target.loaded, target.device, target.cache_dir) == []
    assert "serving without the drafter mtp" in caplog.text
    assert "serving without the drafter draft_model" in caplog.text


def test_drafters_opened_with_the_target_draft_from_the_first_step(
    target: Target, config: EngineConfig, heads: Path
) -> None:
    asked = msgspec.structs.replace(config, mtp=str(heads / "mtp"))
    opened = open_at_start(asked, target.loaded, target.device, target.cache_dir)
    ready = opening.Ready(opened[0].source, opening.with_pages(opened[0], target, asked))
    served = Served(replace(target, drafters={"mtp": ready}), asked)
    served.submit("a", "mtp")
    served.text("a")
    assert served.drafters("a") == {"mtp"}
    state = served.models.state("mtp")
    assert state is not None
    assert (state.state, state.source) == ("loaded", str(heads / "mtp"))
    off = Served(replace(target, drafters={"mtp": ready}), config)
    assert "mtp" not in off.engine.drafting.drafters


# --- memory ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["mtp", "draft_model"])
def test_the_memory_told_before_is_what_a_drafter_takes(
    name: str, target: Target, config: EngineConfig, heads: Path
) -> None:
    plan = plan_load(name, str(heads / name), target, config)
    drafter = open_model_drafter(name, str(heads / name), target, config)
    assert isinstance(drafter, Weighty)
    assert plan.kv_bytes == drafter.memory.kv_bytes
    assert plan.weights_bytes == pytest.approx(drafter.memory.weight_bytes, rel=0.05)
    assert drafter.coverage == COLUMNS / target.loaded.decoder.shape.vocabulary
    assert plan.fits


def test_the_memory_of_a_foreign_checkpoint_is_told_from_its_files(
    target: Target, config: EngineConfig
) -> None:
    shape = target.loaded.decoder.shape
    needs = read_needs("draft_model", target.loaded.path, shape, 0)
    assert needs.kv == bytes_per_token(shape, torch.int8)
    packed_head = shape.vocabulary * shape.hidden
    assert 134_000_000 < needs.parameters - packed_head < 140_000_000
    with pytest.raises(StartError, match="holds no multi-token prediction head"):
        read_needs("mtp", target.loaded.path, shape, 0)


def test_the_memory_of_a_head_in_its_targets_checkpoint_counts_its_own_tensors(
    target: Target, tmp_path: Path
) -> None:
    config = {"model_type": "llama", "num_hidden_layers": 2, "hidden_size": 8}
    (tmp_path / "config.json").write_text(json.dumps(config), "utf-8")
    tensors = {
        "model.layers.1.mlp.weight": torch.zeros(50),
        "model.layers.2.eh_proj.weight": torch.zeros(30),
        "mtp.norm.weight": torch.zeros(7),
        "model.mtp_layers.0.norm.weight": torch.zeros(3),
        "model.embed_tokens.weight": torch.zeros(90),
    }
    save_file(tensors, tmp_path / "model.safetensors")
    shape = target.loaded.decoder.shape
    tables = 2 * shape.context_length * shape.kinds[-1].head_dim
    assert read_needs("mtp", tmp_path, shape, 0).parameters == 30 + 7 + 3 + tables


@pytest.mark.parametrize(
    ("config_json", "told"),
    [
        ("{}", "names no format and no model_type"),
        ('{"format": null}', "names no format and no model_type"),
        ('{"format": "evil"}', "names the unknown format 'evil' and no model_type"),
        ('{"model_type": "llama", "num_hidden_layers": "many"}', "is 'many', not a whole number"),
        ('{"model_type": "llama"}', "tells no "),
        ('{"model_type": "llama", "num_hidden_layers": -1}', "num_hidden_layers is -1, and can"),
        ("[]", "is not a JSON object"),
    ],
)
def test_files_that_tell_no_sizes_are_refused(
    config_json: str, told: str, target: Target, tmp_path: Path
) -> None:
    sizes = '"hidden_size": 8, "num_attention_heads": 2, "num_hidden'
    (tmp_path / "config.json").write_text(config_json.replace('"num_hidden', sizes), "utf-8")
    save_file({"mtp.norm.weight": torch.zeros(7)}, tmp_path / "model.safetensors")
    for name in ("mtp", "draft_model"):
        with pytest.raises(StartError, match=r"config\.json") as caught:
            read_needs(name, tmp_path, target.loaded.decoder.shape, 0)
        assert told in caught.value.message


def test_a_checkpoint_of_the_other_drafter_is_told_so(
    target: Target, config: EngineConfig, heads: Path
) -> None:
    for name, other in (("mtp", "draft_model"), ("draft_model", "mtp")):
        for go in (plan_load, open_model_drafter):
            with pytest.raises(StartError, match=f"load it as drafter {other}, not {name}"):
                go(name, str(heads / other), target, config)


def in_config(**fields: Any) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        file = folder / "config.json"
        file.write_text(json.dumps({**json.loads(file.read_text()), **fields}))

    return change


def in_target(folder: Path) -> None:
    facts = json.loads((folder / "config.json").read_text())["target"]
    in_config(target={**facts, "tokenizer": "0" * 64})(folder)


def in_tensors(change: Callable[[dict[str, Any]], Any]) -> Callable[[Path], None]:
    def changed(folder: Path) -> None:
        tensors = load_file(folder / "model.safetensors")
        change(tensors)
        save_file(tensors, folder / "model.safetensors")

    return changed


def in_header(**fields: Any) -> Callable[[Path], None]:
    """Of norm.weight."""

    def change(folder: Path) -> None:
        file = folder / "model.safetensors"
        content = file.read_bytes()
        (length,) = struct.unpack("<Q", content[:8])
        header = json.loads(content[8 : 8 + length])
        header["norm.weight"] |= fields
        text = json.dumps(header).encode()
        file.write_bytes(struct.pack("<Q", len(text)) + text + content[8 + length :])

    return change


def pipe(name: str) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        (folder / name).unlink()
        os.mkfifo(folder / name)

    return change


FAULTS: dict[str, tuple[Callable[[Path], None], str]] = {
    "a shape beyond all": (in_header(shape=[1 << 40, 1 << 40]), "another number of bytes"),
    "an unknown type": (in_header(dtype="X9"), "no number type that is known"),
    "sizes beyond all": (in_config(kv_heads=10**15), "at `$.kv_heads`"),
    "negative sizes": (in_config(head_dim=-16), "at `$.head_dim`"),
    "another version": (in_config(version=99), "at `$.version`"),
    "other sizes": (in_config(kv_heads=2), "k_proj.weight is"),
    "another tokenizer": (in_target, "its target has another tokenizer"),
    "a missing tensor": (in_tensors(lambda all_: all_.pop("norm.weight")), "it lacks norm.weight"),
    "whole numbers": (
        in_tensors(lambda all_: all_.update({"norm.weight": all_["norm.weight"].int()})),
        "no floating-point numbers",
    ),
    "ids beyond": (
        in_tensors(lambda all_: all_.update(draft_ids=torch.tensor([1, 10**6]))),
        "not within the target's",
    ),
    "an id twice": (
        in_tensors(lambda all_: all_.update(draft_ids=torch.tensor([1, 1]))), "do not ascend",
    ),
    "a pipe for a config": (pipe("config.json"), "config.json cannot be read: it is a pipe"),
    "a pipe for weights": (pipe("model.safetensors"), "safetensors cannot be read: it is a pipe"),
}  # fmt: skip


@pytest.mark.parametrize("name", ["mtp", "draft_model"])
@pytest.mark.parametrize("fault", FAULTS)
def test_a_dry_run_refuses_what_the_load_refuses_and_says_the_same(
    name: str, fault: str, target: Target, config: EngineConfig, heads: Path, tmp_path: Path
) -> None:
    damage, told = FAULTS[fault]
    folder = tmp_path / "damaged"
    shutil.copytree(heads / name, folder)
    damage(folder)
    said: list[tuple[str, str]] = []
    for go in (plan_load, open_model_drafter):
        with pytest.raises(StartError) as caught:
            go(name, str(folder), target, config)
        said.append((caught.value.code, caught.value.message))
    assert said[0] == said[1]
    assert told in said[0][1]


def test_sizes_that_no_message_holds_are_refused(
    target: Target, config: EngineConfig, heads: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(opening, "MOST_BYTES", 1000)
    with pytest.raises(StartError, match="which no device has") as caught:
        plan_load("mtp", str(heads / "mtp"), target, config)
    assert caught.value.code == "memory_too_small"


@dataclass(frozen=True)
class Small(Device):
    """A device with little free memory."""

    free: int = 1 << 20

    def free_bytes(self) -> int:
        return self.free


def test_pages_are_sized_for_the_target_and_its_drafters_and_a_refusal_tells_both(
    target: Target,
) -> None:
    shape, device = target.loaded.decoder.shape, target.device
    own = bytes_per_token(shape, device.dtype)
    small = Small(device.torch_device, device.dtype, free=1 << 30)
    alone = open_pool(shape, small, 16, 0, 0.9)
    both = open_pool(shape, small, 16, 0, 0.9, of_drafters=own)
    assert alone.pages // 2 == both.pages
    with pytest.raises(StartError, match=r"[MG]iB of it for drafters \(see --mtp"):
        open_pool(shape, small, 16, 32_768, 0.9, of_drafters=own)


# --- while requests run ---------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["mtp", "draft_model"])
def test_a_load_goes_on_beside_the_steps_and_changes_no_text(
    name: str, served: Served, heads: Path, plain: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    stepped = threading.Event()

    def open_late(*given: Any) -> Any:
        assert stepped.wait(60)
        return opening.open_weights(*given)

    monkeypatch.setattr(live, "open_weights", open_late)
    served.submit("running")
    answers: list[Any] = []
    served.models.load(LoadDrafter(name, str(heads / name)), answers.append)
    for _ in range(3):
        assert served.engine.step()
    stepped.set()
    served.errands.get(timeout=60)()
    assert answers == [name]
    assert served.text("running") == plain
    served.submit("wishes", name)
    assert served.text("wishes") == plain
    assert served.drafters("wishes") == {name}


@pytest.mark.parametrize("name", ["mtp", "draft_model"])
def test_requests_of_an_unloaded_drafter_go_on_plainly(
    name: str, served: Served, heads: Path, plain: str
) -> None:
    served.load(name, heads / name)
    served.submit("wishes", name)
    for _ in range(4):
        served.engine.step()
    assert served.drafters("wishes") == {name}
    memory = weakref.ref(served.engine.drafting.drafters[name])
    served.models.unload(UnloadDrafter(name))
    assert memory() is None
    assert served.text("wishes") == plain
    with pytest.raises(RequestError, match=f"'{name}' is not loaded.*/api/drafters/{name}/load"):
        served.submit("again", name)
    served.load(name, heads / name)
    served.submit("again", name)
    assert served.text("again") == plain


def test_states_tell_what_can_be_loaded_is_loaded_and_failed(
    served: Served, heads: Path, tmp_path: Path
) -> None:
    def states() -> dict[str, Any]:
        return {one.name: one for one in drafter_states(served.engine, served.models)}

    assert list(states()) == ["none", "ngram", "suffix", "mtp", "draft_model"]
    assert states()["ngram"].model is None
    mtp = states()["mtp"]
    assert (mtp.enabled, mtp.max_draft_length, mtp.model.state) == (False, 0, "unloaded")
    answer = served.load("mtp", tmp_path)
    assert isinstance(answer, RequestError)
    assert answer.code == "drafter_unfit"
    assert states()["mtp"].model.message == answer.message
    served.load("mtp", heads / "mtp")
    mtp = states()["mtp"]
    assert (mtp.enabled, mtp.model.state, mtp.model.message) == (True, "loaded", "")
    assert mtp.model.source == str(heads / "mtp")
    assert mtp.model.weights_bytes > 0
    assert mtp.model.kv_bytes > 0


def refusal(call: Callable[[], object]) -> str:
    with pytest.raises(RequestError) as refused:
        call()
    return refused.value.code


def test_what_makes_no_sense_is_refused_at_once(served: Served, heads: Path) -> None:
    def load(name: str) -> Callable[[], object]:
        return lambda: served.models.load(LoadDrafter(name, str(heads / "mtp")), print)

    def unload(name: str) -> Callable[[], object]:
        return lambda: served.models.unload(UnloadDrafter(name))

    def enable() -> object:
        return set_drafter(served.engine, SetDrafter("mtp", True), served.models)

    assert refusal(load("ngram")) == refusal(load("none")) == "drafter_not_loadable"
    assert refusal(load("eagle")) == refusal(unload("eagle")) == "unknown_drafter"
    assert refusal(unload("mtp")) == refusal(enable) == "drafter_not_loaded"
    off = LoadDrafter("mtp", "off")
    assert refusal(lambda: served.models.load(off, print)) == "drafter_unfit"
    answers: list[Any] = []
    served.models.load(LoadDrafter("mtp", str(heads / "mtp")), answers.append)
    assert refusal(load("mtp")) == refusal(load("draft_model")) == "drafter_loading"
    assert refusal(unload("mtp")) == "drafter_loading"
    served.errands.get(timeout=60)()
    assert answers == ["mtp"]
    assert refusal(load("mtp")) == "drafter_loaded"
    served.engine.controller.configure(Setting("pinned", "mtp"))
    assert refusal(unload("mtp")) == "drafter_pinned"
    served.engine.controller.configure(Setting())
    served.models.unload(UnloadDrafter("mtp"))


def test_a_drafter_that_does_not_fit_is_refused_with_the_numbers(
    target: Target, config: EngineConfig, heads: Path
) -> None:
    free = opening.untouched_bytes(target) + (1 << 20)
    device = Small(target.device.torch_device, target.device.dtype, free)
    served = Served(replace(target, device=device), config)
    answer = served.load("mtp", heads / "mtp")
    assert isinstance(answer, RequestError)
    assert answer.code == "memory_too_small"
    for words in ("for its weights", "for keys and values", "1.00 MiB are free on cpu", "90%"):
        assert words in answer.message
    assert "mtp" not in served.engine.drafting.drafters


@pytest.mark.parametrize("source", ["", "/no/such/folder"])
def test_a_dry_run_leaves_what_is_shown_as_it_is(served: Served, heads: Path, source: str) -> None:
    served.load("mtp", heads / "mtp")
    before = served.models.state("mtp")
    answers: list[Any] = []
    asked = LoadDrafter("mtp", source or str(heads / "mtp"), dry_run=True)
    served.models.load(asked, answers.append)
    served.errands.get(timeout=60)()
    assert isinstance(answers[0], RequestError if source else LoadPlan)
    assert served.models.state("mtp") == before
    served.models.unload(UnloadDrafter("mtp"))
    served.load("mtp", heads / "mtp")


@pytest.mark.parametrize("dry_run", [True, False])
def test_a_pipe_and_a_name_that_is_no_text_are_refused_and_the_next_load_goes_on(
    served: Served, heads: Path, tmp_path: Path, dry_run: bool
) -> None:
    odd = tmp_path / "odd"
    odd.mkdir()
    (odd / "config.json").write_text('{"model_type": "llama"}')
    (tmp_path / os.fsdecode(b"odd/\xff.bin")).write_text("")
    piped = tmp_path / "piped"
    piped.mkdir()
    os.mkfifo(piped / "config.json")
    for folder, told in ((odd, "?.bin, a pickle"), (piped, "it is a pipe")):
        answers: list[Any] = []
        served.models.load(LoadDrafter("mtp", str(folder), dry_run), answers.append)
        served.errands.get(timeout=60)()
        assert answers[0].code == "drafter_unfit"
        assert told in answers[0].message
        state = served.models.state("mtp")
        encode(Reply(1, (answers[0].message, state)))  # a frame holds both
    assert served.load("mtp", heads / "mtp") == "mtp"


def test_an_answer_that_no_frame_holds_is_an_error_to_its_call_and_the_loop_goes_on(
    served: Served,
) -> None:
    class Models:
        def load(self, body: LoadDrafter, answer: Callable[[object], None]) -> None:
            plan = LoadPlan("mtp", "x", "/x", 1 << 80, 1, 1, True)
            served.errands.put(lambda: answer("eagle" if body.source == "gone" else plan))

    outbox, models = Outbox(), Models()
    for number, source in enumerate(("huge", "gone")):
        call = Call(number, LoadDrafter("mtp", source, dry_run=True))
        reply(call, served.engine, served.target.text, outbox, models)  # type: ignore[arg-type]
        served.errands.get(timeout=60)()
        frame = outbox.take(0)
        assert frame
        told = msgspec.msgpack.decode(frame[4:], type=Reply)
        assert (told.call, told.error) == (number, "internal")
        assert "probabilities" not in told.message


def test_a_load_whose_thread_cannot_start_is_refused_and_the_next_goes_on(
    served: Served, heads: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def start(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    body = LoadDrafter("mtp", str(heads / "mtp"))
    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", start)
        assert refusal(lambda: served.models.load(body, print)) == "internal"
    shown = served.models.state("mtp")
    assert shown is not None
    assert (shown.state, shown.source) == ("unloaded", "")
    assert served.load("mtp", heads / "mtp") == "mtp"


@dataclass(frozen=True)
class Releasing(Device):
    """A device that notes when memory was given back."""

    released: list[bool] = field(default_factory=list)

    def release(self) -> None:
        self.released.append(True)


def test_a_failed_load_gives_its_memory_back_to_the_device(
    target: Target, config: EngineConfig, tmp_path: Path
) -> None:
    device = Releasing(target.device.torch_device, target.device.dtype)
    served = Served(replace(target, device=device), config)
    assert isinstance(served.load("mtp", tmp_path), RequestError)
    assert device.released == [True]


@pytest.mark.parametrize("name", ["mtp", "draft_model"])
def test_a_drafter_that_the_engine_does_not_take_leaves_no_memory_behind(
    name: str, served: Served, heads: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    memory: list[weakref.ref[Any]] = []

    def attach(drafter: Any) -> None:
        memory.append(weakref.ref(drafter))
        raise ValueError("not this one")

    with monkeypatch.context() as patched:
        patched.setattr(served.engine, "attach", attach)
        assert isinstance(served.load(name, heads / name), RequestError)
    assert [found() for found in memory] == [None]
    assert served.load(name, heads / name) == name


def test_auto_without_anything_that_ships_is_refused(
    served: Served, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(opening, "find_source", partial(find_source, root=tmp_path))
    answer = served.load("draft_model", "auto")
    assert isinstance(answer, RequestError)
    assert "nothing ships for this model" in answer.message


# --- reduced vocabulary ---------------------------------------------------------------------------


def test_a_reduced_vocabulary_keeps_the_special_tokens_and_covers_less(
    target: Target, config: EngineConfig, heads: Path
) -> None:
    asked = msgspec.structs.replace(config, draft_vocabulary=50)
    for name in ("mtp", "draft_model"):
        drafter: Any = open_model_drafter(name, str(heads / name), target, asked)
        assert drafter.coverage == 50 / target.loaded.decoder.shape.vocabulary
