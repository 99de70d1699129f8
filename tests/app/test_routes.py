"""Every route: its scope, its errors, and what it says to those who may not use it."""

from __future__ import annotations

import json

import pytest
from litestar import Litestar, get

from app.errors import clean, validation_error
from app.security.auth import ANY_KEY, OPEN, SCOPES, check_routes, route_handlers
from app.security.origin import origin_allowed
from tests.app.conftest import MODEL, Api

OPEN_PATHS = {"/health/live", "/health/ready", "/version"}


def routes(api: Api) -> list[tuple[str, str, str]]:
    """(method, path with filled-in parameters, scope) of every HTTP route."""
    found = []
    for path, handler in route_handlers(api.app):
        filled = path.replace("{model:path}", "x").replace("{name:str}", "ngram")
        filled = filled.replace("{key_id:str}", "key_x")
        for method in getattr(handler, "http_methods", ()):
            found.append((method, filled, handler.opt["scope"]))
    return found


def test_every_route_declares_a_scope_and_only_health_and_version_are_open(api: Api):
    declared = {path: handler.opt.get("scope") for path, handler in route_handlers(api.app)}
    assert {path for path, scope in declared.items() if scope == OPEN} == OPEN_PATHS
    assert set(declared.values()) <= {OPEN, ANY_KEY, *SCOPES}
    assert len(declared) > 20


def test_an_app_with_an_undeclared_route_is_refused():
    @get("/door")
    async def door() -> None: ...

    with pytest.raises(ValueError, match="/door"):
        check_routes(Litestar([door], openapi_config=None))


def test_no_route_but_the_open_ones_answers_without_a_valid_key(api: Api):
    for method, path, scope in routes(api):
        for key in (None, "pl-00000000-wrong"):
            status = api.client_for(key).request(method, path).status_code
            if scope == OPEN:
                assert status == 200, path
            else:
                assert status == 401, (method, path, status)


def test_a_key_opens_exactly_the_routes_of_its_scopes(api: Api):
    for granted in SCOPES:
        client = api.client_for(api.key(granted))
        for method, path, scope in routes(api):
            if method == "HEAD":
                continue
            status = client.request(method, path).status_code
            allowed = scope in (OPEN, ANY_KEY, granted)
            assert (status not in (401, 403)) == allowed, (granted, method, path, status)


def test_automatic_options_routes_are_not_a_way_in(api: Api):
    assert api.client_for(None).options("/api/state").status_code == 401
    answer = api.client.options("/api/state")
    assert answer.status_code == 204
    assert "GET" in answer.headers["allow"]


def test_health_answers_head_as_get(api: Api):
    for path in ("/health/live", "/health/ready"):
        answer = api.client_for(None).head(path)
        assert (answer.status_code, answer.content) == (200, b"")


def test_an_error_names_the_limit_the_methods_and_the_missing_field(api: Api):
    large = api.client.post("/v1/completions", content=b" " * (2 * 1024 * 1024 + 1))
    assert "2097152 bytes" in large.json()["error"]["message"]
    wrong = api.client.post("/api/state")
    assert "GET" in wrong.json()["detail"]
    assert "GET" in wrong.headers["allow"]
    missing = api.client.post("/v1/chat/completions", json={"model": MODEL}).json()["error"]
    assert missing["param"] == "messages"
    inner = {"model": MODEL, "messages": [{"content": "x"}]}
    missing = api.client.post("/v1/chat/completions", json=inner).json()["error"]
    assert missing["param"] == "messages[0].role"


@pytest.mark.parametrize(
    ("method", "path", "content", "status", "code"),
    [
        ("GET", "/v1/nothing", None, 404, "not_found"),
        ("GET", "/v1/chat/completions", None, 405, "method_not_allowed"),
        ("POST", "/v1/chat/completions", b"{broken", 400, "invalid_json"),
        ("POST", "/v1/chat/completions", b"", 400, "invalid_value"),
        ("POST", "/v1/chat/completions", b"[]", 400, "invalid_value"),
        ("POST", "/v1/chat/completions", b'"x"', 400, "invalid_value"),
        ("POST", "/v1/chat/completions", b"null", 400, "invalid_value"),
        ("POST", "/v1/chat/completions", b"\xff\xfe", 400, "invalid_json"),
        ("POST", "/v1/chat/completions", b'{"temperature": NaN}', 400, "invalid_json"),
        ("POST", "/v1/chat/completions", b'{"n": 1e999}', 400, "invalid_json"),
        ("POST", "/v1/chat/completions", b"[" * 100_000, 400, "invalid_value"),
        ("POST", "/v1/chat/completions", b'{"a": ' * 100_000, 400, "invalid_value"),
        ("POST", "/v1/chat/completions", b" " * (2 * 1024 * 1024 + 1), 413, "request_too_large"),
        ("GET", "/api/nothing", None, 404, "not_found"),
        ("POST", "/api/state", None, 405, "method_not_allowed"),
        ("PUT", "/api/controller", b"{broken", 400, "invalid_json"),
        ("PUT", "/api/controller", b'{"mode": "fast"}', 400, "invalid_value"),
        ("PUT", "/api/controller", b'{"mode": "off", "x": 1}', 400, "invalid_value"),
        ("GET", "/api/decisions?limit=0", None, 400, "invalid_value"),
        ("GET", "/api/decisions?limit=x", None, 400, "invalid_value"),
        ("GET", "/api/what-if", None, 400, "invalid_value"),
    ],
)
def test_bad_requests_get_a_clear_error_in_the_shape_of_the_path(
    api: Api, method: str, path: str, content: bytes | None, status: int, code: str
):
    headers = {"Content-Type": "application/json"}
    response = api.client.request(method, path, content=content, headers=headers)
    assert response.status_code == status, response.text
    assert len(response.content) < 2000
    if path.startswith("/v1"):
        error = response.json()["error"]
        assert set(error) == {"message", "type", "param", "code"}
    else:
        error = response.json()
        assert response.headers["content-type"] == "application/problem+json"
        assert error["status"] == status
    assert error["code"] == code
    assert "Traceback" not in response.text
    assert "app.inference" not in response.text


