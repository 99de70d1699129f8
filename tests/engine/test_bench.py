"""The parts of `python -m engine.bench` that can be checked exactly."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from controller.contract import (
    DrafterInfo,
    Features,
    Offer,
    Part,
    Proposal,
    RequestOutcome,
    StepOutcome,
)
from engine.bench import calls, pauses
from engine.bench.calls import split
from engine.bench.job import Document, Job, Prompt
from engine.bench.modes import Mode, controller, setting
from engine.bench.pauses import Clock, corpus_messages, soak
from engine.bench.requests import request_of
from engine.bench.run import documents, modes_of
from engine.bench.tally import Positions, Result, Tally
from engine.bench.timing import Timed
from engine.bench.tokens import Run
from engine.build import Target
from engine.config import EngineConfig
from engine.drafters.base import Busy, Committed, Tail
from engine.drafters.ngram.drafter import NgramDrafter
from engine.drafts import Draft
from engine.errors import StartError
from tests.controller.simulated_engine import batch, request
from tests.engine.model_drafters import mtp, tiny_head

OFFERS = (
    Offer(1, "ngram", 64, Features(8, 2, "prompt")),
    Offer(1, "suffix", 64, Features(20, 0, "prompt")),
)


def asked(steps: int, drafted: int, accepted: int, produced: int) -> Any:
    made = request_of([1], 1)
    made.steps, made.drafted, made.accepted = steps, drafted, accepted
    made.tokens += [2] * produced
    return made


def test_a_tally_counts_every_step_and_not_the_token_of_the_prefill() -> None:
    tally = Tally()
    tally.add(asked(steps=4, drafted=10, accepted=6, produced=11))
    tally.add(asked(steps=6, drafted=0, accepted=0, produced=7))
    assert tally.numbers() == {
        "prompts": 2, "steps": 10, "tokens": 16, "tokens_per_step": 1.6,
        "drafted_per_step": 1.0, "acceptance_rate": 0.6, "positions": {},
    }  # fmt: skip


def test_a_prompt_whose_answer_is_the_prefill_alone_counts_no_step() -> None:
    tally = Tally()
    tally.add(asked(steps=0, drafted=0, accepted=0, produced=1))
    assert (tally.numbers()["tokens"], tally.numbers()["tokens_per_step"]) == (0, 0)


def rates(positions: Positions) -> list[tuple[int, float]]:
    return [(one["reached"], one["rate"]) for one in positions.numbers()]


def test_a_position_counts_where_it_was_reached_and_not_where_the_text_ended() -> None:
    positions = Positions()
    positions.add(3, 3, cut=False)
    positions.add(3, 1, cut=False)
    positions.add(3, 0, cut=False)
    positions.add(3, 1, cut=True)
    positions.add(1, 1, cut=False)
    assert rates(positions) == [(5, 0.8), (2, 0.5), (1, 1.0)]


def test_parts_of_a_chain_have_their_own_positions_and_a_tail_counts_where_it_was_reached() -> None:
    tally = Tally()
    for head, tail in ((2, 1), (1, 0), (2, 0)):
        parts = (Part("mtp", 2, head), Part("suffix", 2, tail))
        tally.verified(RequestOutcome(1, "mtp", 4, head + tail, head + tail + 1, parts=parts))
    tally.verified(RequestOutcome(1, "suffix", 1, 1, 2))
    assert rates(tally.positions["mtp"]) == [(3, 1.0), (3, round(2 / 3, 4))]
    assert rates(tally.positions["suffix (tail)"]) == [(2, 0.5), (1, 0.0)]
    assert rates(tally.positions["suffix"]) == [(1, 1.0)]


def test_times_are_those_of_full_steps_in_which_a_model_only_drafts() -> None:
    result = Result()
    outcome = RequestOutcome(1, "mtp", 3, 1, 2)
    for prefill, ms, caught_up in ((0, 3.0, 0), (8, 90.0, 0), (0, 60.0, 40)):
        proposal = Proposal("mtp", 1, 3, ms, caught_up)
        step = StepOutcome(1, 1, 4, prefill, 9, 10.0, ms, 0.0, (outcome,), (proposal,))
        result.step(step, {1: "code"}, 1)
    half = StepOutcome(1, 1, 1, 0, 9, 70.0, 0.0, 0.0, (RequestOutcome(1, "none", 0, 0, 1),))
    result.step(half, {1: "code"}, 2)
    assert (result.step_ms, result.token_ms) == ([10.0, 10.0], {"mtp": [1.0]})
    assert rates(result.by_category["code"].positions["mtp"]) == [(3, 1.0), (3, 0.0)]


def test_a_model_beside_rows_that_are_free_drafts_what_its_own_passes_are_worth() -> None:
    """a_k = .5: the best D of (1 + S_1 + ... + S_D) / (1 + .1 D) is 2."""
    chosen = controller(Mode("all", ("suffix", "mtp")), 16)
    chosen.add_drafter(DrafterInfo("mtp", model=True, rho=0.1))
    chosen.configure(setting(Mode("all", ("suffix", "mtp")), 16))
    for step in range(300):
        (found,) = chosen.plan(batch(request(1), step=step), (Offer(1, "mtp", 16),)).allotments
        kept = (0, 1, 0, 2, 0, 1, 0, 3)[step % 8]
        kept = min(kept, found.length)
        parts = (Part("mtp", found.length, kept), Part("suffix", 0, 0)) if found.tail else ()
        result = RequestOutcome(1, "mtp", found.length, kept, kept + 1, parts=parts)
        chosen.observe(StepOutcome(step, 1, 1 + found.length, 0, 9, 1.0, 0.1, 0.0, (result,)))
    (found,) = chosen.plan(batch(request(1)), (Offer(1, "mtp", 16),)).allotments
    assert 2 <= found.length <= 3


def test_a_model_is_measured_through_the_engine_and_gone_afterwards(
    target: Target, config: EngineConfig
) -> None:
    head = tiny_head(target.loaded.decoder, taps=(30,), kept=range(1000))
    drafter = mtp(head)(target.pool, target.device, config.max_draft_length)
    prompts = [Prompt("a", "Count to twenty."), Prompt("b", "Name five colours.")]
    mode = Mode("mtp", ("mtp",), length=3)
    with Run(target, config, mode, models={"mtp": drafter}) as run:
        found = run.answer(prompts, 9, 2, lambda _: None).numbers()
        assert "mtp" in run.engine.drafting.drafters
    assert "mtp" not in run.engine.drafting.drafters
    assert found["tokens"] == 16
    assert found["positions"]["mtp"][0]["reached"] == found["steps"] - 2
    assert found["drafted_per_step"] > 1.5
    assert set(found["categories"]) == {"a", "b"}
    assert found["token_ms"]["mtp"] > 0.0


@pytest.mark.parametrize("length", [1, 5, 16])
def test_where_rows_are_free_the_controller_drafts_all_that_it_may(length: int) -> None:
    chosen = controller(Mode("mix", ("ngram", "suffix")), length)
    for _ in range(50):
        (found,) = chosen.plan(batch(request(1)), OFFERS).allotments
        assert found.length + found.tail_length == length


@pytest.mark.parametrize("name", ["ngram", "suffix"])
def test_a_single_drafter_always_drafts_and_no_other_does(name: str) -> None:
    (found,) = controller(Mode(name, (name,)), 7).plan(batch(request(1)), OFFERS).allotments
    assert (found.drafter, found.length, found.tail_length) == (name, 7, 0)


def test_without_drafters_nothing_is_drafted() -> None:
    (found,) = controller(Mode("none", ()), 7).plan(batch(request(1)), OFFERS).allotments
    assert (found.drafter, found.length) == ("none", 0)


def test_a_clock_around_a_drafter_answers_as_the_drafter_and_counts_every_call() -> None:
    plain, clock = NgramDrafter(8, frozenset()), Timed(NgramDrafter(8, frozenset()))
    assert isinstance(clock, Tail)
    assert isinstance(clock, Busy)
    text = [1, 2, 3, 4, 5] * 6
    found: list[Any] = []
    for drafter in (plain, clock):
        one = request_of(text, 1)
        drafter.admit(one)
        answers: list[Any] = [drafter.offer([one]), drafter.propose([one], [8])]
        answers.append([list(tail) for tail in drafter.extend([one], [[1, 2]], [4])])
        one.tokens.append(1)
        answers.append(drafter.commit([Committed(one, len(text), [1])]))
        drafter.forget(1)
        answers.append(drafter.offer([one]))
        found.append(answers)
    assert found[0] == found[1]
    assert clock.seconds > 0
    assert not clock.work()


def test_a_clock_around_a_drafter_that_continues_none_has_nothing_to_add() -> None:
    class Plain:
        name = "plain"
        kind: Any = "model_free"

        def admit(self, request: Any) -> None: ...

        def offer(self, requests: Sequence[Any]) -> list[Offer | None]:
            return [None] * len(requests)

        def propose(self, requests: Sequence[Any], lengths: Sequence[int]) -> list[Draft]:
            return [Draft() for _ in requests]

        def commit(self, commits: Sequence[Committed]) -> list[tuple[Any, ...]]:
            return [()] * len(commits)

        def forget(self, request: int) -> None: ...

    clock = Timed(Plain())
    assert clock.extend([request_of([1], 1)], [[2]], [3]) == [()]
    assert not clock.work()


def test_known_and_followed_texts_are_different_unless_there_is_one_only() -> None:
    texts = [[number, number + 1] for number in range(10)]
    known, fresh = split([*texts, [], [7]])
    assert known + fresh == texts
    assert split([[1, 2, 3], [4]]) == ([[1, 2, 3]], [[1, 2, 3]])


def test_long_documents_are_cut_and_what_is_known_is_bounded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(calls, "GLOBAL_TOKENS", 5_000)
    known, fresh = split([list(range(100_000))])
    assert {len(text) for text in known} == {calls.LONGEST}
    assert 5_000 <= sum(map(len, known)) < 5_000 + calls.LONGEST
    assert all(len(text) > 1 for text in fresh)


def test_a_corpus_of_one_short_document_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pauses, "SOAK_TOKENS", 2_000)
    monkeypatch.setattr(calls, "CONTEXT", 512)
    found = calls.calls([[], [5], [1, 2]], 100, 16, lambda *_: None)
    assert found["suffix"]["global_tokens"] == 2
    assert found["suffix"]["proposal_us"] > 0
    assert found["ngram"]["proposal_us"] > 0


def test_the_soak_makes_every_call_and_stays_within_its_memory() -> None:
    texts = [[(number * 31 + place * place) % 5_000 for place in range(200)] for number in range(9)]
    clock = Clock()
    suffix, tokens = soak(texts, 5_000, 64, 40_000, clock)
    assert set(clock.longest) == {"admit", "commit", "forget", "put", "drop", "work"}
    assert all(seconds > 0 for seconds in clock.longest.values())
    assert tokens >= 40_000
    assert suffix.memory.touched_bytes <= suffix.memory.limit_bytes == 16 << 20


def test_the_corpus_of_the_soak_comes_whole_and_in_bounded_messages() -> None:
    messages = list(corpus_messages([[1, 2, 3], [4] * 20_000]))
    assert sum(len(ids) for ids, _ in messages) >= pauses.CORPUS_TOKENS
    for ids, lengths in messages:
        assert len(ids) == lengths.sum() <= 2 * pauses.MESSAGE_TOKENS
        assert lengths.min() >= 1


def test_documents_without_tokens_are_left_out_and_unknown_ids_are_refused(target: Target) -> None:
    given = [Document(text=""), Document(token_ids=()), Document(token_ids=(3, 4))]
    assert documents(target, given) == [(3, 4)]
    vocabulary = target.loaded.decoder.shape.vocabulary
    wrong = Document(token_ids=(3, vocabulary))
    with pytest.raises(StartError) as caught:
        documents(target, [*given, wrong])
    assert f"token 1 of document 4 is {vocabulary}" in caught.value.message


def test_modes_are_all_that_can_be_run_or_those_that_were_named() -> None:
    job = Job(EngineConfig(), ())
    names = [mode.name for mode in modes_of(job, ["mtp"], True)]
    assert names == [
        "none", "ngram", "suffix", "mix", "suffix, warm", "mix, warm",
        "mtp", "suffix or mtp", "suffix or mtp, warm", "auto", "auto, warm",
    ]  # fmt: skip
    cold = [mode.name for mode in modes_of(job, [], False)]
    assert cold == ["none", "ngram", "suffix", "mix"]
    some = Job(EngineConfig(), (), modes=("mix, warm", "none"))
    assert [mode.name for mode in modes_of(some, [], True)] == ["none", "mix, warm"]
    with pytest.raises(StartError, match=r"mix, warm: there are none, .*with --corpus also warm"):
        modes_of(some, [], False)
