"""The passes of a model drafter: what each request is drafted, with which law, and waiting once."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from engine.attention import TorchAttention
from engine.batch import Chunk, pack
from engine.draft_models.draft_model import DraftModelDrafter
from engine.draft_models.drawn import Drawn
from engine.draft_models.lane import Lane
from engine.draft_models.mtp import MtpDrafter
from engine.draft_models.passes import Passes
from engine.draw import Draw
from engine.kv import empty_pool
from engine.sampling import coupled, law
from engine.vocabulary import VocabularyMap, identity
from tests.engine.conformance import request_of, tiny
from tests.engine.model_drafters import draft_model, mtp, tiny_head
from tests.engine.scripted import NoAttention
from tests.engine.test_waits import WAITS
from tests.engine.toy import (
    CPU,
    VOCABULARY,
    Drafts,
    TableDecoder,
    executor,
    misfit,
    sample,
    target_logits,
)
from tests.engine.toy import law as law_of

TABLE = target_logits()
OTHER = torch.randn(TABLE.shape, generator=torch.Generator().manual_seed(3))
PART = VocabularyMap(torch.arange(VOCABULARY), None, torch.tensor([3, 0, 1]), 0.6)
"""The drafter's three columns stand for the ids 3, 0 and 1."""


def passes(table: Tensor, vocabulary: VocabularyMap) -> Passes:
    decoder = TableDecoder(table)
    return Passes(
        lambda ids, hidden, positions, attend: decoder.forward(ids, positions, attend),
        lambda hidden: decoder.logits(hidden)[:, : vocabulary.size],
        vocabulary,
        NoAttention(),
        CPU,
        16,
    )


def lane(number: int, begin: int, ids: Sequence[int], length: int, draw: Draw) -> Lane:
    request: Any = SimpleNamespace(id=number, draw=draw)
    return Lane(request, (0,), begin, ids, length)


def test_each_request_gets_a_draft_of_its_length_from_its_own_law() -> None:
    free, seeded = Draw(0.9, top_k=2), Draw(0.7, seed=5)
    lanes = [
        lane(1, 0, [1, 4, 2], 3, free),
        lane(2, 2, [0], 2, Draw()),
        lane(3, 1, [3, 1], 2, free),
        lane(4, 0, [2], 1, seeded),
        lane(5, 0, [2, 2, 2], 0, free),
    ]
    drafts = passes(OTHER, PART).draft(lanes, torch.empty(0))
    assert [len(draft) for draft in drafts] == [3, 2, 2, 1, 0]
    assert [draft.q is not None for draft in drafts] == [True, False, True, False, False]
    for one, draft in zip(lanes, drafts, strict=True):
        text = list(one.ids)
        for depth, token in enumerate(draft.tokens):
            place = one.begin + len(text) - 1
            logits = OTHER[text[-1], place, : PART.size].unsqueeze(0)
            settings = [one.request.draw]
            if draft.q is not None:
                wanted = torch.zeros(VOCABULARY)
                wanted[PART.to_target] = law(logits, settings, CPU)[0]
                torch.testing.assert_close(draft.q[depth], wanted)
                assert wanted[token] > 0
            elif settings[0].greedy:
                assert token == PART.to_target[logits.argmax()]
            else:
                column = coupled(logits, settings, [place + 1], CPU, PART.to_target)
                assert token == PART.to_target[column]
            text.append(token)


@pytest.mark.parametrize("vocabulary", [identity(VOCABULARY), PART], ids=["whole", "reduced"])
@pytest.mark.parametrize("seeded", [False, True], ids=["unseeded", "seeded"])
def test_the_output_law_is_the_targets(vocabulary: VocabularyMap, seeded: bool) -> None:
    model = passes(OTHER, vocabulary)

    def propose(step: int, last: Tensor, places: Tensor, most: int) -> Drafts:
        lanes = [
            lane(at, place, [token], most, Draw(1.0, seed=1000 * step + at if seeded else None))
            for at, (token, place) in enumerate(zip(last.tolist(), places.tolist(), strict=True))
        ]
        drafts = model.draft(lanes, torch.empty(0))
        tokens = torch.tensor([list(draft.tokens) for draft in drafts])
        laws = [draft.q for draft in drafts if draft.q is not None]
        return Drafts(tokens, torch.stack(laws) if laws else None, [most] * len(last))

    found = sample(executor(TABLE), 8_000, propose, lambda i: Draw(1.0))
    assert misfit(found.outputs, law_of(TABLE, Draw(1.0))) < 1
    assert 0 < found.accepted < found.drafted


# --- waits ----------------------------------------------------------------------------------------


def test_a_drafter_waits_for_the_device_in_one_place_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever a model drafter computes in a step; Drawn.result is that place, and nobody is there
    before somebody looks at what was drafted."""
    subject = tiny("llama")
    model: Any = subject.model
    head = tiny_head(model)
    pool = empty_pool(model.shape, CPU, 8, 4)
    drafters = [mtp(head)(pool, CPU, 4), draft_model(model)(pool, CPU, 4)]
    draws = [Draw(), Draw(0.9, top_p=0.9, seed=3), Draw(0.9, top_k=9)]
    requests = [request_of(n, str(n), [5, 6, 7, 8, 9], 9, draw) for n, draw in enumerate(draws)]
    for request in requests:
        request.pages = [2 * request.id, 2 * request.id + 1]

    def forbidden(*arguments: object, **options: object) -> None:
        raise AssertionError("a hidden wait for the device")

    result, settled, looks = Drawn.result, [], 0

    def allowed(drawn: Drawn) -> Any:
        monkeypatch.undo()
        found = result(drawn)
        settled.append(found)
        forbid()
        return found

    def forbid() -> None:
        for name in WAITS:
            monkeypatch.setattr(torch.Tensor, name, forbidden)
        monkeypatch.setattr(Drawn, "result", allowed)

    def read(chunks: Sequence[Chunk]) -> None:
        batch = pack(chunks, CPU, 4)
        attend = TorchAttention(pool, model.shape).plan(batch)
        _, features = model.features(batch.ids, batch.positions, attend, head.taps)
        forbid()
        reader = drafters[0]
        assert isinstance(reader, MtpDrafter)
        reader.read(batch, features)

    with torch.no_grad():
        for drafter in drafters:
            for request in requests:
                drafter.admit(request)
        read([Chunk(one.id, one.tokens, 0, one.pages, one.draw) for one in requests])
        follower = drafters[1]
        assert isinstance(follower, DraftModelDrafter)
        follower.follow([(one, 5) for one in requests])
        for request in requests:
            request.computed = 5
            request.tokens.append(4)
        for drafter in drafters:
            assert all(drafter.offer(requests))
            drafts = drafter.propose(requests, [3, 2, 3])
            assert [len(draft) for draft in drafts] == [3, 2, 3]
            assert len(settled) == looks
            assert [len(list(draft.tokens)) for draft in drafts] == [3, 2, 3]
            assert [len(list(draft.margins)) for draft in drafts] == [3, 2, 3]
            assert len(settled) > looks
            looks = len(settled)
        monkeypatch.undo()
