"""Rows of the real default model: the same bits in every lawful way, and other bits in the unlawful ones."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import count

import numpy as np
import pytest
from fake_passes import chain, tree

from sooner.errors import TargetError
from sooner.store import ModelFiles
from sooner.targets.openvino import OpenVINOTarget, load
from sooner.targets.openvino import session as session_module
from sooner.targets.openvino.layout import Branch
from sooner.targets.openvino.probe import check_rows, pass_costs
from sooner.targets.openvino.width import Width
from sooner.tree import paths
from sooner.types import ROOT, Draft, Logits, Rows, Work

SALTS = count()


def alone(target: OpenVINOTarget, tokens: Sequence[int], path: Sequence[int] = ()) -> Rows:
    """The rows after ``tokens`` and along ``path``, from a session that shares nothing, in one pass; copied."""
    session = target.open(salt=f"alone {next(SALTS)}")
    rows = target.score([Work(session, tuple(tokens), chain(path))])[0]
    session.close()
    return Rows(rows.logits.copy(), None if rows.hidden is None else rows.hidden.copy())


def random_tree(random: np.random.Generator, nodes: int) -> Draft:
    parents = [i - 1 if random.random() < 0.5 else int(random.integers(ROOT, i)) for i in range(nodes)]
    return tree(random.integers(0, 49152, nodes).tolist(), parents)


def same_bits(ours: Logits, theirs: Logits) -> bool:
    return np.array_equal(ours.view(np.uint32), theirs.view(np.uint32))


def test_rows_are_invariant_and_the_check_is_sharp(target: OpenVINOTarget) -> None:
    verdict = check_rows(target, length=300)
    assert target.row_invariant
    assert verdict.invariant, str(verdict)
    assert verdict.sharp, "no negative control differed: the check would not notice a difference"
    assert sum(comparison.rows for comparison in verdict.lawful) > 1200


def test_random_programs_score_and_settle_like_fresh_sessions(target: OpenVINOTarget) -> None:
    """Batches of trees after chunked prefills, forks of common prefixes, paths settled on siblings, cuts."""
    random = np.random.default_rng(5)
    common = random.integers(0, 49152, 70).tolist()
    target.width = Width(row_ms=1.0, change_ms=5.0)
    for _ in range(6):
        works, texts = [], []
        for _ in range(int(random.integers(1, 4))):
            text = common[: random.integers(0, 70)] + random.integers(0, 49152, random.integers(1, 40)).tolist()
            session = target.open(text[:-1])
            while (left := len(text) - 1 - len(session.tokens)) > 0:
                held = len(session.tokens)
                part = text[held : held + int(random.integers(1, left + 1))]
                target.score([Work(session, tuple(part), logits=False)])
            held = max(len(text) - int(random.choice([1, 1, 35])), 0)
            session.sync(text[:held])
            works.append(Work(session, tuple(text[held:]), random_tree(random, int(random.choice([0, 1, 4, 7])))))
            texts.append(text)
        scored = [rows.logits.copy() for rows in target.score(works)]
        for work, text, logits in zip(works, texts, scored, strict=True):
            for path in paths(work.draft):
                expected = alone(target, text, [work.draft.tokens[node] for node in path]).logits
                assert same_bits(logits[[0, *(node + 1 for node in path)]], expected)
        for work, text in zip(works, texts, strict=True):
            path = work.draft.path(int(random.integers(ROOT, len(work.draft))))
            work.session.settle(path)
            text += [work.draft.tokens[node] for node in path]
            assert list(work.session.tokens) == text
        after = target.score([Work(work.session, (7,)) for work in works])
        for rows, text in zip([rows.logits.copy() for rows in after], texts, strict=True):
            assert same_bits(rows, alone(target, [*text, 7]).logits)
        for work in works:
            work.session.close()


def test_without_the_two_row_rule_a_row_beside_others_differs(
    target: OpenVINOTarget, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = np.random.default_rng(4).integers(0, 49152, 41).tolist()
    expected = alone(target, text).logits
    lone, other = target.open(), target.open(salt="other")
    target.score([Work(lone, tuple(text[:-1]), logits=False)])
    beside = Work(other, (1, 2, 3, 4))
    assert same_bits(target.score([Work(lone, (text[-1],)), beside])[0].logits, expected)
    lone.sync(text[:-1])
    other.sync(())
    monkeypatch.setattr(
        session_module, "branches", lambda held, tokens, draft: [Branch(len(held), tokens, tuple(range(len(draft))))]
    )
    assert not same_bits(target.score([Work(lone, (text[-1],)), beside])[0].logits, expected)
    lone.close()
    other.close()


def test_a_prefix_hit_and_a_preempted_sequence_score_the_same_bits(target: OpenVINOTarget) -> None:
    text = np.random.default_rng(6).integers(0, 49152, 97).tolist()
    expected = alone(target, text).logits
    for kept in (0, 64, 96):
        first = target.open()
        target.score([Work(first, tuple(text[: kept + 1]), logits=False)])
        first.close()
        session = target.open(text[:-1])
        assert len(session.tokens) == kept // 32 * 32
        assert same_bits(target.score([Work(session, tuple(text[len(session.tokens) :]))])[0].logits, expected)
        session.close()
        target.pool.purge()


def test_stale_slots_never_matter(target: OpenVINOTarget) -> None:
    """Blocks come back with another's entries in them, even with what is not a number."""
    text = np.random.default_rng(7).integers(0, 49152, 50).tolist()
    expected = alone(target, text, (1, 2, 3)).logits
    for tensor in target.runner.kv.values():
        tensor.data.view(np.uint16)[:] = 0x7FFF
    session = target.open()
    target.score([Work(session, tuple(text[:20]), logits=False)])
    rows = target.score([Work(session, tuple(text[20:]), tree([9, 1, 2, 3], [ROOT, ROOT, 1, 2]))])[0]
    assert same_bits(rows.logits[[0, 2, 3, 4]], expected)
    session.close()


