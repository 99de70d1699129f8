"""Every sampling parameter with and without speculation, on the real model in float32."""

from __future__ import annotations

import json
import re
from collections.abc import Generator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest

from tests.conftest import Server

MODEL = "smollm2-135m-instruct"
PLAIN: Any = {"enabled": False}
DRAFTED: Any = {"drafter": "ngram", "draft_length": 4}
CHAT = "/v1/chat/completions"
REPEAT = "Repeat ten times: the cat sat on the mat."
SENTENCE = " ".join(["The cat sat on the mat and the dog sat on the rug."] * 4)
ACTING: dict[str, dict[str, Any]] = {
    "min_p": {"min_p": 0.2, "temperature": 1.0, "seed": 5},
    "top_k": {"top_k": 5, "top_p": 0.9, "temperature": 1.2, "seed": 5},
    "presence_penalty": {"presence_penalty": 2.0},
    "frequency_penalty": {"frequency_penalty": 2.0},
    "repetition_penalty": {"repetition_penalty": 0.5},
    "logit_bias": {"logit_bias": {"28": 8.0}},
    "bad_words": {"bad_words": ["dog"]},
    "stop": {"stop": ["dog"]},
}
COLOUR = {
    "type": "object",
    "properties": {"colour": {"enum": ["red", "blue"]}, "size": {"type": "integer", "maximum": 9}},
    "required": ["colour", "size"],
    "additionalProperties": False,
}


@pytest.fixture(scope="module")
def http(server: Server) -> Generator[httpx.Client]:
    with httpx.Client(
        base_url=server.url, headers=server.inference, trust_env=False, timeout=300
    ) as client:
        yield client


def ask(http: httpx.Client, path: str, **fields: Any) -> Any:
    body = {"model": MODEL, "temperature": 0, **fields}
    response = http.post(path, json=body)
    assert response.status_code == 200, response.text
    return response.json()


def chat(http: httpx.Client, asked: str = REPEAT, **fields: Any) -> Any:
    return ask(http, CHAT, **{"messages": [{"role": "user", "content": asked}], **fields})


def content(answer: Any) -> str:
    return answer["choices"][0]["message"]["content"]


def drafts(answer: Any) -> dict[str, Any]:
    return answer["metrics"]["speculative_decoding"]


def events(http: httpx.Client, path: str, **fields: Any) -> list[Any]:
    body = {"model": MODEL, "temperature": 0, "stream": True, **fields}
    response = http.post(path, json=body)
    assert response.status_code == 200, response.text
    lines = [line for line in response.text.split("\n") if line.startswith("data: {")]
    return [json.loads(line.removeprefix("data: ")) for line in lines]


def test_logprobs_are_the_same_whatever_is_drafted(http: httpx.Client):
    asked = {"max_tokens": 32, "logprobs": True, "top_logprobs": 3}
    plain, drafted = (chat(http, **asked, speculation=one) for one in (PLAIN, DRAFTED))
    assert drafts(plain)["num_draft_tokens"] == 0
    assert drafts(drafted)["num_accepted_draft_tokens"] > 0
    one, other = (answer["choices"][0]["logprobs"]["content"] for answer in (plain, drafted))
    assert len(one) == plain["usage"]["completion_tokens"]
    assert [entry["token"] for entry in one] == [entry["token"] for entry in other]
    assert [e["logprob"] for e in one] == pytest.approx([e["logprob"] for e in other], abs=1e-3)
    for entry in other:
        assert entry["logprob"] < 0
        assert entry["top_logprobs"][0]["token"] == entry["token"]  # greedy
        assert len({top["token"] for top in entry["top_logprobs"]}) == 3
    assert len({entry["logprob"] for entry in other}) > 3


def test_logprobs_without_alternatives_are_valid(http: httpx.Client):
    answer = chat(http, max_tokens=4, logprobs=True, top_logprobs=0, speculation=DRAFTED)
    entries = answer["choices"][0]["logprobs"]["content"]
    assert [entry["top_logprobs"] for entry in entries] == [[]] * 4
    assert all(entry["logprob"] < 0 for entry in entries)


def test_streamed_text_and_logprobs_add_up_to_the_whole_answer(http: httpx.Client):
    asked: Any = {
        "messages": [{"role": "user", "content": "Write ten emoji, then: naïve café 日本語."}],
        "max_tokens": 32,
        "logprobs": True,
        "stop": ["\n\n\n"],
        "speculation": DRAFTED,
    }
    whole = ask(http, CHAT, **asked)["choices"][0]
    streamed = [event["choices"][0] for event in events(http, CHAT, **asked)]
    text = "".join(choice["delta"].get("content") or "" for choice in streamed)
    assert text.encode() == whole["message"]["content"].encode()
    parts = [choice["logprobs"]["content"] for choice in streamed if choice["logprobs"]]
    tokens = [entry["token"] for part in parts for entry in part]
    assert tokens == [entry["token"] for entry in whole["logprobs"]["content"]]
    if whole["finish_reason"] == "length":
        data = b"".join(bytes(entry["bytes"]) for entry in whole["logprobs"]["content"])
        assert data.decode("utf-8", "replace") == text


