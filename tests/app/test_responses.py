"""POST /v1/responses and the WebSocket, with the stock client and by hand."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

import openai
import pytest
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import ClientConnection, connect

from app.inference.limits import MAX_BODY_BYTES
from app.security.tickets import Tickets
from app.serve import WS_MESSAGE_BYTES
from tests.app.conftest import MODEL, Api, eventually

ORDER = [
    "response.created",
    "response.output_item.added",
    "response.content_part.added",
    "response.output_text.delta",
    "response.output_text.done",
    "response.content_part.done",
    "response.output_item.done",
]


@contextmanager
def socket(api: Api, key: str | None = None, **options: Any) -> Generator[ClientConnection]:
    headers = {} if key == "" else {"Authorization": f"Bearer {key or api.admin_key}"}
    url = api.url.replace("http://", "ws://") + "/v1/responses"
    with connect(url, additional_headers=headers, proxy=None, **options) as connection:
        yield connection


def send(connection: ClientConnection, type: str, **fields: Any) -> None:
    connection.send(json.dumps({"type": type, **fields}))


def create(connection: ClientConnection, input: Any, **fields: Any) -> None:
    send(connection, "response.create", model=MODEL, input=input, **fields)


def receive(connection: ClientConnection) -> dict[str, Any]:
    return json.loads(connection.recv(timeout=20))


def until_end(connection: ClientConnection) -> list[dict[str, Any]]:
    """Events up to the one that ends a response, or an error."""
    events: list[dict[str, Any]] = []
    while True:
        events.append(receive(connection))
        kind = events[-1]["type"].removeprefix("response.")
        if kind in ("completed", "incomplete", "failed", "error"):
            return events


# --- HTTP ---------------------------------------------------------------------------------------


def test_the_stock_client_gets_a_response(api: Api):
    answer = api.openai().responses.create(model=MODEL, input="hello", max_output_tokens=4)
    assert answer.output_text == "w0 w1 w2 w3 "
    assert answer.status == "incomplete"
    assert answer.incomplete_details is not None
    assert answer.incomplete_details.reason == "max_output_tokens"
    assert answer.usage is not None
    assert answer.usage.output_tokens == 4
    assert answer.metrics["speculative_decoding"]["num_spec_steps"] == 2  # type: ignore[attr-defined]


def test_the_stock_client_streams_a_response(api: Api):
    with api.openai().responses.stream(model=MODEL, input="hello") as stream:
        kinds = [event.type for event in stream]
        final = stream.get_final_response()
    assert list(dict.fromkeys(kinds)) == [*ORDER, "response.completed"]
    assert final.output_text.startswith("w0 w1 ")


def test_previous_response_id_continues_a_chat(api: Api):
    client = api.openai()
    first = client.responses.create(model=MODEL, input="one", max_output_tokens=2)
    second = client.responses.create(
        model=MODEL, input="echo", instructions="be", previous_response_id=first.id
    )
    assert second.output_text == "[system:be] [user:one] [assistant:w0 w1 ] [user:echo] "
    third = client.responses.create(model=MODEL, input="echo", previous_response_id=second.id)
    assert not third.output_text.startswith("[system:be]")


def test_a_response_of_another_key_is_not_found(api: Api):
    first = api.openai().responses.create(model=MODEL, input="one")
    other = api.openai(api.key("inference"))
    with pytest.raises(openai.BadRequestError) as caught:
        other.responses.create(model=MODEL, input="two", previous_response_id=first.id)
    assert caught.value.code == "previous_response_not_found"


def test_a_response_that_was_not_stored_cannot_be_continued(api: Api):
    client = api.openai()
    first = client.responses.create(model=MODEL, input="one", store=False)
    with pytest.raises(openai.BadRequestError):
        client.responses.create(model=MODEL, input="two", previous_response_id=first.id)


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"input": ""}, "input"),
        ({"input": []}, "input"),
        ({"input": [{"role": "user", "content": [{"type": "input_image"}]}]}, None),
        ({"input": [{"type": "function_call_output", "call_id": "x"}]}, "input[0].type"),
        ({"tools": [{"type": "web_search"}]}, "tools"),
        ({"background": True}, "background"),
        ({"text": {"format": {"type": "xml"}}}, "text.format.type"),
        ({"text": {"format": {"type": "json_schema"}}}, "text.format.schema"),
        ({"text": {"verbosity": "low"}}, "text.verbosity"),
        ({"include": ["file_search_call.results"]}, "include[0]"),
        ({"top_logprobs": 3}, "top_logprobs"),
        ({"max_tokens": 4}, "max_tokens"),
        ({"n": 2}, "n"),
        ({"max_output_tokens": 0}, "max_output_tokens"),
        ({"prompt": {"id": "p"}}, "prompt"),
    ],
)
def test_bad_response_requests_are_refused(api: Api, fields: dict[str, Any], param: str | None):
    body = {"model": MODEL, "input": "x", **fields}
    response = api.client.post("/v1/responses", json=body)
    assert response.status_code == 400, response.text
    assert response.json()["error"]["param"] == (param or "input[0].content[0].type")


def test_an_error_of_a_plain_response_is_an_http_error(api: Api):
    body = {"model": MODEL, "input": "boom"}
    assert api.client.post("/v1/responses", json=body).status_code == 500
    streamed = api.client.post("/v1/responses", json=body | {"stream": True})
    assert "event: response.failed\n" in streamed.text


# --- WebSocket ----------------------------------------------------------------------------------


def test_the_stock_client_holds_a_chat_of_several_turns_over_one_socket(api: Api):
    with api.openai().responses.connect() as connection:
        previous: str | None = None
        for turn in ("one", "two", "echo"):
            more: dict[str, Any] = {"previous_response_id": previous} if previous else {}
            connection.response.create(model=MODEL, input=turn, **more)
            text = ""
            for event in connection:
                if event.type == "response.output_text.delta":
                    text += event.delta
                elif event.type == "response.completed":
                    previous = event.response.id
                    break
    assert text.startswith("[user:one] [assistant:w0 ")
    assert text.endswith("[user:echo] ")


def test_events_come_in_order_and_numbered(api: Api):
    with socket(api) as connection:
        create(connection, "hello", x_spec=True)
        events = until_end(connection)
    kinds = [event["type"] for event in events]
    assert list(dict.fromkeys(kinds)) == [*ORDER, "response.completed"]
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    delta = next(event for event in events if event["type"] == "response.output_text.delta")
    assert delta["x_spec"]["pieces"][0] == {"token": 0, "text": "w0 ", "kind": "accepted"}
    assert events[-1]["response"]["metrics"]["timing"]["queue_ms"] == 0.1


def test_a_turn_takes_every_sampling_parameter(api: Api):
    include = ["message.output_text.logprobs"]
    with socket(api) as connection:
        create(connection, "sampling", min_p=0.25, logit_bias={"5": -100}, include=include)
        events = until_end(connection)
    part = events[-1]["response"]["output"][0]["content"][0]
    sampling = json.loads(part["text"])
    assert (sampling["min_p"], sampling["logit_bias"]) == (0.25, {"5": -100.0})
    assert part["logprobs"] == [one for e in events[3:-4] for one in e["logprobs"]]
    assert [entry["logprob"] for entry in part["logprobs"]] == [-1.5]


def test_cancel_ends_the_running_response_and_keeps_its_text(api: Api):
    with socket(api) as connection:
        create(connection, "hang")
        created = receive(connection)["response"]["id"]
        send(connection, "response.cancel", response_id="resp_other")
        send(connection, "response.cancel", response_id=7)
        while (refused := receive(connection))["type"] != "error":
            pass
        assert (refused["code"], refused["param"]) == ("response_not_found", "response_id")
        assert receive(connection)["code"] == "invalid_value"
        send(connection, "response.cancel", response_id=created)
        end = until_end(connection)[-1]
        assert end["type"] == "response.incomplete"
        assert end["response"]["incomplete_details"] == {"reason": "cancelled"}
        create(connection, "echo", previous_response_id=created)
        text = until_end(connection)[-1]["response"]["output"][0]["content"][0]["text"]
    assert text == "[user:hang] [assistant:w0 w1 ] [user:echo] "
    api.idle()


def test_cancel_is_refused_when_nothing_runs(api: Api):
    with socket(api) as connection:
        send(connection, "response.cancel")
        assert receive(connection)["code"] == "response_not_found"


def test_cancel_without_an_id_ends_a_response_that_still_waits(api: Api):
    with socket(api) as connection:
        create(connection, "queued")
        eventually(lambda: api.service.engine.active)
        send(connection, "response.cancel")
        events = until_end(connection)
    assert events[0]["type"] == "response.created"
    assert events[-1]["type"] == "response.incomplete"
    api.idle()


def test_closing_the_socket_cancels_what_runs(api: Api):
    with socket(api) as connection:
        create(connection, "hang")
        receive(connection)
        assert api.service.engine.active == 1
    api.idle()


@pytest.mark.parametrize(
    ("message", "code"),
    [
        ("{nonsense", "invalid_json"),
        ("[]", "unknown_event"),
        ('{"type": "session.update"}', "unknown_event"),
        ('{"type": "response.create", "input": "x"}', "invalid_value"),
        (
            json.dumps({"type": "response.create", "model": "other", "input": "x"}),
            "model_not_found",
        ),
        ("[" * 100_000, "invalid_value"),
    ],
)
def test_a_bad_event_is_answered_and_the_socket_lives_on(api: Api, message: str, code: str):
    with socket(api) as connection:
        connection.send(message)
        error = receive(connection)
        assert error["type"] == "error"
        assert error["error"]["code"] == code
        create(connection, "hello")
        assert until_end(connection)[-1]["type"] == "response.completed"


def test_an_engine_error_within_an_answer_is_response_failed(api: Api):
    with socket(api) as connection:
        create(connection, "boom")
        end = until_end(connection)[-1]
        assert end["type"] == "response.failed"
        assert end["response"]["error"]["code"] == "internal"
        create(connection, "refuse queue_full")
        assert until_end(connection)[-1]["error"]["code"] == "queue_full"


def test_turns_wait_for_each_other_up_to_a_bound(api: Api):
    with socket(api) as connection:
        for _ in range(12):
            create(connection, "slow", max_output_tokens=4)
        ends = [until_end(connection)[-1] for _ in range(12)]
    refused = [end for end in ends if end["type"] == "error"]
    assert {end["error"]["code"] for end in refused} == {"too_many_responses"}
    assert 1 <= len(refused) <= 4


def test_a_stored_false_response_is_known_to_its_socket_only(api: Api):
    with socket(api) as one, socket(api) as two:
        create(one, "hello", store=False)
        first = until_end(one)[-1]["response"]["id"]
        create(two, "echo", previous_response_id=first)
        assert until_end(two)[-1]["error"]["code"] == "previous_response_not_found"
        create(one, "echo", previous_response_id=first)
        assert until_end(one)[-1]["type"] == "response.completed"


def test_a_large_event_is_refused_and_a_larger_message_closes_the_socket(api: Api):
    with socket(api) as connection:
        connection.send("x" * (MAX_BODY_BYTES + 1))
        assert receive(connection)["error"]["code"] == "request_too_large"
        with contextlib.suppress(ConnectionClosed):
            connection.send("x" * (WS_MESSAGE_BYTES + 1))
        with pytest.raises(ConnectionClosed) as caught:
            connection.recv(timeout=20)
        assert caught.value.rcvd is not None
        assert caught.value.rcvd.code == 1009


def test_a_client_that_does_not_read_is_cut_off(api: Api, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("app.inference.response_socket.SLOW_CLIENT_S", 0.5)
    monkeypatch.setattr("app.inference.response_socket.CLOSE_S", 20.0)  # until it reads again
    # Compressed, the whole answer would fit into the buffers of the two sockets.
    with socket(api, max_queue=4, compression=None) as connection:
        create(connection, "hello", max_output_tokens=200_000, x_spec=True)
        receive(connection)
        eventually(lambda: api.service.engine.active)
        api.idle()
        time.sleep(2)  # the engine may be done before the client counts as slow
        with pytest.raises(ConnectionClosed) as caught:
            until_end(connection)
    assert caught.value.rcvd is not None
    assert caught.value.rcvd.code == 1008


@pytest.mark.parametrize("key", ["", "pl-00000000-wrong"])
def test_a_handshake_without_a_valid_key_is_401(api: Api, key: str):
    with pytest.raises(InvalidStatus) as caught, socket(api, key):
        pass
    assert caught.value.response.status_code == 401
    assert json.loads(caught.value.response.body)["error"]["code"] == "invalid_api_key"


def test_a_handshake_without_the_scope_is_403(api: Api):
    with pytest.raises(InvalidStatus) as caught, socket(api, api.key("metrics:read")):
        pass
    assert caught.value.response.status_code == 403


def test_a_foreign_origin_is_refused_and_the_console_is_not(api: Api):
    with pytest.raises(InvalidStatus) as caught, socket(api, origin="https://evil.example"):
        pass
    assert caught.value.response.status_code == 403
    for origin in (api.url, "http://127.0.0.1:8501", "http://localhost:8501"):
        with socket(api, origin=origin) as connection:
            create(connection, "hello")
            assert until_end(connection)[-1]["type"] == "response.completed"


def test_a_ticket_opens_one_socket_and_is_not_echoed(api: Api):
    key = api.key("inference")
    ticket = api.client_for(key).post("/api/tickets").json()["ticket"]
    protocols: Any = ["realtime", f"openai-insecure-api-key.{ticket}"]
    with socket(api, "", subprotocols=protocols) as connection:
        assert connection.subprotocol == "realtime"
        create(connection, "hello")
        assert until_end(connection)[-1]["type"] == "response.completed"
    with pytest.raises(InvalidStatus) as caught, socket(api, "", subprotocols=protocols):
        pass
    assert caught.value.response.status_code == 401


def closed_with(connection: ClientConnection) -> int | None:
    with pytest.raises(ConnectionClosed) as caught:
        until_end(connection)
    return caught.value.rcvd.code if caught.value.rcvd else None


def test_a_revoked_key_closes_its_socket_at_the_next_turn(api: Api):
    made = api.client.post("/api/keys", json={"name": "gone", "scopes": ["inference"]}).json()
    with socket(api, made["secret"]) as connection:
        create(connection, "hello")
        assert until_end(connection)[-1]["type"] == "response.completed"
        api.client.delete(f"/api/keys/{made['id']}")
        create(connection, "hello")
        assert closed_with(connection) == 4401


def test_an_expired_key_closes_its_socket_at_the_next_turn(api: Api):
    body = {"name": "short", "scopes": ["inference"], "expires_at": time.time() + 1.5}
    key = api.client.post("/api/keys", json=body).json()["secret"]
    with socket(api, key) as connection:
        create(connection, "hello")
        assert until_end(connection)[-1]["type"] == "response.completed"
        time.sleep(max(0.0, body["expires_at"] - time.time()))
        create(connection, "hello")
        assert closed_with(connection) == 4401


def test_a_ticket_of_a_revoked_key_is_worth_nothing(api: Api):
    made = api.client.post("/api/keys", json={"name": "gone", "scopes": ["inference"]}).json()
    ticket = api.client_for(made["secret"]).post("/api/tickets").json()["ticket"]
    api.client.delete(f"/api/keys/{made['id']}")
    protocols: Any = ["realtime", f"openai-insecure-api-key.{ticket}"]
    with pytest.raises(InvalidStatus) as caught, socket(api, "", subprotocols=protocols):
        pass
    assert caught.value.response.status_code == 401


def test_an_expired_ticket_is_worth_nothing():
    tickets = Tickets(lifetime_s=0)
    ticket, _ = tickets.issue(None)  # type: ignore[arg-type]
    assert tickets.redeem(ticket) is None


def test_an_error_of_the_engine_names_the_field_of_a_response_request(api: Api):
    body = {"model": MODEL, "input": "refuse context_length_exceeded", "max_output_tokens": 9}
    error = api.client.post("/v1/responses", json=body).json()["error"]
    assert error["param"] == "max_output_tokens"
    assert "(max_output_tokens)" in error["message"]
