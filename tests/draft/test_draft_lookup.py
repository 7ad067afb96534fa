"""The drafters that copy: `ngram` and `suffix` against plain definitions, `given` against its promises."""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sooner.draft import create_drafter
from sooner.draft.suffix import SuffixAutomaton
from sooner.errors import DraftError
from sooner.protocols import Context, Drafter
from sooner.types import EMPTY_DRAFT, Draft, Sampling

COPYING = ("ngram", "suffix")


def context(tokens: Sequence[int], *, budget: int = 4, id: int = 0, prompt: int = 1, **more: Any) -> Context:
    return Context(id=id, tokens=tokens, prompt_length=prompt, budget=budget, sampling=Sampling(), **more)


def propose(drafter: Drafter, tokens: Sequence[int], **more: Any) -> Draft:
    (draft,) = drafter.propose([context(tokens, **more)])
    return draft


def longest_then_latest(tokens: Sequence[int], most: int) -> tuple[int, int]:
    """By definition: (length, end) of the best earlier occurrence of a suffix of at most ``most`` tokens."""
    n, best = len(tokens), (0, 0)
    for end in range(1, n):
        length = 0
        while length < min(end, most) and tokens[end - 1 - length] == tokens[n - 1 - length]:
            length += 1
        if length and length >= best[0]:
            best = (length, end)
    return best


def continuation(tokens: Sequence[int], end: int, count: int) -> tuple[int, ...]:
    """What follows ``end`` in the text extended by itself."""
    text = list(tokens)
    for i in range(count):
        text.append(text[end + i])
    return tuple(text[len(tokens) :])


texts = st.integers(1, 4).flatmap(lambda v: st.lists(st.integers(0, v - 1), min_size=1, max_size=60))


@settings(max_examples=150, deadline=None)
@given(tokens=texts, cuts=st.lists(st.integers(1, 9), max_size=20), budget=st.integers(0, 9), most=st.integers(2, 5))
def test_ngram_copies_after_the_longest_then_latest_match(
    *, tokens: list[int], cuts: list[int], budget: int, most: int
) -> None:
    drafter = create_drafter({"kind": "ngram", "max": 6, "max_match": most, "min_match": 2})
    grown: list[int] = []
    for cut in [*cuts, len(tokens)]:
        more = tokens[len(grown) : len(grown) + cut]
        if more:
            grown += more
            length, end = longest_then_latest(grown, most)
            expected = continuation(grown, end, min(budget, 6)) if length >= 2 else ()
            assert propose(drafter, grown, budget=budget).tokens == expected


@settings(max_examples=150, deadline=None)
@given(tokens=texts, budget=st.integers(0, 9))
def test_suffix_copies_after_the_longest_repeated_suffix(tokens: list[int], budget: int) -> None:
    drafter = create_drafter("suffix:max=6,min_match=1,factor=1")
    for n in range(1, len(tokens) + 1):
        length, end = longest_then_latest(tokens[:n], n)
        count = min(budget, 6, 1 + length) if length else 0
        assert propose(drafter, tokens[:n], budget=budget).tokens == continuation(tokens[:n], end, count)


@settings(max_examples=100, deadline=None)
@given(tokens=st.lists(st.integers(0, 3), min_size=1, max_size=200))
def test_the_automaton_finds_a_true_occurrence_and_the_latest_one(tokens: list[int]) -> None:
    automaton = SuffixAutomaton()
    for n in range(1, len(tokens) + 1):
        automaton.extend(tokens[n - 1 : n])
        length, end = longest_then_latest(tokens[:n], n)
        assert (automaton.length, automaton.end if length else 0) == (length, end)


def test_the_reference_can_tell_latest_from_first() -> None:
    """A control: on this text the first and the latest occurrence go on differently."""
    tokens = [1, 2, 8, 1, 2, 9, 1, 2]
    assert continuation(tokens, 2, 1) != continuation(tokens, longest_then_latest(tokens, 8)[1], 1)
    for kind in COPYING:
        assert propose(create_drafter(kind), tokens).tokens[0] == 9


def test_periods_are_drafted_in_full() -> None:
    for spec in ("ngram", "suffix:factor=2"):
        assert propose(create_drafter(spec), [5, 6, 7, 5, 6, 7, 5, 6], budget=8).tokens == (7, 5, 6, 7, 5, 6, 7, 5)


def test_longer_matches_are_more_confident() -> None:
    for kind in COPYING:
        short = propose(create_drafter(kind), [1, 2, 3, 9, 1, 2])
        long = propose(create_drafter(kind), [1, 2, 3, 4, 5, 6, 9, 1, 2, 3, 4, 5])
        assert 0 < short.confidence[0] < long.confidence[0] < 1
        assert list(short.confidence) == sorted(short.confidence)
        assert set(short.sources) == {kind}


def test_suffix_drafts_less_after_short_matches() -> None:
    drafter = create_drafter("suffix:max=16,min_match=1,factor=2")
    assert len(propose(drafter, [1, 2, 3, 4, 5, 6, 1], budget=16)) == 3
    assert len(propose(drafter, [1, 2, 3, 4, 5, 6, 1, 2, 3], budget=16)) == 7


