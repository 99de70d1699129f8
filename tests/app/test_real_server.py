"""The real server on the real model, as the stock openai client and scripts use it."""

from __future__ import annotations

import concurrent.futures
import contextlib
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
from openai import OpenAI

from app.bench.following import State, WhatIf
from app.foreign_json import decode
from tests.conftest import Server
from tests.random_head import random_head

QUESTION: Any = [{"role": "user", "content": "Write a list of ten fruits, one per line."}]
REPEAT: Any = [{"role": "user", "content": "Repeat ten times: the cat sat on the mat."}]
MODEL = "smollm2-135m-instruct"


def eventually(condition: Callable[[], Any], seconds: float = 120.0) -> Any:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        with contextlib.suppress(httpx.HTTPError):
            if value := condition():
                return value
        time.sleep(0.1)
    pytest.fail("the condition did not come true")


@pytest.fixture
def client(server: Server) -> OpenAI:
    return OpenAI(
        base_url=f"{server.url}/v1", api_key=server.inference_key, max_retries=0, timeout=120
    )


def live(admin: httpx.Client) -> dict[str, Any]:
    return admin.get("/api/state").json()["live"] or {"running": 0, "waiting": 0}


def running(admin: httpx.Client) -> int:
    return live(admin)["running"] + live(admin)["waiting"]


def greedy(client: OpenAI, messages: Any, **more: Any) -> Any:
    speculation = more.pop("speculation", None)
    extra = {"speculation": speculation} if speculation is not None else {}
    return client.chat.completions.create(
        model=MODEL, messages=messages, temperature=0, extra_body=extra, **more
    )


def test_models(client: OpenAI):
    (model,) = client.models.list().data
    assert model.id == MODEL
    assert model.max_model_len == 8192  # type: ignore[attr-defined]


def test_a_stream_and_a_plain_answer_have_the_same_text(client: OpenAI):
    plain = greedy(client, QUESTION, max_tokens=48)
    text = plain.choices[0].message.content
    chunks = list(
        greedy(client, QUESTION, max_tokens=48, stream=True, stream_options={"include_usage": True})
    )
    streamed = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
    assert text
    assert streamed == text
    assert chunks[-1].usage.prompt_tokens == plain.usage.prompt_tokens
    assert chunks[-1].usage.completion_tokens == plain.usage.completion_tokens
    assert plain.usage.completion_tokens <= 48


def test_a_seed_gives_the_same_sampled_text(client: OpenAI):
    texts = {
        client.chat.completions.create(
            model=MODEL, messages=QUESTION, temperature=1, seed=7, max_tokens=24
        )
        .choices[0]
        .message.content
        for _ in range(2)
    }
    assert len(texts) == 1


def test_a_stop_string_ends_the_answer_before_it(client: OpenAI):
    answer = greedy(client, QUESTION, max_tokens=64, stop=["\n"])
    assert answer.choices[0].finish_reason == "stop"
    assert "\n" not in answer.choices[0].message.content


def test_speculation_is_chosen_per_request_and_changes_only_the_numbers(client: OpenAI):
    off = greedy(client, REPEAT, max_tokens=80, speculation={"enabled": False})
    on = greedy(client, REPEAT, max_tokens=80, speculation={"drafter": "ngram", "draft_length": 4})
    assert off.choices[0].message.content == on.choices[0].message.content
    plain, drafted = (a.metrics["speculative_decoding"] for a in (off, on))
    assert plain["num_draft_tokens"] == 0
    assert plain["mean_acceptance_length"] == 1
    assert drafted["num_accepted_draft_tokens"] > 0
    assert drafted["mean_acceptance_length"] > 1
    assert drafted["drafters"]["ngram"] > 0
    assert drafted["num_spec_steps"] < plain["num_spec_steps"]


def test_provenance_adds_up_to_the_text(client: OpenAI):
    stream = greedy(
        client,
        REPEAT,
        max_tokens=60,
        stream=True,
        stream_options={"include_provenance": True},
        speculation={"drafter": "ngram", "draft_length": 4},
    )
    text, kinds, pieces = "", set(), ""
    for chunk in stream:
        choice = chunk.choices[0]
        text += choice.delta.content or ""
        if spec := getattr(choice, "x_spec", None):
            pieces += "".join(piece["text"] for piece in spec["pieces"])
            kinds |= {piece["kind"] for piece in spec["pieces"]}
    assert pieces == text
    assert "accepted" in kinds


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"model": "gpt-4"}, "model_not_found"),
        ({"extra_body": {"speculation": {"drafter": "eagle9"}}}, "unknown_drafter"),
        (
            {"extra_body": {"speculation": {"drafter": "ngram", "draft_length": 999}}},
            "draft_length_out_of_range",
        ),
        ({"messages": [{"role": "user", "content": "word " * 9000}]}, "context_length_exceeded"),
        ({"messages": []}, "invalid_value"),
        ({"n": 9}, "invalid_value"),
        ({"max_tokens": 0}, "invalid_value"),
        ({"extra_body": {"use_beam_search": True}}, "unsupported_parameter"),
    ],
)
def test_errors_are_what_the_stock_client_expects(client: OpenAI, fields: Any, code: str):
    body = {"model": MODEL, "messages": QUESTION, "max_tokens": 4} | fields
    with pytest.raises(openai.APIStatusError) as caught:
        client.chat.completions.create(**body)
    assert caught.value.code == code
    assert caught.value.status_code == (404 if code == "model_not_found" else 400)


