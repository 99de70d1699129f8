"""`paceline bench compare`: peers in processes of their own, beside the real server."""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
from collections.abc import Generator
from pathlib import Path
from typing import Any

import gguf
import httpx
import pytest
import torch
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM

from app.bench import compare
from app.bench.arms import Arm
from app.bench.local import Local
from app.bench.peers import gguf_file, process
from app.bench.peers.process import Peer, PeerError, Setup, Wanted, wanted
from app.bench.turns import Ours, left_out, token_ids
from app.bench.workloads import Prompt
from app.cli import main
from app.failures import Failure, SettingsError
from tests.conftest import Server

VARIANTS = ("", "missing", "broken", "mute", "dies", "short", "garbage", "batching")


@pytest.fixture
def fakes(monkeypatch: pytest.MonkeyPatch) -> None:
    script = str(Path(__file__).with_name("fake_peer.py"))
    monkeypatch.setattr(process, "SCRIPTS", {"fake": (script, VARIANTS)})


def asked(variant: str, prompts: list[list[int]], max_tokens: int = 4) -> list[list[int]]:
    async def go() -> list[list[int]]:
        name = f"fake+{variant}" if variant else "fake"
        peer = await Peer.start(Wanted(name, sys.executable), Setup("m", "float32", 1, variant))
        try:
            assert peer.described == "fake 1.0 (m)"
            seconds, tokens = await peer.generate(prompts, max_tokens)
            assert seconds > 0
            return tokens
        finally:
            await peer.stop()

    return asyncio.run(go())


@pytest.mark.usefixtures("fakes")
def test_a_peer_answers_whatever_else_it_prints() -> None:
    assert asked("", [[1, 2], [5]]) == [[3] * 4, [5] * 4]


@pytest.mark.usefixtures("fakes")
@pytest.mark.parametrize(
    ("variant", "says"),
    [
        ("missing", "not installed: No module named 'fast_engine'"),
        ("broken", "it ended: it cannot load that"),
        ("dies", "it ended: out of memory"),
        ("short", "0 answers to 1 prompts"),
        ("garbage", "makes no sense"),
    ],
)
def test_a_peer_that_fails_says_why(variant: str, says: str) -> None:
    with pytest.raises(PeerError, match=says):
        asked(variant, [[1]], 16)


@pytest.mark.usefixtures("fakes")
def test_a_peer_that_says_nothing_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "START_S", 0.5)
    with pytest.raises(PeerError, match=r"no answer within 0\.5 s"):
        asked("mute", [[1]])


def test_an_interpreter_that_is_not_there_is_named() -> None:
    async def go() -> None:
        await Peer.start(Wanted("vllm", "/no/python"), Setup("m", "float32", 1, ""))

    with pytest.raises(PeerError, match="cannot run /no/python"):
        asyncio.run(go())


def test_peers_are_known_by_name() -> None:
    assert wanted("vllm+lookup=/x/python", "here") == Wanted("vllm+lookup", "/x/python")
    assert wanted("llama.cpp", "here").python == "here"
    with pytest.raises(SettingsError, match="one of transformers, "):
        wanted("vllm+magic", "here")


