"""The cache law with borrowers that write rubbish behind every session's tokens: nobody else may ever read it."""

from __future__ import annotations

from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
from fake_passes import FakeCache, FakeRunner, V, chain, fake_target, ideal_row
from hypothesis import Phase, settings
from hypothesis.stateful import precondition, rule, run_state_machine_as_test
from numpy.typing import NDArray
from test_openvino_sessions import QUICK, CacheLaw, check_rows

from sooner.errors import TargetError
from sooner.targets.openvino import OpenVINOTarget
from sooner.targets.openvino.borrow import Borrowed, Borrower
from sooner.targets.openvino.graph import BLOCK_SIZE
from sooner.targets.openvino.layout import Pass
from sooner.types import ROOT, Draft, Logits, Work

RUBBISH = 1000


class ShortRunner(FakeRunner):
    """What a shortened graph does to the cache: the entries it writes are not those of the target."""

    def run(self, flat: Pass) -> tuple[Logits, NDArray[np.float32] | None]:
        for i, start in enumerate(flat.past_lens):
            first, end = flat.begins[i : i + 2]
            table = flat.blocks[slice(*flat.block_begins[i : i + 2])]
            slots = range(start, start + end - first)
            assert len(table) == -(-slots.stop // BLOCK_SIZE)
            for slot, token in zip(slots, flat.tokens[first:end], strict=True):
                self.cache.slots[table[slot // BLOCK_SIZE], slot % BLOCK_SIZE] = RUBBISH + token
            self.cache.slots[table[-1], (slots.stop - 1) % BLOCK_SIZE + 1 :] = RUBBISH
        return np.zeros((len(flat.rows), V), np.float32), None


def borrower(target: OpenVINOTarget) -> Borrower:
    cache = target.kv
    assert isinstance(cache, FakeCache)
    runner = ShortRunner(cache)
    return Borrower(target._blocks, runner, vocab_size=V, context=target.context, fingerprint={})


class BorrowedCacheLaw(CacheLaw):
    """Between passes any sessions lend their cache for a few levels of drafting."""

    def __init__(self) -> None:
        super().__init__()
        self.short = borrower(self.target)

    @precondition(lambda self: self.sessions)
    @rule(data=st.data(), levels=st.integers(1, 5), first=st.sampled_from([1, 1, 30, 33]))
    def draft(self, data: st.DataObject, levels: int, first: int) -> None:
        chosen = data.draw(st.lists(st.integers(0, len(self.sessions) - 1), min_size=1, max_size=3, unique=True))
        before = self.target.pool.held
        borrowed = []
        for i in chosen:
            _, held = self.sessions[i]
            session = self.short.open(held)
            assert list(session.tokens) in ([], held)
            borrowed.append(session)
        for level in range(levels):
            works = [Work(session, (level % V,) * (1 if level else first)) for session in borrowed]
            if not self.short.fits(works):
                with pytest.raises(TargetError, match="no room"):
                    self.short.score(works)
                break
            assert [rows.logits.shape for rows in self.short.score(works)] == [(1, V)] * len(works)
        self.short.release()
        assert self.target.pool.held == before


def law(**options: Any) -> None:
    run_state_machine_as_test(BorrowedCacheLaw, settings=settings(QUICK, **options))


def test_nothing_that_a_borrower_writes_is_ever_read() -> None:
    run_state_machine_as_test(BorrowedCacheLaw, settings=settings(QUICK, max_examples=150))


def lend_from_inside_a_shared_block() -> None:
    """Two sessions rely on one filed block; one is cut inside it and lends; the other must not notice."""
    target = fake_target()
    text = [i % 3 for i in range(80)]
    first = target.open(text)
    target.score([Work(first, tuple(text))])
    second = target.open(text[:64])
    second.sync(text[:40])
    short = borrower(target)
    short.score([Work(short.open(text[:40]), (3, 3))])
    short.release()
    check_rows(target.score([Work(first, (1, 2))])[0], text, Work(first, (1, 2)))


def test_a_block_that_others_rely_on_is_copied_before_a_borrower_writes_it() -> None:
    lend_from_inside_a_shared_block()


def test_a_borrower_that_does_not_copy_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Borrowed, "_copies", lambda session: False)
    with pytest.raises(AssertionError, match="row of node"):
        lend_from_inside_a_shared_block()


def test_the_law_notices_a_borrower_that_feeds_the_last_token_again(monkeypatch: pytest.MonkeyPatch) -> None:
    lawful = Borrowed.sync

    def greedy(session: Borrowed, tokens: Any) -> int:
        kept = lawful(session, tokens)
        del session._tokens[kept - 1 :]
        return kept

    monkeypatch.setattr(Borrowed, "sync", greedy)
    with pytest.raises(AssertionError):
        run_state_machine_as_test(BorrowedCacheLaw, settings=settings(QUICK, phases=[Phase.generate], derandomize=True))


def lender(count: int = 40) -> tuple[OpenVINOTarget, Any, list[int]]:
    target = fake_target()
    session = target.open()
    text = [i % 3 for i in range(count)]
    target.score([Work(session, tuple(text))])
    return target, session, text


def test_only_a_settled_session_lends() -> None:
    target, session, text = lender()
    short = borrower(target)
    assert list(short.open(text).tokens) == [], "its draft nodes are pending"
    session.settle(())
    assert short.lends(text)
    first, second = short.open(text), short.open(text)
    assert [list(one.tokens) for one in (first, second)] == [text, []], "one session lends to one borrower"
    first.close()
    assert list(short.open(text).tokens) == text
    assert not short.lends(text[:-1])
    short.release()


def test_drafting_takes_no_block_until_it_needs_one_and_nothing_is_found_by_its_prefix() -> None:
    target, session, text = lender(40)
    session.settle(())
    short = borrower(target)
    borrowed = short.open(text)
    held = target.pool.held
    for token in (1, 2, 1):
        short.score([Work(borrowed, (token,))])
    assert target.pool.held == held, "the slots behind the lender's tokens are free"
    short.score([Work(borrowed, (3,) * 24)])
    assert target.pool.held == held + 1
    short.release()
    assert target.pool.held == held
    other = target.open([*text, 1, 2, 1, *[3] * 24])
    assert len(other.tokens) <= 40
    check_rows(target.score([Work(session, (1,), chain([2]))])[0], text, Work(session, (1,), chain([2])))


def test_a_chain_has_a_row_each_and_a_tree_is_refused() -> None:
    target, session, text = lender()
    session.settle(())
    short = borrower(target)
    borrowed = short.open(text)
    rows = short.score([Work(borrowed, (1, 2), chain([3, 1, 2]))])[0]
    assert rows.logits.shape == (4, V)
    assert list(borrowed.tokens) == [*text, 1, 2], "nodes are dropped"
    with pytest.raises(TargetError, match="chains only"):
        short.score([Work(borrowed, (1,), Draft((1, 2), (ROOT, ROOT), (1.0, 1.0), ("t", "t")))])
    with pytest.raises(TargetError, match="keeps no draft nodes"):
        borrowed.settle((0,))
    with pytest.raises(TargetError, match="not a borrower's"):
        short.score([Work(session, (1,))])
    short.release()
    assert np.array_equal(target.score([Work(session, (1,))])[0].logits[0], ideal_row([*text, 1]))
