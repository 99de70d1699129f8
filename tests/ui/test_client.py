"""The console's client against the live server and against none."""

from __future__ import annotations

import time
from collections.abc import Generator

import httpx
import pytest

from tests import measured
from tests.conftest import Server, free_port
from ui.client import ApiError, Client


@pytest.fixture
def client(server: Server) -> Generator[Client]:
    made = Client(server.url, server.admin_key)
    yield made
    made.set_controller({"mode": "auto"})


def test_the_state_names_model_engine_and_controller(client: Client) -> None:
    state = client.state()
    assert state["engine"]["state"] == "ready"
    assert state["model"]["name"]
    assert state["controller"]["mode"] in ("auto", "pinned", "off")


def test_a_pinned_setting_comes_back_in_the_state(client: Client) -> None:
    client.set_controller({"mode": "pinned", "drafter": "ngram", "draft_length": 3})
    setting = client.state()["controller"]
    assert (setting["mode"], setting["drafter"], setting["draft_length"]) == ("pinned", "ngram", 3)


def test_a_draft_length_out_of_range_is_refused_with_the_limit(client: Client) -> None:
    with pytest.raises(ApiError) as refused:
        client.set_controller({"mode": "pinned", "drafter": "ngram", "draft_length": 1000})
    assert refused.value.status == 400
    assert "draft_length" in refused.value.message


def test_what_if_compares_plain_decoding_with_drafts(client: Client) -> None:
    found = client.what_if(2, 256)
    assert {"none", "ngram"} <= {item["drafter"] for item in found["candidates"]}
    assert found["best"]["goodput"] > 0


def test_a_report_serves_for_a_while_and_is_asked_again_after_a_change(client: Client) -> None:
    first = client.report()
    assert first["acceptance"] is not None
    assert client.report() is first
    client.set_controller({"mode": "off"})
    assert client.report() is not first


def test_a_benchmark_is_listed_opened_shown_as_a_page_and_removed(
    client: Client, server: Server
) -> None:
    address = f"{server.url}/api/benchmarks"
    made = httpx.post(address, json=measured.body(), headers=server.admin, trust_env=False)
    name = made.json()["id"]
    assert name in [one["id"] for one in client.benchmarks()]
    assert client.benchmark(name)["rows"] == measured.rows()
    assert client.benchmark_page(name).startswith("<!doctype html>")
    client.remove_benchmark(name)
    with pytest.raises(ApiError) as unknown:
        client.benchmark(name)
    assert unknown.value.status == 404


def test_decisions_come_newest_first(client: Client) -> None:
    times = [item["time"] for item in client.decisions(20)["decisions"]]
    assert times == sorted(times, reverse=True)


def test_tickets_are_different_each_time(client: Client) -> None:
    assert client.ticket() != client.ticket()


def test_a_wrong_key_is_refused(server: Server) -> None:
    with pytest.raises(ApiError) as refused:
        Client(server.url, "x" * 40).state()
    assert refused.value.status == 401
    assert refused.value.refused


def test_a_key_without_admin_scope_is_refused(server: Server) -> None:
    with pytest.raises(ApiError) as refused:
        Client(server.url, server.inference_key).state()
    assert refused.value.status == 403


def test_a_server_that_is_away_is_one_clear_error_and_quick() -> None:
    client = Client(f"http://127.0.0.1:{free_port()}", "x" * 40)
    begun = time.monotonic()
    with pytest.raises(ApiError, match="No API answers") as error:
        client.state()
    assert error.value.unreachable
    assert time.monotonic() - begun < 3


def test_one_answer_serves_all_tabs_for_a_moment(server: Server) -> None:
    client = Client(server.url, server.admin_key, fresh_s=30)
    first = client.state()
    assert client.state() is first
    client.forget_state()
    assert client.state() is not first


def test_a_corpus_is_put_listed_and_removed(client: Client) -> None:
    put = client.put_corpus("ui.test", "für\n".encode(), "text/plain")
    assert (put["documents"], put["bytes"]) == (1, 5)
    assert "ui.test" in [corpus["name"] for corpus in client.corpora()["corpora"]]
    client.remove_corpus("ui.test")
    assert "ui.test" not in [corpus["name"] for corpus in client.corpora()["corpora"]]
    with pytest.raises(ApiError, match=r"no corpus 'ui\.test'"):
        client.remove_corpus("ui.test")


def test_parameters_of_a_drafter_are_changed_without_its_switch(client: Client) -> None:
    client.set_drafter("ngram", parameters={"max_n": 4})
    found = next(one for one in client.drafters() if one["name"] == "ngram")
    assert {p["name"]: p["value"] for p in found["parameters"]}["max_n"] == 4
    assert found["enabled"]
    client.set_drafter("ngram", enabled=True, parameters={"max_n": 5})


def test_a_drafter_without_a_model_cannot_be_loaded(client: Client) -> None:
    with pytest.raises(ApiError) as refused:
        client.load_drafter("ngram", "auto", dry_run=True)
    assert refused.value.code == "drafter_not_loadable"
    with pytest.raises(ApiError) as refused:
        client.unload_drafter("eagle")
    assert (refused.value.status, refused.value.code) == (404, "unknown_drafter")