@pytest.mark.usefixtures("fakes")
def test_ours_and_the_peers_are_measured_in_turn(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    @contextlib.contextmanager
    def running(*_: object) -> Generator[Local]:
        yield Local(server.url, server.admin_key, server.pid)

    monkeypatch.setattr(compare, "local_server", running)
    monkeypatch.setattr(compare, "model_source", lambda *_: "m")
    prompts, out = tmp_path / "prompts.txt", tmp_path / "out.json"
    prompts.write_text("one two three one two\nfour five\nsix\n", "utf-8")
    arguments = ["bench", "compare", "--prompts", str(prompts), "--max-tokens", "12"]
    arguments += ["--concurrency", "1,2", "--json", str(out), "--modes", "none,ngram:4"]
    for name in ("fake", "fake+batching", "fake+dies", "fake+missing"):
        arguments += ["--peer", name]
    assert main(arguments) == 1  # one request failed
    result = json.loads(out.read_bytes())
    rows = {(row["mode"], row["concurrency"]): row for row in result["rows"]}
    assert set(rows) == {
        ("none", 1), ("ngram:4", 1), ("fake", 1), ("fake+batching", 1), ("fake+dies", 1),
        ("none", 2), ("ngram:4", 2), ("fake+batching", 2),
    }  # fmt: skip
    assert {row["tokens"] for key, row in rows.items() if key[1] == 1} == {3 * 12, 0}
    assert rows["none", 2]["requests"] == 2  # whole batches only, and that is said
    assert result["settings"]["prompts_used"] == 3
    assert result["settings"]["left_out"] == {"2": 1}
    assert rows["ngram:4", 1]["same_text"] == 1.0
    assert rows["fake", 1]["same_text"] == 0.0
    assert rows["fake", 1]["speedup"]["pairs"] == 3
    assert rows["fake+dies", 1]["failures"] == {"failed": 1}
    assert result["settings"]["peers"] == {
        "fake": "fake 1.0 (m)",
        "fake+batching": "fake 1.0 (m)",
        "fake+dies": "dropped: it ended: out of memory",
        "fake+missing": "skipped, not installed: No module named 'fast_engine'",
    }
    starts = [run["mode"] for run in result["runs"][:5]]
    assert starts == ["none", "ngram:4", "fake", "fake+batching", "fake+dies"]
    assert result["runs"][5]["mode"] == "ngram:4"  # another one begins
    shown = capsys.readouterr().out
    assert "fake+missing: skipped, not installed" in shown
    assert "2 at once: the last 1 of 3 prompts make no whole batch and were left out." in shown


def test_prompts_that_make_no_whole_batch_are_counted() -> None:
    assert left_out(10, (1, 2, 4, 8)) == {4: 2, 8: 2}
    assert left_out(8, (1, 8)) == {}


def test_a_prompt_that_cannot_be_tokenised_is_named() -> None:
    answers = [
        httpx.Response(413, json={"error": {"message": "too long"}}),
        httpx.Response(200, text="<html>"),
        httpx.Response(200, json={"tokens": [1, 2]}),
    ]

    def answer(request: httpx.Request) -> httpx.Response:
        if not answers:
            raise httpx.ReadError("it ended")
        return answers.pop(0)

    async def go() -> None:
        transport = httpx.MockTransport(answer)
        async with httpx.AsyncClient(transport=transport, base_url="http://x") as client:
            for says in ("Prompt 7 cannot be tokenised: too long", "DecodeError: "):
                with pytest.raises(Failure, match=says):
                    await token_ids(client, "m", Prompt(7, "c", ("x",)))
            assert await token_ids(client, "m", Prompt(7, "c", ("x",))) == [1, 2]
            with pytest.raises(Failure, match="ReadError: it ended"):
                await token_ids(client, "m", Prompt(7, "c", ("x",)))

    asyncio.run(go())


def test_a_prompt_that_comes_again_finds_nothing_of_its_first_answer() -> None:
    bodies: list[dict[str, Any]] = []

    def answer(request: httpx.Request) -> httpx.Response:
        bodies.append(json.loads(request.content))
        return httpx.Response(200, json={"choices": [{"token_ids": [7]}]})

    async def go() -> None:
        transport = httpx.MockTransport(answer)
        async with httpx.AsyncClient(transport=transport, base_url="http://x") as client:
            ours = Ours(Arm("auto", "http://x", "k", True), client, "s")
            for batch in ([[1]], [[2]], [[1], [2]], [[3], [1]]):
                _, tokens = await ours.generate(batch, 4)
                assert tokens == [[7]] * len(batch)

    asyncio.run(go())
    salts = [(body["prompt"], body["cache_salt"]) for body in bodies]
    assert len(set(map(str, salts))) == len(salts) == 6
    assert salts[0][1] == salts[1][1]  # but what others were told may be known
    assert salts[2][1] == salts[3][1]


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Llama of random weights."""
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=64, hidden_size=32, intermediate_size=48, num_hidden_layers=2,
        num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=256,
    )  # fmt: skip
    folder = tmp_path_factory.mktemp("tiny")
    LlamaForCausalLM(config).eval().save_pretrained(folder)
    return folder


@pytest.mark.parametrize("variant", ["", "lookup", "assisted"])
def test_transformers_writes_its_greedy_text_in_every_variant(tiny: Path, variant: str) -> None:
    prompts = [[5, 6, 7, 5, 6, 7, 5]] if variant else [[5, 6, 7, 5, 6, 7, 5], [9, 8]]
    model = AutoModelForCausalLM.from_pretrained(tiny)
    expected = []
    for prompt in prompts:
        ids = torch.tensor([prompt])
        for _ in range(12):
            ids = torch.cat([ids, model(ids).logits[:, -1:].argmax(-1)], dim=1)
        expected.append(ids[0, len(prompt) :].tolist())

    async def go() -> list[list[int]]:
        name = "transformers" + (f"+{variant}" if variant else "")
        setup = Setup(str(tiny), "float32", 1, variant, assistant=str(tiny))
        peer = await Peer.start(Wanted(name, sys.executable), setup)
        try:
            assert peer.batches == (variant == "")
            return (await peer.generate(prompts, 12))[1]
        finally:
            await peer.stop()

    assert asyncio.run(go()) == expected


def test_the_file_for_llama_cpp_holds_the_model(
    tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "model.gguf"
    monkeypatch.setattr(sys, "argv", ["gguf_file", str(tiny), str(out)])
    assert gguf_file.main() == 0
    reader = gguf.GGUFReader(out)
    model = AutoModelForCausalLM.from_pretrained(tiny)
    tensors = {tensor.name: tensor for tensor in reader.tensors}
    assert len(tensors) == 2 * 9 + 3
    weights = model.state_dict()
    for name, module, heads in (
        ("blk.1.attn_q", "layers.1.self_attn.q_proj", 4),
        ("blk.0.attn_k", "layers.0.self_attn.k_proj", 2),
        ("blk.0.ffn_down", "layers.0.mlp.down_proj", 0),
    ):
        stored = gguf.quants.dequantize(
            tensors[f"{name}.weight"].data, tensors[f"{name}.weight"].tensor_type
        )
        wished = weights[f"model.{module}.weight"].bfloat16().float()
        if heads:  # llama.cpp turns neighbours where transformers turns halves
            size = wished.shape[0] // heads
            order = [
                head * size + half * size // 2 + place
                for head in range(heads)
                for place in range(size // 2)
                for half in (0, 1)
            ]
            wished = wished[order]
        assert torch.equal(torch.tensor(stored), wished), name


def test_another_family_has_no_such_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "config.json").write_text('{"architectures": ["OtherModel"]}')
    monkeypatch.setattr(sys, "argv", ["gguf_file", str(tmp_path), "out"])
    assert gguf_file.main() == 2
    assert "give llama.cpp a file with --gguf" in capsys.readouterr().err
