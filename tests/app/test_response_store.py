"""The store of responses: owners, bounds, age."""

from __future__ import annotations

import pytest

from app.inference.response_store import ResponseStore
from engine.wire import Message


def chat(text: str) -> tuple[Message, ...]:
    return (Message("user", text),)


def test_only_the_owner_finds_a_response():
    store = ResponseStore()
    store.put("r1", "ada", chat("x"))
    assert store.get("r1", "ada") == chat("x")
    assert store.get("r1", "bob") is None
    assert store.get("r1", "bob", "ada") == chat("x")
    assert store.get("r2", "ada") is None


def test_the_least_recently_used_response_of_an_owner_goes_first():
    store = ResponseStore(max_per_owner=2)
    store.put("other", "bob", chat("x"))
    store.put("r1", "ada", chat("x"))
    store.put("r2", "ada", chat("x"))
    store.get("r1", "ada")
    store.put("r3", "ada", chat("x"))
    assert store.get("r2", "ada") is None
    assert store.get("r1", "ada")
    assert store.get("other", "bob")


def test_the_characters_kept_are_bounded():
    store = ResponseStore(max_chars=10)
    store.put("r1", "ada", chat("123456"))
    store.put("r2", "bob", chat("123456"))
    assert store.get("r1", "ada") is None
    assert store.get("r2", "bob")


def test_a_response_is_forgotten_after_an_hour(monkeypatch: pytest.MonkeyPatch):
    now = 1000.0
    monkeypatch.setattr("app.inference.response_store.time.monotonic", lambda: now)
    store = ResponseStore()
    store.put("r1", "ada", chat("x"))
    now += 3601
    assert store.get("r1", "ada") is None


def test_an_owner_can_be_forgotten():
    store = ResponseStore()
    store.put("r1", "socket-1", chat("x"))
    store.put("r2", "ada", chat("x"))
    store.forget("socket-1")
    assert store.get("r1", "socket-1") is None
    assert store.get("r2", "ada")
