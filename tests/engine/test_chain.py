"""What a request asks of the logits holds at every verified row, with that row's own history."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.batch import Chunk, pack
from engine.chain import Chain
from engine.draw import Draw
from engine.executor import Executor
from engine.masks import mask_pairs
from engine.penalties import Penalties
from engine.sampling import law as sampled_law
from engine.wire import Failed, Finished
from tests.engine.scripted import Harness, NoAttention, ScriptedDrafter
from tests.engine.test_waits import WAITS
from tests.engine.toy import (
    CPU,
    TableDecoder,
    drawn_from,
    executor,
    law,
    misfit,
    processed,
    sample,
    target_logits,
)

SIZE = 9
TABLE = target_logits()
RANDOM = torch.randn(TABLE.shape, generator=torch.Generator().manual_seed(17)) * 2

tokens = st.integers(0, SIZE - 1)
draws = st.builds(
    Draw,
    presence_penalty=st.sampled_from([0.0, 0.5, -1.0]),
    frequency_penalty=st.sampled_from([0.0, 0.25, -0.5]),
    repetition_penalty=st.sampled_from([1.0, 1.3, 0.8, 0.01, 100.0]),
    logit_bias=st.dictionaries(tokens, st.sampled_from([-100.0, -1.0, 2.5]), max_size=3).map(
        lambda biases: tuple(biases.items())
    ),
    bad_words=st.lists(st.lists(tokens, min_size=1, max_size=3).map(tuple), max_size=3).map(tuple),
    allowed_token_ids=st.none() | st.sets(tokens, min_size=4).map(tuple),
    min_tokens=st.integers(0, 3),
    end_ids=st.sets(tokens, max_size=2).map(tuple),
)


@st.composite
def requests(draw: Any) -> tuple[Draw, list[int], list[tuple[list[int], int, bool]]]:
    """A draw, a prompt, and steps of (drafts, accepted, with a grammar mask)."""
    prompt = draw(st.lists(tokens, min_size=1, max_size=4))
    steps: list[tuple[list[int], int, bool]] = []
    for _ in range(draw(st.integers(1, 4))):
        drafts = draw(st.lists(tokens, max_size=4))
        steps.append((drafts, draw(st.integers(0, len(drafts))), draw(st.booleans())))
    return draw(draws), prompt, steps


@settings(max_examples=50, deadline=None)
@given(asked=st.lists(requests(), min_size=1, max_size=3), seed=st.integers(0, 1000))
def test_every_row_sees_the_history_it_implies(
    asked: list[tuple[Draw, list[int], list[tuple[list[int], int, bool]]]], seed: int
) -> None:
    """Against the plain definition, several requests together, step after step; what a rejected
    draft left behind must not count."""
    generator = torch.Generator().manual_seed(seed)
    chain = Chain(CPU)
    histories = [list(prompt) for _, prompt, _ in asked]
    for step in range(4):
        live = [i for i, (_, _, steps) in enumerate(asked) if step < len(steps)]
        if not live:
            break
        chunks: list[Chunk] = []
        allowed: list[torch.Tensor] = []
        for i in live:
            draw, prompt, steps = asked[i]
            drafts, _, masked = steps[step]
            open_ = torch.randint(0, 4, (1 + len(drafts), SIZE), generator=generator) > 0
            allowed.append(open_ if masked else torch.ones_like(open_))
            words = (open_.to(torch.int64) << torch.arange(SIZE)).sum(1, keepdim=True)
            chunks.append(
                Chunk(
                    request=i,
                    ids=[histories[i][-1], *drafts],
                    start=len(histories[i]) - 1,
                    pages=range(8),
                    draw=draw,
                    drafted=len(drafts),
                    history=histories[i],
                    prompt_length=len(prompt),
                    mask=words.to(torch.int32) if masked else None,
                )
            )
        batch = pack(chunks, CPU, 16)
        logits = torch.randn(len(batch.row_draws), SIZE, generator=generator) * 2
        raw = logits.double().tolist()
        chain.apply(logits, chunks, batch.groups)
        for i, chunk, group, mask in zip(live, chunks, batch.groups, allowed, strict=True):
            draw, prompt, _ = asked[i]
            output = histories[i][len(prompt) :]
            for place, row in enumerate(group):
                wanted = processed(raw[row], draw, [*output, *chunk.drafts[:place]], prompt)
                wanted = [
                    value if ok else -math.inf
                    for value, ok in zip(wanted, mask[place].tolist(), strict=True)
                ]
                assert logits[row].tolist() == pytest.approx(wanted, rel=1e-6, abs=1e-4)
        for i in live:
            drafts, accepted, _ = asked[i][2][step]
            histories[i].extend([*drafts[:accepted], (seed + step) % SIZE])


@pytest.mark.parametrize("penalty", [0.01, 100.0])
@pytest.mark.parametrize("temperature", [1e-5, 1.0, 2.0])
def test_the_widest_penalty_leaves_a_law_even_for_huge_logits(
    penalty: float, temperature: float
) -> None:
    """Logits far beyond any model's, in fp32 from bf16, masked ones and zeros among them."""
    values = [1e30, -1e30, 6e4, -6e4, 1e-30, -1e-30, 0.0, -math.inf, -6e4]
    logits = torch.tensor([values], dtype=torch.bfloat16).float()
    before = logits[0].clone()
    draw = Draw(temperature, repetition_penalty=penalty)
    chunk = Chunk(
        request=0,
        ids=[0],
        start=SIZE - 1,
        pages=range(2),
        draw=draw,
        history=[7, 6, 5, 4, 3, 2, 1, 0],  # every token but the last
        prompt_length=4,
    )
    Chain(CPU).apply(logits, [chunk], [range(1)])
    assert not logits.isnan().any()
    wanted = torch.where(before > 0, before.double() / penalty, before.double() * penalty)
    wanted[-1] = before[-1].double()
    assert logits[0].tolist() == pytest.approx(wanted.tolist(), rel=1e-6)
    mass = sampled_law(logits, [draw], CPU)[0]
    assert mass.isfinite().all()
    assert mass.sum().item() == pytest.approx(1.0)
    assert mass.argmax().item() == 0


