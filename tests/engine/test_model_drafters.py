"""Draft models and heads: exact whatever happens, and as good after it as if nothing had."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from controller.contract import NONE
from engine.attention import TorchAttention
from engine.batch import Chunk, pack
from engine.device import Device
from engine.draft_models.mtp import MtpDrafter
from engine.drafters.base import Drafter
from engine.drafts import Draft
from engine.draw import Draw
from engine.kv import KvPool, empty_pool
from engine.request import Request
from engine.shape import Model
from tests.engine.conformance import (
    ATTENTIONS,
    CPU,
    VOCABULARY,
    Run,
    Scenario,
    Subject,
    at_random,
    decode,
    differences,
    drafters,
    tiny,
)
from tests.engine.model_drafters import (
    MakeDrafter,
    TinyHead,
    draft_model,
    mtp,
    own_pool,
    tiny_head,
)

MOST = 16
SCENARIOS = {
    "alone": Scenario(),
    "chunked prefill": Scenario(chunk_rows=5),
    "one row of prefill a step": Scenario(chunk_rows=1),
    "cancelled neighbours": Scenario(chunk_rows=16, cancelled=(1, 4, 9)),
    "a small page pool": Scenario(pages=24),
    "prefix hits": Scenario(waves=2),
    "all at once": Scenario(pages=26, chunk_rows=9, waves=2, cancelled=(2, 7)),
}
DRAWS = {
    "greedy": Draw(),
    "seeded": Draw(temperature=0.9, top_p=0.95, seed=11),
    "unseeded": Draw(temperature=0.9, top_k=30),
}


def always(length: int) -> Any:
    return lambda step, request, names: (names[0], length) if names else (NONE, 0)


@pytest.fixture(scope="module")
def subject() -> Subject:
    with torch.no_grad():
        return tiny("llama")


@pytest.fixture(scope="module")
def plain(subject: Subject) -> list[list[int]]:
    with torch.no_grad():
        return [
            decode(
                Subject(subject.model, subject.device, [prompt], subject.length),
                ATTENTIONS["torch"],
                Scenario(),
            ).texts[0]
            for prompt in subject.prompts
        ]


@pytest.fixture(autouse=True)
def _no_grad() -> Any:
    with torch.no_grad():
        yield


def other_model() -> Any:
    """A model of the same vocabulary that knows nothing of the target."""
    model: Any = tiny("llama").model
    noise = torch.randn(model.embedding.shape, generator=torch.Generator().manual_seed(5))
    return replace(model, embedding=noise, compiled=None)


def run(
    subject: Subject,
    make: MakeDrafter,
    name: str,
    draw: Draw | None = None,
    length: int = 5,
    attention: str = "torch",
) -> Run:
    return decode(
        subject, ATTENTIONS[attention], SCENARIOS[name], (), always(length), draw, [make], MOST
    )


# --- what is drafted ------------------------------------------------------------------------------


@pytest.mark.parametrize("name", SCENARIOS)
@pytest.mark.parametrize("draw", DRAWS.values(), ids=DRAWS)
def test_the_target_as_its_own_drafter_is_always_accepted(
    subject: Subject, name: str, draw: Draw
) -> None:
    found = run(subject, draft_model(subject.model), name, draw)
    assert found.accepted == found.drafted > 0


@pytest.mark.parametrize("name", SCENARIOS)
def test_a_model_that_drafts_now_and_then_catches_up_with_the_text(
    subject: Subject, name: str
) -> None:
    found = decode(
        subject,
        ATTENTIONS["torch"],
        SCENARIOS[name],
        (),
        sometimes(8, 0.2, "draft_model"),
        models=[draft_model(subject.model, chunk_rows=6)],
    )
    assert found.accepted == found.drafted > 0


@pytest.mark.parametrize("draw", DRAWS.values(), ids=DRAWS)
def test_a_model_that_knows_nothing_is_hardly_ever_accepted(subject: Subject, draw: Draw) -> None:
    found = run(subject, draft_model(other_model()), "alone", draw)
    assert found.accepted <= 0.1 * found.drafted
    assert found.drafted > 200


def test_drafts_end_where_the_models_context_does(subject: Subject) -> None:
    model: Any = subject.model
    model = replace(model, shape=replace(model.shape, context_length=24))
    found = run(subject, draft_model(model), "alone")
    assert found.accepted == found.drafted > 0
    whole = run(subject, draft_model(subject.model), "alone")
    assert found.drafted < whole.drafted


@pytest.mark.parametrize("draw", DRAWS.values(), ids=DRAWS)
def test_a_reduced_vocabulary_drafts_only_what_it_has(subject: Subject, draw: Draw) -> None:
    kept = sorted(random.Random(4).sample(range(VOCABULARY), 40))
    drafted: set[int] = set()
    make = mtp(tiny_head(subject.model, kept=kept))

    def watched(like: KvPool, device: Device, most: int) -> Drafter:
        drafter = make(like, device, most)
        propose = drafter.propose

        def watch(requests: Sequence[Request], lengths: Sequence[int]) -> list[Draft]:
            drafts = propose(requests, lengths)
            drafted.update(token for draft in drafts for token in draft.tokens)
            for draft in drafts:
                if draft.q is not None:
                    assert draft.q.shape == (len(draft), VOCABULARY)
                    outside = sorted(set(range(VOCABULARY)) - set(kept))
                    assert not draft.q[:, outside].any()
            return drafts

        drafter.propose = watch
        return drafter

    run(subject, watched, "alone", draw)
    assert drafted <= set(kept)
    assert len(drafted) > 5


def greedily(model: Model, tokens: Sequence[int], length: int) -> list[int]:
    """What the model writes after the text, all of it computed anew for each token."""
    text, size = list(tokens), 64
    for _ in range(length):
        pool = empty_pool(model.shape, CPU, 2, size)
        batch = pack([Chunk(0, text, 0, [0, 1], Draw())], CPU, size)
        attend = TorchAttention(pool, model.shape).plan(batch)
        hidden = model.forward(batch.ids, batch.positions, attend)
        text.append(int(model.logits(hidden[-1:]).argmax()))
    return text[len(tokens) :]


def test_a_draft_model_drafts_what_it_would_with_everything_computed_afresh(
    subject: Subject,
) -> None:
    """Nothing is left of the drafts that were rejected: the model is nobody's twin."""
    model, checked = other_model(), 0

    def make(like: KvPool, device: Device, most: int) -> Drafter:
        drafter = draft_model(model)(like, device, most)
        propose = drafter.propose

        def watch(requests: Sequence[Request], lengths: Sequence[int]) -> list[Draft]:
            nonlocal checked
            drafts = propose(requests, lengths)
            for request, draft in zip(requests, drafts, strict=True):
                assert draft.tokens == greedily(model, request.tokens, len(draft))
                checked += len(draft)
            return drafts

        drafter.propose = watch
        return drafter

    decode(
        subject,
        ATTENTIONS["torch"],
        SCENARIOS["alone"],
        (),
        sometimes(8, 0.5, "draft_model"),
        models=[make],
    )
    assert checked > 50


