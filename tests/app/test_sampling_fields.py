"""How every sampling parameter reaches the engine, and how its answer is worded; over the scripted
engine."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from itertools import chain
from typing import Any

import httpx
import pytest

from app.inference.formats import StructuredOutputs
from tests.app.conftest import MODEL, Api, eventually

SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}}
JSON, REGEX = {"type": "json_object"}, {"regex": "a"}
NEUTRAL = {
    "cache_salt": "",
    "temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0, "presence_penalty": 0.0,
    "frequency_penalty": 0.0, "repetition_penalty": 1.0, "logit_bias": {}, "seed": None,
    "min_tokens": 0, "stop": [], "stop_token_ids": [], "ignore_eos": False, "bad_words": [],
    "allowed_token_ids": None, "logprobs": None, "prompt_logprobs": None, "grammar": None,
    "priority": 0,
}  # fmt: skip
GIVEN = {
    "temperature": 0.5, "top_k": 7, "top_p": 0.9, "min_p": 0.1, "presence_penalty": -1.0,
    "frequency_penalty": 1.5, "repetition_penalty": 1.1, "logit_bias": {"5": -100.0, "9": 2.0},
    "seed": 3, "min_tokens": 2, "stop": ["x", "y"], "stop_token_ids": [4], "ignore_eos": True,
    "bad_words": ["bad"], "allowed_token_ids": [1, 2, 3], "priority": -5,
}  # fmt: skip
FIELDS = {"chat": "messages", "completions": "prompt", "responses": "input"}
PATHS = {
    "chat": "/v1/chat/completions",
    "completions": "/v1/completions",
    "responses": "/v1/responses",
}


def post(api: Api, endpoint: str, asked: str, **fields: Any) -> httpx.Response:
    prompt: Any = [{"role": "user", "content": asked}] if endpoint == "chat" else asked
    body = {"model": MODEL, FIELDS[endpoint]: prompt, **fields}
    return api.client.post(PATHS[endpoint], json=body)


def text(endpoint: str, body: Any) -> str:
    if endpoint == "chat":
        return body["choices"][0]["message"]["content"]
    if endpoint == "completions":
        return body["choices"][0]["text"]
    return body["output"][0]["content"][0]["text"]


def sampling(api: Api, endpoint: str, **fields: Any) -> dict[str, Any]:
    """What the engine was asked for."""
    response = post(api, endpoint, "sampling", **fields)
    assert response.status_code == 200, response.text
    found = json.loads(text(endpoint, response.json()))
    found.pop("max_tokens")
    return found


def choices(response: httpx.Response) -> list[Any]:
    """The choices of every chunk of a stream."""
    assert response.status_code == 200, response.text
    chunks = [part.removeprefix("data: ") for part in response.text.split("\n\n")[:-2]]
    return [choice for chunk in chunks for choice in json.loads(chunk)["choices"]]


def flat(lists: Iterable[list[Any]]) -> list[Any]:
    return list(chain.from_iterable(lists))


# --- what reaches the engine --------------------------------------------------------------------


@pytest.mark.parametrize("endpoint", PATHS)
def test_every_parameter_reaches_the_engine(api: Api, endpoint: str):
    assert sampling(api, endpoint) == NEUTRAL
    assert sampling(api, endpoint, **GIVEN) == NEUTRAL | GIVEN


@pytest.mark.parametrize("value", [0.01, 3, 100])
@pytest.mark.parametrize("endpoint", PATHS)
def test_a_repetition_penalty_may_be_small_or_large(api: Api, endpoint: str, value: float):
    assert sampling(api, endpoint, repetition_penalty=value)["repetition_penalty"] == value


@pytest.mark.parametrize(
    ("fields", "grammar"),
    [
        ({"structured_outputs": {"json": SCHEMA}}, ("json_schema", json.dumps(SCHEMA))),
        ({"structured_outputs": {"json": '{"type": "string"}'}}, ("json_schema", None)),
        ({"structured_outputs": {"json_object": True}}, ("json_object", "")),
        ({"structured_outputs": {"regex": "a+"}}, ("regex", "a+")),
        ({"structured_outputs": {"grammar": "root ::= x"}}, ("grammar", "root ::= x")),
        ({"structured_outputs": {"choice": ["a.b", "c"]}}, ("regex", r"a\.b|c")),
        ({"guided_json": SCHEMA}, ("json_schema", json.dumps(SCHEMA))),
        ({"guided_regex": "a+"}, ("regex", "a+")),
        ({"guided_choice": ["yes", "no"]}, ("regex", "yes|no")),
        ({"guided_grammar": "root ::= x"}, ("grammar", "root ::= x")),
    ],
)
@pytest.mark.parametrize("endpoint", PATHS)
def test_structured_outputs_become_a_grammar(
    api: Api, endpoint: str, fields: dict[str, Any], grammar: tuple[str, str | None]
):
    found = sampling(api, endpoint, **fields)["grammar"]
    assert found["kind"] == grammar[0]
    if grammar[0] == "json_schema":
        assert json.loads(found["source"]) == json.loads(grammar[1] or '{"type": "string"}')
    else:
        assert found["source"] == grammar[1]


@pytest.mark.parametrize("endpoint", ["chat", "completions"])
def test_response_format_becomes_a_grammar(api: Api, endpoint: str):
    schema = {"type": "json_schema", "json_schema": {"name": "n", "strict": True, "schema": SCHEMA}}
    found = sampling(api, endpoint, response_format=schema)["grammar"]
    assert (found["kind"], json.loads(found["source"])) == ("json_schema", SCHEMA)
    kind = {"type": "json_object"}
    assert sampling(api, endpoint, response_format=kind)["grammar"]["kind"] == "json_object"
    assert sampling(api, endpoint, response_format={"type": "text"})["grammar"] is None


def test_the_format_of_a_response_becomes_a_grammar_and_is_reported(api: Api):
    asked = {"type": "json_schema", "name": "n", "strict": True, "schema": SCHEMA}
    body = post(api, "responses", "sampling", text={"format": asked}).json()
    assert body["text"]["format"] == asked
    found = json.loads(text("responses", body))["grammar"]
    assert (found["kind"], json.loads(found["source"])) == ("json_schema", SCHEMA)


def test_the_choices_of_a_structured_output_are_matched_literally():
    every = "".join(map(chr, range(32, 127)))
    found = StructuredOutputs(choice=[every, "é\n"]).as_grammar("guided_choice")
    assert re.fullmatch(found.source, every)
    assert re.fullmatch(found.source, "é\n")
    assert not re.fullmatch(found.source, every.replace(".", "x"))


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"min_p": 1.1}, "min_p"),
        ({"presence_penalty": 2.1}, "presence_penalty"),
        ({"frequency_penalty": "high"}, "frequency_penalty"),
        ({"repetition_penalty": 0}, "repetition_penalty"),
        ({"repetition_penalty": 100.5}, "repetition_penalty"),
        ({"logit_bias": {"5": 101}}, "logit_bias"),
        ({"logit_bias": {"the": 1}}, "logit_bias"),
        ({"logit_bias": {"-1": 1}}, "logit_bias"),
        ({"logit_bias": {str(2**31): 1}}, "logit_bias"),
        ({"logit_bias": {str(i): 1 for i in range(1025)}}, "logit_bias"),
        ({"min_tokens": -1}, "min_tokens"),
        ({"bad_words": [""]}, "bad_words[0]"),
        ({"bad_words": ["x"] * 65}, "bad_words"),
        ({"allowed_token_ids": []}, "allowed_token_ids"),
        ({"allowed_token_ids": [-1]}, "allowed_token_ids[0]"),
        ({"priority": 2**31}, "priority"),
        ({"structured_outputs": {}}, "structured_outputs"),
        ({"structured_outputs": {"regex": "a", "json_object": True}}, "structured_outputs"),
        ({"structured_outputs": {"json": "{"}}, "structured_outputs.json"),
        ({"structured_outputs": {"regex": "a" * 131_073}}, "structured_outputs.regex"),
        ({"structured_outputs": {"json": {"a": "x" * 131_073}}}, "structured_outputs.json"),
        ({"structured_outputs": {"xml": "a"}}, "structured_outputs"),
        ({"structured_outputs": {"json_object": True}, "guided_regex": "a"}, "guided_regex"),
        ({"guided_choice": []}, "guided_choice"),
    ],
)
@pytest.mark.parametrize("endpoint", PATHS)
def test_values_out_of_bounds_are_refused_with_their_path(
    api: Api, endpoint: str, fields: dict[str, Any], param: str
):
    response = post(api, endpoint, "hello", **fields)
    assert response.status_code == 400, response.text
    assert response.json()["error"]["param"] == param


@pytest.mark.parametrize(
    ("endpoint", "fields", "param"),
    [
        ("chat", {"logprobs": 5}, "logprobs"),
        ("chat", {"top_logprobs": 2}, "top_logprobs"),
        ("chat", {"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
        ("chat", {"prompt_logprobs": -1}, "prompt_logprobs"),
        ("chat", {"max_tokens": 4, "min_tokens": 5}, "min_tokens"),
        ("chat", {"response_format": {"type": "xml"}}, "response_format.type"),
        (
            "chat",
            {"response_format": {"type": "json_schema"}},
            "response_format.json_schema",
        ),
        (
            "chat",
            {"response_format": {"type": "json_schema", "json_schema": {"name": "n"}}},
            "response_format.json_schema.schema",
        ),
        ("completions", {"logprobs": 21}, "logprobs"),
        ("completions", {"max_tokens": 0}, "max_tokens"),
        ("completions", {"max_completion_tokens": 5}, "max_completion_tokens"),
        ("responses", {"response_format": {"type": "json_object"}}, "response_format"),
        ("responses", {"logprobs": True}, "logprobs"),
    ],
)
def test_what_an_endpoint_cannot_take_is_refused_with_its_path(
    api: Api, endpoint: str, fields: dict[str, Any], param: str
):
    response = post(api, endpoint, "hello", **fields)
    assert response.status_code == 400, response.text
    assert response.json()["error"]["param"] == param


@pytest.mark.parametrize(
    ("endpoint", "field", "fields", "param"),
    [
        ("chat", "structured_outputs", {"response_format": JSON}, "response_format"),
        ("chat", "response_format", {"guided_regex": "a"}, "guided_regex"),
        ("completions", "response_format", {"structured_outputs": REGEX}, "structured_outputs"),
        ("responses", "response_format", {"text": {"format": JSON}}, "text.format"),
        ("chat", "logprobs", {"logprobs": True}, "top_logprobs"),
    ],
)
def test_an_error_of_the_engine_names_the_field_that_was_sent(
    api: Api, endpoint: str, field: str, fields: dict[str, Any], param: str
):
    error = post(api, endpoint, f"refuse invalid_request {field}", **fields).json()["error"]
    assert error["param"] == param
    assert f"({param})" in error["message"]


@pytest.mark.parametrize(
    ("refused", "neutral"),
    [
        ({"logprob_token_ids": [1]}, {"logprob_token_ids": None}),
        ({"repetition_detection": {"max_pattern_size": 4}}, {"repetition_detection": None}),
        ({"return_prompt_text": True}, {"return_prompt_text": False}),
        ({"return_token_offsets": True}, {"return_token_offsets": False}),
        ({"thinking_token_budget": 0}, {"thinking_token_budget": None}),
        ({"verbosity": "low"}, {"verbosity": "medium"}),
        ({"vllm_xargs": {"a": 1}}, {"vllm_xargs": {}}),
        ({"watermarking": {"key": 1}}, {"watermarking": None}),
    ],
)
@pytest.mark.parametrize("endpoint", PATHS)
def test_what_would_change_the_answer_elsewhere_is_refused_by_name(
    api: Api, endpoint: str, refused: dict[str, Any], neutral: dict[str, Any]
):
    error = post(api, endpoint, "hi", **refused).json()["error"]
    assert (error["code"], error["param"]) == ("unsupported_parameter", next(iter(refused)))
    assert post(api, endpoint, "hi", **neutral).status_code == 200


def test_special_tokens_are_put_where_the_endpoint_puts_them_by_default(api: Api):
    for endpoint, default in (("chat", False), ("completions", True)):
        assert post(api, endpoint, "hi", add_special_tokens=default).status_code == 200
        error = post(api, endpoint, "hi", add_special_tokens=not default).json()["error"]
        assert (error["code"], error["param"]) == ("unsupported_parameter", "add_special_tokens")


def test_best_of_passes_when_it_leaves_nothing_out(api: Api):
    assert post(api, "completions", "hi", n=2, best_of=2).status_code == 200
    error = post(api, "completions", "hi", n=2, best_of=3).json()["error"]
    assert (error["code"], error["param"]) == ("unsupported_parameter", "best_of")


# --- how answers are worded ---------------------------------------------------------------------


def test_a_chat_has_the_logprobs_of_every_token(api: Api):
    body = post(api, "chat", "hi", max_tokens=3, logprobs=True, top_logprobs=2).json()
    content = body["choices"][0]["logprobs"]["content"]
    assert [entry["token"] for entry in content] == ["w0 ", "w1 ", "w2 "]
    assert content[1] == {
        "token": "w1 ",
        "logprob": -1.5,
        "bytes": [119, 49, 32],
        "top_logprobs": [
            {"token": "b", "logprob": -1.0, "bytes": [98]},
            {"token": "c", "logprob": -2.0, "bytes": [99]},
        ],
    }


def test_logprobs_without_alternatives_have_an_empty_list(api: Api):
    for fields in ({"logprobs": True}, {"logprobs": True, "top_logprobs": 0}):
        body = post(api, "chat", "hi", max_tokens=1, **fields).json()
        assert body["choices"][0]["logprobs"]["content"][0]["top_logprobs"] == []
    assert post(api, "chat", "hi", max_tokens=1).json()["choices"][0]["logprobs"] is None


def test_streamed_logprobs_come_with_their_tokens_also_where_there_is_no_text(api: Api):
    whole = post(api, "chat", "held", max_tokens=5, logprobs=True).json()["choices"][0]
    streamed = choices(post(api, "chat", "held", max_tokens=5, logprobs=True, stream=True))
    assert "".join(c["delta"].get("content") or "" for c in streamed) == whole["message"]["content"]
    parts = [c["logprobs"]["content"] for c in streamed if c["logprobs"]]
    assert [len(part) for part in parts] == [2, 2, 1]
    assert flat(parts) == whole["logprobs"]["content"]


def test_a_completion_has_logprobs_by_token_text_with_offsets(api: Api):
    body = post(api, "completions", "hi", max_tokens=3, logprobs=1).json()
    assert body["choices"][0]["logprobs"] == {
        "tokens": ["w0 ", "w1 ", "w2 "],
        "token_logprobs": [-1.5, -1.5, -1.5],
        "top_logprobs": [{"b": -1.0, f"w{i} ": -1.5} for i in range(3)],
        "text_offset": [0, 3, 6],
    }


@pytest.mark.parametrize("prompt", ["hé", [104, 105]])
def test_an_echo_puts_the_prompt_before_the_answer(api: Api, prompt: Any):
    body = {"model": MODEL, "prompt": prompt, "max_tokens": 2, "echo": True}
    choice = api.client.post("/v1/completions", json=body).json()["choices"][0]
    start = "hé" if prompt == "hé" else "hi"
    assert choice["text"] == f"{start}w0 w1 "
    assert choice["logprobs"] is None


@pytest.mark.parametrize("max_tokens", [0, 2])
def test_an_echo_with_logprobs_scores_the_prompt(api: Api, max_tokens: int):
    body = post(api, "completions", "abc", max_tokens=max_tokens, echo=True, logprobs=1).json()
    choice, after = body["choices"][0], max_tokens
    assert choice["text"] == "abc" + "w0 w1 "[: 3 * after]
    found = choice["logprobs"]
    assert found["tokens"] == ["a", "b", "c", "w0 ", "w1 "][: 3 + after]
    assert found["token_logprobs"] == [None, -1.5, -1.5, -1.5, -1.5][: 3 + after]
    assert found["top_logprobs"][:2] == [None, {"b": -1.0}]
    assert found["text_offset"] == [0, 1, 2, 3, 6][: 3 + after]
    assert choice["finish_reason"] == "length"
    assert body["usage"]["completion_tokens"] == after


@pytest.mark.parametrize("max_tokens", [0, 4])
@pytest.mark.parametrize("n", [1, 2])
def test_a_streamed_echo_adds_up_to_the_whole_one(api: Api, max_tokens: int, n: int):
    fields = {
        "max_tokens": max_tokens, "n": n, "echo": True, "logprobs": 2, "return_token_ids": True,
        "prompt_logprobs": 1,
    }  # fmt: skip
    whole = post(api, "completions", "abc", **fields).json()["choices"]
    streamed = choices(post(api, "completions", "abc", **fields, stream=True))
    for choice in whole:
        mine = [one for one in streamed if one["index"] == choice["index"]]
        assert "".join(one["text"] for one in mine) == choice["text"]
        found = [one["logprobs"] for one in mine if one["logprobs"]]
        joined = {key: flat(part[key] for part in found) for key in choice["logprobs"]}
        assert joined == choice["logprobs"]
        assert mine[0]["prompt_logprobs"] == choice["prompt_logprobs"]
        assert mine[0]["prompt_token_ids"] == choice["prompt_token_ids"] == [97, 98, 99]
        assert flat(one.get("token_ids", []) for one in mine) == choice["token_ids"]


def test_prompt_logprobs_are_by_token_id_with_rank(api: Api):
    choice = post(api, "completions", "ab", max_tokens=1, prompt_logprobs=1).json()["choices"][0]
    assert choice["prompt_logprobs"] == [
        None,
        {
            "98": {"logprob": -1.5, "rank": 2, "decoded_token": "b"},
            "99": {"logprob": -1.0, "rank": 1, "decoded_token": "b"},
        },
    ]
    body = post(api, "chat", "hi", max_tokens=1, prompt_logprobs=0, n=2).json()
    assert [entry and len(entry) for entry in body["prompt_logprobs"]] == [None, 1, 1, 1]
    response = post(api, "chat", "hi", max_tokens=1, prompt_logprobs=0, stream=True)
    first = json.loads(response.text.split("\n\n")[0].removeprefix("data: "))
    assert first["prompt_logprobs"] == body["prompt_logprobs"]


def test_token_ids_are_returned_on_request(api: Api):
    body = post(api, "chat", "hi", max_tokens=3, return_token_ids=True).json()
    assert body["prompt_token_ids"] == list(b"chat")
    assert body["choices"][0]["token_ids"] == [0, 1, 2]
    streamed = choices(post(api, "chat", "held", max_tokens=3, return_token_ids=True, stream=True))
    assert flat(one.get("token_ids", []) for one in streamed) == [0, 1, 2]


def test_token_ids_outside_the_vocabulary_cannot_be_echoed(api: Api):
    body = {"model": MODEL, "prompt": [256], "echo": True}
    error = api.client.post("/v1/completions", json=body).json()["error"]
    assert error["param"] == "prompt"
    assert "0..255" in error["message"]


@pytest.mark.parametrize("stream", [False, True])
def test_a_stop_string_is_named_as_the_reason(api: Api, stream: bool):
    response = post(api, "chat", "stopped", stop=["w9", "x"], stream=stream)
    end = choices(response)[-1] if stream else response.json()["choices"][0]
    assert (end["finish_reason"], end["stop_reason"]) == ("stop", "w9")


def test_a_response_has_logprobs_when_it_includes_them(api: Api):
    client, include = api.openai(), "message.output_text.logprobs"
    asked: Any = {"model": MODEL, "input": "held", "include": [include], "top_logprobs": 1}
    answer = client.responses.create(**asked, max_output_tokens=3)
    part: Any = answer.output[0]
    found = [entry.model_dump() for entry in part.content[0].logprobs]
    assert [len(entry["top_logprobs"]) for entry in found] == [1, 1, 1]
    assert found[2]["bytes"] == list(b"w2 ")
    events = list(client.responses.create(**asked, max_output_tokens=3, stream=True))
    deltas: list[Any] = [event for event in events if event.type == "response.output_text.delta"]
    assert [len(delta.logprobs) for delta in deltas] == [2, 1]
    assert deltas[0].delta == ""
    done: Any = next(event for event in events if event.type == "response.output_text.done")
    assert len(done.logprobs) == 3
    plain: Any = client.responses.create(model=MODEL, input="hi", max_output_tokens=3).output[0]
    assert plain.content[0].logprobs == []


# --- numbers ------------------------------------------------------------------------------------


def test_cached_tokens_are_part_of_the_usage(api: Api):
    usage = (
        api.openai()
        .chat.completions.create(model=MODEL, messages=[{"role": "user", "content": "hi"}])
        .usage
    )
    assert usage is not None
    assert usage.prompt_tokens_details is not None
    assert usage.prompt_tokens_details.cached_tokens == 4
    response = api.openai().responses.create(model=MODEL, input="hi").usage
    assert response is not None
    assert response.input_tokens_details.cached_tokens == 4


def test_cached_tokens_are_recorded_and_counted(api: Api):
    def counted(name: str) -> float:
        line = next(
            line for line in api.client.get("/metrics").text.splitlines() if line.startswith(name)
        )
        return float(line.rsplit(" ", 1)[1])

    names = ("paceline_prompt_tokens_cached_total", "vllm:prompt_tokens_cached_total")
    before = [counted(name) for name in names]
    id = post(api, "chat", "hi").json()["id"]
    failed = post(api, "completions", "refuse invalid_request").status_code
    rows = eventually(
        lambda: (
            (r := api.client.get("/api/requests?limit=9").json()["requests"])
            and any(row["id"] == id for row in r)
            and r[0]["error_code"] == "invalid_request"
            and r
        )
    )
    (row,) = (row for row in rows if row["id"] == id)
    assert (row["prompt_tokens"], row["cached_tokens"]) == (7, 4)
    assert (failed, rows[0]["cached_tokens"]) == (400, None)
    assert [counted(name) for name in names] == [count + 4 for count in before]


@pytest.mark.parametrize("endpoint", PATHS)
def test_a_cache_salt_reaches_the_engine(api: Api, endpoint: str):
    assert sampling(api, endpoint, cache_salt="mine")["cache_salt"] == "mine"
    assert (
        sampling(api, endpoint)["cache_salt"]
        == sampling(api, endpoint, cache_salt=None)["cache_salt"]
        == ""
    )
    for wrong in ("", "x" * 257, 5):
        assert post(api, endpoint, "hi", cache_salt=wrong).status_code == 400


def test_preemptions_and_prefix_cache_are_counted_in_the_metrics(api: Api):
    lines = api.client.get("/metrics").text.splitlines()
    found = {line.rsplit(" ", 1)[0]: float(line.rsplit(" ", 1)[1]) for line in lines if "{" in line}
    for name in ("preemptions", "prefix_cache_hits", "prefix_cache_queries"):
        assert found[f'paceline_{name}_total{{model="{MODEL}"}}'] > 0
    preemptions = found[f'vllm:num_preemptions_total{{model_name="{MODEL}"}}']
    assert found[f'vllm:prefix_cache_hits_total{{model_name="{MODEL}"}}'] == 4 * preemptions
    assert found[f'vllm:prefix_cache_queries_total{{model_name="{MODEL}"}}'] == 8 * preemptions
