"""Memory: copies across requests by definition, within its bound, never across salts, and changes no text."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from commandline import Toy, invoke
from sooner.draft import create_drafter
from sooner.draft.memory import MemoryDrafter
from sooner.errors import DraftError
from sooner.loading import DEFAULT_DRAFT, make_drafter
from sooner.protocols import Context
from sooner.targets.toy import ToyTarget
from sooner.types import Draft, Sampling
from test_engine_laws import PROMPTS, check_counts, check_free, plain, samplings, visible
from toy import ToyCodec, V, toy_engine

texts = st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=25), min_size=1, max_size=12)


def context(tokens: Sequence[int], *, id: int = 99, salt: str = "", budget: int = 4) -> Context:
    return Context(id=id, tokens=tokens, prompt_length=1, budget=budget, sampling=Sampling(), salt=salt)


def propose(drafter: MemoryDrafter, tokens: Sequence[int], **more: Any) -> Draft:
    (draft,) = drafter.propose([context(tokens, **more)])
    return draft


def read(drafter: MemoryDrafter, tokens: Sequence[int], *, id: int = 0, salt: str = "") -> None:
    propose(drafter, tokens, id=id, salt=salt, budget=0)
    drafter.forget(id)


def longest_match(past: Sequence[Sequence[int]], tail: Sequence[int], least: int, most: int) -> Counter[int]:
    """By definition: what follows the longest end of ``tail`` that occurs in ``past`` with a token after it."""
    for m in range(min(most, len(tail)), least - 1, -1):
        key = list(tail[-m:])
        following = Counter(t[at + m] for t in past for at in range(len(t) - m) if list(t[at : at + m]) == key)
        if following:
            return following
    return Counter()


few = st.lists(st.lists(st.integers(0, 1), min_size=1, max_size=7), min_size=1, max_size=3)


@given(past=few, tail=st.lists(st.integers(0, 1), min_size=1, max_size=9), most=st.integers(2, 6))
@settings(max_examples=300, deadline=None)
def test_it_copies_after_the_longest_match_in_other_texts(past: list[list[int]], tail: list[int], most: int) -> None:
    drafter = MemoryDrafter(min_match=2, max_match=most)
    for id, text in enumerate(past):
        read(drafter, text, id=id)
    draft, following = propose(drafter, tail, budget=1), longest_match(past, tail, 2, most)
    assert len(draft) == bool(following)
    if following:
        assert following[draft.tokens[0]] == max(following.values())


def test_a_longer_match_beats_a_later_one() -> None:
    drafter = MemoryDrafter(min_match=2)
    read(drafter, [1, 2, 3, 4, 5], id=1)
    read(drafter, [9, 3, 4, 6], id=2)
    assert propose(drafter, [7, 2, 3, 4]).tokens[0] == 5
    assert propose(drafter, [7, 8, 3, 4]).tokens[:2] in [(6,), (6, 5), (5, 6)]


@given(past=texts, size=st.integers(1, 40), order=st.integers(1, 4), live=st.integers(1, 4))
@settings(max_examples=200, deadline=None)
def test_the_bound_holds_and_the_index_names_what_is_remembered(
    past: list[list[int]], size: int, order: int, live: int
) -> None:
    """Interleaved sequences of two salts; after every step the index holds runs of remembered tokens only."""
    drafter = MemoryDrafter(size=size, min_match=order, max_match=order + 2)
    for first in range(0, len(past), live):
        group = past[first : first + live]
        for n in range(1, 26, 3):
            for id, text in enumerate(group):
                if n <= len(text):
                    propose(drafter, text[:n], id=first + id, salt=str(id % 2))
                    check(drafter, size, order)
        for id in range(len(group)):
            drafter.forget(first + id)
            check(drafter, size, order)


def check(drafter: MemoryDrafter, size: int, order: int) -> None:
    assert len(drafter) == sum(text.end - text.start for text in drafter._texts) <= size
    for salt, index in drafter._index.items():
        for key, places in index.items():
            assert places
            for text, end in places:
                assert text.salt == salt
                assert text.start < end <= text.end
                assert tuple(text.slice(end - order, end)) == key


def test_the_oldest_leaves_first() -> None:
    drafter = MemoryDrafter(size=14)  # just enough for the two and the question
    read(drafter, [1, 2, 3, 4, 5], id=1)
    read(drafter, [6, 7, 8, 9, 10], id=2)
    assert propose(drafter, [0, 1, 2, 3], budget=1, id=50).tokens == (4,)
    drafter = MemoryDrafter(size=10)
    for id, text in enumerate(([1, 2, 3, 4, 5], [6, 7, 8, 9, 10], [11, 12, 13, 14, 15])):
        read(drafter, text, id=id)
    assert propose(drafter, [0, 6, 7, 8], budget=1, id=50).tokens == ()  # it pushed out the oldest four
    assert propose(drafter, [0, 11, 12, 13], budget=1, id=51).tokens == (14,)


def test_a_common_beginning_is_remembered_once_and_old_texts_are_let_go() -> None:
    drafter = MemoryDrafter(max_match=4)
    head = list(range(100, 140))
    for id in range(30):
        text = [*head, id, id + 1, id + 2]
        drafter.propose([dataclasses.replace(context(text, id=id, budget=0), prompt_length=len(text))])
        drafter.forget(id)
    assert len(drafter) < 40 + 30 * 4
    assert sum(len(text.tokens) for text in drafter._texts) < 10 * 43 + 30 * 10


def test_what_is_written_after_the_last_proposal_is_learned_too() -> None:
    drafter = MemoryDrafter()
    tokens = [1, 2, 3]
    propose(drafter, tokens, id=1)
    tokens += [4, 5]  # the engine's list grows in place
    drafter.forget(1)
    assert propose(drafter, [2, 3, 4], budget=1).tokens == (5,)


def test_long_prompts_are_learned_over_some_steps() -> None:
    drafter = MemoryDrafter()
    long = list(range(1000))
    propose(drafter, long, id=1)
    assert 0 < len(drafter) < 200
    for _ in range(10):
        propose(drafter, long, id=1)
    assert len(drafter) == 1000


def test_salts_are_kept_apart_and_one_salt_does_learn() -> None:
    drafter = MemoryDrafter()
    secret = [5, 6, 7, 8, 9]
    read(drafter, secret, id=1, salt="alice")
    for salt in ("", "bob", "alice "):
        assert propose(drafter, [5, 6, 7], id=2, salt=salt).tokens == ()
        drafter.forget(2)
    assert propose(drafter, [5, 6, 7], id=3, salt="alice").tokens[:2] == (8, 9)


@given(owner=st.lists(st.sampled_from(["", "a", "b"]), min_size=1, max_size=8))
@settings(max_examples=40, deadline=None)
def test_through_the_engine_no_salt_sees_anothers_text(owner: list[str]) -> None:
    """The same request under each salt in turn: it is foreseen only where its own salt has written it before."""
    drafter = MemoryDrafter()
    engine = toy_engine(drafter)
    seen: set[str] = set()
    for salt in owner:
        answer = engine.generate(PROMPTS[0], max_tokens=40, ignore_eos=True, temperature=1.5, seed=1, salt=salt)
        if salt in seen:
            assert answer.speculation.accepted > 10
        else:
            assert answer.speculation.drafted == 0
        seen.add(salt)


@given(options=samplings, size=st.sampled_from([5, 60, 5000]), running=st.integers(1, 4))
@settings(max_examples=30, deadline=None)
def test_it_changes_nothing(options: dict[str, Any], size: int, running: int) -> None:
    want = plain(PROMPTS, options)
    engine = toy_engine(MemoryDrafter(size=size, min_match=2), max_running=running)
    for _ in range(2):
        got = engine.generate_many(PROMPTS, **options)
        assert [visible(c) for c in got] == want
        check_counts(got)
    check_free(engine)


@pytest.mark.parametrize(
    "spec", ["memory:size=0", "memory:min_match=0", "memory:max_match=2,min_match=3", "memory:a=1"]
)
def test_bad_options_are_refused(spec: str) -> None:
    with pytest.raises(DraftError) as caught:
        create_drafter(spec)
    assert "\n" not in str(caught.value)


def test_it_is_in_the_default_set_of_a_conversation_only() -> None:
    def names(*, remember: bool = False) -> str:
        drafter = make_drafter(DEFAULT_DRAFT, ToyTarget(V), ToyCodec(), "", remember=remember)
        return drafter.name if drafter else ""

    assert (names(), names(remember=True)) == ("suffix+recycle", "suffix+recycle+memory")
    load = Toy()
    invoke("chat", stdin=b"", load=load)
    assert load.options["remember"] is True
    invoke("run", "abc", "--max-tokens", "1", load=load)
    assert "remember" not in load.options
