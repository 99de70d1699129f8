"""Token recycling: what the target said at rejected rows is drafted where the text has no match."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from controller.contract import ShadowScore
from engine.drafters.base import Committed
from engine.drafters.ngram.drafter import NgramDrafter
from engine.drafters.ngram.recycling import RUN, SETS, SIZE, WAYS, extend, find, harvest
from engine.request import Request
from tests.engine.replay import make_request
from tests.engine.scripted import Harness, ScriptedDrafter

END = 99
NO_ENDS = np.empty(0, dtype=np.int64)


def drafter_of(recycle: bool = True) -> NgramDrafter:
    drafter = NgramDrafter(8, frozenset({END}))
    drafter.set_parameters({"recycle": recycle})
    return drafter


def admitted(drafter: NgramDrafter, tokens: list[int], number: int = 1) -> Request:
    request = make_request(tokens, number)
    drafter.admit(request)
    return request


def reject(
    drafter: NgramDrafter, request: Request, run: list[int], rejected: list[int], targets: list[int]
) -> None:
    """Commit a run after which these drafts were rejected, and what the target said after each."""
    start, drafted = len(request.tokens), len(run) - 1 + len(rejected)
    request.tokens += run
    drafter.commit(
        [Committed(request, start, run, drafted, len(run) - 1, rejected=rejected, targets=targets)]
    )


def drafted(drafter: NgramDrafter, request: Request) -> tuple[str, int, list[int]]:
    """(source, match length, draft) after the request's text."""
    (offer,) = drafter.offer([request])
    (draft,) = drafter.propose([request], [8])
    if offer is None:
        return "", 0, list(draft.tokens)
    return offer.features.source, offer.features.match_length, list(draft.tokens)


def commit(drafter: NgramDrafter, request: Request, run: list[int]) -> None:
    start = len(request.tokens)
    request.tokens += run
    drafter.commit([Committed(request, start, run)])


def test_the_guesses_after_a_correction_are_the_next_draft() -> None:
    drafter = drafter_of()
    request = admitted(drafter, [1, 2])
    reject(drafter, request, [3], rejected=[40, 41, 42], targets=[50, 51, 52])
    assert drafted(drafter, request) == ("pool", 1, [50, 51, 52])


def test_a_rejected_token_is_followed_by_the_guess_of_its_row() -> None:
    drafter = drafter_of()
    request = admitted(drafter, [1, 2])
    reject(drafter, request, [3], rejected=[40, 41, 42], targets=[50, 51, 52])
    commit(drafter, request, [9, 41])
    assert drafted(drafter, request) == ("pool", 1, [51, 52])


def test_the_text_s_own_match_goes_first() -> None:
    drafter = drafter_of()
    request = admitted(drafter, [3, 8, 2])
    reject(drafter, request, [3], rejected=[40, 41], targets=[50, 51])
    assert drafted(drafter, request) == ("prompt", 1, [8, 2, 3, 8, 2, 3, 8, 2])


def test_runs_are_continued_by_other_runs_up_to_an_end_token() -> None:
    drafter = drafter_of()
    request = admitted(drafter, [1])
    reject(drafter, request, [2], rejected=[40], targets=[END])
    reject(drafter, request, [3], rejected=[41], targets=[40])
    assert drafted(drafter, request) == ("pool", 1, [40, END])


def test_nothing_is_recycled_unless_it_is_switched_on() -> None:
    drafter = drafter_of(recycle=False)
    request = admitted(drafter, [1, 2])
    reject(drafter, request, [3], rejected=[40, 41], targets=[50, 51])
    assert drafted(drafter, request) == ("", 0, [])
    drafter.set_parameters({"recycle": True})
    reject(drafter, request, [4], rejected=[40, 41], targets=[50, 51])
    assert drafted(drafter, request) == ("pool", 1, [50, 51])
    drafter.set_parameters({"recycle": False})
    assert drafted(drafter, request) == ("", 0, [])


def test_what_the_target_said_counts_only_where_there_is_one_for_each_row() -> None:
    drafter = drafter_of()
    request = admitted(drafter, [1, 2])
    reject(drafter, request, [3], rejected=[40, 41, 42], targets=[50])
    reject(drafter, request, [4], rejected=[], targets=[50, 51])
    (offer,) = drafter.offer([request])
    assert offer is None
    reject(drafter, request, [5], rejected=[40], targets=[50])
    assert drafted(drafter, request) == ("pool", 1, [50])


