"""The invariance, empty-draft and cache laws on transformers models of many kinds (extra ``torch``)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pytest
from tiny_torch import V, build, fresh, grown, open_target

from sooner.control.fixed import FixedController
from sooner.engine import Engine
from sooner.types import ROOT, Draft, Rows, Work
from test_engine_laws import visible
from toy import FlickerController, ToyCodec, TreeDrafter

pytestmark = pytest.mark.convert

PROMPTS = [[1, 2, 3], [4] * 20, [5, 6], [7, 8, 9, 10, 11, 1, 2], [3]]
OPTIONS: dict[str, Any] = {"max_tokens": 24, "seed": 5, "logprobs": 2, "ignore_eos": True}


@pytest.fixture(scope="module", params=["llama", "mistral", "qwen3", "gemma2", "gemma3", "gpt2"])
def target(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = build(request.param, tmp_path_factory.mktemp("models") / request.param)
    return open_target(folder)


@pytest.fixture(autouse=True)
def _free(target: Any) -> Iterator[None]:
    yield
    assert target.slots.free == target.slots.count


def texts(target: Any, drafter: Any = None, *, temperature: float, running: int, controller: Any = None) -> list[Any]:
    target.slots.purge()
    controller = controller or FixedController(6)
    engine = Engine(target, ToyCodec(), drafter=drafter, controller=controller, max_running=running, chunk=16)
    return [visible(c) for c in engine.generate_many(PROMPTS, temperature=temperature, **OPTIONS)]


@pytest.mark.parametrize("temperature", [0.0, 0.9])
def test_no_draft_budget_batch_or_preemption_changes_a_bit(target: Any, temperature: float) -> None:
    if not target.row_invariant:
        pytest.fail(f"rows depend on how they are scored: {target.fingerprint}")
    want = texts(target, temperature=temperature, running=1)
    truth = {tuple(p): list(w[1]) for p, w in zip(PROMPTS, want, strict=True)}
    assert texts(target, temperature=temperature, running=4) == want
    drafter = TreeDrafter(1, truth, vocab_size=V)
    assert texts(target, drafter, temperature=temperature, running=3) == want
    flicker = FlickerController(7, seed=2)
    assert texts(target, drafter, temperature=temperature, running=4, controller=flicker) == want


def test_the_check_sees_one_unit_in_the_last_place(target: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Negative control: drafted passes whose rows are nudged."""
    want = texts(target, temperature=0.9, running=1)
    score = target.score

    def nudged(works: Sequence[Work]) -> list[Rows]:
        drafted = any(len(work.draft) for work in works)
        return [Rows(np.nextafter(r.logits, np.float32(np.inf)) if drafted else r.logits) for r in score(works)]

    monkeypatch.setattr(target, "score", nudged)
    assert texts(target, TreeDrafter(1, vocab_size=V), temperature=0.9, running=1) != want


def wander(target: Any, seed: int, steps: int = 8) -> None:
    """Random passes, settlements, cuts, forks and closings; every row equals that of a fresh session."""
    rng = np.random.default_rng(seed)
    session = target.open(salt="wander")
    held: list[int] = []
    for _ in range(steps):
        fed = tuple(rng.integers(0, V, int(rng.choice([1, 1, 2, 5]))).tolist())
        work = Work(session, fed, grown(rng, 7))
        rows = target.score([work])[0].logits.copy()
        assert np.array_equal(rows, fresh(target, held, work)), f"rows after {len(held)} tokens"
        held += fed
        if rng.random() < 0.8:
            path = work.draft.path(int(rng.integers(ROOT, len(work.draft))))
            session.settle(path)
            held += [work.draft.tokens[i] for i in path]
        if rng.random() < 0.25:
            keep = int(rng.integers(0, len(held) + 1))
            assert session.sync([*held[:keep], V - 1, V - 1]) in (keep, keep + 1, keep + 2)
            held = list(session.tokens)
        if rng.random() < 0.2:  # a fork goes on, its source ends
            fork = target.open(held, salt="wander")
            assert list(fork.tokens) == held
            session.close()
            session = fork
        assert list(session.tokens) == held
    session.close()


def wander_often(target: Any) -> None:
    for seed in range(20):
        wander(target, seed)


@pytest.mark.parametrize("seed", range(2))
def test_the_cache_is_a_pure_function_of_its_tokens(target: Any, seed: int) -> None:
    wander(target, seed)


@pytest.mark.parametrize("fault", ["unwritten path", "uncopied fork", "unlimited cut"])
def test_a_cache_that_is_not_is_caught(target: Any, fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Negative control."""
    from sooner.targets.torch.attention import ByChains
    from sooner.targets.torch.session import TorchSession

    if fault == "unwritten path":
        monkeypatch.setattr(ByChains, "write", lambda *_: None)
    elif fault == "uncopied fork":
        monkeypatch.setattr(target._room, "copy", lambda *_: None)
    else:
        monkeypatch.setattr(TorchSession, "sync", lambda self, tokens: len(self.tokens))
    with pytest.raises(AssertionError):
        wander_often(target)
    for place in list(target.slots.live):
        target.slots.give_back(place)
    target.slots.purge()


def test_a_gap_filled_by_padding_is_no_run_of_rows(target: Any) -> None:
    """Rows 0, 1, 3 and again 3 end where 0, 1, 2, 3 do."""
    session = target.open(salt="gap")
    work = Work(session, (1,), Draft((2, 3, 4), (ROOT, ROOT, 0), (0.5,) * 3, ("t",) * 3))
    rows = target.score([work])[0].logits.copy()
    session.close()
    assert np.array_equal(rows, fresh(target, [], work))


def test_a_batch_equals_its_members(target: Any) -> None:
    """Ragged works: prompts, drafts and plain steps of different lengths, all in one pass."""
    rng = np.random.default_rng(3)
    sessions = [target.open(salt=str(i)) for i in range(4)]
    for round_ in range(4):
        works = []
        for i, session in enumerate(sessions):
            fed = tuple(rng.integers(0, V, 1 + (i + round_) % 4).tolist())
            works.append(Work(session, fed, grown(rng, 2 * i)))
        before = [list(session.tokens) for session in sessions]
        got = [rows.logits.copy() for rows in target.score(works)]
        for session, work in zip(sessions, works, strict=True):
            session.settle(work.draft.path(len(work.draft) - 1))
        texts = [list(session.tokens) for session in sessions]
        for session in sessions:
            session.close()
        for work, rows, tokens in zip(works, got, before, strict=True):
            assert np.array_equal(rows, fresh(target, tokens, work))
        sessions = [target.open(salt=str(i)) for i in range(4)]
        for session, tokens in zip(sessions, texts, strict=True):
            target.score([Work(session, tuple(tokens), Draft())])
    for session in sessions:
        session.close()