def test_a_streamed_response_adds_up_to_the_whole_one(http: httpx.Client):
    asked: Any = {"input": REPEAT, "max_output_tokens": 24, "speculation": DRAFTED}
    whole = ask(http, "/v1/responses", **asked)["output"][0]["content"][0]["text"]
    found = events(http, "/v1/responses", **asked)
    deltas = [one["delta"] for one in found if one["type"] == "response.output_text.delta"]
    assert "".join(deltas).encode() == whole.encode()


@pytest.fixture(scope="module")
def acted(http: httpx.Client) -> dict[str, list[Any]]:
    """For every set of parameters the choices without it, with it, and with it and drafts. All
    are asked for at once, so each has the others as neighbours."""
    bodies: list[dict[str, Any]] = []
    for name, fields in ACTING.items():
        over_output = name in ("presence_penalty", "frequency_penalty")
        prompt = "no" + 20 * " no" if over_output else f"{SENTENCE} The cat sat on the"
        asked: Any = {"prompt": prompt, "max_tokens": 16, "speculation": PLAIN}
        bodies += [asked, asked | fields, asked | fields | {"speculation": DRAFTED}]
    with ThreadPoolExecutor(len(bodies)) as pool:
        found = list(pool.map(lambda body: ask(http, "/v1/completions", **body), bodies))
    return {name: found[3 * index : 3 * index + 3] for index, name in enumerate(ACTING)}


@pytest.mark.parametrize("name", ACTING)
def test_a_parameter_acts_and_gives_the_same_text_whatever_is_drafted(
    acted: dict[str, list[Any]], name: str
):
    without, plain, drafted = acted[name]
    assert drafts(plain)["num_draft_tokens"] == 0
    assert drafts(drafted)["num_draft_tokens"] > 0
    assert drafted["choices"] == plain["choices"]
    assert plain["choices"][0]["text"] != without["choices"][0]["text"]


def test_allowed_and_biased_tokens_decide_what_is_written(http: httpx.Client):
    ids = http.post("/tokenize", json={"prompt": " yes no"}).json()["tokens"]
    asked: Any = {
        "prompt": "Is it? no no no no", "max_tokens": 6, "return_token_ids": True,
        "speculation": DRAFTED,
    }  # fmt: skip
    allowed = ask(http, "/v1/completions", **asked, allowed_token_ids=ids)["choices"][0]
    assert set(allowed["token_ids"]) <= set(ids)
    biased = ask(http, "/v1/completions", **asked, logit_bias={str(ids[0]): 100})["choices"][0]
    assert biased["token_ids"] == [ids[0]] * 6


def test_min_tokens_holds_the_end_back_and_stop_token_ids_end(http: httpx.Client):
    short: Any = {"asked": "Say only: yes", "max_tokens": 24, "speculation": DRAFTED}
    ended = chat(http, **short, return_token_ids=True)
    assert ended["choices"][0]["finish_reason"] == "stop"
    ids = ended["choices"][0]["token_ids"]
    longer = chat(http, **short, min_tokens=len(ids) + 4)
    assert longer["usage"]["completion_tokens"] >= len(ids) + 4
    stopped = chat(http, **short, stop_token_ids=[ids[0]])
    assert stopped["choices"][0]["stop_reason"] == ids[0]
    assert stopped["usage"]["completion_tokens"] == 1


def test_seeded_choices_differ_and_repeat(http: httpx.Client):
    asked: Any = {"max_tokens": 12, "n": 3, "seed": 7, "temperature": 1.0}
    texts = [
        [choice["message"]["content"] for choice in chat(http, **asked, speculation=one)["choices"]]
        for one in (PLAIN, DRAFTED)
    ]
    assert texts[0] == texts[1]
    assert len(set(texts[0])) == 3


def test_scoring_an_answer_as_a_prompt_gives_the_logprobs_of_its_generation(http: httpx.Client):
    asked: Any = {"prompt": "The capital of France is", "max_tokens": 8, "return_token_ids": True}
    made = ask(http, "/v1/completions", **asked, logprobs=1)["choices"][0]
    ids = made["prompt_token_ids"] + made["token_ids"]
    scored = ask(
        http, "/v1/completions", prompt=ids, max_tokens=0, echo=True, logprobs=1, prompt_logprobs=0
    )
    choice = scored["choices"][0]
    assert choice["text"] == "The capital of France is" + made["text"]
    found = choice["logprobs"]
    assert found["token_logprobs"][0] is None
    assert found["token_logprobs"][-8:] == pytest.approx(
        made["logprobs"]["token_logprobs"], abs=1e-3
    )
    assert found["tokens"][-8:] == made["logprobs"]["tokens"]
    assert [choice["text"][at:][: len(token)] for at, token in zip(
        found["text_offset"], found["tokens"], strict=True
    )] == found["tokens"]  # fmt: skip
    ranks = [item[str(token)]["rank"] for item, token in zip(
        choice["prompt_logprobs"][-8:], ids[-8:], strict=True
    )]  # fmt: skip
    assert ranks == [1] * 8
    assert scored["usage"]["completion_tokens"] == 0