# --- exactness ------------------------------------------------------------------------------------


@pytest.mark.parametrize("attention", ["torch", "compiled, scattered pages"])
@pytest.mark.parametrize("name", SCENARIOS)
def test_switching_among_all_drafters_at_random_gives_the_plain_text(
    subject: Subject, plain: list[list[int]], name: str, attention: str
) -> None:
    """One target forward a step, which `decode` checks."""
    registered = [one for one in drafters(VOCABULARY, plain) if one.name in ("ngram", "suffix")]
    models = [draft_model(subject.model), mtp(tiny_head(subject.model))]
    found = decode(
        subject,
        ATTENTIONS[attention],
        SCENARIOS[name],
        registered,
        at_random(6, most=MOST),
        models=models,
        most=MOST,
    )
    assert differences(subject, plain, found.texts) == []
    assert {"draft_model", "mtp"} <= found.drafters
    assert found.accepted > 0


@pytest.mark.parametrize("name", SCENARIOS)
def test_a_seed_gives_the_same_text_whatever_model_drafts(subject: Subject, name: str) -> None:
    draw = DRAWS["seeded"]
    wanted = decode(subject, ATTENTIONS["torch"], Scenario(), draw=draw).texts
    models = [draft_model(other_model()), mtp(tiny_head(subject.model))]
    found = decode(
        subject,
        ATTENTIONS["torch"],
        SCENARIOS[name],
        (),
        at_random(7, most=MOST),
        draw,
        models,
        MOST,
    )
    assert found.texts == wanted * SCENARIOS[name].waves
    assert found.drafted > 0


