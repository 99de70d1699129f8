"""Runs of the full loop: seeded, conserving tokens, and blind to what a real engine cannot know."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from controller.contract import (
    NONE,
    Allotment,
    BatchView,
    Offer,
    Plan,
    RequestOutcome,
    RequestView,
    Setting,
    StepOutcome,
)
from controller.policies import NAMES, PolicyInputs, make
from controller.simulate.calibration import calibrate
from controller.simulate.direct import Static, run_statics
from controller.simulate.drafters import draft_model, head, lookup
from controller.simulate.fleet import Scenario, simulate
from controller.simulate.load import Arrival, Phase, arrivals, thin
from controller.simulate.machine import Machine
from controller.simulate.machines import HARDWARE, MODELS
from controller.simulate.policy import SERVES, Choice, build
from controller.simulate.run import Clock, Run, closed, open_loop
from controller.simulate.step_cost import roofline
from controller.simulate.synthetic import RECIPES, make_texts
from controller.simulate.texts import Library
from tests.controller.simulate.small import SETTING, library, machine, run, text

PHASES = (Phase(3, "mixed", 120), Phase(6, "mixed", 60))


class Watched:
    """A controller and all that it was told."""

    def __init__(self, inner: object) -> None:
        self.inner = inner
        self.batches: list[BatchView] = []
        self.offers: list[list[Offer]] = []
        self.plans: list[Plan] = []
        self.outcomes: list[StepOutcome] = []
        self.forgotten: list[int] = []

    def __getattr__(self, name: str) -> object:
        return getattr(self.inner, name)

    def plan(self, batch: BatchView, offers: Sequence[Offer]) -> Plan:
        self.batches.append(batch)
        self.offers.append(list(offers))
        self.plans.append(self.inner.plan(batch, offers))  # type: ignore[attr-defined]
        return self.plans[-1]

    def observe(self, outcome: StepOutcome) -> None:
        self.outcomes.append(outcome)
        self.inner.observe(outcome)  # type: ignore[attr-defined]

    def forget(self, request: int) -> None:
        self.forgotten.append(request)
        self.inner.forget(request)  # type: ignore[attr-defined]


def watched(
    setting: Setting = SETTING,
    phases: Sequence[Phase] = PHASES,
    on: Machine | None = None,
    texts: Library | None = None,
    choice: Choice = SERVES,
) -> tuple[Watched, Run]:
    simulated = on or machine(noise=0.01, chains=True)
    clock = Clock()
    points = calibrate(simulated.cost, 8, 0.01, np.random.default_rng(1))
    watch = Watched(build(choice, simulated, points, clock, setting))
    found = closed(simulated, texts or library(), phases, watch, clock, 0)  # type: ignore[arg-type]
    return watch, found


def test_the_same_seed_gives_the_same_run_and_another_seed_another() -> None:
    on = machine(noise=0.02)
    one, two, three = (run(PHASES, on=on, seed=seed) for seed in (1, 1, 2))
    assert (one.tokens, one.ms, one.drafted) == (two.tokens, two.ms, two.drafted)
    assert one.ms != three.ms


@pytest.mark.parametrize("name", NAMES)
def test_every_policy_runs_the_load_to_its_end(name: str) -> None:
    found = run(PHASES, choice=Choice(name), on=machine(chains=True, noise=0.01))
    for phase, (tokens, ms) in zip(PHASES, found.phases, strict=True):
        assert phase.work <= tokens < phase.work + 21 * phase.requests
        assert ms > 0.0
    assert found.throughput > 0.0


def test_outcomes_add_up() -> None:
    watch, found = watched()
    results = [one for outcome in watch.outcomes for one in outcome.per_request]
    assert sum(one.committed for one in results) == found.tokens
    assert sum(one.drafted for one in results) == found.drafted > 0
    for outcome in watch.outcomes:
        assert outcome.rows == outcome.requests + sum(r.drafted for r in outcome.per_request)
        assert outcome.draft_ms >= sum(proposal.ms for proposal in outcome.proposals) - 1e-9
    for one in results:
        assert 0 <= one.accepted <= one.drafted
        assert one.committed == one.accepted + 1 or one.cut or one.committed == one.accepted
        assert (one.drafter == NONE) == (one.drafted == 0)


def test_a_request_sees_its_context_grow_by_what_was_committed() -> None:
    watch, _ = watched()
    context: dict[int, int] = {}
    for batch, outcome in zip(watch.batches, watch.outcomes, strict=True):
        for view, result in zip(batch.requests, outcome.per_request, strict=True):
            assert context.get(view.id, view.context_len) == view.context_len
            context[view.id] = view.context_len + result.committed


def test_how_long_a_text_will_be_is_not_told() -> None:
    """`remaining` is the limit of tokens, the same for every request: no hint of a text's end."""
    watch, _ = watched()
    limits = {
        view.remaining + view.context_len - first.context_len
        for batch in watch.batches
        for view in batch.requests
        for first in [_first(watch.batches, view.id)]
    }
    assert len(limits) == 1