# --- through the engine --------------------------------------------------------------------------

ASKED: dict[str, Draw] = {
    "penalties": Draw(0.9, presence_penalty=0.7, frequency_penalty=0.4, repetition_penalty=1.4),
    "bias, min_p, allowed ids": Draw(
        1.0, min_p=0.05, logit_bias=((0, 1.5), (3, -2.0)), allowed_token_ids=(0, 2, 3, 4)
    ),
    "bad words, min_tokens": Draw(
        1.0, bad_words=((3,), (2, 0), (0, 4, 1)), min_tokens=2, end_ids=(1, 2)
    ),
}


@pytest.mark.parametrize("drafted", [False, True], ids=["D=0", "D>0"])
@pytest.mark.parametrize("name", ASKED)
def test_the_law_holds_with_and_without_drafts(name: str, drafted: bool) -> None:
    propose = drawn_from(RANDOM, 31) if drafted else None
    found = sample(executor(TABLE), 10_000, propose, lambda i: ASKED[name])
    assert misfit(found.outputs, law(TABLE, ASKED[name])) < 1


def test_the_law_test_sees_a_history_that_forgets_the_drafts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    penalise = Penalties.apply

    def forgetful(
        self: Penalties, values: torch.Tensor, chunks: list[Chunk], groups: list[range]
    ) -> None:
        penalise(self, values, [replace(chunk, drafted=0) for chunk in chunks], groups)

    draw = Draw(0.9, frequency_penalty=2.0)
    for broken in (False, True):
        if broken:
            monkeypatch.setattr(Penalties, "apply", forgetful)
        found = sample(executor(TABLE), 8_000, drawn_from(TABLE, 32), lambda i: draw)
        assert (misfit(found.outputs, law(TABLE, draw)) > 1) == broken


def logits(token: int, position: int) -> list[float]:
    return [math.sin(1.3 * token + 0.7 * position + 2.1 * k) * 2 for k in range(SIZE)]


