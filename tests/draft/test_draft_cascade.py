"""Merged, calibrated, noise-aware candidates: claims meet outcomes, and every law of the engine still holds."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sooner import tree
from sooner.control.cost import CostCurve
from sooner.control.goodput import GoodputController
from sooner.draft import create_drafter
from sooner.draft.calibration import Calibration
from sooner.draft.cascade import CascadeDrafter
from sooner.draft.growth import grow, sharpened
from sooner.draft.recycle import RecycleDrafter, best_successors
from sooner.draft.suffix import SuffixDrafter
from sooner.draft.table import SuccessorTable, TableDrafter
from sooner.errors import DraftError
from sooner.protocols import Context
from sooner.train.table import build_table
from sooner.types import Draft, Rows, Sampling, Step
from test_engine_laws import PROMPTS, check_counts, check_free, plain, samplings, visible
from toy import TreeDrafter, V, toy_engine

CURVE = CostCurve(rows=(2, 4, 8, 16), ms=(9.0, 9.5, 12.0, 17.0), branch_ms=0.6, refeed=1.0, change_ms=4.0)


def context(tokens: Sequence[int], **more: Any) -> Context:
    return Context(id=1, tokens=tokens, prompt_length=1, budget=16, sampling=Sampling(**more))


def table(tmp_path: Path) -> str:
    texts = [(p, toy_engine().generate(p, max_tokens=60, ignore_eos=True).token_ids) for p in PROMPTS]
    path = tmp_path / "toy.npz"
    build_table(texts, model="").save(path)
    return str(path)


@given(options=samplings, running=st.integers(1, 4))
@settings(max_examples=60, deadline=None)
def test_the_default_set_under_the_controller_changes_nothing(options: dict[str, Any], running: int) -> None:
    want = plain(PROMPTS, options)
    cascade = CascadeDrafter([SuffixDrafter(), RecycleDrafter(), TreeDrafter(3)])
    engine = toy_engine(cascade, max_running=running)
    engine.controller = GoodputController(CURVE)
    for _ in range(2):  # the second round meets a calibrated cascade and filled successor lists
        got = engine.generate_many(PROMPTS, **options)
        assert [visible(c) for c in got] == want
        check_counts(got)
    check_free(engine)


def test_calibration_learns_what_claims_are_worth() -> None:
    """A member that claims 0.9 and is never right ends near 0; one that claims 0.1 and is always right ends near 1."""

    class Says:
        def __init__(self, name: str, token: int, claim: float) -> None:
            self.name, self._token, self._claim = name, token, claim

        def propose(self, contexts: Sequence[Context]) -> list[Draft]:
            return [tree.chain([self._token], self._claim, self.name) for _ in contexts]

        def observe(self, step: Step, rows: Rows) -> None: ...

        def forget(self, id: int) -> None: ...

    cascade = CascadeDrafter([Says("liar", 5, 0.9), Says("shy", 6, 0.1)])
    for _ in range(60):
        (draft,) = cascade.propose([context([1, 2])])
        cascade.observe(Step(1, 0, 1, Draft(), (), (6,), ("target",), ""), Rows(np.zeros((1, V), np.float32)))
    (draft,) = cascade.propose([context([1, 2])])
    chances = dict(zip(draft.tokens, draft.confidence, strict=True))
    assert chances[5] < 0.1
    assert chances[6] > 0.9


class Model:
    """A drafter whose guesses take time: it says which texts it was asked for."""

    name = "model"

    def __init__(self, reach: float) -> None:
        self._reach = reach
        self.asked: list[int] = []

    def reach(self, context: Context) -> float:
        return self._reach

    def propose(self, contexts: Sequence[Context]) -> list[Draft]:
        self.asked += [context.id for context in contexts]
        return [tree.chain([5, 6, 7], 0.6, "model") for _ in contexts]

    def observe(self, step: Step, rows: Rows) -> None: ...

    def forget(self, id: int) -> None: ...


class Sure(Model):
    """Cheap, and sure of five tokens of the text 1; it knows nothing of others."""

    name = "sure"
    reach = None  # type: ignore[assignment] # it takes no time

    def propose(self, contexts: Sequence[Context]) -> list[Draft]:
        return [tree.chain([5, 6, 7, 8, 9], 1.0, "sure") if one.id == 1 else Draft() for one in contexts]


def test_a_model_stands_last_and_is_spared_what_others_foresee() -> None:
    model, far = Model(1.2), Model(30.0)
    texts = [context([1, 2]), dataclasses.replace(context([1, 2]), id=2)]
    cascade = CascadeDrafter([model, Sure(0.0), far])
    assert [member.name for member in cascade.members] == ["sure", "model", "model"]
    for _ in range(2):
        drafts = cascade.propose(texts)
        assert set(drafts[0].sources[:3]) == {"sure"}, "the credit is the first one's"
        assert drafts[1].sources == ("model",) * 3
    assert model.asked == [2, 2]
    assert far.asked == [1, 2, 1, 2], "it could foresee more than the others do"


def test_estimates_shrink_towards_the_claim_and_fade() -> None:
    calibration = Calibration()
    assert calibration.estimate("a", 0.3) == pytest.approx(0.3)
    for _ in range(2000):
        calibration.learn("a", True)
    for _ in range(2000):
        calibration.learn("a", False)
    assert calibration.estimate("a", 0.3) < 0.05
    assert calibration.tries("a") <= 401


@given(q=st.floats(0.01, 0.99))
def test_the_noise_tells_when_not_how_often(q: float) -> None:
    noise = -np.log((np.arange(20_000) + 0.5) / 20_000)
    chances = np.exp(-noise * (1 - q) / q)
    assert sharpened(q, float(noise[7])) == pytest.approx(float(chances[7]))
    assert float(chances.mean()) == pytest.approx(q, abs=0.01)


def test_trees_grow_best_first() -> None:
    successors: dict[tuple[int, ...], list[tuple[int, float]]] = {
        (2,): [(3, 0.6), (4, 0.3)],
        (3,): [(5, 0.9)],
        (4,): [(6, 0.5)],
        (5,): [(7, 0.1)],
    }
    draft = grow(context([1, 2]), lambda p: successors.get(tuple(p[-1:]), []), 1, budget=4, depth=3, source="s")
    assert draft.tokens == (3, 5, 4, 6)
    assert draft.parents == (-1, 0, -1, 2)
    assert draft.confidence == (0.6, 0.9, 0.3, 0.5)
    assert len(grow(context([1, 2]), lambda p: [(3, 0.9)], 1, budget=20, depth=3, source="s")) == 3


def test_recycled_rows_predict_what_the_target_said_there() -> None:
    drafter = RecycleDrafter()
    assert len(drafter.propose([context([1, 2])])[0]) == 0
    row = np.full((1, V), -9.0, np.float32)
    row[0, 7], row[0, 8] = 5.0, 4.0
    drafter.observe(Step(1, 0, 0, Draft(), (), (7,), ("target",), ""), Rows(row))
    (draft,) = drafter.propose([context([1, 9, 2])])
    assert draft.tokens[:2] == (7, 8)
    assert draft.confidence[0] == pytest.approx(1 / (1 + np.exp(-1)), abs=1e-5)
    assert [token for token, _ in best_successors(row[0], 1)] == [7]


def test_recycling_is_bounded() -> None:
    drafter = RecycleDrafter(size=10)
    for last in range(2, V):
        drafter.propose([dataclasses.replace(context([1, last]), salt=str(last % 3))])
        drafter.observe(Step(1, 0, 0, Draft(), (), (1,), ("target",), ""), Rows(np.eye(1, V, dtype=np.float32)))
    assert len(drafter._entries) <= 10
    drafter.forget(1)
    assert not drafter._tails


def test_a_table_of_the_targets_text_is_accepted_and_comes_back_from_disk(tmp_path: Path) -> None:
    path = table(tmp_path)
    engine = toy_engine(create_drafter({"kind": "table", "path": path}))
    answer = engine.generate(PROMPTS[0], max_tokens=60, ignore_eos=True, seed=0)
    assert visible(answer) == visible(toy_engine().generate(PROMPTS[0], max_tokens=60, ignore_eos=True, seed=0))
    assert answer.speculation.acceptance_length > 2
    loaded = SuccessorTable.load(Path(path))
    assert all((np.diff(keys.astype(np.int64)) > 0).all() for keys in loaded.keys.values())


def test_bad_tables_are_refused(tmp_path: Path) -> None:
    with pytest.raises(DraftError, match="there is no table"):
        TableDrafter(model="0" * 64)
    (tmp_path / "x.npz").write_bytes(b"nothing")
    with pytest.raises(DraftError, match="no successor table"):
        TableDrafter(path=str(tmp_path / "x.npz"))
    build_table([([1], [2, 3])], model="a" * 64).save(tmp_path / "other.npz")
    with pytest.raises(DraftError, match="another model"):
        TableDrafter(path=str(tmp_path / "other.npz"), model="b" * 64)
