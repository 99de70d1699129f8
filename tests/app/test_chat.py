"""POST /v1/chat/completions and /v1/completions over the scripted engine."""

from __future__ import annotations

import json
from typing import Any

import httpx
import openai
import pytest

from tests.app.conftest import MODEL, Api, eventually

HELLO: Any = [{"role": "user", "content": "hello"}]


def chat(api: Api, **fields: Any) -> httpx.Response:
    body = {"model": MODEL, "messages": HELLO, **fields}
    return api.client.post("/v1/chat/completions", json=body)


def events(text: str) -> list[Any]:
    assert text.endswith("data: [DONE]\n\n")
    parts = text.split("\n\n")[:-2]
    return [json.loads(part.removeprefix("data: ")) for part in parts]


def test_the_stock_client_gets_an_answer_with_usage_and_metrics(api: Api):
    answer = api.openai().chat.completions.create(model=MODEL, messages=HELLO, max_tokens=5)
    assert answer.choices[0].message.content == "w0 w1 w2 w3 w4 "
    assert answer.choices[0].finish_reason == "length"
    assert answer.usage is not None
    assert answer.usage.total_tokens == 12
    spec = answer.metrics["speculative_decoding"]  # type: ignore[attr-defined]
    assert spec["num_spec_tokens"] == 16
    assert spec["mean_acceptance_length"] == 2
    assert spec["drafters"] == {"ngram": 2}


def test_the_stock_client_streams_with_a_usage_chunk(api: Api):
    chunks = list(
        api.openai().chat.completions.create(
            model=MODEL, messages=HELLO, stream=True, stream_options={"include_usage": True}
        )
    )
    assert chunks[0].choices[0].delta.role == "assistant"
    text = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
    assert text.startswith("w0 w1 ")
    assert chunks[-2].choices[0].finish_reason == "stop"
    assert chunks[-1].choices == []
    assert chunks[-1].usage is not None
    assert chunks[-1].metrics["timing"]["ttft_ms"] == 5.0  # type: ignore[attr-defined]


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
def test_a_stream_without_tokens_ends_with_the_empty_lists_of_a_whole_answer(api: Api, path: str):
    body: dict[str, Any] = {"model": MODEL, "return_token_ids": True, "stop": "w0"}
    if path.endswith("chat/completions"):
        body |= {"messages": [{"role": "user", "content": "cut"}], "logprobs": True}
    else:
        body |= {"prompt": "cut", "logprobs": 1}
    whole = api.client.post(path, json=body).json()["choices"][0]
    last = events(api.client.post(path, json=body | {"stream": True}).text)[-1]["choices"][0]
    assert whole["token_ids"] == last["token_ids"] == []
    assert whole["logprobs"] == last["logprobs"]
    assert whole["logprobs"] is not None
    kept = {key: body[key] for key in body.keys() & {"model", "messages", "prompt"}}
    plain = events(api.client.post(path, json=kept | {"stream": True}).text)[-1]["choices"][0]
    assert "token_ids" not in plain
    assert plain["logprobs"] is None


def test_a_stream_without_stream_options_has_no_usage_chunk_and_plain_newlines(api: Api):
    response = chat(api, stream=True)
    assert response.headers["content-type"].startswith("text/event-stream")
    assert response.headers["cache-control"] == "no-cache"
    assert "\r" not in response.text
    chunks = events(response.text)
    assert all(chunk["choices"] for chunk in chunks)
    assert len({chunk["id"] for chunk in chunks}) == 1


def test_provenance_is_streamed_on_request(api: Api):
    response = chat(api, stream=True, stream_options={"include_provenance": True})
    specs = [
        c["choices"][0]["x_spec"] for c in events(response.text) if "x_spec" in c["choices"][0]
    ]
    assert specs[0]["drafter"] == "ngram"
    assert [piece["kind"] for piece in specs[0]["pieces"]] == ["accepted", "bonus"]


def test_several_choices_are_answered_side_by_side_without_metrics(api: Api):
    body = chat(api, n=3, max_tokens=4).json()
    assert [choice["index"] for choice in body["choices"]] == [0, 1, 2]
    assert body["usage"] == {
        "prompt_tokens": 7,
        "completion_tokens": 12,
        "total_tokens": 19,
        "prompt_tokens_details": {"cached_tokens": 4},
    }
    assert body["metrics"] is None
    streamed = events(chat(api, n=3, max_tokens=4, stream=True).text)
    assert {chunk["choices"][0]["index"] for chunk in streamed} == {0, 1, 2}


