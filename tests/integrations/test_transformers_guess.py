"""What drafts for `generate` are made of, without torch: paths of trees, batches that agree, and the missing extra."""

from __future__ import annotations

import importlib
import sys
from math import prod

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sooner.control.fixed import FixedController
from sooner.draft.suffix import SuffixDrafter
from sooner.errors import MissingExtra
from sooner.integrations.transformers_guess import Guessing, best_path
from sooner.types import ROOT, Draft, Sampling


@st.composite
def trees(draw: st.DrawFn) -> Draft:
    n = draw(st.integers(1, 12))
    parents = tuple(draw(st.integers(ROOT, i - 1)) for i in range(n))
    chances = tuple(draw(st.sampled_from([0.1, 0.3, 0.5, 0.8, 0.95])) for _ in range(n))
    return Draft(tuple(range(n)), parents, chances, ("tree",) * n)


def foreseen(draft: Draft, node: int) -> float:
    path = draft.path(node)
    return sum(prod(draft.confidence[i] for i in path[: depth + 1]) for depth in range(len(path)))


@given(trees())
def test_the_path_that_foresees_most_is_taken(draft: Draft) -> None:
    path = best_path(draft)
    assert path.parents == tuple(range(ROOT, len(path) - 1))
    end = path.tokens[-1]  # tokens are the nodes' numbers
    assert path.tokens == draft.path(end)
    assert foreseen(draft, end) >= max(foreseen(draft, node) for node in range(len(draft))) - 1e-12


def test_the_first_path_need_not_be_the_best() -> None:
    """Negative control: following first children foresees less here."""
    draft = Draft((0, 1, 2), (ROOT, ROOT, 1), (0.3, 0.8, 0.9), ("tree",) * 3)
    assert best_path(draft).tokens == (1, 2)


def test_without_torch_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.startswith("sooner.integrations.transformers")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(MissingExtra, match=r'pip install "sooner\[torch\]"'):
        importlib.import_module("sooner.integrations.transformers")


class Ids:
    """As much of a tensor as guesses ask for."""

    def __init__(self, rows: list[list[int]]) -> None:
        self.rows = rows

    def new_tensor(self, rows: list[list[int]]) -> Ids:
        return Ids(rows)

    def reshape(self, texts: int, n: int) -> Ids:
        assert [len(row) for row in self.rows] == [n] * texts
        return self


@pytest.mark.parametrize(("room", "want"), [(9, [[3, 4, 1], [7, 8, 6]]), (2, [[3, 4], [7, 8]]), (0, [[], []])])
def test_a_batch_drafts_as_far_as_its_shortest_draft(room: int, want: list[list[int]]) -> None:
    texts = [[1, 2, 3, 4, 1, 2], [6, 7, 8, 6, 7, 8, 6]]
    guessing = Guessing(
        SuffixDrafter(),
        FixedController(3),
        texts,
        ids=[1, 2],
        sampling=Sampling(),
        vocab_size=16,
        failed=lambda error: pytest.fail(str(error)),
    )
    assert guessing.draft(Ids([]), [None, None], room).rows == want
    assert guessing.draft(Ids([]), [None, 0], room).rows == [want[0], [0] * len(want[0])]
