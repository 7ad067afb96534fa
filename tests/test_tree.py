"""Draft trees: what building, merging, pruning and cleaning keep, for any tree and for any garbage."""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import count
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from sooner import tree
from sooner.errors import DraftError
from sooner.types import EMPTY_DRAFT, ROOT, Draft

V = 5


@st.composite
def drafts(pick: st.DrawFn, name: str = "any", sampled: bool = True) -> Draft:
    """Any well-formed draft over V tokens, some parents sampled."""
    tokens: list[int] = []
    parents: list[int] = []
    for _ in range(pick(st.integers(0, 14))):
        parent, token = pick(st.integers(ROOT, len(tokens) - 1)), pick(st.integers(0, V - 1))
        if (parent, token) not in zip(parents, tokens, strict=True):
            tokens.append(token)
            parents.append(parent)
    n = len(tokens)
    confidence = tuple(pick(st.lists(st.floats(0, 1), min_size=n, max_size=n)))
    rows = {p: np.full(V, 1 / V) for p in set(parents) if sampled and pick(st.booleans())}
    return Draft(tuple(tokens), tuple(parents), confidence, (name,) * n, rows)


def texts(draft: Draft) -> list[tuple[int, ...]]:
    """Each node as the tokens down to it, in node order."""
    return [tuple(draft.tokens[j] for j in draft.path(i)) for i in range(len(draft))]


def assert_well_formed(draft: Draft) -> None:
    n = len(draft)
    assert len(draft.parents) == len(draft.confidence) == len(draft.sources) == n
    assert all(ROOT <= parent < i for i, parent in enumerate(draft.parents))
    assert len(set(zip(draft.parents, draft.tokens, strict=True))) == n
    assert all(0 <= c <= 1 for c in draft.confidence)
    assert set(draft.q) <= set(draft.parents)
    assert all(type(t) is int for t in draft.tokens + draft.parents)


def test_chain() -> None:
    rows = [np.full(V, 0.2), np.eye(V)[3]]
    draft = tree.chain([1, 3], 0.5, "x", q=rows)
    assert draft == Draft((1, 3), (ROOT, 0), (0.5, 0.5), ("x", "x"), {ROOT: rows[0], 0: rows[1]})
    assert tree.chain([], 0.5, "x") is EMPTY_DRAFT
    assert tree.chain([1, 2], [0.9, 0.8], "x").confidence == (0.9, 0.8)
    with pytest.raises(DraftError):
        tree.chain([1, 2], [0.9], "x")
    with pytest.raises(DraftError):
        tree.chain([1, 2], 0.9, "x", q=rows[:1])


@given(a=drafts(name="a", sampled=False), b=drafts(name="b", sampled=False), c=drafts(name="c", sampled=False))
def test_merge_is_the_union_of_paths(a: Draft, b: Draft, c: Draft) -> None:
    merged = tree.merge([a, b, c])
    assert_well_formed(merged)
    assert set(texts(merged)) == {*texts(a), *texts(b), *texts(c)}
    best: dict[tuple[int, ...], float] = {}
    for draft in (a, b, c):
        for text, confidence in zip(texts(draft), draft.confidence, strict=True):
            best[text] = max(best.get(text, 0.0), confidence)
    for i, text in enumerate(texts(merged)):
        owner = next(draft.sources[0] for draft in (a, b, c) if text in texts(draft))
        assert merged.sources[i] == owner
        assert merged.confidence[i] == best[text]


@given(a=drafts(), b=drafts())
def test_merge_refuses_to_mix_below_a_sampled_parent(a: Draft, b: Draft) -> None:
    def parents(draft: Draft) -> dict[tuple[int, ...], bool]:
        down = {ROOT: (), **dict(enumerate(texts(draft)))}
        return {down[p]: p in draft.q for p in draft.parents}

    mine, theirs = parents(a), parents(b)
    clash = any(mine[p] or theirs[p] for p in mine.keys() & theirs.keys())
    if clash:
        with pytest.raises(DraftError, match="verify=coupled"):
            tree.merge([a, b])
    else:
        merged = tree.merge([a, b])
        assert_well_formed(merged)
        assert len(merged.q) == len(a.q) + len(b.q)


@given(draft=drafts(), data=st.data())
def test_prune_keeps_whole_paths(draft: Draft, data: st.DataObject) -> None:
    keep = set(data.draw(st.lists(st.integers(0, 20))))
    pruned = tree.prune(draft, keep)
    assert_well_formed(pruned)
    assert set(texts(pruned)) <= {text for i, text in enumerate(texts(draft)) if i in keep}
    for i in range(len(draft)):
        whole = keep.issuperset(draft.path(i))
        sampled = any(draft.parents[j] in draft.q for j in draft.path(i))
        if whole and not sampled:
            assert texts(draft)[i] in texts(pruned)


@given(draft=drafts(), data=st.data())
def test_prune_keeps_a_prefix_of_sampled_siblings(draft: Draft, data: st.DataObject) -> None:
    pruned = tree.prune(draft, data.draw(st.lists(st.integers(0, 14))))
    kept = texts(pruned)
    for parent in draft.q:
        siblings = [texts(draft)[i] in kept for i in draft.children(parent)]
        assert siblings == sorted(siblings, reverse=True)
    down = {ROOT: (), **dict(enumerate(kept))}
    theirs = {ROOT: (), **dict(enumerate(texts(draft)))}
    sampled = {theirs[p] for p in draft.q}
    assert {down[p] for p in pruned.q} == {down[p] for p in pruned.parents} & sampled


