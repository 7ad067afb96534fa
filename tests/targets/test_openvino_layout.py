"""Layout of passes: chains and siblings, the two-row rule, flat inputs, widths."""

from __future__ import annotations

import hypothesis.strategies as st
import pytest
from fake_passes import chain, tree
from hypothesis import given

from sooner.targets.openvino.graph import BLOCK_SIZE
from sooner.targets.openvino.layout import Branch, Pass, branches
from sooner.targets.openvino.width import LARGEST_PAD, Width
from sooner.tree import paths
from sooner.types import ROOT, Draft

PARENTS = st.integers(0, 9).flatmap(lambda n: st.tuples(*(st.integers(ROOT, i - 1) for i in range(n))))


def numbered(parents: tuple[int, ...]) -> Draft:
    return tree(range(100, 100 + len(parents)), parents)


@given(PARENTS)
def test_paths_lead_to_every_leaf_once_along_first_children_first(parents: tuple[int, ...]) -> None:
    draft = numbered(parents)
    found = paths(draft)
    leaves = [node for node in range(len(draft)) if not draft.children(node)]
    assert sorted(path[-1:] for path in found) == sorted((leaf,) for leaf in leaves) or not len(draft)
    assert all(path == draft.path(path[-1]) for path in found if path)
    main, node = [], ROOT
    while children := draft.children(node):
        node = children[0]
        main.append(node)
    assert found[0] == tuple(main)


@given(st.integers(0, 100), st.integers(1, 70), PARENTS)
def test_branches_feed_known_tokens_then_nodes_in_at_least_two_rows(
    past: int, m: int, parents: tuple[int, ...]
) -> None:
    held, tokens, draft = list(range(past)), tuple(range(past, past + m)), numbered(parents)
    laid = branches(held, tokens, draft)
    assert [branch.nodes for branch in laid] == paths(draft)
    for branch in laid:
        assert len(branch.tokens) >= 2
        text = (held + list(tokens))[branch.start :] + [draft.tokens[node] for node in branch.nodes]
        assert list(branch.tokens[: len(branch.tokens) - branch.pad]) == text
        assert branch.start + branch.root == past + m - 1
    for branch in laid[1:]:
        assert branch.start >= past
        assert branch.start == past or branch.start % BLOCK_SIZE == 0


def test_one_token_is_fed_after_a_repetition_or_padded() -> None:
    assert branches([7, 8], (9,)) == [Branch(1, (8, 9), (), 0)]
    assert branches([], (9,)) == [Branch(0, (9, 9), (), 1)]
    assert branches([7, 8], (9,), chain([5])) == [Branch(2, (9, 5), (0,), 0)]


def test_flat_inputs_of_a_tree_beside_a_padded_sequence() -> None:
    flat = Pass()
    laid = branches(list(range(40)), (40,), tree([1, 2, 3], [ROOT, ROOT, 1]))
    firsts = [flat.feed(laid[0].start, laid[0].tokens, [4, 5]), flat.feed(laid[1].start, laid[1].tokens, [4, 6])]
    flat.score(laid, firsts, 3)
    lone = branches([], (9,))
    flat.score(lone, [flat.feed(0, lone[0].tokens, [7])], 0)
    assert flat.tokens == [40, 1, 40, 2, 3, 9, 9]
    assert flat.positions == [40, 41, 40, 41, 42, 0, 1]
    assert flat.past_lens == [40, 40, 0]
    assert flat.begins == [0, 2, 5, 7]
    assert flat.blocks == [4, 5, 4, 6, 7]
    assert flat.block_begins == [0, 2, 4, 5]
    assert flat.rows == [0, 1, 3, 4, 5]
    assert flat.longest == 43


@pytest.mark.parametrize(("pad", "blocks"), [(1, [7]), (30, [7]), (31, [7, 99]), (32, [7, 99])])
def test_widening_uses_scratch_only_where_the_last_block_ends(pad: int, blocks: list[int]) -> None:
    flat = Pass()
    flat.feed(0, (1, 2), [7])
    flat.widen(pad, 99)
    assert flat.positions == [0, 1] + [1] * pad
    assert len(flat.tokens) == flat.begins[-1] == flat.longest == 2 + pad
    assert flat.blocks == blocks
    assert flat.block_begins == [0, len(blocks)]


@given(st.lists(st.integers(2, 60), max_size=60), st.floats(0.01, 3), st.floats(0, 20))
def test_widths_hold_the_pass_and_cost_at_most_twice_the_changes_plus_one(
    wanted: list[int], row: float, change: float
) -> None:
    width = Width(row, change)
    widths = [width.fit(tokens) for tokens in wanted]
    assert all(0 <= got - tokens <= LARGEST_PAD for tokens, got in zip(wanted, widths, strict=True))
    rent = 0.0
    for before, tokens, got in zip([0, *widths], wanted, widths, strict=False):
        rent = rent + (got - tokens) * row if got == before and got > tokens else 0.0
        assert rent <= change


def test_widths_are_exact_when_a_change_costs_nothing() -> None:
    width = Width(row_ms=1.0, change_ms=0.0)
    assert [width.fit(tokens) for tokens in (2, 9, 2, 8, 2)] == [2, 9, 2, 8, 2]
    width = Width(row_ms=1.0, change_ms=7.0)
    assert [width.fit(tokens) for tokens in (2, 9, 2, 9, 2, 2, 2)] == [2, 9, 9, 9, 9, 2, 2]
