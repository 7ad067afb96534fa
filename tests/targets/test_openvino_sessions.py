"""The cache law, on a pass without a model: whatever happens, a session is a pure function of its tokens."""

from __future__ import annotations

from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
from fake_passes import FakeRunner, V, chain, fake_target, ideal_row, tree
from hypothesis import Phase, settings
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test

from sooner.errors import TargetError
from sooner.targets.openvino import OpenVINOSession
from sooner.targets.openvino.width import Width
from sooner.types import ROOT, Draft, Rows, Work

TOKENS = st.lists(st.integers(0, V - 1), min_size=1, max_size=3).map(lambda few: (few * 40)[:70])
LENGTHS = st.sampled_from([1, 1, 1, 2, 3, 29, 31, 32, 33, 64, 65])
SALTS = st.sampled_from(["", "other"])


@st.composite
def drafts(draw: st.DrawFn) -> Draft:
    """Trees of up to six nodes with distinct siblings."""
    nodes: list[tuple[int, int]] = []
    for _ in range(draw(st.integers(0, 6))):
        node = (draw(st.integers(0, V - 1)), draw(st.integers(ROOT, len(nodes) - 1)))
        if node not in nodes:
            nodes.append(node)
    return tree([token for token, _ in nodes], [parent for _, parent in nodes])


def check_rows(rows: Rows, held: list[int], work: Work) -> None:
    """Every row equals that of its own tokens, alone."""
    if not work.logits:
        assert rows.logits.shape == (0, V)
        return
    base = held + list(work.tokens)
    assert len(rows.logits) == 1 + len(work.draft)
    for node in range(ROOT, len(work.draft)):
        path = base + [work.draft.tokens[i] for i in work.draft.path(node)]
        assert np.array_equal(rows.logits[node + 1], ideal_row(path)), f"row of node {node} after {len(held)} tokens"


class CacheLaw(RuleBasedStateMachine):
    """Sessions over a small pool and two-letter texts, so that prefixes, forks and evictions are frequent."""

    def __init__(self) -> None:
        super().__init__()
        self.target = fake_target(pool_tokens=416, context=200)
        self.target.width = Width(row_ms=1.0, change_ms=6.0)
        self.sessions: list[tuple[OpenVINOSession, list[int]]] = []
        self.drafts: dict[int, Draft] = {}

    @rule(tokens=TOKENS, salt=SALTS)
    def open(self, tokens: list[int], salt: str) -> None:
        session = self.target.open(tokens, salt)
        held = list(session.tokens)
        assert held == tokens[: len(held)]
        self.sessions.append((session, held))

    @precondition(lambda self: self.sessions)
    @rule(data=st.data())
    def score(self, data: st.DataObject) -> None:
        chosen = data.draw(st.lists(st.integers(0, len(self.sessions) - 1), min_size=1, max_size=3, unique=True))
        works = []
        for i in chosen:
            session, held = self.sessions[i]
            text, count = data.draw(TOKENS), data.draw(LENGTHS)
            fed = text[len(held) % len(text) :][:count] or text[:1]
            logits = data.draw(st.booleans()) or count < 3
            draft = data.draw(drafts()) if logits else chain(())
            if len(held) + len(fed) + len(draft) <= self.target.context:
                works.append(Work(session, tuple(fed), draft, logits))
        if not self.target.fits(works):
            with pytest.raises(TargetError, match="no room"):
                self.target.score(works)
            return
        before = {id(session): list(held) for session, held in self.sessions}
        for work, rows in zip(works, self.target.score(works), strict=True):
            check_rows(rows, before[id(work.session)], work)
            next(held for session, held in self.sessions if session is work.session).extend(work.tokens)
            self.drafts[id(work.session)] = work.draft

    @precondition(lambda self: self.sessions)
    @rule(data=st.data())
    def settle(self, data: st.DataObject) -> None:
        session, held = data.draw(st.sampled_from(self.sessions))
        draft = self.drafts.pop(id(session), chain(()))
        path = draft.path(data.draw(st.integers(ROOT, len(draft) - 1)))
        session.settle(path)
        held += [draft.tokens[node] for node in path]

    @precondition(lambda self: self.sessions)
    @rule(data=st.data(), tail=TOKENS)
    def sync(self, data: st.DataObject, tail: list[int]) -> None:
        session, held = data.draw(st.sampled_from(self.sessions))
        self.drafts.pop(id(session), None)
        wanted = held[: data.draw(st.integers(0, len(held)))] + tail
        same = next(
            (i for i, (a, b) in enumerate(zip(held, wanted, strict=False)) if a != b), min(len(held), len(wanted))
        )
        assert session.sync(wanted) == same
        del held[same:]

    @precondition(lambda self: self.sessions)
    @rule(data=st.data())
    def close(self, data: st.DataObject) -> None:
        i = data.draw(st.integers(0, len(self.sessions) - 1))
        session, _ = self.sessions.pop(i)
        self.drafts.pop(id(session), None)
        session.close()
        session.close()

    @invariant()
    def tokens_are_as_expected(self) -> None:
        for session, held in self.sessions:
            assert list(session.tokens) == held

    def teardown(self) -> None:
        for session, _ in self.sessions:
            session.close()
        assert self.target.pool.held == 0
        assert self.target.pool.available == self.target.pool.size
        assert not self.target._blocks.live


QUICK = settings(max_examples=300, stateful_step_count=25, deadline=None)