@pytest.mark.parametrize(
    ("content", "param", "says"),
    [
        ('{"model": "m", "temperature": NaN}', "temperature", "finite"),
        ('{"messages": [{"x": -Infinity}]}', "messages[0].x", "finite"),
        ('{"logit_bias": {"50256": 1e400}}', 'logit_bias["50256"]', "finite"),
        ('{"model": "\\ud800"}', "model", "invalid Unicode"),
        ('{"messages": [{"content": "a\\udc00"}]}', "messages[0].content", "invalid Unicode"),
        ('{"a": {"\\ud800": 1}}', "a", "invalid Unicode"),
        ('{"model": "\\ud800xxxxxx", ', None, "invalid Unicode"),
        ('{"model": "\\ud83d\\ude00", ', None, "truncated"),
    ],
)
def test_json_that_cannot_be_taken_names_the_value_and_what_is_wrong(
    api: Api, content: str, param: str | None, says: str
):
    headers = {"Content-Type": "application/json"}
    answer = api.client.post("/v1/chat/completions", content=content, headers=headers)
    error = answer.json()["error"]
    assert (answer.status_code, error["code"], error["param"]) == (400, "invalid_json", param)
    assert says in error["message"]
    assert "[...]" not in error["message"]


def test_a_wrong_value_under_a_key_names_the_field_that_holds_it(api: Api):
    body = {"model": MODEL, "messages": [], "logit_bias": {"5": 1000}}
    error = api.client.post("/v1/chat/completions", json=body).json()["error"]
    assert error["param"] == "logit_bias"
    assert error["message"] == "logit_bias: a value in it is wrong: Expected `float` <= 100.0"
    assert validation_error("Expected `str` - at `key` in `$.metadata`").param == "metadata"
    assert validation_error("Expected `int` - at `$[...]`").param is None


def test_an_error_echoes_little_of_the_input(api: Api):
    body = {"model": "m" * 100_000, "messages": []}
    assert len(api.client.post("/v1/chat/completions", json=body).content) < 1000
    body = {"model": MODEL, "messages": [{"role": "r" * 100_000, "content": "x"}]}
    assert len(api.client.post("/v1/chat/completions", json=body).content) < 1000


def test_messages_lose_paths_addresses_and_control_characters():
    text = clean("Failed in /usr/lib/python3/x.py at 0x7f00aa11bb22\nline2 " + "z" * 900)
    assert text.startswith("Failed in [path] at [address] line2")
    assert len(text) == 500
    assert clean("GET /api/drafters lists them, /v1/models too") == (
        "GET /api/drafters lists them, /v1/models too"
    )
    assert clean("in /apiary/x.py") == "in [path]"
    assert clean("/home/anna/my-head/config.json: taps. Take /x/y.") == (
        "[path]/config.json: taps. Take [path]"
    )
    assert clean("Lacks /a/b/model.safetensors.") == "Lacks [path]/model.safetensors."
    assert clean("use https://example.org/a/b") == "use https://example.org/a/b"


def test_a_validation_error_names_its_path():
    error = validation_error("Expected `int` >= 1 - at `$.messages[0].n`")
    assert error.param == "messages[0].n"
    assert error.message == "messages[0].n: Expected `int` >= 1"


@pytest.mark.parametrize(
    ("origin", "allowed"),
    [
        (None, True),
        ("http://api.local:8000", True),
        ("HTTP://API.local:8000", True),
        ("http://console.local", True),
        ("http://api.local:8001", False),
        ("https://evil.example", False),
        ("null", False),
        ("", False),
        ("http://[", False),
    ],
)
def test_origins(origin: str | None, allowed: bool):
    headers = {b"host": "api.local:8000"}
    if origin is not None:
        headers[b"origin"] = origin
    assert origin_allowed(headers, {"http://console.local"}) is allowed


def test_the_schema_is_valid_json_and_needs_a_key(api: Api):
    assert api.client_for(None).get("/schema/openapi.json").status_code == 401
    response = api.client_for(api.key("inference")).get("/schema/openapi.json")
    paths = response.json()["paths"]
    for path in ("/v1/chat/completions", "/api/state", "/api/controller", "/health/ready"):
        assert path in paths
    assert "cdn" not in json.dumps(response.json())


def test_a_malformed_host_header_is_refused(api: Api):
    assert api.client.get("/health/live", headers={"Host": "a b"}).status_code == 400