def guess(history: list[int], length: int) -> list[int]:
    return [(history[-1] * 3 + place + len(history)) % SIZE for place in range(length)]


def plain(history: list[int], length: int) -> list[int]:
    """What the target would say without anything asked: right until a penalty or mask bites."""
    drafted: list[int] = []
    for _ in range(length):
        row = logits([*history, *drafted][-1], len(history) + len(drafted) - 1)
        drafted.append(max(range(SIZE), key=row.__getitem__))
    return drafted


GREEDY: dict[str, Draw] = {
    "repetition": Draw(repetition_penalty=1.5),
    "largest repetition": Draw(repetition_penalty=100.0),
    "smallest repetition, seeded": Draw(1.3, seed=4, repetition_penalty=0.01),
    "frequency and presence": Draw(frequency_penalty=0.6, presence_penalty=0.4),
    "bias": Draw(logit_bias=((4, 3.0), (1, -100.0))),
    "bad words": Draw(bad_words=((5,), (7, 8), (8, 3, 2))),
    "allowed ids": Draw(allowed_token_ids=(1, 3, 6, 8)),
    "everything": Draw(
        repetition_penalty=1.2,
        frequency_penalty=0.3,
        presence_penalty=-0.2,
        logit_bias=((2, 1.0),),
        bad_words=((6,), (2, 2)),
        allowed_token_ids=(0, 1, 2, 3, 4, 6, 7),
        min_tokens=5,
        end_ids=(3,),
    ),
    "seeded with everything": Draw(
        0.8,
        seed=9,
        min_p=0.02,
        top_k=7,
        repetition_penalty=1.2,
        frequency_penalty=0.3,
        bad_words=((6,), (2, 2)),
        min_tokens=5,
        end_ids=(3,),
    ),
}


def run(
    draw: Draw,
    script: Callable[[list[int], int], list[int]] | None,
    length: int,
    neighbours: int = 0,
) -> list[int]:
    drafters = [] if script is None else [ScriptedDrafter(script, "a")]
    harness = Harness(SIZE, logits, drafters, lambda s, r, n: ("a", length))
    for i in range(neighbours):
        harness.add([i], 25, Draw(1.0, frequency_penalty=0.5 * i))
    request = harness.add([1, 4], 30, draw, end_ids=frozenset(draw.end_ids))
    harness.drain()
    assert isinstance(harness.end(request), Finished)
    assert len(harness.executor._chain) == 0, "something is kept of requests that are over"
    return request.tokens[2:]


@pytest.mark.parametrize("name", GREEDY)
@pytest.mark.parametrize(("script", "length"), [(plain, 4), (guess, 4), (plain, 1), (plain, 9)])
def test_the_text_is_that_of_plain_decoding(
    name: str, script: Callable[[list[int], int], list[int]], length: int
) -> None:
    wanted = run(GREEDY[name], None, 0)
    assert run(GREEDY[name], script, length) == wanted
    assert run(GREEDY[name], script, length, neighbours=3) == wanted


@pytest.mark.parametrize("most", [0, 4])
def test_min_tokens_masks_the_ends_until_so_many_are_out(most: int) -> None:
    def ends(token: int, position: int) -> list[float]:
        return [float(k == 2) * 5 + float(k == (token + 1) % SIZE) for k in range(SIZE)]

    harness = Harness(SIZE, ends, [ScriptedDrafter(guess, "a")], lambda s, r, n: ("a", most))
    draw = Draw(min_tokens=6, end_ids=(2,))
    request = harness.add([3], 20, draw, end_ids=frozenset({2}))
    harness.drain()
    assert request.tokens[1:].index(2) == 6
    assert request.produced == 7


class Looked(list[int]):
    """A history that counts the tokens read of it."""

    read = 0

    def __getitem__(self, place: Any) -> Any:
        found = super().__getitem__(place)
        self.read += len(found) if isinstance(place, slice) else 1
        return found