@pytest.mark.parametrize("kind", [*COPYING, "given"])
@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_sequences_do_not_disturb_each_other(kind: str, data: st.DataObject) -> None:
    """Interleaved, batched, forgotten and started again under the same id: each draft equals the one alone."""
    shared = create_drafter(kind)
    alive: dict[int, list[int]] = {}
    for _ in range(data.draw(st.integers(1, 12))):
        id = data.draw(st.integers(0, 2))
        if id in alive and data.draw(st.booleans()):
            shared.forget(id)
            del alive[id]
            continue
        alive.setdefault(id, []).extend(data.draw(st.lists(st.integers(0, 2), min_size=1, max_size=8)))
        contexts = [context(tokens, id=i, expected=(0, 1, 2, 1, 0)) for i, tokens in alive.items()]
        for asked, draft in zip(contexts, shared.propose(contexts), strict=True):
            if kind != "given":  # its place depends on how the output grew, see below
                (alone,) = create_drafter(kind).propose([asked])
                assert draft == alone
            assert len(draft) <= asked.budget


@pytest.mark.parametrize("kind", [*COPYING, "given"])
def test_forget_gives_the_memory_back(kind: str) -> None:
    drafter = create_drafter(kind)
    before = len(pickle.dumps(drafter))
    for id in range(20):
        propose(drafter, list(range(500)), id=id, expected=tuple(range(500)))
    assert len(pickle.dumps(drafter)) > before + 1000
    for id in range(20):
        drafter.forget(id)
        drafter.forget(id)
    assert len(pickle.dumps(drafter)) < before + 200


@pytest.mark.parametrize("kind", COPYING)
def test_a_history_that_was_not_grown_is_read_afresh(kind: str) -> None:
    drafter = create_drafter(kind)
    propose(drafter, [1, 2, 3, 1, 2, 3])
    assert propose(drafter, [7, 8, 9, 7, 8]).tokens[:1] == (9,)
    assert propose(drafter, [4, 5, 6, 4, 5, 0, 4, 5]).tokens[:1] == (0,)


@pytest.mark.parametrize("kind", [*COPYING, "given"])
def test_nothing_known_drafts_nothing(kind: str) -> None:
    drafter = create_drafter(kind)
    assert propose(drafter, [1]) == EMPTY_DRAFT
    assert propose(drafter, [1, 2, 3, 4]) == EMPTY_DRAFT
    assert propose(drafter, [1, 2, 1, 2], budget=0) == EMPTY_DRAFT
    assert propose(drafter, [1, 2, 1, 2], budget=0, expected=(3,)) == EMPTY_DRAFT


EXPECTED = tuple(range(100, 160))


def given_after(output: Sequence[int], steps: int = 1, **options: Any) -> Draft:
    """What `given` drafts after ``output`` came in pieces of ``steps`` tokens."""
    drafter = create_drafter({"kind": "given", **options})
    draft = EMPTY_DRAFT
    for n in range(0, len(output) + 1, steps):
        draft = propose(drafter, [1, 2, *output[:n]], prompt=2, expected=EXPECTED)
    return draft


def test_given_starts_at_the_start_and_ends_at_the_end() -> None:
    assert given_after([]).tokens == EXPECTED[:4]
    assert given_after(EXPECTED[:7]).tokens == EXPECTED[7:11]
    assert given_after(EXPECTED[:58]).tokens == EXPECTED[58:]
    assert given_after(EXPECTED) == EMPTY_DRAFT


@pytest.mark.parametrize(
    ("edit", "goes_on_at"),
    [
        ([*EXPECTED[:10], 7], 11),
        ([*EXPECTED[:10], 7, *EXPECTED[11:14]], 14),
        ([*EXPECTED[:10], 7, 8, 9, *EXPECTED[10:12]], 12),
        ([*EXPECTED[:10], *EXPECTED[25:27]], 27),
        ([*EXPECTED[:30], 7, *EXPECTED[5:8]], 8),
        ([*EXPECTED[:5], 7, 8, *EXPECTED[7:9], 9, *EXPECTED[40:42]], 42),
    ],
    ids=["replaced, guessed", "replaced", "inserted", "left out", "gone back", "twice"],
)
def test_given_finds_its_place_again(edit: list[int], goes_on_at: int) -> None:
    assert given_after(edit).tokens == EXPECTED[goes_on_at : goes_on_at + 4]


def test_given_prefers_the_place_ahead() -> None:
    """The same pair of tokens before and after the mismatch: the one ahead is taken, the nearest of several."""
    expected = (5, 6, 50, 1, 2, 3, 4, 5, 6, 51, 5, 6, 52)
    drafter = create_drafter("given")
    output = [5, 6, 50, 1, 2, 9, 5, 6]
    for n in range(len(output) + 1):
        draft = propose(drafter, [0, *output[:n]], expected=expected)
    assert draft.tokens == (51, 5, 6, 52)


def test_given_is_less_sure_after_a_mismatch() -> None:
    assert given_after([*EXPECTED[:10], 7]).confidence[0] < given_after(EXPECTED[:10]).confidence[0]


def test_given_finds_its_place_within_its_match_length() -> None:
    """A control for the cases above: when more must match than has been written since, it has only its guess."""
    inserted = [*EXPECTED[:10], 7, 8, 9, *EXPECTED[10:12]]
    assert given_after(inserted, min_match=3).tokens != EXPECTED[12:16]


@pytest.mark.parametrize("spec", ["ngram:max=0", "ngram:min_match=3,max_match=2", "suffix:factor=-1", "given:max=0"])
def test_senseless_options_are_refused(spec: str) -> None:
    with pytest.raises(DraftError, match=r"option \w+ must be"):
        create_drafter(spec)
