"""Log probabilities: the target's raw ones, at every committed token and prompt token."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer, decoders
from tokenizers.models import BPE

from engine.batch import Chunk
from engine.build import Target, open_engine
from engine.config import EngineConfig
from engine.draw import Draw
from engine.logprobs import score
from engine.request import Request
from engine.spelling import Spelling
from engine.wire import (
    Deltas,
    Failed,
    Finished,
    Logprob,
    Message,
    Piece,
    PromptLogprobs,
    Sampling,
    Submit,
)
from tests.engine.scripted import Harness, ScriptedController, ScriptedDrafter

SIZE = 26


def logits(token: int, position: int) -> list[float]:
    return [math.sin(1.3 * token + 0.7 * position + 2.1 * k) * 2 for k in range(SIZE)]


def guess(history: list[int], length: int) -> list[int]:
    """Right for two tokens, then wrong."""
    drafted: list[int] = []
    for _ in range(min(length, 2)):
        row = logits([*history, *drafted][-1], len(history) + len(drafted) - 1)
        drafted.append(max(range(SIZE), key=row.__getitem__))
    return [*drafted, *[0] * (length - len(drafted))]


def raw(history: Sequence[int]) -> list[float]:
    """Log-softmax after the history, plainly."""
    row = logits(history[-1], len(history) - 1)
    total = math.log(sum(math.exp(value) for value in row))
    return [value - total for value in row]


def check(found: Logprob | None, history: Sequence[int], token: int, alternatives: int) -> None:
    wanted = raw(history)
    assert found is not None
    assert found.chosen.token == token
    assert found.chosen.logprob == pytest.approx(wanted[token], abs=1e-4)
    assert found.rank == 1 + sum(value > wanted[token] for value in wanted)
    order = sorted(range(SIZE), key=lambda one: -wanted[one])[:alternatives]
    assert [one.token for one in found.top] == order
    assert [one.logprob for one in found.top] == pytest.approx([wanted[t] for t in order], abs=1e-4)
    assert found.chosen.text == chr(ord("a") + token)
    assert found.chosen.data == found.chosen.text.encode()


def engine(length: int, **options: Any) -> Harness:
    return Harness(
        SIZE, logits, [ScriptedDrafter(guess, "a")], lambda s, r, n: ("a", length), **options
    )


@pytest.mark.parametrize("length", [0, 1, 4])
@pytest.mark.parametrize("alternatives", [0, 1, 20])
@pytest.mark.parametrize(
    "draw",
    [
        {},
        {"repetition_penalty": 1.6, "bad_words": ((3,),), "logit_bias": ((7, 2.0),)},
        {"temperature": 0.7, "seed": 3, "top_k": 5},
        {"temperature": 1.4},
    ],
    ids=["greedy", "greedy, reshaped", "seeded", "sampled"],
)
def test_every_committed_token_has_its_raw_log_probability(
    length: int, alternatives: int, draw: dict[str, Any]
) -> None:
    harness = engine(length)
    request = harness.add([1, 4], 20, Draw(logprobs=alternatives, **draw))
    other = harness.add([2], 20, Draw())
    harness.drain()
    pieces = harness.pieces(request)
    assert len(pieces) == 20
    for place, piece in enumerate(pieces):
        history = request.tokens[: 2 + place]
        check(piece.logprob, history, piece.token, alternatives)
    assert all(piece.logprob is None for piece in harness.pieces(other))
    if length and draw == {}:
        assert any(piece.kind == "accepted" for piece in pieces)


def test_log_probabilities_are_cut_with_the_pieces_at_a_stop_string() -> None:
    plain = engine(0)
    wanted = plain.add([1, 4], 20)
    plain.drain()
    letters = "".join(piece.text for piece in plain.pieces(wanted))
    stop = letters[5:8]
    for length in (0, 4):
        harness = engine(length)
        request = harness.add([1, 4], 20, Draw(logprobs=2), stop=[stop])
        harness.drain()
        pieces = harness.pieces(request)
        assert "".join(piece.text for piece in pieces) == letters[: letters.index(stop)]
        for place, piece in enumerate(pieces):
            check(piece.logprob, request.tokens[: 2 + place], piece.token, 2)


def test_a_token_without_any_mass_scores_minus_infinity() -> None:
    values = torch.tensor([[0.0, float("-inf"), 1.0]])
    (found,) = score(values, torch.tensor([1]), 3).rows([3])
    assert found.logprob == -math.inf
    assert found.rank == 3
    assert [token for token, _ in found.top][:2] == [2, 0]


# --- prompts -------------------------------------------------------------------------------------


def messages(harness: Harness, request: Request) -> list[PromptLogprobs]:
    return [
        event
        for event in harness.events
        if isinstance(event, PromptLogprobs) and event.id == request.name
    ]


def check_prompt(harness: Harness, request: Request, alternatives: int) -> None:
    (message,) = messages(harness, request)
    prompt = request.tokens[: request.prompt_length]
    assert len(message.items) == len(prompt)
    assert message.items[0] is None
    for place in range(1, len(prompt)):
        check(message.items[place], prompt[:place], prompt[place], alternatives)
    first = next(
        event
        for event in harness.events
        if isinstance(event, Deltas) and any(one.id == request.name for one in event.items)
    )
    assert harness.events.index(message) < harness.events.index(first)


@pytest.mark.parametrize("chunk_rows", [4096, 3, 1])
@pytest.mark.parametrize("alternatives", [0, 5])
def test_every_prompt_token_is_scored_before_the_first_delta(
    chunk_rows: int, alternatives: int
) -> None:
    harness = engine(4, chunk_rows=chunk_rows)
    prompt = [1, 4, 4, 0, 25, 3, 7, 7, 2, 11]
    request = harness.add(prompt, 6, Draw(prompt_logprobs=alternatives, logprobs=1))
    other = harness.add(prompt, 6, Draw())
    single = harness.add([5], 3, Draw(prompt_logprobs=alternatives))
    harness.drain()
    check_prompt(harness, request, alternatives)
    assert messages(harness, other) == []
    assert messages(harness, single)[0].items == (None,)
    assert isinstance(harness.end(request), Finished)
    assert all(piece.logprob is not None for piece in harness.pieces(request))


def test_a_long_prompt_is_scored_piece_by_piece(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("engine.logprobs._PIECE_ELEMENTS", 4 * SIZE)
    harness = engine(0)
    sizes: list[int] = []
    decoder: Any = harness.executor.decoder
    project = decoder.logits
    monkeypatch.setattr(
        decoder, "logits", lambda hidden: sizes.append(len(hidden)) or project(hidden)
    )
    request = harness.add([(3 * i) % SIZE for i in range(30)], 2, Draw(prompt_logprobs=2))
    harness.drain()
    check_prompt(harness, request, 2)
    assert max(sizes) == 4


def test_a_preempted_request_sends_its_prompt_once() -> None:
    harness = engine(3, pages=12, chunk_rows=5)
    requests = [
        harness.add([k, 4, 9, 2, 1, k, 3], 24, Draw(prompt_logprobs=1, logprobs=1))
        for k in range(4)
    ]
    harness.drain()
    assert harness.engine.scheduler.preemptions > 0
    for request in requests:
        check_prompt(harness, request, 1)
        pieces = harness.pieces(request)
        assert len(pieces) == 24
        for place, piece in enumerate(pieces):
            check(piece.logprob, request.tokens[: 7 + place], piece.token, 1)


def test_unsound_prompt_scores_end_the_request() -> None:
    def broken(token: int, position: int) -> list[float]:
        row = logits(token, position)
        return [float("nan")] * SIZE if position == 2 else row

    harness = Harness(SIZE, broken)
    request = harness.add([1, 2, 3, 4, 5], 4, Draw(prompt_logprobs=1))
    harness.drain()
    end = harness.end(request)
    assert isinstance(end, Failed)
    assert "NaN" in end.message
    assert messages(harness, request) == []


# --- the real model ------------------------------------------------------------------------------


Decoded = tuple[Request, list[Piece], PromptLogprobs]


@pytest.fixture(scope="module")
def decoded(target: Target, config: EngineConfig) -> dict[int, Decoded]:
    """By draft length."""
    return {length: decode(target, config, length) for length in (0, 4)}


def decode(target: Target, config: EngineConfig, length: int) -> Decoded:
    events: list[Any] = []
    controller = ScriptedController(lambda s, r, n: ("ngram", length))
    made, intake = open_engine(config, target, controller, events.append)
    sampling = Sampling(temperature=0.0, max_tokens=16, logprobs=3, prompt_logprobs=2)
    text = "Repeat three times: apple, pear, plum."
    submit = Submit(id="a", sampling=sampling, messages=(Message("user", text),))
    request = intake.request(submit)
    made.submit(request)
    while made.step():
        pass
    pieces = [
        piece
        for event in events
        if isinstance(event, Deltas)
        for delta in event.items
        for piece in delta.pieces
    ]
    return request, pieces, next(e for e in events if isinstance(e, PromptLogprobs))


def test_real_log_probabilities_are_equal_with_and_without_drafts(
    decoded: dict[int, Decoded],
) -> None:
    plain, wanted, prompt = decoded[0]
    drafted, found, again = decoded[4]
    assert plain.tokens == drafted.tokens
    assert drafted.accepted > 0
    for one, other in zip(wanted, found, strict=True):
        assert one.logprob is not None
        assert other.logprob is not None
        assert one.token == one.logprob.chosen.token == other.logprob.chosen.token
        assert one.logprob.chosen.logprob == pytest.approx(other.logprob.chosen.logprob, abs=1e-3)
        assert one.logprob.rank == other.logprob.rank == 1
    assert len({round(one.logprob.chosen.logprob, 6) for one in wanted if one.logprob}) > 5
    for one, other in zip(prompt.items[1:], again.items[1:], strict=True):
        assert one is not None
        assert other is not None
        assert one.chosen.logprob == pytest.approx(other.chosen.logprob, abs=1e-3)
    spelled = b"".join(one.chosen.data for one in prompt.items if one is not None)
    assert "Repeat three times: apple, pear, plum." in spelled.decode()


def test_real_prompt_scores_are_those_of_one_whole_forward(
    target: Target, decoded: dict[int, Decoded]
) -> None:
    plain, _, prompt = decoded[0]
    ids = plain.tokens[: plain.prompt_length]
    pages = list(range(-(-len(ids) // target.pool.page_size)))
    executor = target.executor
    chunk = Chunk(0, ids, 0, pages, Draw(), drafted=len(ids) - 1, logprobs=0)
    (result,) = executor.verify([chunk]).result()
    assert result.scores is not None
    for place, item in enumerate(prompt.items[1:]):
        assert item is not None
        if result.tokens[place] == item.chosen.token:
            assert item.rank == 1
            assert item.chosen.logprob == pytest.approx(result.scores[place].logprob, abs=1e-3)
        else:
            assert item.rank > 1
            assert item.top[0].token == result.tokens[place]


# --- spelling ------------------------------------------------------------------------------------


def test_byte_level_tokens_spell_their_own_bytes(target: Target) -> None:
    spell = target.text.spell
    sample = "Zoë mag 日本語 und 🚴‍♀️ — 100 €\n\tdef f(x):"
    ids = target.text.encode(sample)
    assert b"".join(spell(token)[1] for token in ids) == sample.encode()
    cut = [spell(token) for token in ids if "\ufffd" in spell(token)[0]]
    assert cut, "some characters take more than one token"
    assert all(text == data.decode("utf-8", "replace") for text, data in cut)
    assert spell(10**6) == ("", b"")


def test_sentencepiece_tokens_spell_spaces_and_lone_bytes() -> None:
    vocabulary = {"<unk>": 0, "\u2581the": 1, "<0xF0>": 2, "s": 3, "<0x0A>": 4}
    tokenizer = Tokenizer(BPE(vocabulary, [], unk_token="<unk>", byte_fallback=True))
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse()]
    )
    tokenizer.add_special_tokens(["<end>"])
    spell = Spelling(tokenizer)
    assert [spell(token) for token in (1, 2, 3, 4, 5)] == [
        (" the", b" the"),
        ("\ufffd", b"\xf0"),
        ("s", b"s"),
        ("\n", b"\n"),
        ("<end>", b"<end>"),
    ]


def test_wordpiece_tokens_spell_without_the_joining_mark() -> None:
    tokenizer = Tokenizer(BPE({"un": 0, "##do": 1}, []))
    tokenizer.decoder = decoders.WordPiece()
    assert [Spelling(tokenizer)(token)[0] for token in (0, 1)] == ["un", "do"]
