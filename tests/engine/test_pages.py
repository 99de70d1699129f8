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
    with pytest.raises(AssertionError, match="holders"):
        pages.check()
    pages._holders[1] = 0
    with pytest.raises(AssertionError, match="lost"):
        pages.check()


@pytest.mark.parametrize(("tokens", "expected"), [(1, 1), (16, 1), (17, 2), (32, 2)])
def test_pages_needed_round_up(tokens: int, expected: int) -> None:
    assert Pages(4, 16).needed(tokens) == expected


def test_requests_grow_in_place_when_there_is_room() -> None:
    pages = Pages(64, 16)
    held = [pages.allocate(owner, 2, expected=8) or [] for owner in range(8)]
    for _ in range(6):
        for owner in range(8):
            assert pages.grow(owner, 1) == 1
            pages.check()
    for run in held:
        assert run == list(range(run[0], run[0] + 8)), "pages are not consecutive"
    assert pages.grow(0, 1) == 0


def test_growth_takes_any_page_when_the_next_is_held() -> None:
    pages = Pages(4, 16)
    first = pages.allocate(1, 1)
    pages.allocate(2, 1)
    assert first == [0]
    assert pages.grow(1, 3) == 2
    assert first == [0, 2, 3]
    pages.check()


def test_pages_that_drafts_wanted_can_be_taken_back() -> None:
    pages = Pages(8, 16)
    held = pages.allocate(1, 2, expected=4)
    pages.grow(1, 3)
    pages.trim(1, 2)
    pages.check()
    assert held == [0, 1]
    assert pages.free == 6
    other = pages.allocate(2, 1)
    assert other is not None
    pages.grow(1, 2)
    assert held == [0, 1, 2, 3], "the room of a request went with its spare pages"


def test_a_shared_page_is_free_when_its_last_holder_is_gone() -> None:
    pages = Pages(8, 16)
    first = pages.allocate(1, 2) or []
    pages.allocate(2, 1, shared=first)
    pages.check()
    assert pages.free == 5
    pages.release(1)
    pages.check()
    assert pages.free == 5
    pages.release(2)
    assert pages.free == 8


def test_kept_pages_give_way_when_free_pages_run_out_and_the_longest_unused_goes_first() -> None:
    pages = Pages(4, 16)
    for owner, key in ((1, b"old"), (2, b"new")):
        held = pages.allocate(owner, 1) or []
        pages.name(held[0], key)
        pages.release(owner)
    assert (pages.free, pages.kept) == (4, 2)
    pages.allocate(3, 2)
    assert pages.kept == 2, "free pages come first"
    pages.allocate(4, 1)
    pages.check()
    assert pages.find(b"old") is None
    assert pages.find(b"new") is not None


def test_the_end_of_a_kept_text_gives_way_before_its_beginning() -> None:
    pages = Pages(4, 16)
    for page in pages.allocate(1, 4) or []:
        pages.name(page, bytes([page]))
    pages.release(1)
    pages.allocate(2, 2)
    assert [pages.find(bytes([page])) for page in range(4)] == [0, 1, None, None]


def test_a_follow_up_continues_in_place_behind_the_kept_pages() -> None:
    pages = Pages(16, 16)
    before = pages.allocate(1, 4, expected=6) or []
    for page in before[:3]:
        pages.name(page, bytes([page]))
    pages.release(1)
    after = pages.allocate(2, 4, expected=8, shared=before[:3])
    assert after == list(range(before[0], before[0] + 7))
    pages.check()


def test_kept_pages_are_not_counted_free_for_the_request_that_shares_them() -> None:
    pages = Pages(3, 16)
    held = pages.allocate(1, 2) or []
    for page in held:
        pages.name(page, bytes([page]))
    pages.release(1)
    assert pages.allocate(2, 2, shared=held) is None
    pages.check()
    assert pages.allocate(2, 1, shared=held) == [0, 1, 2]


def test_a_page_whose_content_is_forgotten_is_free() -> None:
    pages = Pages(2, 16)
    held = pages.allocate(1, 1) or []
    pages.name(held[0], b"text")
    pages.release(1)
    pages.unname(held[0])
    pages.check()
    assert (pages.find(b"text"), pages.kept, pages.free) == (None, 0, 2)


def scattered(in_place: bool) -> Pages:
    """Four kept pages and four free ones, in turns."""
    pages = Pages(8, 16, in_place=in_place)
    for owner in range(8):
        (page,) = pages.allocate(owner, 1) or []
        if page % 2:
            pages.name(page, bytes([page]))
    for owner in range(8):
        pages.release(owner)
    assert (pages.free, pages.kept) == (8, 4)
    return pages


def test_kept_pages_give_way_to_a_run_only_where_attention_gains_from_one() -> None:
    pages = scattered(in_place=False)
    assert sorted(pages.allocate(9, 3, expected=6) or []) == [0, 2, 4]
    assert pages.kept == 4, "content was lost for nothing"
    pages.allocate(10, 3)
    pages.check()
    assert pages.kept == 2, "one page was free, two were wanted beside it"
    pages = scattered(in_place=True)
    assert pages.allocate(9, 3) == [0, 1, 2]
    pages.check()
    assert pages.kept < 4


def test_what_a_request_could_have_is_what_it_gets_once_the_others_are_gone() -> None:
    pages = Pages(12, 16)
    for page in pages.allocate(1, 4) or []:
        pages.name(page, bytes([page]))
    pages.allocate(2, 2, shared=[0, 1])
    pages.allocate(3, 1, shared=[0, 1, 2, 3])
    assert pages.obtainable([2], []) == 5 + 2
    assert pages.obtainable([2, 3], []) == 5 + 3
    assert pages.obtainable([1], []) == 5, "what others share stays"
    assert pages.obtainable([1, 2, 3], []) == 12
    assert pages.obtainable([1, 2, 3], [0, 1, 2]) == 9
    for owner in (1, 2, 3):
        pages.release(owner)
    assert pages.allocate(9, 10, shared=[0, 1, 2]) is None
    assert pages.allocate(9, 9, shared=[0, 1, 2]) is not None


ACTS = ["allocate", "share", "grow", "trim", "name", "release", "forget"]


@given(st.data())
def test_pages_add_up_through_sharing_growth_and_eviction(data: st.DataObject) -> None:
    pages = Pages(data.draw(st.integers(1, 24)), 16, in_place=data.draw(st.booleans()))
    held: dict[int, list[int]] = {}
    names = 0
    for owner in range(data.draw(st.integers(0, 40))):
        act = data.draw(st.sampled_from(ACTS))
        one = data.draw(st.sampled_from(sorted(held))) if held else None
        count = data.draw(st.integers(1, 6))
        if act == "allocate" or one is None:
            got = pages.allocate(owner, count, expected=2 * count)
        elif act == "share":
            shared = held[one][:count]
            room = pages.obtainable([], shared)
            got = pages.allocate(owner, count, shared=shared)
            assert (got is not None) == (count <= room)
        else:
            got = None
            if act == "grow":
                free, size = pages.free, len(held[one])
                assert pages.grow(one, count) == min(count, free) == len(held[one]) - size
            elif act == "trim" and not any(page in pages._key for page in held[one][1:]):
                if all(pages._holders[page] == 1 for page in held[one][1:]):
                    pages.trim(one, 1)
            elif act == "name":
                pages.name(held[one][0], bytes([names]))
                names += 1
            elif act == "release":
                pages.release(one)
                del held[one]
            elif act == "forget":
                pages.unname_all()
                assert pages.kept == 0
                assert not any(pages.find(bytes([name])) for name in range(names))
        if got is not None:
            held[owner] = got
        pages.check()