def test_text_parts_and_the_developer_role_reach_the_engine(api: Api):
    parts = [{"type": "text", "text": "echo "}, {"type": "text", "text": "this"}]
    messages = [{"role": "developer", "content": "d"}, {"role": "user", "content": parts}]
    text = chat(api, messages=messages).json()["choices"][0]["message"]["content"]
    assert text == "[system:d] [user:echo this] "


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "king", "content": "x"}]}, "messages[0].role"),
        ({"messages": [{"role": "user"}]}, "messages[0].content"),
        ({"n": 9}, "n"),
        ({"n": 1_000_000_000}, "n"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"temperature": 2.5}, "temperature"),
        ({"temperature": "hot"}, "temperature"),
        ({"top_p": 0}, "top_p"),
        ({"top_k": -2}, "top_k"),
        ({"seed": 2**63}, "seed"),
        ({"stop": ["a"] * 5}, "stop"),
        ({"stop": ""}, "stop"),
        ({"stop": ["x" * 257]}, "stop[0]"),
        ({"stream_options": {"include_usage": True}}, "stream_options"),
        ({"speculation": {"draft_length": -1}}, "speculation.draft_length"),
        ({"speculation": {"drafters": "ngram"}}, "speculation"),
    ],
)
def test_values_out_of_bounds_are_refused_with_their_path(
    api: Api, fields: dict[str, Any], param: str
):
    response = chat(api, **fields)
    assert response.status_code == 400, response.text
    error = response.json()["error"]
    assert error["param"] == param
    assert error["type"] == "invalid_request_error"


@pytest.mark.parametrize(
    "fields",
    [
        {"tools": [{"type": "function"}]},
        {"best_of": 2},
        {"suffix": "end"},
        {"echo": True},
        {"use_beam_search": True},
        {"include_stop_str_in_output": True},
        {"skip_special_tokens": False},
        {"chat_template": "{{ messages }}"},
    ],
)
def test_what_is_not_supported_is_refused_by_name(api: Api, fields: dict[str, Any]):
    error = chat(api, **fields).json()["error"]
    assert error["code"] == "unsupported_parameter"
    assert error["param"] == next(iter(fields))


def test_neutral_values_and_unknown_fields_are_accepted(api: Api):
    response = chat(
        api, tools=[], best_of=1, skip_special_tokens=True, echo=False, presence_penalty=0,
        frequency_penalty=0.0, logit_bias={}, min_p=0, repetition_penalty=1.0, top_logprobs=0,
        response_format={"type": "text"}, user="u", brand_new_field=1,
    )  # fmt: skip
    assert response.status_code == 200, response.text


def test_an_unknown_model_is_a_not_found_error_of_the_stock_client(api: Api):
    with pytest.raises(openai.NotFoundError) as caught:
        api.openai().chat.completions.create(model="gpt-4", messages=HELLO)
    assert caught.value.code == "model_not_found"
    assert caught.value.param == "model"


@pytest.mark.parametrize("name", ["max_tokens", "max_completion_tokens"])
def test_an_error_of_the_engine_names_the_field_that_was_sent(api: Api, name: str):
    messages = [{"role": "user", "content": "refuse context_length_exceeded"}]
    error = chat(api, messages=messages, **{name: 9}).json()["error"]
    assert error["param"] == name
    assert f"({name})" in error["message"]


@pytest.mark.parametrize("length", [17, -1, 5000, 10**30])
def test_a_draft_length_out_of_range_has_one_answer(api: Api, length: int):
    hello = [{"role": "user", "content": "hello"}]
    error = chat(api, messages=hello, speculation={"draft_length": length}).json()["error"]
    assert error["code"] == "draft_length_out_of_range"
    assert error["param"] == "speculation.draft_length"
    assert "between 0 and 16" in error["message"]


