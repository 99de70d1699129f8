"""Corpora and live parameters over the scripted engine: loaded, listed, kept, refused, removed."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
import pytest

from app.admin import corpora
from tests.app.conftest import MODEL, Api, eventually, running_api
from tests.app.scripted_engine import ROOM

LINES = {"Content-Type": "application/x-ndjson"}
TEXT = {"Content-Type": "text/plain"}


def listed(api: Api) -> dict[str, Any]:
    return {corpus["name"]: corpus for corpus in api.client.get("/api/corpora").json()["corpora"]}


def ready(api: Api, name: str) -> dict[str, Any]:
    return eventually(lambda: (c := listed(api)[name])["state"] == "ready" and c)


def load(api: Api, name: str, *documents: dict[str, Any]) -> httpx.Response:
    return api.client.put(f"/api/corpora/{name}", json={"documents": documents})


def audited(api: Api, action: str, target: str) -> list[dict[str, Any]]:
    rows = api.client.get("/api/audit").json()["audit"]
    return [row for row in rows if (row["action"], row["target"]) == (action, target)]


def test_a_corpus_is_stored_indexed_listed_and_removed(api: Api):
    answer = load(api, "docs.v1", {"text": "hello"}, {"token_ids": [1, 2, 3]}, {"text": ""})
    assert answer.status_code == 200, answer.text
    assert answer.json()["documents"] == 2
    corpus = ready(api, "docs.v1")
    assert corpus.pop("created_at") > 1e9
    assert corpus == {
        "name": "docs.v1", "created_by": "bootstrap", "documents": 2, "bytes": 17, "tokens": 8,
        "indexed_tokens": 8, "state": "ready", "progress": 1.0, "reason": None,
        "shipped": False,
    }  # fmt: skip
    removed = api.client.delete("/api/corpora/docs.v1")
    assert removed.json() == {"name": "docs.v1", "removed": True}
    assert "docs.v1" not in listed(api)
    missing = api.client.delete("/api/corpora/docs.v1")
    assert (missing.status_code, missing.json()["code"]) == (404, "unknown_corpus")
    put = eventually(lambda: audited(api, "put_corpus", "docs.v1"))[0]
    assert (put["before"], put["after"]["documents"]) == (None, 2)
    gone = eventually(lambda: len(r := audited(api, "remove_corpus", "docs.v1")) == 2 and r)
    assert {row["result"] for row in gone} == {"ok", "unknown_corpus"}


def test_lines_and_plain_text_are_taken_too_and_a_name_is_replaced(api: Api):
    lines = b'{"text": "ab", "id": 7}\n\n{"token_ids": [5]}\r\n'
    api.client.put("/api/corpora/replaced", content=lines, headers=LINES)
    assert ready(api, "replaced")["tokens"] == 3
    api.client.put("/api/corpora/replaced", content="für".encode(), headers=TEXT)
    eventually(lambda: ready(api, "replaced")["tokens"] == 4)
    assert ready(api, "replaced")["documents"] == 1
    api.client.delete("/api/corpora/replaced")


@pytest.mark.parametrize(
    ("body", "field", "says"),
    [
        (b"", None, "body"),
        (b"{}", None, "documents"),
        (b'{"documents": []}', None, "empty"),
        (b'{"documents": [{"text": ""}]}', None, "empty"),
        (b'{"documents": [{"text": 3}]}', "documents[0].text", "Expected `str"),
        (b'{"documents": [{"text": "x"}, {}]}', "documents[1]", "exactly one of"),
        (b'{"documents": [{"text": "x", "token_ids": [1]}]}', "documents[0]", "exactly one of"),
        (b'{"documents": [{"token_ids": [1, -1]}]}', "documents[0].token_ids[1]", "0"),
        (b'{"documents": [{"token_ids": [1.5]}]}', "documents[0].token_ids[0]", "int"),
        (b'{"documents": [{"token_ids": [3, 255, 256]}]}', "documents[0].token_ids[2]", "0 to 255"),
        (b'{"documents": [], "more": 1}', None, "more"),
        (b'{"documents": [{"text": "\\ud800"}]}', None, "surrogate"),
        (b'{"documents": [', None, "truncated"),
        (b'{"documents": [{"text": "\\ud800"}]}', "documents[0].text", "[0].text: invalid"),
        (b'{"documents": [{"a": 1, "b": "\\ud800"}]}', None, "documents[0]"),
    ],
)
def test_a_wrong_body_is_refused_with_its_place(api: Api, body: bytes, field: Any, says: str):
    headers = {"Content-Type": "application/json"}
    answer = api.client.put("/api/corpora/wrong", content=body, headers=headers)
    assert answer.status_code == 400, answer.text
    problem = answer.json()
    assert says in problem["detail"]
    if field:
        assert problem["field"] == field
        assert problem["detail"].count(field.rpartition(".")[2]) == 1
    assert "wrong" not in listed(api)


@pytest.mark.parametrize(
    ("content", "kind", "says"),
    [
        (b'{"text": "a"}\n{"token_ids": [256]}', "application/x-ndjson", "line 2.token_ids[0]"),
        (b'{"text": "a"}\n{"text"', "application/x-ndjson", "line 2: "),
        (b"ab\xff", "text/plain", "not UTF-8: see byte 2"),
        (b"x", "application/pdf", "application/x-ndjson or text/plain"),
    ],
)
def test_a_wrong_line_text_or_type_is_refused(api: Api, content: bytes, kind: str, says: str):
    headers = {"Content-Type": kind}
    answer = api.client.put("/api/corpora/wrong", content=content, headers=headers)
    assert answer.status_code == 400
    assert says in answer.json()["detail"]


@pytest.mark.parametrize(
    ("more", "says"),
    [
        ({"Content-Encoding": "gzip"}, "Content-Encoding gzip is not taken"),
        ({"Content-Type": "text/plain; charset=latin-1"}, "charset latin-1 is not taken"),
    ],
)
def test_a_packed_body_or_another_charset_is_refused(api: Api, more: dict[str, str], says: str):
    answer = api.client.put("/api/corpora/wrong", content=b"x", headers={**TEXT, **more})
    assert (answer.status_code, answer.json()["code"]) == (415, "unsupported_media_type")
    assert says in answer.json()["detail"]
    assert "wrong" not in listed(api)


def test_utf_8_may_be_named_and_identity_is_no_encoding(api: Api):
    headers = {"Content-Type": 'text/plain; charset="UTF-8"', "Content-Encoding": "identity"}
    assert api.client.put("/api/corpora/named", content=b"abc", headers=headers).is_success
    assert api.client.delete("/api/corpora/named").is_success


@pytest.mark.parametrize("name", ["a b", "ä", "x" * 65, "a%2Fb"])
def test_a_wrong_name_is_refused(api: Api, name: str):
    answer = api.client.put(f"/api/corpora/{name}", content=b"x", headers=TEXT)
    assert answer.status_code in (400, 404)
    assert name not in listed(api)


def test_what_is_too_large_is_a_413_that_names_limit_and_setting(tmp_path: Path):
    with running_api(tmp_path, corpus_limit_mb="1", corpus_tokens="1000") as api:
        api.ready()

        def chunks() -> Iterator[bytes]:
            for _ in range(40):
                yield b"x" * 50_000

        for content in (b"x" * (1024 * 1024 + 1), chunks()):
            answer = api.client.put("/api/corpora/large", content=content, headers=TEXT)
            assert answer.status_code == 413
            assert "larger than 1 MiB" in answer.json()["detail"]
            assert "--corpus-limit-mb" in answer.json()["detail"]
        many = load(api, "large", {"token_ids": [1] * 1001})
        assert many.status_code == 413
        assert "--corpus-tokens" in many.json()["detail"]
        for number in range(8):  # the last of these leaves too little
            whole = b"x" * (1024 * 1024)
            assert api.client.put(f"/api/corpora/{number}", content=whole, headers=TEXT).is_success
        answer = api.client.put("/api/corpora/one-more", content=b"x", headers=TEXT)
        assert answer.status_code == 413
        assert "together may have 8 MiB" in answer.json()["detail"]
        failed = eventually(lambda: (c := listed(api)["0"])["state"] == "failed" and c)
        assert "1,000 tokens" in failed["reason"]
        assert "--corpus-tokens" in failed["reason"]


def test_a_corpus_that_does_not_fit_fails_with_the_reason_and_comes_when_there_is_room(api: Api):
    load(api, "big", {"text": "x" * (ROOM - 10)})
    assert ready(api, "big")["tokens"] == ROOM - 10
    load(api, "more", {"text": "y" * 11})
    failed = eventually(lambda: (c := listed(api)["more"])["state"] == "failed" and c)
    assert "memory is full" in failed["reason"]
    api.client.delete("/api/corpora/big")
    assert ready(api, "more")["tokens"] == 11
    api.client.delete("/api/corpora/more")


def test_corpora_and_parameters_survive_an_engine_and_corpora_a_server(tmp_path: Path):
    long = "word and word\n" * 1200  # more than one text of the tokeniser
    with running_api(tmp_path) as api:
        api.ready()
        load(api, "text", {"text": long})
        load(api, "ids", {"token_ids": [7] * 10})
        ready(api, "text")
        changed = {"enabled": False, "parameters": {"least": 1}}
        api.client.put("/api/drafters/ngram", json=changed)
        api.client.put("/api/drafters/ngram", json={"parameters": {"share": 0.25}})
        first = api.client.get("/api/state").json()["engine"]["pid"]
        api.client.post("/v1/completions", json={"model": MODEL, "prompt": "die"})
        eventually(
            lambda: api.client.get("/api/state").json()["engine"]["pid"] not in (None, first)
        )
        api.ready()
        assert ready(api, "text")["tokens"] == len(long)
        assert ready(api, "ids")["tokens"] == 10
        shown = eventually(lambda: not (d := drafter(api))["enabled"] and d)
        assert {p["name"]: p["value"] for p in shown["parameters"]} == {
            "least": 1, "most": 4, "share": 0.25, "recycling": False,
        }  # fmt: skip
    with running_api(tmp_path) as api:
        api.ready()
        assert ready(api, "text")["tokens"] == len(long)
    with running_api(tmp_path, dtype="bfloat16") as api:  # stands for another tokenizer
        api.ready()
        assert ready(api, "text")["tokens"] == len(long)
        failed = eventually(lambda: (c := listed(api)["ids"])["state"] == "failed" and c)
        assert "another tokenizer" in failed["reason"]


def test_while_the_engine_loads_text_is_stored_and_given_to_it_later(tmp_path: Path):
    marker = tmp_path / "go"
    late = {"model": "late", "cache_dir": str(marker)}
    with running_api(tmp_path, **late) as api:
        answer = load(api, "early", {"text": "abc"}).json()
        assert (answer["state"], answer["progress"]) == ("loading", 0.0)
        assert "waits for the engine" in answer["reason"]
        refused = load(api, "ids", {"token_ids": [1]})
        assert (refused.status_code, refused.json()["code"]) == (503, "engine_starting")
        marker.touch()
        assert ready(api, "early")["tokens"] == 3


def test_a_client_that_leaves_during_its_upload_leaves_nothing_behind(
    api: Api, caplog: pytest.LogCaptureFixture
):
    host, port = api.url.removeprefix("http://").split(":")
    head = f"PUT /api/corpora/left HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {api.admin_key}\r\n"
    for _ in range(3):  # one more than may upload at a time
        with socket.create_connection((host, int(port))) as connection:
            connection.sendall(f"{head}Content-Length: 100\r\n\r\nabc".encode())
    assert load(api, "stayed", {"text": "abc"}).is_success
    assert "left" not in listed(api)
    assert api.client.delete("/api/corpora/stayed").is_success
    assert "unexpected error" not in caplog.text


def test_slow_uploads_end_with_a_408_and_others_get_their_turn(
    api: Api, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(corpora, "PATIENCE_S", 0.3)
    host, port = api.url.removeprefix("http://").split(":")
    head = f"PUT /api/corpora/slow HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {api.admin_key}\r\n"
    with ExitStack() as stack:
        slow = [
            stack.enter_context(socket.create_connection((host, int(port)), 20)) for _ in range(3)
        ]
        for connection in slow:  # one more than may upload at a time
            connection.sendall(f"{head}Content-Length: 100\r\n\r\nabc".encode())
        assert load(api, "quick", {"text": "abc"}).is_success
        for connection in slow:
            answer = b""
            while b"faster connection" not in answer and (more := connection.recv(65536)):
                answer += more
            assert answer.startswith(b"HTTP/1.1 408")
            assert b"upload_too_slow" in answer
            assert b"slower than 128 KiB a second" in answer
    assert "slow" not in listed(api)
    assert api.client.delete("/api/corpora/quick").is_success


# --- parameters -----------------------------------------------------------------------------------


def drafter(api: Api) -> dict[str, Any]:
    found = api.client.get("/api/drafters").json()["drafters"]
    return next(one for one in found if one["name"] == "ngram")


def test_memory_of_texts_is_shown_and_measured(api: Api):
    assert drafter(api)["memory"] == {
        "used_bytes": 3 << 20, "limit_bytes": 256 << 20, "truncated": 2
    }  # fmt: skip
    labels = '{drafter="ngram",model="scripted"}'
    eventually(
        lambda: (
            f"paceline_drafter_memory_bytes{labels} 3.145728e+06" in api.client.get("/metrics").text
        )
    )
    text = api.client.get("/metrics").text
    assert f"paceline_drafter_memory_limit_bytes{labels} 2.68435456e+08" in text
    assert f"paceline_drafter_truncated_texts{labels} 2.0" in text


def test_parameters_are_shown_with_their_ranges_changed_and_audited(api: Api):
    share = {p["name"]: p for p in drafter(api)["parameters"]}["share"]
    assert share == {
        "name": "share", "kind": "float", "low": 0.0, "high": 1.0, "default": 0.5, "value": 0.5,
        "text": "Least probability",
    }  # fmt: skip
    changes = {"share": 0.75, "recycling": True}
    answer = api.client.put("/api/drafters/ngram", json={"parameters": changes}).json()
    assert answer["enabled"] is True
    values = {p["name"]: p["value"] for p in drafter(api)["parameters"]}
    assert (values["share"], values["recycling"], values["least"]) == (0.75, True, 2)
    entries = eventually(
        lambda: [
            row
            for row in audited(api, "set_drafter", "ngram")
            if '"value": 0.75' in json.dumps(row["after"])
        ]
    )
    assert '"value": 0.5' in json.dumps(entries[0]["before"])
    back = {"parameters": {"share": 0.5, "recycling": False}}
    assert api.client.put("/api/drafters/ngram", json=back).is_success


@pytest.mark.parametrize(
    ("name", "body", "code", "field", "says"),
    [
        ("ngram", {}, "invalid_value", "enabled", "Give enabled, parameters, or both"),
        ("ngram", {"parameters": {"size": 1}}, "unknown_parameter", "parameters.size", "least, mo"),
        (
            "ngram",
            {"parameters": {"least": 9}},
            "parameter_out_of_range",
            "parameters.least",
            "1 a",
        ),
        ("ngram", {"parameters": {"least": 1.5}}, "parameter_out_of_range", "parameters.least", ""),
        ("ngram", {"parameters": {"least": 8}}, "bad_setting", "parameters", "raise most too"),
        *(
            (
                "ngram",
                {"parameters": {"share": value}},
                "invalid_value",
                "parameters.share",
                "number",
            )
            for value in ("x", "0.5", None, [], {})
        ),
        (
            "ngram",
            {"parameters": {"least": 10**30}},
            "parameter_out_of_range",
            "parameters.least",
            "",
        ),
        ("none", {"parameters": {"x": 1}}, "invalid_value", "parameters", "no parameters"),
    ],
)
def test_a_wrong_change_of_a_drafter_says_what_is_allowed_and_changes_nothing(
    api: Api, name: str, body: Any, code: str, field: str, says: str
):
    before = drafter(api)
    answer = api.client.put(f"/api/drafters/{name}", json=body)
    problem = answer.json()
    assert (answer.status_code, problem["code"], problem.get("field")) == (400, code, field)
    assert says in problem["detail"]
    assert drafter(api) == before
