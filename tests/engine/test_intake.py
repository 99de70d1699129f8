"""The door: every number is bounded, whatever way a request came; errors name field and range."""

from __future__ import annotations

from typing import Any

import pytest

from controller.contract import Wish
from engine.build import Target
from engine.errors import RequestError
from engine.intake import MAX_PROMPT_ALTERNATIVES, Intake, Limits
from engine.wire import Message, Sampling, Submit

CONTEXT = 8192


@pytest.fixture(scope="module")
def intake(target: Target) -> Intake:
    size = target.loaded.decoder.shape.vocabulary
    limits = Limits(CONTEXT, CONTEXT, 16, size)
    enabled = {"ngram": True, "suffix": False}
    return Intake(target.text, limits, target.loaded.stop_ids, enabled.get, lambda sampling: None)


def submit(**options: Any) -> Submit:
    fields = {"prompt": "hello", "priority": 0, "speculation": Wish()}
    given = {name: options.pop(name) for name in list(fields) if name in options}
    return Submit(id="a", sampling=Sampling(**options), **(fields | given))


@pytest.mark.parametrize(
    ("field", "value", "says"),
    [
        ("temperature", -0.1, "0.0 and 2.0"),
        ("temperature", 2.1, "0.0 and 2.0"),
        ("temperature", float("nan"), "0.0 and 2.0"),
        ("top_k", -1, "0 and"),
        ("top_p", 0.0, "more than 0"),
        ("top_p", 1.01, "0.0 and 1.0"),
        ("min_p", -0.01, "0.0 and 1.0"),
        ("min_p", 1.5, "0.0 and 1.0"),
        ("presence_penalty", 2.5, "-2.0 and 2.0"),
        ("frequency_penalty", -2.5, "-2.0 and 2.0"),
        ("frequency_penalty", float("inf"), "-2.0 and 2.0"),
        ("repetition_penalty", 0.0, "0.01 and 100.0"),
        ("repetition_penalty", 100.5, "0.01 and 100.0"),
        ("logit_bias", {5: 101.0}, "-100.0 and 100.0"),
        ("logit_bias", {5: float("nan")}, "-100.0 and 100.0"),
        ("logit_bias", {-1: 1.0}, "0 and 49151"),
        ("logit_bias", {49152: 1.0}, "0 and 49151"),
        ("logit_bias", dict.fromkeys(range(1025), 1.0), "at most 1024"),
        ("seed", 2**63, "between"),
        ("max_tokens", 0, "between 1"),
        ("max_tokens", CONTEXT, "Lower max_tokens"),
        ("min_tokens", -1, "between 0"),
        ("stop", ("",), "1 to 1024"),
        ("stop", ("x" * 1025,), "1 to 1024"),
        ("stop", ("x",) * 17, "at most 16"),
        ("stop_token_ids", (49152,), "0 and 49151"),
        ("stop_token_ids", (-1,), "0 and 49151"),
        ("stop_token_ids", (1,) * 65, "at most 64"),
        ("bad_words", ("",), "1 to 256"),
        ("bad_words", ("x" * 257,), "1 to 256"),
        ("bad_words", ("x",) * 65, "at most 64"),
        ("allowed_token_ids", (), "must not be empty"),
        ("allowed_token_ids", (49152,), "0 and 49151"),
        ("allowed_token_ids", (1,) * 49153, "at most 49152"),
        ("logprobs", -1, "0 and 20"),
        ("logprobs", 21, "0 and 20"),
        ("prompt_logprobs", 21, "0 and 20"),
        ("priority", 2**31, "between"),
        ("priority", -(2**31) - 1, "between"),
    ],
)
def test_out_of_range_values_are_refused_by_name(
    intake: Intake, field: str, value: Any, says: str
) -> None:
    with pytest.raises(RequestError) as caught:
        intake.request(submit(**{field: value}))
    assert caught.value.param == field
    assert field in caught.value.message
    assert says in caught.value.message


def test_min_tokens_must_fit_the_answer(intake: Intake) -> None:
    with pytest.raises(RequestError) as caught:
        intake.request(submit(min_tokens=11, max_tokens=10))
    assert caught.value.param == "min_tokens"
    assert "at most max_tokens, here 10" in caught.value.message
    with pytest.raises(RequestError):
        intake.request(submit(min_tokens=CONTEXT))
    assert intake.request(submit(min_tokens=10, max_tokens=10)).draw.min_tokens == 10


