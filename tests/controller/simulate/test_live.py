"""Shadow scores of the simulated engine: at step starts, settled by the text, censored at ends."""

from __future__ import annotations

from controller.contract import ShadowScore
from controller.simulate.live import Live, Shadows
from controller.simulate.texts import Library
from tests.controller.simulate.small import text


def play(
    accepted: list[int], match: list[int], commits: list[int]
) -> list[list[tuple[int, bool, int, int]]]:
    """(accepted, censored, match length, streak) of the scores that each commit settles."""
    library = Library({"one": [text(accepted, match)]}, ("ngram",))
    shadows, live = Shadows(library, ("ngram",)), Live(1, 0, len(accepted), 10, 1)
    found: list[list[tuple[int, bool, int, int]]] = []
    for count in commits:
        scores = shadows.take(live, 0, live.at + count)
        live.at += count
        found.append([_short(one) for one in scores])
    return found


def _short(score: ShadowScore) -> tuple[int, bool, int, int]:
    assert score.drafted == 20
    return score.accepted, score.censored, score.features.match_length, score.features.streak


def test_a_draft_is_settled_by_its_first_wrong_token() -> None:
    # Two right, then wrong: it takes three committed tokens to know.
    assert play([2, 9, 9, 0, 0], [3] * 5, [1, 1, 1]) == [[], [], [(2, False, 3, 0)]]


def test_the_next_draft_starts_behind_the_wrong_token() -> None:
    scores = play([1, 9, 0, 1, 9, 0], [3, 8, 4, 5, 8, 6], [6])
    assert scores == [[(1, False, 3, 0), (0, False, 4, 1), (1, False, 5, 0), (0, False, 6, 1)]]


def test_where_nothing_matches_nothing_is_scored() -> None:
    assert play([0, 0, 0, 0], [0, 0, 7, 0], [4]) == [[(0, False, 7, 0)]]


def test_a_draft_that_is_right_to_the_texts_end_is_censored() -> None:
    assert play([0, 3, 2, 1], [3] * 4, [2, 2]) == [[(0, False, 3, 0)], [(3, True, 3, 0)]]


def test_going_live_censors_the_open_draft_and_the_shadow_starts_behind_the_live_text() -> None:
    library = Library({"one": [text([4, 9, 9, 9, 9, 0, 0, 1, 0, 0], [3] * 10)]}, ("ngram",))
    shadows, live = Shadows(library, ("ngram",)), Live(1, 0, 10, 10, 1)
    shadows.take(live, 0, 2)
    live.at = 2
    (score,) = shadows.lived(live, 0, accepted=2, new=5)
    assert (score.accepted, score.censored) == (2, True)
    live.at = 5
    assert live.starts == [5]
    assert live.streaks == [2]  # the censored draft and the live one
    (score,) = shadows.take(live, 0, 6)
    assert (score.accepted, score.censored, score.features.streak) == (0, False, 2)


def test_a_full_draft_is_settled_without_a_wrong_token_and_skips_the_bonus() -> None:
    accepted = [20, *range(19, -1, -1), 0, 0, 0]
    scores = play(accepted, [3] * 24, [20, 1, 1])
    assert scores == [[(20, False, 3, 0)], [], [(0, False, 3, 1)]]