def test_completions_and_tokenize(client: OpenAI, admin: httpx.Client):
    answer = client.completions.create(
        model=MODEL, prompt="The capital of France is", max_tokens=8, temperature=0
    )
    assert "Paris" in answer.choices[0].text
    tokens = admin.post("/tokenize", json={"prompt": "The capital"}).json()["tokens"]
    assert admin.post("/detokenize", json={"tokens": tokens}).json()["text"] == "The capital"
    from_ids = client.completions.create(
        model=MODEL,
        prompt=admin.post("/tokenize", json={"prompt": "The capital of France is"}).json()[
            "tokens"
        ],
        max_tokens=8,
        temperature=0,
    )
    assert from_ids.choices[0].text == answer.choices[0].text


def test_a_chat_of_several_turns_over_the_websocket(client: OpenAI):
    end: Any = None
    with client.responses.connect() as connection:
        for turn in ("My name is Ada.", "What is my name?", "Say it again."):
            more: dict[str, Any] = {"previous_response_id": end.id} if end else {}
            connection.response.create(
                model=MODEL, input=turn, temperature=0, max_output_tokens=32, **more
            )
            deltas = ""
            for event in connection:
                if event.type == "response.output_text.delta":
                    deltas += event.delta
                elif event.type in ("response.completed", "response.incomplete"):
                    end = event.response  # type: ignore[union-attr]
                    break
            assert end.output_text == deltas
            assert end.metrics["speculative_decoding"]["num_spec_steps"] > 0
    assert end.usage.input_tokens > 60


def test_responses_over_http(client: OpenAI):
    answer = client.responses.create(model=MODEL, input="Hi", max_output_tokens=12, temperature=0)
    with client.responses.stream(
        model=MODEL, input="Hi", max_output_tokens=12, temperature=0
    ) as stream:
        for _ in stream:
            pass
        assert stream.get_final_response().output_text == answer.output_text


@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_leaves_frees_its_place(server: Server, admin: httpx.Client, stream: bool):
    body = {"model": MODEL, "prompt": "Once", "max_tokens": 4000, "ignore_eos": True}
    before = admin.get("/api/state").json()["live"]
    with httpx.Client(base_url=server.url, headers=server.inference, trust_env=False) as http:
        if stream:
            with http.stream("POST", "/v1/completions", json=body | {"stream": True}) as answer:
                next(answer.iter_lines())
        else:
            with pytest.raises(httpx.ReadTimeout):
                http.post("/v1/completions", json=body, timeout=1.0)
    eventually(lambda: running(admin) == 0)
    idle = eventually(
        lambda: (live := admin.get("/api/state").json()["live"])["running"] == 0 and live
    )
    assert idle["total_pages"] == before["total_pages"]


def test_the_controller_is_switched_live_and_decisions_are_explained(
    client: OpenAI, admin: httpx.Client
):
    pinned = {"mode": "pinned", "drafter": "ngram", "draft_length": 3}
    try:
        assert admin.put("/api/controller", json=pinned).json()["drafter"] == "ngram"
        answer = greedy(client, REPEAT, max_tokens=40)
        histogram = answer.metrics["speculative_decoding"]["acceptance_histogram"]
        assert answer.metrics["speculative_decoding"]["num_draft_tokens"] > 0
        assert not any(histogram[4:])
        admin.put("/api/controller", json={"mode": "off"})
        answer = greedy(client, REPEAT, max_tokens=20)
        assert answer.metrics["speculative_decoding"]["num_draft_tokens"] == 0
    finally:
        assert admin.put("/api/controller", json={"mode": "auto"}).json()["mode"] == "auto"
    for _ in range(3):
        greedy(client, REPEAT, max_tokens=80)
    found = eventually(lambda: admin.get("/api/decisions").json()["decisions"])
    assert found[0]["sentence"]
    assert found[0]["reason"]
    found = decode(admin.get("/api/what-if?batch_size=2&context_len=256").content, WhatIf)
    assert found.plain_ms
    assert decode(admin.get("/api/state").content, State)
    assert admin.get("/api/controller").json()["report"]