def test_prompt_log_probabilities_must_fit_one_message(target: Target) -> None:
    long = MAX_PROMPT_ALTERNATIVES // 21 + 1
    limits = Limits(2 * long, 2 * long, 16, target.loaded.decoder.shape.vocabulary)
    intake = Intake(target.text, limits, frozenset(), lambda name: True, lambda sampling: None)
    asked = Submit("a", Sampling(prompt_logprobs=20), prompt_ids=(5,) * long)
    with pytest.raises(RequestError, match="ask for fewer"):
        intake.request(asked)
    assert intake.request(Submit("a", Sampling(prompt_logprobs=19), prompt_ids=(5,) * long))


@pytest.mark.parametrize("field", ["prompt", "messages"])
def test_a_text_that_cannot_fit_is_refused_before_it_is_encoded(
    target: Target, field: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    context = 64
    limits = Limits(context, 2 * context, 16, target.loaded.decoder.shape.vocabulary)
    intake = Intake(target.text, limits, frozenset(), lambda name: True, lambda sampling: None)
    each = target.text.most_bytes
    assert each is not None

    def asked(size: int) -> Submit:
        given: Any = "x" * size
        if field == "messages":
            given = (Message("user", given),)
        return Submit("a", Sampling(), **{field: given})

    for size in (context * each // 2, context * each + 1):
        with pytest.raises(RequestError) as caught:
            intake.request(asked(size))
        assert (caught.value.code, caught.value.param) == ("context_length_exceeded", field)
        assert f"limit is {context} tokens for prompt and answer together" in caught.value.message
    monkeypatch.setattr(target.text, "encode", lambda text: pytest.fail("it was encoded"))
    monkeypatch.setattr(target.text, "encode_whole", lambda text: pytest.fail("it was encoded"))
    with pytest.raises(RequestError, match=f"bytes, more than {context * each}"):
        intake.request(asked(context * each + 1))


def test_a_text_of_the_longest_tokens_is_taken(target: Target) -> None:
    spell = target.text.spell
    longest = max(range(49_152), key=spell.length)
    prompt = spell(longest)[0] * 10
    count = len(target.text.encode(prompt))
    limits = Limits(count + 1, count + 1, 16, 49_152)
    intake = Intake(target.text, limits, frozenset(), lambda name: True, lambda sampling: None)
    assert intake.request(Submit("a", Sampling(), prompt=prompt)).prompt_length == count


def test_the_widest_values_are_taken(intake: Intake, target: Target) -> None:
    request = intake.request(
        submit(
            temperature=2.0,
            min_p=1.0,
            presence_penalty=-2.0,
            frequency_penalty=2.0,
            repetition_penalty=100.0,
            logit_bias={0: -100.0, 49151: 100.0},
            seed=-(2**63),
            min_tokens=3,
            stop_token_ids=(7,),
            bad_words=("secret",),
            allowed_token_ids=(1, 2, 1),
            logprobs=0,
            prompt_logprobs=20,
            priority=2**31 - 1,
        )
    )
    draw = request.draw
    assert sorted(draw.allowed_token_ids or ()) == [1, 2]
    assert set(draw.end_ids) == target.loaded.stop_ids | {7}
    assert (draw.shaped, draw.penalised, draw.fixed) == (True, True, True)
    assert (draw.logprobs, draw.prompt_logprobs, request.priority) == (0, 20, 2**31 - 1)


def test_bad_words_are_meant_at_the_start_and_after_a_space(intake: Intake, target: Target) -> None:
    encode = target.text.encode
    draw = intake.request(submit(bad_words=("secret", " password word"))).draw
    assert set(draw.bad_words) == {
        tuple(encode(text)) for text in ("secret", " secret", "password word", " password word")
    }


def test_a_plain_request_asks_nothing_of_the_chain(intake: Intake) -> None:
    draw = intake.request(submit(temperature=0.7, top_p=0.9, top_k=40)).draw
    assert not draw.shaped


def test_ends_are_ignored_only_when_asked(intake: Intake, target: Target) -> None:
    end = next(iter(target.loaded.stop_ids))
    for ignore in (False, True):
        request = intake.request(submit(ignore_eos=ignore, min_tokens=2, max_tokens=5))
        request.output.add(end, "plain")
        assert (request.output.finish_reason == "stop") is not ignore
        assert (end in request.draw.end_ids) is not ignore