@pytest.mark.parametrize("words", [(), ((4,),), ((1, 2), (3, 1, 2))])
@pytest.mark.parametrize("least", [0, 5, 4000])
def test_masks_read_no_more_of_a_long_text_than_they_need(
    words: tuple[tuple[int, ...], ...], least: int
) -> None:
    history = Looked([0] * 1000 + [3, 1])
    draw = Draw(bad_words=words, min_tokens=least, end_ids=(7,))
    chunk = Chunk(1, [1, 2], 0, [0], draw, drafted=1, history=history, prompt_length=10)
    logits = torch.zeros(2, SIZE)
    mask_pairs(logits, [chunk], [range(2)], CPU)
    assert history.read <= 2
    expected = {(0, 2)} if len(words) == 2 else set()
    if least == 4000:
        expected |= {(0, 7), (1, 7)}
    assert {
        (row, one) for row in range(2) for one in range(SIZE) if logits[row, one] < 0
    } == expected


def test_a_row_with_nothing_left_ends_that_request_with_the_reason() -> None:
    harness = Harness(SIZE, logits)
    kept = harness.add([1], 8, Draw(frequency_penalty=0.5))
    closed = harness.add([1], 8, Draw(allowed_token_ids=(2,), bad_words=((2,),)))
    later = harness.add([1], 8, Draw(0.7, allowed_token_ids=(2,), bad_words=((2, 2),)))
    harness.drain()
    assert isinstance(harness.end(kept), Finished)
    for request, produced in ((closed, 0), (later, 1)):
        end = harness.end(request)
        assert isinstance(end, Failed)
        assert end.code == "invalid_request"
        assert "no token is left" in end.message
        assert "allowed_token_ids and bad_words together exclude every one" in end.message
        assert f"after {produced} tokens" in end.message
        assert end.param == "allowed_token_ids"
        assert "NaN" not in end.message
        assert request.produced == produced


def test_nan_is_not_hidden_by_a_mask() -> None:
    def broken(token: int, position: int) -> list[float]:
        return [float("nan"), *([1.0] * (SIZE - 1))]

    harness = Harness(SIZE, broken)
    request = harness.add([1], 8, Draw(bad_words=((0,),)))
    harness.drain()
    end = harness.end(request)
    assert isinstance(end, Failed)
    assert "NaN" in end.message


def test_requests_that_ask_for_nothing_leave_the_logits_alone() -> None:
    chain = Chain(CPU)
    chunks = [Chunk(1, [1, 2], 0, (0,), Draw(0.7, top_k=3), drafted=1)]
    batch = pack(chunks, CPU, 16)
    values = torch.randn(2, SIZE)
    before = values.clone()
    assert chain.apply(values, chunks, batch.groups) is None
    assert torch.equal(values, before)
    assert len(chain) == 0


def test_the_chain_enqueues_without_a_hidden_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    decoder: Any = TableDecoder(TABLE)
    target = Executor(decoder, NoAttention(), CPU, 16)
    draw = Draw(
        0.9,
        min_p=0.1,
        repetition_penalty=1.2,
        logit_bias=((1, 1.0),),
        bad_words=((0, 1), (2,)),
        min_tokens=9,
        end_ids=(3,),
    )
    common: dict[str, Any] = {"history": [1, 2, 0], "prompt_length": 2, "logprobs": 3}
    chunks = [
        Chunk(1, [0, 4, 1], 2, (0,), draw, 2, q=torch.full((2, 5), 0.2), **common),
        Chunk(2, [0, 4], 2, (0,), Draw(), 1, mask=torch.full((2, 1), 27).int(), **common),
        Chunk(3, [1, 2, 0], 0, (0,), Draw(1.0), history=[1, 2, 0], prompt_length=3,
              prompt_logprobs=2),
    ]  # fmt: skip

    def forbidden(*args: object, **kwargs: object) -> None:
        raise AssertionError("a hidden wait for the device")

    with monkeypatch.context() as patch:
        for name in WAITS:
            patch.setattr(torch.Tensor, name, forbidden)
        step = target.verify(chunks)
    results = step.result()
    assert [len(result.tokens) for result in results] == [3, 2, 1]
    assert all(token not in (2, 3) for token in results[0].tokens[:1])
    assert all(token in (0, 1, 3, 4) for token in results[1].tokens)
