"""Passes of fixed shapes: strict ones, and those that graphs are captured of (extra ``torch``)."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tiny_torch import V, build, grown, open_target

from sooner.errors import TargetError, UnsupportedModel
from sooner.types import ROOT, Draft, Work

pytestmark = pytest.mark.convert


@pytest.fixture(scope="module", params=["llama", "mistral"])
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(request.param, tmp_path_factory.mktemp("models") / request.param)


def rows_of(target: Any, seed: int, steps: int = 10) -> list[Any]:
    """What a random walk of passes over two sessions scores; each session is a pure function of its tokens."""
    rng = np.random.default_rng(seed)
    sessions = [target.open(salt=str(i)) for i in range(2)]
    found = []
    for _ in range(steps):
        works = [
            Work(s, tuple(rng.integers(0, V, int(rng.choice([1, 2, 7]))).tolist()), grown(rng, 6)) for s in sessions
        ]
        rows = [r.logits.copy() for r in target.score(works)]
        for session, work in zip(sessions, works, strict=True):
            session.settle(work.draft.path(int(rng.integers(ROOT, len(work.draft)))))
        found += [(list(s.tokens), r) for s, r in zip(sessions, rows, strict=True)]
    for session in sessions:
        session.close()
    return found


@pytest.mark.parametrize("options", [{"strict": True}, {"compile": True}])
def test_fixed_shapes_score_the_rows_of_free_ones(folder: Path, options: dict[str, Any], eager: None) -> None:
    fixed, free = open_target(folder, **options), open_target(folder)
    for seed in range(3):
        for (tokens, rows), (same, want) in zip(rows_of(fixed, seed), rows_of(free, seed), strict=True):
            assert tokens == same
            assert np.allclose(rows, want, atol=2e-4)


def test_a_bushy_draft_at_the_end_of_the_context(tmp_path: Path, eager: None) -> None:
    """Side by side its nodes would have no room: twelve of them below position 511 of 512."""
    folder = build("llama", tmp_path / "llama", max_position_embeddings=512)
    nodes = 12
    draft = Draft(tuple(range(20, 20 + nodes)), (ROOT,) * nodes, (0.5,) * nodes, ("t",) * nodes)
    found = []
    choices: tuple[dict[str, Any], ...] = ({"compile": True}, {})
    for options in choices:
        target = open_target(folder, context=512, **options)
        session = target.open()
        target.score([Work(session, tuple(i % V for i in range(510)), logits=False)])
        rows = [target.score([Work(session, (3,), draft)])[0].logits.copy()]
        session.settle((7,))
        assert len(session.tokens) == 512
        session.sync(session.tokens[:511])
        rows.append(target.score([Work(session, (9,))])[0].logits.copy())
        found.append(np.concatenate(rows))
    assert np.allclose(found[0], found[1], atol=2e-4)


@pytest.fixture
def eager(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shapes as they are captured, run at once: compiling takes minutes and computes the same."""
    import torch

    monkeypatch.setattr(torch, "compile", lambda call, **_: call)


def test_strict_rows_are_the_same_bits_however_they_are_scored(folder: Path) -> None:
    from sooner.targets.torch.probe import check_rows

    target = open_target(folder, strict=True)
    assert target.row_invariant
    verdict = check_rows(target, 120)
    assert verdict.invariant, str(verdict)
    assert len(target.runner.shapes) == 1
    assert [control.rows for control in verdict.controls] == [8, 8]
    assert target.runner.strict, "the controls ran another way and left it"
    assert target.fingerprint["passes"] == "strict"


def test_no_new_shape_in_steady_state(folder: Path, eager: None) -> None:
    target = open_target(folder, compile=True)
    session = target.open()
    target.score([Work(session, tuple(range(20)))])

    def step(nodes: int) -> None:
        draft = Draft((5,) * nodes, tuple(range(-1, nodes - 1)), (0.5,) * nodes, ("t",) * nodes)
        target.score([Work(session, (3,), draft)])
        session.settle(())

    for nodes in (0, 3, 7):
        step(nodes)
    shapes = dict(target.runner.shapes)
    for nodes in (0, 1, 2, 3, 4, 5, 6, 7, 0):
        step(nodes)
    assert target.runner.shapes == shapes
    assert {4, 8} <= set(target.widths)


class Replayed:
    """Stands in for a CUDA graph: the second call computes anew into what the first returned, and nothing else that the
    code does takes place, such as what its hooks note."""

    def __init__(self, call: Any) -> None:
        self._call = call
        self._result: tuple[Any, Any] | None = None

    def __call__(self) -> Any:
        if self._result is None:
            self._result = self._call()
            return self._result
        seen = self._call.__self__._runner.taps._seen
        before = dict(seen)
        for held, fresh in zip(self._result, self._call(), strict=True):
            if held is not None:
                held.copy_(fresh)
        seen.update(before)
        return self._result