def _first(batches: Sequence[BatchView], request: int) -> RequestView:
    return next(v for batch in batches for v in batch.requests if v.id == request)


def test_a_policy_cannot_tell_two_futures_apart_until_they_happen() -> None:
    """Texts that differ only from token 30 on give the same offers and plans up to there."""
    one = text([0, 2, 1, 0, 3, 2, 1, 0] * 10, [3, 4, 5, 0, 6, 7, 8, 3] * 10)
    changed = np.where(np.arange(80) < 30, one.accepted["ngram"], 0)
    two = replace(one, accepted={"ngram": changed})
    seen: list[Watched] = []
    for some in (one, two):
        watch, _ = watched(
            texts=Library({"mixed": [some]}, ("ngram", "eagle")), phases=(Phase(1, "mixed", 60),),
        )  # fmt: skip
        seen.append(watch)
    before = 0
    for first, second in zip(*(w.batches for w in seen), strict=False):
        if first.requests[0].context_len > 10 + 27:
            break
        assert first == second
        before += 1
    assert before >= 8
    assert seen[0].offers[:before] == seen[1].offers[:before]
    assert [p.allotments for p in seen[0].plans[:before]] == [
        p.allotments for p in seen[1].plans[:before]
    ]


def test_requests_that_ended_are_forgotten_once() -> None:
    watch, _ = watched()
    assert len(watch.forgotten) == len(set(watch.forgotten))
    last = {view.id for view in watch.batches[-1].requests}
    every = {view.id for batch in watch.batches for view in batch.requests}
    assert every - last <= set(watch.forgotten)


def test_a_chain_is_credited_part_by_part_and_its_tail_only_behind_a_whole_head() -> None:
    class Chaining:
        attentive = True

        def plan(self, batch: BatchView, offers: Sequence[Offer]) -> Plan:
            return Plan(tuple(Allotment(r.id, "eagle", 2, "ngram", 5) for r in batch.requests))

        def observe(self, outcome: StepOutcome) -> None:
            results.extend(outcome.per_request)

        def forget(self, request: int) -> None: ...

        def take_decisions(self) -> list[object]:
            return []

    results: list[RequestOutcome] = []
    closed(machine(), library(), PHASES, Chaining(), Clock(), 0)  # type: ignore[arg-type]
    tails = 0
    for one in results:
        head, tail = one.parts
        assert (head.drafter, tail.drafter) == ("eagle", "ngram")
        assert head.drafted == 2
        assert one.drafted == head.drafted + tail.drafted
        assert one.accepted == head.accepted + tail.accepted
        if head.accepted < head.drafted:
            assert tail.accepted == 0
        tails += tail.accepted > 0
    assert tails > 10


def test_a_draft_model_falls_behind_says_so_and_is_paid_for_catching_up() -> None:
    target = MODELS["llama-70b"]
    hardware = HARDWARE["H200"]
    drafter = draft_model("draft_model", MODELS["llama-1b"], target, hardware)
    on = Machine(roofline(hardware, target, 2), (lookup("ngram"), drafter), noise=0.0)
    texts = Library(
        {"mixed": [replace(text([0] * 60, [0] * 60, prompt=400))]}, ("ngram", "draft_model")
    )
    watch, _ = watched(Setting("pinned", "draft_model", 2, 20), (Phase(2, "mixed", 40),), on, texts)
    first, second = watch.outcomes[0].proposals[0], watch.outcomes[1].proposals[0]
    assert [offer.catch_up for offer in watch.offers[0]] == [401, 401]
    assert first.catch_up == 802
    assert second.catch_up == 0
    assert first.ms == pytest.approx(second.ms + 802 * drafter.row_ms)


@pytest.mark.parametrize("name", NAMES)
def test_a_look_up_that_matches_nowhere_is_asked_and_offers_nothing(name: str) -> None:
    """It is a look-up because its drafter needs no model, not because it matched anywhere."""
    drafters = (*machine().drafters, lookup("suffix"))
    on = replace(machine(noise=0.01, chains=True), drafters=drafters)
    texts = Library({"mixed": make_texts(RECIPES["mixed"], 10, 3)}, ("ngram", "eagle", "suffix"))
    watch, found = watched(on=on, texts=texts, choice=Choice(name))
    offered = {one.drafter for some in watch.offers for one in some}
    assert "suffix" not in offered
    assert "suffix" not in found.drafting
    assert found.tokens >= sum(phase.work for phase in PHASES)


def test_a_static_choice_of_a_look_up_that_matches_nowhere_is_plain_decoding() -> None:
    on = replace(machine(), drafters=(lookup("suffix"), head("mtp", 0.5, 5.0)))
    texts = Library({"mixed": make_texts(RECIPES["mixed"], 10, 3)}, ("suffix", "mtp"))
    choices = [Static(NONE, 0), Static("suffix", 4), Static("mtp", 4)]
    plain, suffix, mtp = run_statics(on, texts, PHASES, choices, 0)
    assert (suffix.drafted, suffix.ms) == (0, plain.ms)
    assert mtp.drafted > 0  # a model drafts everywhere, right or wrong
    assert mtp.tokens == plain.tokens