def test_a_disabled_drafter_is_refused_by_name(client: OpenAI, admin: httpx.Client):
    try:
        admin.put("/api/drafters/ngram", json={"enabled": False})
        with pytest.raises(openai.BadRequestError) as caught:
            greedy(client, QUESTION, max_tokens=4, speculation={"drafter": "ngram"})
        assert caught.value.code == "drafter_disabled"
        assert greedy(client, QUESTION, max_tokens=4).choices[0].message.content
    finally:
        admin.put("/api/drafters/ngram", json={"enabled": True})


def test_state_metrics_and_records_follow_the_traffic(client: OpenAI, admin: httpx.Client):
    answer = greedy(client, REPEAT, max_tokens=60)
    state = eventually(
        lambda: (
            (s := admin.get("/api/state").json())["live"]
            and any(point["tokens_per_s"] > 0 for point in s["history"])
            and s
        )
    )
    assert state["model"]["architecture"]
    assert state["storage"]["dropped"] == 0
    metrics = admin.get("/metrics").text
    assert "vllm:generation_tokens_total" in metrics
    eventually(
        lambda: answer.id in [row["id"] for row in admin.get("/api/requests").json()["requests"]]
    )


def test_a_killed_engine_is_a_clear_error_and_comes_back(
    server: Server, client: OpenAI, admin: httpx.Client
):
    restarts = admin.get("/api/state").json()["engine"]["restarts"]
    pid = admin.get("/api/state").json()["engine"]["pid"]

    def long_answer() -> Any:
        return client.completions.create(
            model=MODEL, prompt="Once", max_tokens=4000, extra_body={"ignore_eos": True}
        )

    with concurrent.futures.ThreadPoolExecutor() as pool:
        running_request = pool.submit(long_answer)
        eventually(lambda: running(admin))
        # One that has no token yet would be tried again: wait for a whole second with some.
        seen = time.time()
        eventually(lambda: live(admin)["time"] > seen + 1.0 and live(admin)["tokens"] > 8)
        os.kill(pid, signal.SIGKILL)
        with pytest.raises(openai.InternalServerError) as caught:
            running_request.result()
    assert caught.value.status_code == 503
    assert caught.value.code == "engine_restarting"
    eventually(lambda: httpx.get(f"{server.url}/health/live", trust_env=False).status_code == 200)
    eventually(lambda: httpx.get(f"{server.url}/health/ready", trust_env=False).status_code == 200)
    assert greedy(client, QUESTION, max_tokens=8).choices[0].message.content
    assert admin.get("/api/state").json()["engine"]["restarts"] == restarts + 1


def test_a_head_is_loaded_used_and_unloaded_while_requests_run(
    client: OpenAI, admin: httpx.Client, tmp_path: Path
) -> None:
    def state() -> dict[str, Any]:
        found = admin.get("/api/drafters").json()["drafters"]
        return next(one["model"] for one in found if one["name"] == "mtp")

    def post(action: str, **body: Any) -> httpx.Response:
        return admin.post(f"/api/drafters/mtp/{action}", json=body)

    head = str(random_head(tmp_path / "head"))
    with concurrent.futures.ThreadPoolExecutor() as pool:
        running = pool.submit(greedy, client, REPEAT)
        plan = post("load", source=head, dry_run=True).json()
        loaded = post("load", source=head)
        plain = running.result()
    try:
        assert loaded.is_success, loaded.text
        assert (
            plan["kv_bytes"] <= state()["kv_bytes"] <= 1.01 * plan["kv_bytes"]
        )  # and hidden states
        used = greedy(client, REPEAT, speculation={"drafter": "mtp", "draft_length": 2})
        assert used.choices[0].message.content == plain.choices[0].message.content
        counts = used.model_extra["metrics"]["speculative_decoding"]
        assert counts["drafted_by"]["mtp"]["num_draft_tokens"] > 0
        assert post("unload").is_success
        with pytest.raises(openai.BadRequestError, match="drafter 'mtp' is not loaded"):
            greedy(client, REPEAT, speculation={"drafter": "mtp"})
        assert post("load").is_success, "without a source: the one that ships"
        used = greedy(client, REPEAT, speculation={"drafter": "mtp", "draft_length": 2})
        assert used.choices[0].message.content == plain.choices[0].message.content
        counts = used.model_extra["metrics"]["speculative_decoding"]
        assert counts["drafted_by"]["mtp"]["num_accepted_draft_tokens"] > 0
    finally:
        if state()["state"] == "loaded":
            post("unload")