@given(draft=drafts())
def test_depths_and_mask_agree_with_paths(draft: Draft) -> None:
    n = len(draft)
    assert tree.depths(draft) == tuple(len(draft.path(i)) for i in range(n))
    assert tree.depth(draft) == max((len(draft.path(i)) for i in range(n)), default=0)
    mask = tree.ancestor_mask(draft)
    assert mask.shape == (n, n)
    assert all(set(np.flatnonzero(mask[i])) == set(draft.path(i)) for i in range(n))


@given(draft=drafts())
def test_sanitise_leaves_honest_drafts_alone(draft: Draft) -> None:
    clean = tree.sanitise(draft, V, 99)
    assert (clean.tokens, clean.parents, clean.confidence, clean.sources) == (
        draft.tokens,
        draft.parents,
        draft.confidence,
        draft.sources,
    )
    assert clean.q.keys() == draft.q.keys()
    assert all(np.allclose(clean.q[p], draft.q[p]) for p in draft.q)


anything = st.one_of(
    st.integers(-5, 9), st.none(), st.floats(), st.text(max_size=2), st.booleans(), st.lists(st.integers(), max_size=2)
)
garbage = st.one_of(st.lists(anything, max_size=20), anything)


@settings(max_examples=300)
@given(
    tokens=garbage,
    parents=garbage,
    confidence=garbage,
    sources=garbage,
    q=st.one_of(st.none(), st.dictionaries(st.integers(-2, 4), garbage, max_size=4)),
    limit=st.integers(0, 4),
    budget=st.integers(0, 6),
)
def test_sanitise_makes_anything_well_formed(limit: int, budget: int, **fields: Any) -> None:
    clean = tree.sanitise(SimpleNamespace(**fields), V, limit, budget)
    assert_well_formed(clean)
    assert all(0 <= t < V for t in clean.tokens)
    assert tree.depth(clean) <= limit
    assert len(clean) <= budget
    assert "target" not in clean.sources


class Hostile:
    def __getattr__(self, name: str) -> Any:
        raise RuntimeError("no")


def endless() -> Iterator[int]:
    return count()


@pytest.mark.parametrize("thing", [None, 3, "text", [], object(), Hostile(), (1, 2), [1, 2, 3]], ids=repr)
def test_sanitise_reads_what_is_no_draft_as_empty(thing: object) -> None:
    assert tree.sanitise(thing, V, 9) == EMPTY_DRAFT


def test_sanitise_repairs_case_by_case() -> None:
    clean = tree.sanitise(
        Draft(
            tokens=(1, 99, 2, 1, 3, 0, 4),
            parents=(ROOT, ROOT, 1, ROOT, 0, 6, 4),
            confidence=(math.nan, 0.5, 0.5, 0.5, 7.0),
            sources=("target", "b", "c", "d", ""),
        ),
        V,
        2,
        source="mine",
    )
    assert clean.tokens == (1, 3)
    assert clean.parents == (ROOT, 0)
    assert clean.confidence == (0.0, 1.0)
    assert clean.sources == ("mine", "mine")


def test_sanitise_bounds_the_huge_and_the_endless() -> None:
    huge = tree.chain([i % V for i in range(10**6)], 0.5, "huge")
    assert len(tree.sanitise(huge, V, 10**6)) == tree.MAX_NODES
    stream = SimpleNamespace(
        tokens=endless(), parents=(i - 1 for i in endless()), confidence=endless(), sources=(), q={}
    )
    assert tree.sanitise(stream, V, 99).tokens == (0, 1, 2, 3, 4)


FLAT = np.full(V, 1 / V)


@pytest.mark.parametrize(
    "row",
    [
        np.full(V + 1, 1 / (V + 1)),
        np.full(V, 0.5),
        np.array([math.nan, 0.5, 0.5, 0, 0]),
        np.array([1.5, -0.5, 0, 0, 0]),
        np.array([0.0, 0.0, 1.0, 0, 0]),
        "row",
    ],
    ids=["too long", "sum", "nan", "negative", "child impossible", "text"],
)
def test_false_rows_make_children_deterministic(row: Any) -> None:
    draft = Draft((0, 1), (ROOT, ROOT), (0.5, 0.5), ("x", "x"), {ROOT: row})
    clean = tree.sanitise(draft, V, 9)
    assert not clean.q
    assert clean.tokens in ((0, 1), ())


def test_a_child_dropped_for_its_value_unsettles_its_sampled_siblings() -> None:
    draft = Draft((0, 77, 1, 2), (ROOT, ROOT, ROOT, 0), (0.5,) * 4, ("x",) * 4, {ROOT: FLAT, 0: FLAT})
    clean = tree.sanitise(draft, V, 9)
    assert clean.tokens == (0, 1, 2)
    assert set(clean.q) == {0}
    cut = tree.sanitise(Draft((0, 1), (ROOT, ROOT), (0.5,) * 2, ("x",) * 2, {ROOT: FLAT}), V, 9, budget=1)
    assert set(cut.q) == {ROOT}, "cutting by shape keeps a sampled parent sampled"


def test_rows_are_copied_and_normalised() -> None:
    row: NDArray[Any] = FLAT.astype(np.float32) * np.float32(1.0001)
    clean = tree.sanitise(Draft((0,), (ROOT,), (0.5,), ("x",), {ROOT: row}), V, 9)
    row[:] = 0
    assert clean.q[ROOT].dtype == np.float64
    assert clean.q[ROOT].sum() == pytest.approx(1.0, abs=1e-15)