def test_hidden_rows_of_captured_passes_are_those_of_their_own_shape(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import torch

    from sooner.targets.torch.fixed import Shape

    monkeypatch.setattr(torch, "compile", lambda call, **_: Replayed(call))
    folder = build("llama", tmp_path / "llama")

    def hidden(**options: Any) -> Any:
        target = open_target(folder, taps=(0, -1), **options)
        session = target.open()
        found = []
        for tokens in ((1, 2, 3), tuple(range(20)), (4,), tuple(range(30, 45)), (5, 6)):
            draft = Draft((7, 8), (ROOT, 0), (0.5, 0.5), ("t", "t"))
            found.append(target.score([Work(session, tokens, draft)])[0].hidden.copy())
            session.settle((0,))
        return np.concatenate(found)

    want = hidden()
    assert np.allclose(hidden(compile=True), want, atol=1e-3)
    run = Shape.run  # negative control: what the hooks noted last, whichever shape ran
    monkeypatch.setattr(Shape, "run", lambda s, given: (run(s, given)[0], s._runner.taps.take(s._wanted)))
    with pytest.raises((AssertionError, TargetError)):  # other rows, or fewer than are asked for
        assert np.allclose(hidden(compile=True), want, atol=1e-3)


def test_every_compiled_shape_has_code_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """torch keeps what it compiled with the code it was compiled from, a few results each."""
    import torch

    compiled: list[Any] = []

    def noted(call: Any, **_: Any) -> Any:
        compiled.append(call)
        return call

    monkeypatch.setattr(torch, "compile", noted)
    open_target(build("llama", tmp_path / "llama"), compile=True)
    codes = [call.__code__ for call in compiled]
    assert len(compiled) > 1
    assert len({id(code) for code in codes}) == len(codes)


def test_a_model_that_cannot_be_compiled_is_refused_with_the_remedy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import torch

    def fail() -> None:
        raise RuntimeError("operation not permitted\nwhen stream is capturing")

    monkeypatch.setattr(torch, "compile", lambda call, **_: fail)
    with pytest.raises(UnsupportedModel, match=r"not permitted when .* leave out --compile"):
        open_target(build("llama", tmp_path / "llama"), compile=True)


@pytest.mark.parametrize("fault", ["unmoved path", "blind branch"])
def test_faults_of_the_layout_are_caught(
    folder: Path, fault: str, eager: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Negative control."""
    from sooner.targets.torch import fixed as layout
    from sooner.targets.torch.kv import KVTensors

    fixed, free = open_target(folder, compile=True), open_target(folder)
    if fault == "unmoved path":
        monkeypatch.setattr(KVTensors, "move", lambda *_: None)
    else:
        fill = layout._fill

        def blind(piece: Any, rows: Sequence[Any], reach: Any, hidden: Any) -> None:
            fill(piece, rows, reach, hidden)
            hidden[piece.slot, len(piece.tokens) - 1] = hidden[piece.slot, 0]

        monkeypatch.setattr(layout, "_fill", blind)
    differing = [
        not np.allclose(rows, want, atol=2e-4)
        for seed in range(3)
        for (_, rows), (_, want) in zip(rows_of(fixed, seed), rows_of(free, seed), strict=True)
    ]
    assert any(differing)


@pytest.mark.skipif(shutil.which("g++") is None, reason="torch.compile needs a C++ compiler")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # inside torch
@pytest.mark.timeout(900)  # compiling takes half a minute of a processor to itself
def test_compiled_in_earnest(tmp_path: Path) -> None:
    """The rows of free passes, and nothing is compiled again once the shapes have been met."""
    import torch

    def scored(target: Any, seed: int) -> Any:
        rng, session, found = np.random.default_rng(seed), target.open(), []
        for nodes in (0, 7, 3, 5, 1, 2):
            draft = Draft(
                tuple(range(20, 20 + nodes)),
                (ROOT, *(i // 2 for i in range(nodes - 1)))[:nodes],
                (0.5,) * nodes,
                ("t",) * nodes,
            )
            found.append(target.score([Work(session, tuple(rng.integers(0, V, 1).tolist()), draft)])[0].logits.copy())
            session.settle(draft.path(nodes - 1))
        session.close()
        return np.concatenate(found)

    folder = build("llama", tmp_path / "llama", num_hidden_layers=1)
    said: list[str] = []
    target = open_target(folder, compile=True, slots=1, log=said.append)
    assert any("compiling passes over 1 x 4 rows" in line for line in said)
    graphs = torch._dynamo.utils.counters["stats"]["unique_graphs"]
    assert graphs == len(target.runner.shapes)
    free = open_target(folder, slots=1)
    for seed in range(3):
        assert np.allclose(scored(target, seed), scored(free, seed), atol=2e-4)
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == graphs == len(target.runner.shapes)
    torch.compiler.reset()
