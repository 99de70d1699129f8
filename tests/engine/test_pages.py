"""Pages: nothing is lost, nothing is held twice, runs stay whole."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.pages import Pages


@given(
    total=st.integers(1, 64),
    acts=st.lists(st.tuples(st.integers(0, 9), st.integers(1, 20)), max_size=60),
)
def test_pages_add_up_through_any_sequence(total: int, acts: list[tuple[int, int]]) -> None:
    pages = Pages(total, 16)
    held: dict[int, list[int]] = {}
    for owner, count in acts:
        if owner in held:
            pages.release(owner)
            del held[owner]
        else:
            got = pages.allocate(owner, count)
            if got is None:
                assert count > pages.free
            else:
                assert len(got) == count
                held[owner] = got
        pages.check()
        assert pages.free == total - sum(map(len, held.values()))
    for owner in held:
        pages.release(owner)
    assert pages.free == total
    assert pages.allocate(99, total) == list(range(total)), "free runs were not merged"


def test_a_request_gets_consecutive_pages_when_a_run_is_long_enough() -> None:
    pages = Pages(16, 16)
    for owner in range(4):
        pages.allocate(owner, 4)
    pages.release(0)
    pages.release(2)
    pages.release(3)
    assert pages.allocate(7, 8) == list(range(8, 16))
    assert pages.allocate(8, 4) == [0, 1, 2, 3]


def test_a_request_gets_scattered_pages_when_no_run_is_long_enough() -> None:
    pages = Pages(6, 16)
    for owner in range(3):
        pages.allocate(owner, 2)
    pages.release(0)
    pages.release(2)
    assert sorted(pages.allocate(9, 4) or []) == [0, 1, 4, 5]
    pages.check()


def test_one_owner_cannot_hold_twice() -> None:
    pages = Pages(4, 16)
    pages.allocate(1, 1)
    with pytest.raises(ValueError, match="already holds"):
        pages.allocate(1, 1)


def test_check_finds_a_lost_page() -> None:
    pages = Pages(4, 16)
    pages.allocate(1, 2)
    pages._held[1].pop()
    with pytest.raises(AssertionError, match="lost"):
        pages.check()


@pytest.mark.parametrize(("tokens", "expected"), [(1, 1), (16, 1), (17, 2), (32, 2)])
def test_pages_needed_round_up(tokens: int, expected: int) -> None:
    assert Pages(4, 16).needed(tokens) == expected