def test_drafts_that_break_a_schema_leave_valid_json(http: httpx.Client):
    bad = '{"colour": "green", "size": 100} ' * 6
    asked: Any = {
        "asked": f"Copy this: {bad}",
        "max_tokens": 32,
        "response_format": {"type": "json_schema", "json_schema": {"name": "c", "schema": COLOUR}},
    }
    plain, drafted = (chat(http, **asked, speculation=one) for one in (PLAIN, DRAFTED))
    assert drafts(drafted)["num_draft_tokens"] > 0
    assert drafted["choices"][0]["finish_reason"] == "stop"
    found = json.loads(content(drafted))
    assert found["colour"] in ("red", "blue")
    assert found["size"] <= 9
    assert content(drafted) == content(plain)


@pytest.mark.parametrize(
    ("fields", "pattern"),
    [
        ({"structured_outputs": {"regex": "[0-9]{3}-[0-9]{2}"}}, "[0-9]{3}-[0-9]{2}"),
        ({"structured_outputs": {"choice": ["a+b (c)", "x|y"]}}, r"a\+b \(c\)|x\|y"),
        ({"structured_outputs": {"grammar": 'start: "yes" | "no"'}}, "yes|no"),
        ({"guided_choice": ["left", "right"]}, "left|right"),
        ({"response_format": {"type": "json_object"}, "min_tokens": 1}, r"(?s)\{.*"),
    ],
    ids=["regex", "choice", "grammar", "guided_choice", "json_object"],
)
def test_an_answer_matches_what_was_asked_for(
    http: httpx.Client, fields: dict[str, Any], pattern: str
):
    answer = chat(http, **fields, max_tokens=24, speculation=DRAFTED)
    assert re.fullmatch(pattern, content(answer)), content(answer)


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"structured_outputs": {"regex": "("}}, "structured_outputs"),
        ({"guided_regex": "("}, "guided_regex"),
        ({"response_format": {"type": "json_schema", "json_schema": {"schema": {"type": 3}}}},
         "response_format"),
        ({"allowed_token_ids": [10_000_000]}, "allowed_token_ids"),
        ({"logit_bias": {"10000000": 1}}, "logit_bias"),
    ],
)  # fmt: skip
def test_what_the_model_cannot_do_is_refused_by_the_name_that_was_sent(
    http: httpx.Client, fields: dict[str, Any], param: str
):
    body = {"model": MODEL, "messages": [{"role": "user", "content": "hi"}], **fields}
    response = http.post(CHAT, json=body)
    assert response.status_code == 400, response.text
    assert response.json()["error"]["param"] == param


def test_a_request_without_speculation_beside_one_with_it(http: httpx.Client):
    alone = chat(http, max_tokens=32, speculation=PLAIN)
    with ThreadPoolExecutor() as pool:
        off, on = pool.map(lambda one: chat(http, max_tokens=32, speculation=one), (PLAIN, DRAFTED))
    assert drafts(off)["num_draft_tokens"] == 0
    assert set(drafts(off)["drafters"]) == {"none"}
    assert drafts(on)["num_draft_tokens"] > 0
    assert content(off) == content(on) == content(alone)


def test_the_usage_in_every_chunk_grows_to_that_of_the_whole_answer(http: httpx.Client):
    """The prompt's tokens are known from the first chunk on, and each chunk counts its own."""
    options = {"include_usage": True, "continuous_usage_stats": True}
    wanted = {"max_tokens": 24, "stream": True, "stream_options": options, "stop": ["dog"]}
    hello: Any = {"messages": [{"role": "user", "content": REPEAT}]}
    for path, prompt in ((CHAT, hello), ("/v1/completions", {"prompt": SENTENCE})):
        body = {"model": MODEL, "temperature": 0, "speculation": DRAFTED, **wanted, **prompt}
        parts = http.post(path, json=body).text.strip().split("\n\n")[:-1]
        *chunks, last = [json.loads(part.removeprefix("data: "))["usage"] for part in parts]
        assert {chunk["prompt_tokens"] for chunk in chunks} == {last["prompt_tokens"]}
        counts = [chunk["completion_tokens"] for chunk in chunks]
        assert counts == sorted(counts)
        assert counts[-1] == last["completion_tokens"] > counts[0]


def test_a_prompt_that_was_seen_before_counts_as_cached(http: httpx.Client):
    asked = f"Summarise: {SENTENCE} {SENTENCE}"
    first = chat(http, asked, max_tokens=4)
    again = chat(http, asked, max_tokens=4)
    usage = again["usage"]
    assert 0 < usage["prompt_tokens_details"]["cached_tokens"] < usage["prompt_tokens"]
    assert content(again) == content(first)
