"""What a drafter can draft and is fed, for the target's tokenizer, other sizes and other ones."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import cache

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer

from engine.detokenizer import Decoding
from engine.errors import StartError
from engine.intersection import SAMPLE, Match, match, read_tokens
from engine.spelling import Spelling
from engine.vocabulary import VocabularyMap, fingerprint, identity, ranked, reduced, restricted
from tests.engine.vocabularies import TEXT, Named, byte_level, letters, sentencepiece, with_added

PAIRS = {
    "byte-level by sentencepiece": (byte_level, sentencepiece),
    "sentencepiece by byte-level": (sentencepiece, byte_level),
    "byte-level by a smaller one": (byte_level, lambda: byte_level(600, ("<|end|>",))),
}


def size(tokenizer: Named) -> int:
    return tokenizer.backend_tokenizer.get_vocab_size(with_added_tokens=True)


def ids_of(tokenizer: Named, text: str) -> list[int]:
    return tokenizer.backend_tokenizer.encode(text, add_special_tokens=False).ids


def matched(target: Named, draft: Named, rows: int = 0, draft_rows: int = 0) -> Match:
    return match(
        read_tokens(target, rows or size(target)),
        read_tokens(draft, draft_rows or size(draft)),
        torch.tensor(ids_of(target, SAMPLE)),
        "the draft model",
    )


@cache
def texts(tokenizer: Named) -> list[bytes | str | None]:
    """What each id adds in the middle of a text, by the tokenizer's own decoder; the name of a
    special one."""
    fast = tokenizer.backend_tokenizer
    decoding = Decoding(fast, Spelling(fast))
    added = fast.get_added_tokens_decoder()
    return [
        added[token].content
        if token in added and added[token].special
        else decoding.data(token, first=False)
        for token in range(size(tokenizer))
    ]


# --- two tokenizers ------------------------------------------------------------------------------


@pytest.mark.parametrize("pair", PAIRS)
def test_a_drafted_id_is_the_targets_and_is_spelled_as_the_drafters(pair: str) -> None:
    target, draft = (make() for make in PAIRS[pair])
    found = matched(target, draft).vocabulary
    ends = {draft.backend_tokenizer.token_to_id(draft.eos_token or "")}
    columns = range(found.size) if found.kept is None else found.kept.tolist()
    assert found.size > 300
    assert len(set(columns)) == len(set(found.to_target.tolist())) == found.size
    for column, token in zip(columns, found.to_target.tolist(), strict=True):
        assert 0 <= column < size(draft)
        assert 0 <= token < size(target)
        if column not in ends:
            assert texts(target)[token] == texts(draft)[column]
        assert found.to_draft[token] == column, "a drafted token is fed as what was drawn"


@pytest.mark.parametrize("pair", PAIRS)
def test_a_text_of_shared_tokens_is_fed_as_the_same_text(pair: str) -> None:
    target, draft = (make() for make in PAIRS[pair])
    found = matched(target, draft).vocabulary
    ids = torch.tensor(ids_of(target, TEXT[:3_000]))
    shared = ids[torch.isin(ids, found.to_target)]
    fed = found.feed(shared).tolist()
    assert len(shared) > 100
    spelled = [texts(target)[token] for token in shared.tolist()]
    assert [texts(draft)[token] for token in fed] == spelled


@pytest.mark.parametrize("pair", PAIRS)
def test_no_token_that_both_have_is_left_out(pair: str) -> None:
    target, draft = (make() for make in PAIRS[pair])
    found = matched(target, draft).vocabulary
    own = set(texts(target))
    other = set(texts(draft))
    drafted = {texts(target)[token] for token in found.to_target.tolist()}
    ends = {target.eos_token}
    assert drafted - ends == (own & other) - ends


def test_the_ends_of_texts_stand_for_each_other_though_their_names_differ() -> None:
    target, draft = byte_level(), sentencepiece()
    found = matched(target, draft).vocabulary
    end = target.backend_tokenizer.token_to_id("<|end|>")
    column = draft.backend_tokenizer.token_to_id("</s>")
    assert found.kept is not None
    assert found.kept[found.to_target.tolist().index(end)] == column
    assert found.to_draft[end] == column


def test_an_end_of_text_without_a_name_is_the_first_that_stops() -> None:
    target, draft = byte_level(), replace(sentencepiece(), eos_token=None)
    stop = draft.backend_tokenizer.token_to_id("</s>")
    assert stop is not None
    tokens = read_tokens(draft, size(draft), {stop, size(draft) + 7})
    assert tokens.end == stop
    assert read_tokens(target, size(target), ()).end == 0


def test_other_tokens_are_fed_as_unknown_and_never_drafted() -> None:
    target, draft = byte_level(), sentencepiece()
    found = matched(target, draft).vocabulary
    user = target.backend_tokenizer.token_to_id("<|user|>")
    assert found.to_draft[user] == draft.backend_tokenizer.token_to_id("<unk>")
    assert user not in found.to_target.tolist()


def test_what_is_unknown_to_a_drafter_without_such_a_token_is_fed_as_its_end() -> None:
    target, draft = sentencepiece(), byte_level()
    found = matched(target, draft).vocabulary
    known = set(texts(draft))
    fed = {
        int(found.to_draft[token]) for token, text in enumerate(texts(target)) if text not in known
    }
    assert fed == {draft.backend_tokenizer.token_to_id("<|end|>")}


def test_byte_fallback_is_fed_as_its_letter_and_drafted_only_where_nothing_else_is_it() -> None:
    target, draft = sentencepiece(), byte_level()
    found = matched(target, draft).vocabulary
    fast, other = target.backend_tokenizer, draft.backend_tokenizer
    letter, lone = fast.token_to_id("e"), fast.token_to_id("<0x65>")
    assert found.to_draft[letter] == found.to_draft[lone] == other.token_to_id("e")
    drafted = found.to_target.tolist()
    assert letter in drafted
    assert lone not in drafted
    assert fast.token_to_id("<0xC3>") in drafted, "half a letter has no other token"


def test_a_drafter_that_knows_too_little_is_refused_with_the_numbers() -> None:
    target, draft = byte_level(), letters()
    with pytest.raises(StartError) as raised:
        matched(target, draft)
    assert raised.value.code == "drafter_unfit"
    spelled = set(texts(draft))
    sample = ids_of(target, SAMPLE)
    known = sum(texts(target)[token] in spelled for token in sample) / len(sample)
    assert known < 0.5
    assert f"256 shared tokens, 28% of the target's 900, {known:.0%} of those" in str(raised.value)


def test_the_share_of_an_ordinary_text_is_what_can_be_drafted_of_it() -> None:
    target, draft = byte_level(), sentencepiece()
    found = matched(target, draft)
    sample = ids_of(target, SAMPLE)
    drafted = set(found.vocabulary.to_target.tolist())
    expected = sum(token in drafted for token in sample) / len(sample)
    assert found.share == pytest.approx(expected)
    assert found.vocabulary.coverage == pytest.approx(found.vocabulary.size / 900)


# --- one tokenizer -------------------------------------------------------------------------------


def test_the_same_tokenizer_and_size_is_the_identity() -> None:
    found = matched(byte_level(), byte_level(), 1_000, 1_000).vocabulary
    assert found.whole
    assert found.kept is None
    assert torch.equal(found.feed(torch.arange(1_000)), torch.arange(1_000))


@pytest.mark.parametrize(("rows", "draft_rows"), [(1_024, 960), (960, 1_024), (900, 1_024)])
def test_rows_that_only_pad_a_vocabulary_are_never_drafted(rows: int, draft_rows: int) -> None:
    found = matched(byte_level(), byte_level(), rows, draft_rows).vocabulary
    assert found.kept is None
    assert torch.equal(found.to_target, torch.arange(900))
    assert found.coverage == 1.0
    logits = torch.randn(3, draft_rows)
    q = found.spread(found.keep(logits).softmax(-1))
    assert q.shape == (3, rows)
    assert torch.allclose(q[:, :900], logits[:, :900].softmax(-1))
    assert not q[:, 900:].any()
    assert int(found.to_draft.max()) < draft_rows


def test_special_tokens_that_only_the_target_has_are_not_drafted() -> None:
    tuned = with_added(byte_level(), "<|tool|>", "<|image|>")
    found = matched(tuned, byte_level(), 902, 1_024).vocabulary
    assert torch.equal(found.to_target, torch.arange(900))
    assert found.to_draft[900:].tolist() == [0, 0], "fed as the end of a text"


def test_a_token_that_was_renamed_does_not_cost_the_others() -> None:
    state = json.loads(byte_level().backend_tokenizer.to_str())
    text = json.dumps(state).replace("<|user|>", "<|human|>")
    renamed = Named(Tokenizer.from_str(text), eos_token="<|end|>")
    found = matched(renamed, byte_level()).vocabulary
    assert found.to_target.tolist() == [token for token in range(900) if token != 1]


# --- laws ----------------------------------------------------------------------------------------


@st.composite
def maps(draw: st.DrawFn) -> tuple[VocabularyMap, int]:
    """A map and the number of the drafter's columns."""
    vocabulary = draw(st.integers(1, 12))
    width = draw(st.integers(1, 12))
    size = draw(st.integers(1, min(vocabulary, width)))
    ids = draw(st.permutations(range(vocabulary)))[:size]
    kept = draw(st.permutations(range(width)))[:size]
    fed = draw(st.lists(st.integers(0, width - 1), min_size=vocabulary, max_size=vocabulary))
    return VocabularyMap(
        torch.tensor(fed),
        None if draw(st.booleans()) else torch.tensor(kept),
        torch.tensor(ids),
        size / vocabulary,
    ), width