def test_requests_share_nothing() -> None:
    drafter = drafter_of()
    request, other = admitted(drafter, [1, 2], 1), admitted(drafter, [1, 2], 2)
    reject(drafter, request, [3], rejected=[40, 41], targets=[50, 51])
    commit(drafter, other, [3])
    assert drafted(drafter, other) == ("", 0, [])
    drafter.forget(1)
    again = admitted(drafter, [1, 2, 3], 3)  # takes the place of the first
    assert drafted(drafter, again) == ("", 0, [])


def test_the_latest_runs_of_a_token_stay_and_the_oldest_goes() -> None:
    pool = np.zeros(SIZE, dtype=np.int32)
    for before in range(WAYS + 1):
        one = np.array([0], dtype=np.int64)
        harvest(pool, before, 7, one + 1000 + before, one + 100 + before)
    found = [find(pool, before, 7)[0] for before in range(WAYS + 1)]
    assert found == [1] + [2] * WAYS
    assert follow(pool, 0, 7, 1) == [100 + WAYS]  # the latest, after another token


def follow(pool: np.ndarray, before: int, token: int, count: int) -> list[int]:
    out = np.empty(count, dtype=np.int64)
    return out[: extend(pool, before, token, count, NO_ENDS, out)].tolist()


tails = st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5)), min_size=1, max_size=12)


@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5), tails), max_size=12))
def test_the_pool_keeps_what_a_plain_list_of_the_latest_runs_keeps(
    steps: list[tuple[int, int, list[tuple[int, int]]]],
) -> None:
    pool = np.zeros(SIZE, dtype=np.int32)
    kept: dict[int, list[tuple[int, list[int]]]] = {}

    def keep(before: int, token: int, run: list[int]) -> None:
        runs = kept.setdefault(token, [])
        runs[:] = [(b, r) for b, r in runs if (b, r[0]) != (before, run[0])]
        runs.insert(0, (before, run[:RUN]))
        del runs[WAYS:]

    for before, correction, tail in steps:
        rejected, guesses = [d for d, _ in tail], [g for _, g in tail]
        harvest(pool, before, correction, np.array(rejected), np.array(guesses))
        drafts, chain = [before, *rejected], [before, correction, *guesses]
        for i in reversed(range(len(tail))):
            if i == 0 or rejected[i] != guesses[i - 1]:
                keep(drafts[i], rejected[i], guesses[i:])
        for i in reversed(range(len(tail))):
            keep(chain[i], chain[i + 1], guesses[i:])
    for token, runs in kept.items():
        for before in range(6):
            exact = [run for b, run in runs if b == before]
            wanted = (exact or [run for _, run in runs])[0]
            matched, _ = find(pool, before, token)
            assert matched == (2 if exact else 1)
            assert follow(pool, before, token, 20)[: len(wanted)] == wanted


def test_the_sets_spread_the_tokens_of_a_vocabulary() -> None:
    pool = np.zeros(SIZE, dtype=np.int32)
    for token in range(SETS):
        harvest(pool, 1, token, np.array([-5]), np.array([token + 1]))
    kept = sum(find(pool, 1, token)[0] == 2 for token in range(SETS))
    assert kept > 0.9 * SETS


def test_the_loop_hands_over_what_the_target_said_at_every_rejected_row() -> None:
    def logits(token: int, position: int) -> list[float]:
        return [float((3 * token + k + position) % 5) for k in range(5)]

    def said(token: int, position: int) -> int:
        row = logits(token, position)
        return row.index(max(row))

    class Listening(ScriptedDrafter):
        def commit(self, commits: Sequence[Committed]) -> list[tuple[ShadowScore, ...]]:
            heard.extend(commits)
            return super().commit(commits)

    heard: list[Committed] = []
    harness = Harness(
        5, logits, [Listening(lambda t, n: [0, 1, 2, 3][:n], "a")], lambda s, r, n: ("a", 4)
    )
    requests = [harness.add([n], 40) for n in range(3)]
    harness.drain()
    assert all(request.produced == 40 for request in requests)
    assert sum(bool(one.rejected) for one in heard) > 20
    for one in heard:
        assert one.tokens == one.request.tokens[one.start : one.start + len(one.tokens)]
        assert len(one.rejected) == len(one.targets)
        if one.rejected:
            assert one.accepted + len(one.rejected) == one.drafted
            end = one.start + len(one.tokens) - 1  # where the first rejected draft stood
            rows = enumerate(one.rejected, start=end)
            assert list(one.targets) == [said(token, position) for position, token in rows]