def test_slowdowns_out_of_order_are_refused() -> None:
    for slowdowns in (((2.0, 1.5), (1.0, 3.0)), ((1.0, 1.5), (1.0, 3.0))):
        with pytest.raises(ValueError, match=r"machine\.slowdowns: each must begin later"):
            replace(machine(), slowdowns=slowdowns)
    slow = replace(machine(), slowdowns=((1.0, 1.5), (2.0, 3.0)))
    assert [slow.factor(ms) for ms in (0.0, 1000.0, 1999.0, 2000.0)] == [1.0, 1.5, 1.5, 3.0]


def test_a_machine_that_gets_slower_takes_longer_from_then_on() -> None:
    phases = (Phase(2, "mixed", 200),)
    usual = run(phases, choice=Choice("off"))
    half = usual.ms / 2e3
    slow = run(phases, choice=Choice("off"), on=replace(machine(), slowdowns=((half, 2.0),)))
    verify = usual.ms - usual.steps * machine().overhead_ms
    assert slow.ms == pytest.approx(usual.ms + 0.5 * verify, rel=0.05)


# --- open loop ------------------------------------------------------------------------------------


def arriving(times: Sequence[float], rows: int = 2048) -> Run:
    on = replace(machine(), chunk_rows=rows, max_batch=8)
    texts = library()
    clock = Clock()
    controller = make("off", PolicyInputs(("ngram",)))
    requests = arrivals(times, "mixed", texts, np.random.default_rng(1))
    return open_loop(on, texts, requests, controller, clock, 0)


def test_every_request_that_arrives_is_finished_with_all_its_tokens() -> None:
    found = arriving([10.0 * i for i in range(30)])
    texts = library()
    order = texts.order("mixed", np.random.default_rng(1))
    whole = sum(int(texts.last[order[i % 20]] - texts.first[order[i % 20]]) for i in range(30))
    assert len(found.latencies) == 30
    assert found.tokens + found.first_tokens == whole
    assert found.first_tokens == 30


def test_idle_time_between_requests_costs_nothing_and_waiting_for_a_place_is_latency() -> None:
    apart, together = arriving([0.0, 1e6]), arriving([0.0] * 40)
    assert apart.ms < 1e5
    assert max(one.first_ms for one in together.latencies) > 10 * max(
        one.first_ms for one in apart.latencies
    )


def test_prompts_are_computed_in_chunks_beside_the_decoding_requests() -> None:
    whole, chunked = arriving([0.0] * 4), arriving([0.0] * 4, rows=64)
    first = [max(one.first_ms for one in found.latencies) for found in (whole, chunked)]
    assert first[1] > first[0] * 1.5


def test_an_output_of_one_token_has_no_time_per_token() -> None:
    texts, clock = library(), Clock()
    requests = [Arrival(0.0, 0, 5, output) for output in (1, 2, 1)]
    controller = make("off", PolicyInputs(("ngram",)))
    found = open_loop(machine(), texts, requests, controller, clock, 0).latencies
    times = [one.per_token_ms for one in found]
    assert times[:2] == [None, None]
    assert times[2] is not None
    assert times[2] > 1.0


def test_quantiles_of_the_time_per_token_leave_such_outputs_out() -> None:
    """With them as 0 ms the median of three would be 0."""
    outputs = {"one": (1, 1, 3), "none": (1, 1, 1)}
    found = {}
    for name, some in outputs.items():
        requests = [Arrival(0.0, 0, 5, output) for output in some]
        scenario = Scenario(machine(), library(), SETTING, deal=lambda *_, all=requests: all)
        found[name] = simulate(scenario, Choice("off"), lambda fraction: None)
    assert found["one"]["finished"] == found["none"]["finished"] == 3
    assert found["one"]["tpot_ms"]["p50"] > 1.0
    assert found["one"]["ttft_ms"]["p50"] > 1.0
    assert "tpot_ms" not in found["none"]


def test_replicas_share_what_arrives() -> None:
    every = [Arrival(float(i), 0, 1, 1) for i in range(10)]
    parts = [thin(every, 3, number) for number in range(3)]
    assert sorted(one.ms for part in parts for one in part) == [one.ms for one in every]


def test_deciding_takes_time_in_steps_that_look_only() -> None:
    """Plain decoding that asks nobody pays nothing; what looks pays for itself and each request."""
    slow, phases = replace(machine(), decision_ms=(0.5, 0.25)), (Phase(4, "mixed", 50),)
    plain = Choice("off")
    assert run(phases, choice=plain, on=slow).ms == run(phases, choice=plain).ms
    pinned = Setting("pinned", "eagle", 3, 20)
    free, charged = run(phases, pinned), run(phases, pinned, on=slow)
    assert charged.ms == pytest.approx(free.ms + charged.steps * (0.5 + 4 * 0.25))