@pytest.mark.parametrize(
    ("code", "status"),
    [
        ("context_length_exceeded", 400),
        ("unknown_drafter", 400),
        ("draft_length_out_of_range", 400),
        ("drafter_disabled", 400),
        ("queue_full", 503),
        ("internal", 500),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
def test_a_refusal_of_the_engine_has_its_status_also_for_a_stream(
    api: Api, code: str, status: int, stream: bool
):
    response = chat(api, messages=[{"role": "user", "content": f"refuse {code}"}], stream=stream)
    assert response.status_code == status
    assert response.json()["error"]["code"] == code
    assert ("retry-after" in response.headers) == (code == "queue_full")


def test_an_error_after_the_start_of_a_stream_is_its_last_event(api: Api):
    response = chat(api, messages=[{"role": "user", "content": "boom"}], stream=True)
    assert response.status_code == 200
    last = json.loads(response.text.strip().split("\n\n")[-1].removeprefix("data: "))
    assert last["error"]["code"] == "internal"
    assert "/srv" not in last["error"]["message"]
    with pytest.raises(openai.APIError):
        list(
            api.openai().chat.completions.create(
                model=MODEL, messages=[{"role": "user", "content": "boom"}], stream=True
            )
        )


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("n", [1, 3])
def test_a_client_that_leaves_cancels_its_request(api: Api, stream: bool, n: int):
    api.idle()
    body = {"model": MODEL, "messages": [{"role": "user", "content": "hang"}], "n": n}
    with api.client as client:
        if stream:
            with client.stream("POST", "/v1/chat/completions", json=body | {"stream": True}) as r:
                next(r.iter_bytes())
                assert api.service.engine.active == n
        else:
            with pytest.raises(httpx.ReadTimeout):
                client.post("/v1/chat/completions", json=body, timeout=0.5)
    api.idle()
    rows = eventually(
        lambda: [
            row
            for row in api.client.get("/api/requests").json()["requests"]
            if row["finish_reason"] == "cancelled"
        ]
    )
    assert rows[0]["status"] == 499


def test_completions_take_text_and_token_ids(api: Api):
    client = api.openai()
    one = client.completions.create(model=MODEL, prompt="hi", max_tokens=3)
    assert one.choices[0].text == "w0 w1 w2 "
    many = client.completions.create(model=MODEL, prompt=["a", "b"], n=2, max_tokens=2)
    assert [choice.index for choice in many.choices] == [0, 1, 2, 3]
    assert many.usage is not None
    assert many.usage.prompt_tokens == 14
    assert client.completions.create(model=MODEL, prompt=[1, 2, 3]).choices[0].text
    assert len(client.completions.create(model=MODEL, prompt=[[1], [2]]).choices) == 2
    streamed = client.completions.create(model=MODEL, prompt="hi", max_tokens=3, stream=True)
    assert "".join(chunk.choices[0].text for chunk in streamed) == "w0 w1 w2 "


@pytest.mark.parametrize("prompt", [[], "", [[]], ["a", 1], [["a"]], [-1], ["a"] * 65, {"a": 1}])
def test_bad_prompts_are_refused(api: Api, prompt: Any):
    response = api.client.post("/v1/completions", json={"model": MODEL, "prompt": prompt})
    assert response.status_code == 400, response.text
    assert response.json()["error"]["param"].startswith("prompt")


def test_tokenize_and_detokenize(api: Api):
    tokens = api.client.post("/tokenize", json={"prompt": "hi"}).json()
    assert tokens == {"tokens": [104, 105], "count": 2, "max_model_len": 512}
    text = api.client.post("/detokenize", json={"tokens": tokens["tokens"]}).json()
    assert text["prompt"] == "hi"
    asked = {"prompt": "hi", "add_special_tokens": False}
    assert api.client.post("/tokenize", json=asked).json() == tokens
    wrong = api.client.post("/tokenize", json={"prompt": "hi", "add_special_tokens": "no"})
    assert wrong.status_code == 400
    refused = api.client.post("/tokenize", json={})
    assert refused.json()["error"]["param"] == "prompt"


def test_models_as_the_stock_client_lists_them(api: Api):
    models = api.openai().models.list().data
    assert [model.id for model in models] == [MODEL]
    assert models[0].max_model_len == 512  # type: ignore[attr-defined]
    assert api.openai().models.retrieve(MODEL).id == MODEL
    with pytest.raises(openai.NotFoundError):
        api.openai().models.retrieve("org/other")