@given(maps(), st.integers(0, 9))
@settings(max_examples=80, deadline=None)
def test_a_law_over_the_kept_columns_is_one_over_the_targets_ids(
    made: tuple[VocabularyMap, int], seed: int
) -> None:
    found, width = made
    logits = torch.randn(2, width, generator=torch.Generator().manual_seed(seed))
    law = found.keep(logits).softmax(-1)
    q = found.spread(law)
    assert q.shape == (2, found.vocabulary)
    assert torch.allclose(q.sum(-1), torch.ones(2))
    assert torch.equal(found.gather(q), law)
    columns = torch.multinomial(law, 5, replacement=True)
    tokens = found.drawn(columns)
    assert torch.equal(q.gather(1, tokens), law.gather(1, columns))
    outside = [token for token in range(found.vocabulary) if token not in found.to_target.tolist()]
    assert not q[:, outside].any()
    scores = found.spread(found.keep(logits), float("-inf"))
    assert torch.equal(scores.isneginf().sum(-1), torch.tensor([len(outside)] * 2))


def test_the_identity_copies_nothing() -> None:
    rows = torch.rand(2, 7)
    found = identity(7)
    assert found.keep(rows) is found.spread(rows) is found.gather(rows) is found.drawn(rows) is rows


# --- a smaller vocabulary ------------------------------------------------------------------------

