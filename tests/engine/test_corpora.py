"""The doors for corpora and for parameters of drafters, over real holders of both."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from transformers import PreTrainedTokenizerFast

from engine.corpora import corpus_states, drop_corpus, encode_corpus, put_corpus
from engine.drafters.corpus import CorpusHolder
from engine.drafters.parameters import Parameter, Tunable
from engine.errors import RequestError
from engine.text import Text
from engine.tuning import parameter_states, tune
from engine.wire import MAX_CORPUS_TOKENS, Call, EncodeCorpus, PutCorpus, SetDrafter, ToEngine
from tests.engine.corpus_holder import Shelves, Tuned
from tests.engine.test_text import byte_level, sentencepiece

VOCABULARY = 100


def part(name: str, *sequences: list[int], first: bool = True) -> PutCorpus:
    tokens = np.array([token for ids in sequences for token in ids], "<i4").tobytes()
    return PutCorpus(name, first, tuple(map(len, sequences)), tokens)


def test_only_a_drafter_with_the_methods_takes_corpora_or_parameters() -> None:
    assert isinstance(Shelves(), CorpusHolder)
    assert isinstance(Tuned(), Tunable)
    assert not isinstance(object(), CorpusHolder)
    assert not isinstance(Shelves(), Tunable)


def test_parts_come_to_the_drafter_as_the_sequences_that_were_sent() -> None:
    shelves = Shelves()
    drafters = [object(), shelves]
    put_corpus(drafters, part("a", [1, 2], [3]), VOCABULARY)
    put_corpus(drafters, part("a", [4, 5, 6], first=False), VOCABULARY)
    assert shelves.held["a"].sequences == [[1, 2], [3], [4, 5, 6]]
    assert corpus_states(drafters)["corpora"] == {
        "a": {"sequences": 3, "tokens": 6, "indexed": 6, "bytes": 24, "failed": None}
    }
    put_corpus(drafters, part("a", [7]), VOCABULARY)
    assert shelves.held["a"].sequences == [[7]]
    drop_corpus(drafters, "a")
    drop_corpus(drafters, "never there")
    assert corpus_states(drafters) == {"corpora": {}}


@pytest.mark.parametrize(
    ("body", "param", "says"),
    [
        (part("", [1]), "name", "1 to 64"),
        (part("n" * 65, [1]), "name", "1 to 64"),
        (part("a"), "tokens", "1 to"),
        (part("a", [], [1]), "tokens", "as many as lengths says"),
        (PutCorpus("a", True, (2,), b"\0" * 4), "tokens", "as many as lengths says"),
        (PutCorpus("a", True, (3, -1), b"\0" * 8), "tokens", "as many as lengths says"),
        (PutCorpus("a", True, (1,), b"\0" * 5), "tokens", "int32"),
        (part("a", [1] * (MAX_CORPUS_TOKENS + 1)), "tokens", str(MAX_CORPUS_TOKENS)),
        (part("a", [1, 2], [3, 100, 5]), "tokens", "token 3 is 100"),
        (part("a", [1, -1]), "tokens", "token 1 is -1; the model's ids are 0 to 99"),
    ],
)
def test_a_part_that_is_out_of_bounds_is_refused_with_its_place(
    body: PutCorpus, param: str, says: str
) -> None:
    shelves = Shelves()
    with pytest.raises(RequestError, match=says) as refused:
        put_corpus([shelves], body, VOCABULARY)
    assert (refused.value.code, refused.value.param) == ("invalid_request", param)
    assert not shelves.held


def test_a_full_memory_and_a_server_without_such_a_drafter_are_refusals() -> None:
    with pytest.raises(RequestError, match="memory is full") as full:
        put_corpus([Shelves(room=2)], part("a", [1, 2, 3]), VOCABULARY)
    with pytest.raises(RequestError, match="no drafter") as none:
        put_corpus([object()], part("a", [1]), VOCABULARY)
    assert full.value.code == none.value.code == "corpus_refused"
    assert drop_corpus([object()], "a") == {}
    assert corpus_states([object()]) == {"corpora": {}}


def test_texts_are_encoded_one_by_one_and_bounded() -> None:
    def letters(text: str) -> list[int]:
        return [ord(letter) for letter in text]

    reply = encode_corpus(letters, EncodeCorpus(("ab", "", "c")))
    assert reply["lengths"] == [2, 0, 1]
    tokens = reply["tokens"]
    assert isinstance(tokens, bytes)
    assert np.frombuffer(tokens, "<i4").tolist() == [97, 98, 99]
    with pytest.raises(RequestError, match="at most 16384 characters"):
        encode_corpus(letters, EncodeCorpus(("x" * 16_000, "x" * 385)))


def test_encoding_aside_gives_the_ids_of_encoding_and_a_fingerprint_tells_tokenizers_apart() -> (
    None
):
    texts = [
        Text(PreTrainedTokenizerFast(tokenizer_object=make()))
        for make in (byte_level, sentencepiece, byte_level)
    ]
    for text in texts:
        for written in ("", "one the<end>two", "für Elise\n\n  x = 1"):
            assert text.encode_aside(written) == text.encode(written)
    prints = [text.fingerprint() for text in texts]
    assert prints[0] == prints[2] != prints[1]


# --- parameters -----------------------------------------------------------------------------------


def test_a_change_of_several_parameters_is_taken_as_a_whole() -> None:
    tuned = Tuned()
    tune("t", tuned, {"least": 5, "most": 6, "share": 1, "recycling": True})
    assert tuned.values == {"least": 5, "most": 6, "share": 1.0, "recycling": True}
    assert isinstance(tuned.values["share"], float)


@pytest.mark.parametrize(
    ("changes", "code", "param", "says"),
    [
        ({"size": 1}, "unknown_parameter", "parameters.size", "least, most, share, recycling"),
        ({"share": 0.1, "most": 9}, "parameter_out_of_range", "parameters.most", "1 and 8"),
        ({"share": 0.1, "most": 1.5}, "parameter_out_of_range", "parameters.most", "whole"),
        ({"share": float("nan")}, "parameter_out_of_range", "parameters.share", "0.0 and 1.0"),
        ({"share": float("inf")}, "parameter_out_of_range", "parameters.share", "0.0 and 1.0"),
        ({"share": True}, "parameter_out_of_range", "parameters.share", "0.0 and 1.0"),
        ({"recycling": 1}, "parameter_out_of_range", "parameters.recycling", "true or false"),
        ({"share": 0.1, "least": 8}, "bad_setting", "parameters", "raise most too"),
    ],
)
def test_a_wrong_change_names_what_is_known_or_the_range_and_changes_nothing(
    changes: dict[str, Any], code: str, param: str, says: str
) -> None:
    tuned = Tuned()
    before = dict(tuned.values)
    with pytest.raises(RequestError, match=says) as refused:
        tune("t", tuned, changes)
    assert (refused.value.code, refused.value.param) == (code, param)
    assert tuned.values == before


def test_a_drafter_without_parameters_says_so() -> None:
    tune("t", object(), {})
    assert parameter_states(object()) == ()
    with pytest.raises(RequestError, match="drafter t has no parameters"):
        tune("t", object(), {"x": 1})


@given(st.one_of(st.booleans(), st.integers(), st.floats()))
def test_what_a_parameter_lets_through_is_of_its_kind_and_in_its_range(value: Any) -> None:
    for parameter in (
        Parameter("i", "int", -3, 3, 0, ""),
        Parameter("f", "float", -0.5, 0.5, 0.0, ""),
        Parameter("b", "bool", False, True, False, ""),
    ):
        try:
            passed = parameter.check(value)
        except ValueError:
            continue
        assert type(passed).__name__ == parameter.kind
        assert parameter.low <= passed <= parameter.high
        assert passed == value


def test_a_change_survives_the_wire_and_later_ones_add_to_it() -> None:
    first = SetDrafter("t", False, {"least": 3, "share": 0.25})
    later = SetDrafter("t", None, {"share": 0.5, "recycling": True})
    frame = msgspec.msgpack.encode(Call(1, later.after(first)))
    call = msgspec.msgpack.decode(frame, type=ToEngine)
    assert isinstance(call, Call)
    assert call.body == SetDrafter("t", False, {"least": 3, "share": 0.5, "recycling": True})
    assert later.after(None) == later