def test_logits_that_are_no_numbers_are_an_error_for_their_session_only(target: OpenVINOTarget) -> None:
    text = tuple(range(40))
    expected = alone(target, text).logits
    ill, well = target.open(salt="ill"), target.open(salt="well")
    target.score([Work(ill, text, logits=False)])
    for tensor in target.runner.kv.values():
        tensor.data.view(np.uint16)[ill._table[0]] = 0x7FFF
    with pytest.raises(TargetError, match="not finite"):
        target.score([Work(ill, (1,))])
    assert list(ill.tokens) == list(text)
    ill.close()
    assert same_bits(target.score([Work(well, text)])[0].logits, expected)
    well.close()


def test_a_small_pool_fills_up_queues_and_recovers(target: OpenVINOTarget) -> None:
    small = OpenVINOTarget(
        target.runner,
        target.kv,  # a second pool over the same tensors
        replace(target.plan, blocks=9, kept_blocks=8, context=256),
        target.lanes,
        vocab_size=target.vocab_size,
        fingerprint=target.fingerprint,
    )
    full, late = small.open(salt="full"), small.open(salt="late")
    small.score([Work(full, tuple(range(254)), logits=False)])
    work = Work(late, tuple(range(40)))
    assert not small.fits([work])
    with pytest.raises(TargetError, match="no room"):
        small.score([work])
    last = small.score([Work(full, (1,), chain([2]))])[0].logits.copy()
    assert same_bits(last, alone(target, [*range(254), 1], [2]).logits), "the very last position is usable"
    full.close()
    assert small.fits([work])
    assert len(small.score([work])[0].logits) == 1
    late.close()
    assert small.pool.held == 0


def test_hidden_taps_change_no_bit_and_are_invariant_too(target: OpenVINOTarget, default_files: ModelFiles) -> None:
    tapped = load(default_files, pool_tokens=512, taps=(0, -1))
    text = np.random.default_rng(8).integers(0, 49152, 60).tolist()
    with_taps, without = alone(tapped, text[:1], text[1:]), alone(target, text[:1], text[1:])
    assert same_bits(with_taps.logits, without.logits)
    hidden = with_taps.hidden
    assert hidden is not None
    assert hidden.shape == (60, 2 * default_files.hidden_size)
    assert np.isfinite(hidden).all()
    first, last = np.split(hidden, 2, axis=1)
    assert not np.array_equal(first, last)
    for place in (9, 31, 32):
        again = alone(tapped, text[: place + 1]).hidden
        assert again is not None
        assert np.array_equal(again[0], hidden[place])


@pytest.mark.parametrize("options", [{"threads": 1}, {"precision": "f32"}], ids=["one thread", "f32"])
def test_threads_change_no_bit_and_f32_is_invariant_as_well(
    target: OpenVINOTarget, default_files: ModelFiles, options: dict[str, int]
) -> None:
    other = load(default_files, pool_tokens=512, **options)  # type: ignore[arg-type]  # options of several types
    assert other.row_invariant
    text = np.random.default_rng(9).integers(0, 49152, 60).tolist()
    ours, theirs = alone(target, text[:1], text[1:]).logits, alone(other, text[:1], text[1:]).logits
    same_fingerprint = target.fingerprint == other.fingerprint
    assert same_bits(ours, theirs) is same_fingerprint


def test_pass_costs_cover_the_grid(target: OpenVINOTarget) -> None:
    costs = pass_costs(target, rows=(1, 4), sequences=(1, 2), contexts=(40,), repeats=1)
    assert {(cost.sequences, cost.rows, cost.context) for cost in costs} == {(s, r, 40) for s in (1, 2) for r in (1, 4)}
    assert all(cost.ms > 0 for cost in costs)
