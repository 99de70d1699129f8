"""stream_options.continuous_usage_stats: the usage so far in every chunk, as in vLLM."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.app.conftest import MODEL, Api

BOTH = {"include_usage": True, "continuous_usage_stats": True}
ENDPOINTS = ("chat", "completions")
PROMPT_TOKENS = {"chat": 4, "completions": 7}  # the scripted engine's tokens of these prompts


def body(endpoint: str, prompt: Any, **fields: Any) -> dict[str, Any]:
    if endpoint == "chat":
        fields["messages"] = [{"role": "user", "content": prompt}]
    else:
        fields["prompt"] = prompt
    return {"model": MODEL, "stream": True, **fields}


def chunks(api: Api, endpoint: str, prompt: Any = "seven b", **fields: Any) -> list[Any]:
    path = {"chat": "/v1/chat/completions", "completions": "/v1/completions"}[endpoint]
    response = api.client.post(path, json=body(endpoint, prompt, **fields))
    assert response.status_code == 200, response.text
    parts = response.text.strip().split("\n\n")
    assert parts.pop() == "data: [DONE]"
    return [json.loads(part.removeprefix("data: ")) for part in parts]


def counts(chunk: Any) -> tuple[int, int, int]:
    usage = chunk["usage"]
    return usage["prompt_tokens"], usage["completion_tokens"], usage["total_tokens"]


@pytest.mark.parametrize("endpoint", ENDPOINTS)
def test_every_chunk_has_the_tokens_written_so_far(api: Api, endpoint: str):
    *found, last = chunks(api, endpoint, max_tokens=5, stream_options=BOTH)
    prompt = PROMPT_TOKENS[endpoint]
    written = [0] * (endpoint == "chat") + [2, 4, 5, 5]  # first the role, last the finish_reason
    assert [counts(chunk) for chunk in found] == [(prompt, n, prompt + n) for n in written]
    assert [len(chunk["choices"]) for chunk in found] == [1] * len(found)
    assert (last["choices"], counts(last)) == ([], (7, 5, 12))


@pytest.mark.parametrize("endpoint", ENDPOINTS)
def test_each_choice_counts_its_own_tokens(api: Api, endpoint: str):
    *found, last = chunks(api, endpoint, n=3, max_tokens=4, stream_options=BOTH)
    for index in range(3):
        own = [counts(c)[1] for c in found if c["choices"][0]["index"] == index]
        assert own == [0] * (endpoint == "chat") + [2, 4, 4]
    assert last["usage"]["completion_tokens"] == 12


def test_each_prompt_counts_its_own_tokens_text_or_ids(api: Api):
    for prompts in (["one", "three"], [[1, 2, 3], [1, 2, 3, 4, 5]]):
        *found, _ = chunks(api, "completions", prompts, n=2, max_tokens=2, stream_options=BOTH)
        seen = {(c["choices"][0]["index"], c["usage"]["prompt_tokens"]) for c in found}
        assert seen == {(0, 3), (1, 3), (2, 5), (3, 5)}


def test_tokens_without_text_and_echoed_prompts_count_as_they_come(api: Api):
    held = chunks(api, "chat", "held", max_tokens=4, stream_options=BOTH)[:-1]
    assert [counts(chunk)[1] for chunk in held] == [0, 4, 4]  # two tokens have no chunk of theirs
    *echo, last = chunks(api, "completions", echo=True, max_tokens=0, stream_options=BOTH)
    assert [counts(chunk) for chunk in echo] == [(7, 0, 7)] * 2
    assert counts(last) == (7, 0, 7)


@pytest.mark.parametrize("endpoint", ENDPOINTS)
def test_the_ids_of_the_prompt_and_its_count_agree(api: Api, endpoint: str):
    found = chunks(api, endpoint, return_token_ids=True, max_tokens=2, stream_options=BOTH)
    first = found[0] if endpoint == "chat" else found[0]["choices"][0]
    assert len(first["prompt_token_ids"]) == counts(found[0])[0] == PROMPT_TOKENS[endpoint]


@pytest.mark.parametrize("endpoint", ENDPOINTS)
@pytest.mark.parametrize(
    ("options", "with_usage"),
    [({"include_usage": True}, 1), ({"continuous_usage_stats": True}, 0), ({}, 0), (None, 0)],
)
def test_without_both_options_no_chunk_but_the_last_has_usage(
    api: Api, endpoint: str, options: Any, with_usage: int
):
    found = chunks(api, endpoint, max_tokens=4, stream_options=options)
    assert ["usage" in chunk for chunk in found].count(True) == with_usage
    assert ("usage" in found[-1]) == bool(with_usage)


@pytest.mark.parametrize("endpoint", ENDPOINTS)
def test_it_is_refused_for_an_answer_that_is_no_stream_and_for_other_types(api: Api, endpoint: str):
    path = {"chat": "/v1/chat/completions", "completions": "/v1/completions"}[endpoint]
    wrong = [
        (body(endpoint, "hi", stream_options=BOTH) | {"stream": False}, "stream_options"),
        (
            body(endpoint, "hi", stream_options=BOTH | {"continuous_usage_stats": "yes"}),
            "stream_options.continuous_usage_stats",
        ),
    ]
    for sent, param in wrong:
        response = api.client.post(path, json=sent)
        assert response.status_code == 400, response.text
        assert response.json()["error"]["param"] == param


@pytest.mark.parametrize("endpoint", ENDPOINTS)
def test_the_stock_client_reads_it(api: Api, endpoint: str):
    client: Any = api.openai()
    create = client.chat.completions.create if endpoint == "chat" else client.completions.create
    found = list(create(**body(endpoint, "seven b", max_tokens=3), stream_options=BOTH))
    assert [chunk.usage.completion_tokens for chunk in found][-3:] == [3, 3, 3]


def test_a_request_that_the_engine_refuses_has_its_own_error(api: Api):
    sent = body("chat", "refuse context_length_exceeded", stream_options=BOTH)
    response = api.client.post("/v1/chat/completions", json=sent)
    assert response.status_code == 400
    assert response.json()["error"]["code"] == "context_length_exceeded"
    api.idle()