def test_cache_law() -> None:
    run_state_machine_as_test(CacheLaw, settings=QUICK)


def cut_inside_a_shared_block() -> None:
    """Two sessions rely on one filed block; one is cut inside it and goes on differently; the other must not notice."""
    target = fake_target()
    text = [i % 3 for i in range(80)]
    first = target.open(text)
    target.score([Work(first, tuple(text))])
    second = target.open(text[:64])
    assert list(second.tokens) == text[:64]
    second.sync(text[:40])
    target.score([Work(second, (3, 3))])
    work = Work(first, (1, 2))
    check_rows(target.score([work])[0], text, work)


def test_a_shared_block_is_copied_before_it_is_written() -> None:
    cut_inside_a_shared_block()


def test_cache_law_notices_a_shared_block_that_is_written(monkeypatch: pytest.MonkeyPatch) -> None:
    def never(*_: Any) -> bool:
        return False

    monkeypatch.setattr(OpenVINOSession, "_rewrites", never)
    with pytest.raises(AssertionError, match="row of node"):
        cut_inside_a_shared_block()


def test_cache_law_notices_a_sibling_without_the_partial_block(monkeypatch: pytest.MonkeyPatch) -> None:
    def uncopied(session: OpenVINOSession, index: int) -> int:
        return session._pool.take()

    monkeypatch.setattr(OpenVINOSession, "_copied", uncopied)
    with pytest.raises(AssertionError):
        run_state_machine_as_test(
            CacheLaw, settings=settings(QUICK, max_examples=1000, phases=[Phase.generate], derandomize=True)
        )


def test_full_prefixes_are_found_and_partial_ones_copied_from_live_sessions() -> None:
    target = fake_target()
    text = [i % 3 for i in range(80)]
    first = target.open(text)
    assert list(first.tokens) == []
    target.score([Work(first, tuple(text))])
    fork = target.open(text)
    assert list(fork.tokens) == text
    assert list(target.open(text, salt="other").tokens) == []
    first.close()
    fork.close()
    assert len(target.open(text).tokens) == 64, "the partial block went with its session"


def test_a_fork_does_not_disturb_its_source() -> None:
    target = fake_target()
    text = [i % 3 for i in range(40)]
    source = target.open()
    target.score([Work(source, tuple(text))])
    fork = target.open(text)
    works = [Work(fork, (3,), chain([3, 3])), Work(source, (2,), chain([1, 0]))]
    for work, rows in zip(works, target.score(works), strict=True):
        check_rows(rows, text, work)


def test_preempted_work_recomputes_the_same_rows() -> None:
    target = fake_target(pool_tokens=256, context=256)
    text = tuple(i % 4 for i in range(150))
    session = target.open()
    before = target.score([Work(session, text)])[0].logits.copy()
    session.close()
    other = target.open(salt="other")
    target.score([Work(other, (1,) * 250)])
    other.close()
    again = target.open(text[:-1])
    assert np.array_equal(before, target.score([Work(again, text[len(again.tokens) :])])[0].logits)


def test_one_plain_work_of_full_context_always_fits() -> None:
    target = fake_target(pool_tokens=256, context=256)
    session = target.open()
    target.score([Work(session, (1,) * 192)])
    session.close()
    session = target.open((1,) * 192)
    for _ in range(64):
        work = Work(session, (2,))
        assert target.fits([work])
        target.score([work])
    assert len(session.tokens) == target.context
    with pytest.raises(TargetError, match="context of 256"):
        target.score([Work(session, (2,))])


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda target, session: target.score([Work(session, ())]), "no token"),
        (lambda target, session: target.score([Work(session, (1,)), Work(session, (1,))]), "share a session"),
        (lambda target, session: (session.close(), target.score([Work(session, (1,))])), "closed"),
        (lambda target, session: fake_target().score([Work(session, (1,))]), "not opened on this target"),
        (lambda target, session: session.settle((0,)), "no path"),
    ],
)
def test_misuse_is_refused(spoil: Any, message: str) -> None:
    target = fake_target()
    with pytest.raises(TargetError, match=message):
        spoil(target, target.open())
    assert target.pool.held == 0


def test_a_failed_pass_leaves_the_sessions_as_they_were(monkeypatch: pytest.MonkeyPatch) -> None:
    target = fake_target()
    session = target.open()
    target.score([Work(session, (1, 2, 3))])
    held = target.pool.held

    def fail(*_: Any) -> None:
        raise TargetError("the pass failed")

    with monkeypatch.context() as patch:
        patch.setattr(FakeRunner, "run", fail)
        with pytest.raises(TargetError, match="the pass failed"):
            target.score([Work(session, (1,) * 60, tree([1, 2], [ROOT, ROOT]))])
    assert list(session.tokens) == [1, 2, 3]
    assert target.pool.held == held
    check_rows(target.score([Work(session, (2,), chain([1]))])[0], [1, 2, 3], Work(session, (2,), chain([1])))


def test_a_settled_sibling_is_adopted_without_moving_entries() -> None:
    target = fake_target()
    session = target.open()
    target.score([Work(session, (1,) * 33)])
    draft = tree([0, 1, 2, 3], [ROOT, ROOT, 1, 2])
    target.score([Work(session, (0,), draft)])
    scratch = session._pending[1][2]
    session.settle((1, 2, 3))
    assert session._table[1:] == scratch
    assert target.pool.held == 2
