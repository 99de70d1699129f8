"""Operator limits > the request's wish > the pin > auto; off is plain for everyone."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controller.contract import Allotment, Features, Mode, Offer, Setting, Wish
from controller.controller import AdaptiveController
from controller.cost import CostModel
from tests.controller.simulated_engine import BF16, batch, offer, points, request

AUTO = Setting()
PIN4 = Setting("pinned", "ngram", 4)
PIN = Setting("pinned", "ngram")
PIN_NONE = Setting("pinned", "none")
OFF = Setting("off")
NO_WISH = Wish()
ANY = -1
"""The controller picks D, and with these offers it drafts."""


def controller(setting: Setting = AUTO) -> AdaptiveController:
    return AdaptiveController(["ngram", "suffix"], CostModel(points(BF16)), setting)


def allot(setting: Setting, wish: Wish, *offers: Offer, **view: int) -> Allotment:
    plan = controller(setting).plan(batch(request(1, wish=wish, **view)), offers)
    return plan.allotments[0]


OFFERS = (
    Offer(1, "ngram", 10, Features(8, 2, "prompt")),
    Offer(1, "suffix", 10, Features(3, 0, "prompt")),
)


@pytest.mark.parametrize(
    ("setting", "wish", "drafter", "length"),
    [
        (AUTO, NO_WISH, "ngram", ANY),
        (AUTO, Wish(enabled=False), "none", 0),
        (AUTO, Wish(drafter="none"), "none", 0),
        (AUTO, Wish(draft_length=0), "none", 0),
        (AUTO, Wish(drafter="suffix", draft_length=7), "suffix", 7),
        (AUTO, Wish(drafter="suffix"), "suffix", ANY),
        (AUTO, Wish(draft_length=3), "ngram", 3),
        (AUTO, Wish(drafter="unknown", draft_length=3), "none", 0),
        (AUTO, Wish(enabled=False, drafter="ngram", draft_length=5), "none", 0),
        (PIN4, NO_WISH, "ngram", 4),
        (PIN, NO_WISH, "ngram", ANY),
        (PIN_NONE, NO_WISH, "none", 0),
        (PIN_NONE, Wish(drafter="ngram", draft_length=2), "ngram", 2),
        (PIN4, Wish(enabled=False), "none", 0),
        (PIN4, Wish(drafter="suffix", draft_length=2), "suffix", 2),
        (PIN4, Wish(drafter="suffix"), "suffix", ANY),
        (PIN4, Wish(draft_length=6), "ngram", 6),
        (OFF, NO_WISH, "none", 0),
        (OFF, Wish(drafter="ngram", draft_length=5), "none", 0),
        (Setting("pinned", "ngram", 2, 2), Wish(drafter="ngram", draft_length=9), "ngram", 2),
        (Setting("auto", max_draft_length=3), Wish(drafter="ngram", draft_length=9), "ngram", 3),
        (Setting("auto", max_draft_length=0), Wish(drafter="ngram", draft_length=9), "none", 0),
        (PIN4, Wish(drafter="ngram", draft_length=99), "ngram", 10),
    ],
)
def test_precedence(setting: Setting, wish: Wish, drafter: str, length: int) -> None:
    found = allot(setting, wish, *OFFERS)
    assert found.drafter == drafter
    assert found.length > 0 if length == ANY else found.length == length


def test_a_disabled_drafter_is_never_allotted_not_even_on_a_wish_or_a_pin() -> None:
    for setting in (AUTO, PIN4):
        for wish in (NO_WISH, Wish(drafter="ngram", draft_length=4)):
            c = controller(setting)
            c.set_enabled("ngram", False)
            plan = c.plan(batch(request(1, wish=wish)), OFFERS[:1])
            assert plan.allotments == (Allotment(1, "none", 0),)


def test_an_enabled_drafter_comes_back() -> None:
    c = controller()
    c.set_enabled("ngram", False)
    c.set_enabled("ngram", True)
    assert c.plan(batch(request(1)), OFFERS[:1]).allotments[0].drafter == "ngram"


@pytest.mark.parametrize("remaining", [1, 2, 5])
def test_the_last_token_of_a_request_is_never_passed(remaining: int) -> None:
    assert allot(PIN4, NO_WISH, *OFFERS, remaining=remaining).length == min(4, remaining - 1)


@pytest.mark.parametrize(
    ("setting", "field"),
    [
        (Setting("pinned"), "drafter"),
        (Setting("pinned", "eagle"), "drafter"),
        (Setting("auto", "eagle"), "drafter"),
        (Setting("pinned", "ngram", -1), "draft_length"),
        (Setting("pinned", "ngram", 17), "draft_length"),
        (Setting("auto", max_draft_length=-1), "max_draft_length"),
        (Setting("sometimes"), "mode"),  # type: ignore[arg-type]
    ],
)
def test_a_senseless_setting_is_refused_and_the_old_one_stays(setting: Setting, field: str) -> None:
    c = controller()
    with pytest.raises(ValueError, match=rf"^{field}:"):
        c.configure(setting)
    assert c.setting == AUTO
    with pytest.raises(ValueError, match=rf"^{field}:"):
        controller(setting)


def test_an_unknown_drafter_cannot_be_enabled() -> None:
    with pytest.raises(ValueError, match=r"^drafter:"):
        controller().set_enabled("eagle", True)


NAMES = st.sampled_from(["ngram", "suffix", "none", "unknown"])
WISHES = st.builds(Wish, st.booleans(), st.none() | NAMES, st.none() | st.integers(0, 40))


@st.composite
def settings_(draw: st.DrawFn) -> Setting:
    mode: Mode = draw(st.sampled_from(["auto", "pinned", "off"]))
    limit = draw(st.integers(0, 20))
    drafter = draw(st.sampled_from(["ngram", "suffix", "none"]))
    return Setting(mode, drafter, draw(st.none() | st.integers(0, limit)), limit)


@given(
    settings_(),
    st.lists(st.tuples(WISHES, st.integers(1, 40), st.integers(1, 9000)), max_size=6),
    st.lists(st.tuples(st.integers(0, 7), NAMES, st.integers(-1, 40), st.integers(0, 30))),
    st.integers(-1, 40),
    st.booleans(),
)
def test_caps_hold_whatever_comes_in(
    setting: Setting,
    views: list[tuple[Wish, int, int]],
    raw: list[tuple[int, str, int, int]],
    free_rows: int,
    ngram: bool,
) -> None:
    c = controller(setting)
    c.set_enabled("ngram", ngram)
    requests = [
        request(i, wish=w, remaining=remaining, context=context)
        for i, (w, remaining, context) in enumerate(views)
    ]
    offers = [offer(r, name, length, match) for r, name, length, match in raw]
    longest = {(o.request, o.drafter): 0 for o in offers}
    for o in offers:
        key = (o.request, o.drafter)
        longest[key] = max(longest[key], o.max_length)
    plan = c.plan(batch(*requests, free_rows=free_rows), offers)
    assert [a.request for a in plan.allotments] == [r.id for r in requests]
    assert sum(a.length for a in plan.allotments) <= max(free_rows, 0)
    for a, r in zip(plan.allotments, requests, strict=True):
        if a.length == 0:
            assert a.drafter == "none"
            continue
        assert a.drafter in (["ngram", "suffix"] if ngram else ["suffix"])
        assert setting.mode != "off"
        assert r.wish.enabled
        assert a.length <= min(longest[r.id, a.drafter], r.remaining - 1, setting.max_draft_length)
