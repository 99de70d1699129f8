"""Where a request ends, and what of it is shown, also inside an accepted run."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.build import Target
from engine.draw import Draw
from engine.output import Output
from engine.text import Text
from engine.wire import Deltas, Finished, Piece
from tests.engine.scripted import Harness, PlainText, ScriptedDrafter


def count_up(token: int, position: int) -> list[float]:
    """The greedy text is the alphabet: a, b, c, …"""
    return [1.0 if k == (token + 1) % 26 else 0.0 for k in range(26)]


def following(tokens: list[int], length: int) -> list[int]:
    return [(tokens[-1] + 1 + place) % 26 for place in range(length)]


def harness(length: int) -> Harness:
    return Harness(26, count_up, [ScriptedDrafter(following, "a")], lambda s, r, n: ("a", length))


def text(pieces: list[Piece]) -> str:
    return "".join(piece.text for piece in pieces)


@pytest.mark.parametrize("length", [0, 1, 4, 8])
@pytest.mark.parametrize(("stop", "shown"), [("f", "bcde"), ("ef", "bcd"), ("bcdef", "")])
def test_a_stop_string_inside_an_accepted_run_cuts_text_and_ids(
    length: int, stop: str, shown: str
) -> None:
    run = harness(length)
    request = run.add([0], 20, stop=[stop])
    run.drain()
    end = run.end(request)
    assert isinstance(end, Finished)
    assert (end.finish_reason, end.stop) == ("stop", stop)
    assert text(run.pieces(request)) == shown
    assert request.tokens[1:] == [1, 2, 3, 4, 5], "tokens after the stop were kept"
    assert end.completion_tokens == 5


@pytest.mark.parametrize("length", [0, 3, 8])
def test_an_end_token_inside_an_accepted_run_ends_the_request(length: int) -> None:
    run = harness(length)
    request = run.add([0], 20, end_ids=frozenset({6}))
    run.drain()
    end = run.end(request)
    assert isinstance(end, Finished)
    assert end.finish_reason == "stop"
    assert end.completion_tokens == 6
    assert request.tokens[1:] == [1, 2, 3, 4, 5, 6]
    assert request.accepted <= request.drafted


def one_token_of(text: str) -> PlainText:
    """A detokeniser whose every token is this text."""

    class Whole(PlainText):
        def add(self, token: int) -> str:
            return text

    return Whole()


@pytest.mark.parametrize("stops", [["abc", "b"], ["b", "abc"]])
@pytest.mark.parametrize("whole", [False, True], ids=["a letter a token", "one token"])
def test_of_several_stop_strings_the_one_completed_first_wins(
    stops: list[str], whole: bool
) -> None:
    output = Output(
        one_token_of("abc") if whole else PlainText(),
        stop=stops,
        end_ids=frozenset(),
        stop_token_ids=frozenset(),
        max_tokens=9,
    )
    shown = ""
    for token in (0, 1, 2):
        if output.finish_reason is None:
            shown += text(output.add(token, "accepted"))
    assert (shown, output.matched, output.finish_reason) == ("a", "b", "stop")


@pytest.mark.parametrize("length", [0, 1, 5])
@pytest.mark.parametrize(
    ("limit", "reason", "count"), [(5, "stop", 3), (3, "stop", 3), (2, "length", 2)]
)
@pytest.mark.parametrize("kind", ["end", "stop token"])
def test_the_first_of_stop_and_limit_ends_an_accepted_run(
    length: int, limit: int, reason: str, count: int, kind: str
) -> None:
    """Accepted ids 10, 11, STOP, 20, 21, 22."""
    run_of = {9: 10, 10: 11, 11: 12, 12: 20, 20: 21, 21: 22, 22: 23}

    def scripted(token: int, position: int) -> list[float]:
        return [1.0 if k == run_of.get(token, 0) else 0.0 for k in range(26)]

    def right(tokens: list[int], most: int) -> list[int]:
        drafted: list[int] = []
        for _ in range(most):
            drafted.append(run_of.get([*tokens, *drafted][-1], 0))
        return drafted

    run = Harness(26, scripted, [ScriptedDrafter(right, "a")], lambda s, r, n: ("a", length))
    ids = frozenset({12})
    request = (
        run.add([9], limit, end_ids=ids)
        if kind == "end"
        else run.add([9], limit, stop_token_ids=ids)
    )
    run.drain()
    end = run.end(request)
    assert isinstance(end, Finished)
    assert (end.finish_reason, end.completion_tokens) == (reason, count)
    assert request.tokens[1:] == [10, 11, 12][:count]
    assert end.stop == (12 if kind == "stop token" and reason == "stop" else None)


@pytest.mark.parametrize("length", [0, 1, 4, 8])
@pytest.mark.parametrize(
    ("stops", "least", "shown"),
    [
        (["d"], 3, "bcdefghijklmnopqrstuvwxyzabc"),  # completed by the third token: too early
        (["d"], 2, "bc"),
        (["cde"], 3, "b"),  # begun before, completed after
        (["cde"], 4, "bcdefghijklmnopqrstuvwxyzab"),
        (["bcdefx", "d", "efg"], 3, "bcd"),  # d is too early although it is still held back
    ],
)
def test_a_stop_string_counts_only_when_completed_after_min_tokens(
    length: int, stops: list[str], least: int, shown: str
) -> None:
    run = harness(length)
    request = run.add([0], 40, Draw(min_tokens=least), stop=stops)
    run.drain()
    end = run.end(request)
    assert isinstance(end, Finished)
    assert end.finish_reason == "stop"
    assert text(run.pieces(request)) == shown


@pytest.mark.parametrize("length", [0, 1, 5, 16])
@pytest.mark.parametrize("limit", [1, 2, 7, 12])
def test_max_tokens_is_met_exactly_at_any_draft_length(length: int, limit: int) -> None:
    run = harness(length)
    request = run.add([0], limit)
    run.drain()
    end = run.end(request)
    assert isinstance(end, Finished)
    assert (end.finish_reason, end.completion_tokens) == ("length", limit)
    assert len(run.pieces(request)) == limit


def test_text_that_may_become_a_stop_string_is_held_back_until_settled() -> None:
    run = harness(0)
    request = run.add([0], 20, stop=["cdx"])
    shown = []
    while run.engine.step():
        shown.append(text(run.pieces(request)))
    assert shown[:5] == ["b", "b", "b", "bcde", "bcdef"]
    assert shown[-1] == "bcdefghijklmnopqrstu"


def test_provenance_names_accepted_correction_bonus_and_plain() -> None:
    script = {2: [3, 4], 5: [9]}  # after c: d e, both right; after f: j, wrong
    run = Harness(
        26,
        count_up,
        [ScriptedDrafter(lambda t, n: script.get(t[-1], [])[:n], "a")],
        lambda s, r, n: ("a", 4),
    )
    request = run.add([0], 7)
    run.drain()
    assert [(piece.text, piece.kind) for piece in run.pieces(request)] == [
        ("b", "plain"),
        ("c", "plain"),
        ("d", "accepted"),
        ("e", "accepted"),
        ("f", "bonus"),
        ("g", "correction"),
        ("h", "plain"),
    ]
    end = run.end(request)
    assert isinstance(end, Finished)
    assert (end.speculation.drafted, end.speculation.accepted) == (3, 2)
    assert end.speculation.histogram[:3] == (3, 0, 1)


@pytest.mark.parametrize("length", [0, 1, 2, 3, 5, 16])
@pytest.mark.parametrize("period", [1, 2, 3])
@pytest.mark.parametrize("stop", ["cdefgx", "fgx", "ghijklmnopqrx", "yz"])
def test_a_step_whose_text_is_held_back_counts_with_the_text(
    length: int, period: int, stop: str
) -> None:
    """No delta shows more accepted tokens than it counts, and all together count everything."""
    run = Harness(
        26,
        count_up,
        [ScriptedDrafter(following, "a")],
        lambda step, r, n: ("a", length) if step % period == 0 else ("none", 0),
    )
    request = run.add([0], 22, stop=[stop])
    run.drain()
    deltas = [one for event in run.events if isinstance(event, Deltas) for one in event.items]
    for delta in deltas:
        shown = sum(piece.kind == "accepted" for piece in delta.pieces)
        assert shown <= delta.accepted <= delta.drafted
        assert (delta.drafter == "a") == (delta.drafted > 0)
    assert sum(delta.drafted for delta in deltas) == request.drafted
    assert sum(delta.accepted for delta in deltas) == request.accepted


@settings(max_examples=200, deadline=None)
@given(
    letters=st.lists(st.integers(0, 2), min_size=1, max_size=30),
    stops=st.lists(st.text("abc", min_size=1, max_size=4), max_size=3),
)
def test_stop_strings_cut_where_a_plain_search_would(letters: list[int], stops: list[str]) -> None:
    plain: PlainText = PlainText()
    output = Output(
        plain,  # a detokeniser of one letter a token
        stop=stops,
        end_ids=frozenset(),
        stop_token_ids=frozenset(),
        max_tokens=len(letters),
    )
    shown = ""
    used = 0
    for token in letters:
        shown += text(output.add(token, "plain"))
        used += 1
        if output.finish_reason:
            break
    whole = "".join("abc"[token] for token in letters)
    ends = [whole.find(stop) + len(stop) for stop in stops if stop in whole]
    if ends:
        first = min(ends)
        assert used == first, "the request did not end with the token that completed a stop"
        cut = min(whole[:first].find(stop) for stop in stops if stop in whole[:first])
        assert shown == whole[:cut]
    else:
        assert shown == whole


def test_streamed_text_is_the_decoded_text_and_never_breaks_a_character(target: Target) -> None:
    words = Text(target.loaded.tokenizer)
    sample = "Zoë mag 日本語 und 🚴‍♀️ naïve — 100 € ✓\n\tdef f(x): return 'ß'"
    ids = words.encode(sample)
    stream = words.stream()
    parts = [stream.add(token) for token in ids]
    assert "".join(parts) + stream.flush() == sample
    assert not any("\ufffd" in part for part in parts)


def test_a_limit_inside_a_character_gives_one_piece_a_token(target: Target) -> None:
    words = Text(target.loaded.tokenizer)
    ids = words.encode("🚴")[:-1]
    output = Output(
        words.stream(),
        stop=(),
        end_ids=frozenset(),
        stop_token_ids=frozenset(),
        max_tokens=len(ids),
    )
    pieces = [piece for token in ids for piece in output.add(token, "plain")]
    assert [piece.token for piece in pieces] == ids
    assert text(pieces) == "\ufffd"


def test_an_unfinished_character_at_the_end_is_shown_as_a_replacement(target: Target) -> None:
    words = Text(target.loaded.tokenizer)
    ids = words.encode("🚴")[:-1]
    stream = words.stream()
    shown = "".join(stream.add(token) for token in ids) + stream.flush()
    assert shown == "\ufffd"


@pytest.mark.parametrize("length", [0, 1, 3, 8])
def test_streamed_deltas_are_the_whole_text_and_never_show_half_a_character(
    target: Target, length: int
) -> None:
    """The target says a text whose characters take several tokens; drafts cut them anywhere."""
    words = target.text
    sample = "日本語🚴🏿‍♀️ € ß ✓ end"
    ids = words.encode(sample)
    size = target.loaded.decoder.shape.vocabulary

    def says(token: int, position: int) -> list[float]:
        row = [0.0] * size
        row[ids[min(position, len(ids) - 1)]] = 1.0
        return row

    def right(tokens: list[int], most: int) -> list[int]:
        return ids[len(tokens) - 1 : len(tokens) - 1 + most]

    run = Harness(size, says, [ScriptedDrafter(right, "a")], lambda s, r, n: ("a", length))
    request = run.add([0], len(ids))
    request.output = Output(
        words.stream(),
        stop=["never"],
        end_ids=frozenset(),
        stop_token_ids=frozenset(),
        max_tokens=len(ids),
    )
    run.drain()
    deltas = [one.text for e in run.events if isinstance(e, Deltas) for one in e.items]
    assert "".join(deltas) == sample == words.decode(request.tokens[1:])
    assert not any("\ufffd" in delta for delta in deltas)
    assert [piece.token for piece in run.pieces(request)] == ids