# --- the head's state -----------------------------------------------------------------------------


class CheckedHead(MtpDrafter):
    """Compares every draft, and the keys and values that it was made from, with what the head gives
    when everything is computed afresh from the text."""

    checked = 0
    missed = 0

    def watch(self, subject: Subject, head: TinyHead, pool: KvPool) -> None:
        self._subject, self._tiny, self._kept = subject, head, pool

    def propose(self, requests: Sequence[Request], lengths: Sequence[int]) -> list[Draft]:
        drafts = super().propose(requests, lengths)
        for request, length, draft in zip(requests, lengths, drafts, strict=True):
            if not draft:
                self.missed += 1
                continue
            state = self._states[request.id]
            assert (state.first, state.whole) == (1, True)
            assert state.covered == len(request.tokens)
            wanted, keys, values = afresh(self._subject, self._tiny, request.tokens, length)
            size = self._pool.page_size
            slots = [
                request.pages[place // size] * size + place % size
                for place in range(1, len(request.tokens))
            ]
            torch.testing.assert_close(self._kept.keys[0][slots], keys, atol=1e-4, rtol=1e-4)
            torch.testing.assert_close(self._kept.values[0][slots], values, atol=1e-4, rtol=1e-4)
            assert draft.tokens == wanted
            self.checked += 1
        return drafts


def afresh(
    subject: Subject, head: TinyHead, tokens: Sequence[int], length: int
) -> tuple[list[int], Tensor, Tensor]:
    """The head's greedy draft after the text, with keys and values of slots 1.. of the text: the
    whole text in one pass of the target and of the head, then token by token over all rows."""
    model: Any = subject.model
    size, known = 64, len(tokens)
    pool = empty_pool(model.shape, CPU, 4, size)
    batch = pack([Chunk(0, tokens, 0, [0, 1, 2, 3], Draw())], CPU, size)
    attend = TorchAttention(pool, model.shape).plan(batch)
    _, features = model.features(batch.ids, batch.positions, attend, head.taps)
    own = empty_pool(head.shape, CPU, 4, size)
    attention = TorchAttention(own, head.shape)
    text, hidden = list(tokens), head.fuse(features[:-1])
    drafted: list[int] = []
    for _ in range(length):
        ids = text[1:]
        batch = pack([Chunk(0, ids, 1, [0, 1, 2, 3], Draw(), first=1)], CPU, size)
        output = head.forward(batch.ids, hidden, batch.positions, attention.plan(batch))
        column = int(head.logits(output[-1:]).argmax())
        drafted.append(int(head.vocabulary.to_target[column]))
        text.append(drafted[-1])
        hidden = torch.cat((hidden, output[-1:]))
    return drafted, own.keys[0][1:known], own.values[0][1:known]


def checked(subject: Subject, head: TinyHead, made: list[CheckedHead]) -> MakeDrafter:
    def make(like: KvPool, device: Device, most: int) -> Drafter:
        pool = own_pool(head.shape, device, like)
        drafter = CheckedHead(head, TorchAttention(pool, head.shape), pool, device, most)
        drafter.watch(subject, head, pool)
        made.append(drafter)
        return drafter

    return make


def sometimes(seed: int, share: float, drafter: str = "mtp") -> Any:
    """It drafts in a share of a request's steps, with any length."""
    chance = random.Random(seed)

    def choose(step: int, request: int, names: list[str]) -> tuple[str, int]:
        if drafter not in names or chance.random() > share:
            return NONE, 0
        return drafter, chance.randint(1, 6)

    return choose


@pytest.mark.parametrize("share", [1.0, 0.5, 0.08])
@pytest.mark.parametrize("name", SCENARIOS)
def test_a_head_drafts_what_it_would_with_everything_computed_afresh(
    subject: Subject, name: str, share: float
) -> None:
    made: list[CheckedHead] = []
    head = tiny_head(subject.model)
    decode(
        subject,
        ATTENTIONS["torch"],
        SCENARIOS[name],
        (),
        sometimes(3, share),
        models=[checked(subject, head, made)],
        most=MOST,
    )
    assert made[0].checked > 3
    assert made[0].missed == 0