COUNTS = torch.tensor([0, 5, 1, 9, 0, 5, 2, 0, 1, 0])
WORN = torch.arange(10).repeat_interleave(COUNTS)


def test_ids_of_a_text_are_ranked_by_frequency_then_by_id() -> None:
    assert ranked(WORN, 10).tolist() == [3, 1, 5, 6, 2, 8]


@pytest.mark.parametrize(
    ("size", "ids"),
    [(1, [3]), (2, [1, 3]), (4, [1, 3, 5, 6]), (7, [0, 1, 2, 3, 5, 6, 8]), (10, list(range(10)))],
)
def test_the_most_frequent_ids_are_drafted_then_the_lowest(size: int, ids: list[int]) -> None:
    found = restricted(identity(10), size, ranking=ranked(WORN, 10))
    assert found.to_target.tolist() == ids
    assert found.coverage == len(ids) / 10
    assert found.share(COUNTS.float()) == pytest.approx(float(COUNTS[ids].sum() / COUNTS.sum()))
    assert found.whole == (size == 10)


def test_without_a_ranking_the_earliest_merges_are_drafted() -> None:
    assert restricted(identity(10), 4).to_target.tolist() == [0, 1, 2, 3]


def test_special_and_end_ids_are_always_in() -> None:
    ranking = ranked(WORN, 10)
    assert restricted(identity(10), 4, {9, 7, 12, -1}, ranking).to_target.tolist() == [1, 3, 7, 9]
    assert restricted(identity(10), 1, {9, 7}, ranking).to_target.tolist() == [7, 9]


@given(maps(), st.integers(1, 12), st.sets(st.integers(-2, 14)), st.permutations(range(-1, 13)))
@settings(max_examples=80, deadline=None)
def test_a_restricted_map_keeps_columns_and_ids_together(
    made: tuple[VocabularyMap, int], size: int, always: set[int], ranking: list[int]
) -> None:
    whole, width = made
    found = restricted(whole, size, always, torch.tensor(ranking))
    had = set(whole.to_target.tolist())
    assert found.size == min(whole.size, max(size, len(had & always)))
    assert had & always <= set(found.to_target.tolist()) <= had
    logits = torch.randn(1, width)
    of_whole, of_found = (
        dict(zip(each.to_target.tolist(), each.keep(logits)[0].tolist(), strict=True))
        for each in (whole, found)
    )
    assert of_found == {token: of_whole[token] for token in found.to_target.tolist()}


def test_a_head_with_few_columns_is_fed_the_targets_ids() -> None:
    ids = torch.tensor([2, 5, 6])
    found = reduced(8, ids)
    logits = torch.randn(1, 3)
    assert found.keep(logits) is logits
    assert found.spread(logits, -9.0)[0].tolist() == pytest.approx(
        [-9, -9, float(logits[0, 0]), -9, -9, *logits[0, 1:].tolist(), -9]
    )
    assert torch.equal(found.feed(torch.arange(8)), torch.arange(8))
    assert not found.whole
    assert reduced(3, torch.arange(3)).whole


# --- which tokenizer it is -----------------------------------------------------------------------


def changed(tokenizer: Named, **parts: object) -> Tokenizer:
    return Tokenizer.from_str(json.dumps(json.loads(tokenizer.backend_tokenizer.to_str()) | parts))


def test_a_fingerprint_tells_what_ids_mean_and_nothing_else() -> None:
    own = fingerprint(byte_level().backend_tokenizer)
    assert own == fingerprint(changed(byte_level(), normalizer={"type": "NFC"}, decoder=None))
    assert own != fingerprint(byte_level(899).backend_tokenizer)
    assert own != fingerprint(with_added(byte_level(), "<|tool|>").backend_tokenizer)
    text = byte_level().backend_tokenizer.to_str()
    swapped = text.replace("<|user|>", "<|x|>").replace("<|end|>", "<|user|>")
    swapped = swapped.replace("<|x|>", "<|end|>")
    assert own != fingerprint(Tokenizer.from_str(swapped))
