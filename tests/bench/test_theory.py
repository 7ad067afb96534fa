"""The formulas against the paper's own tables and against chance itself."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sooner.bench import theory
from sooner.bench.theory_counts import BIGRAM, UNIGRAM, CountDrafter, Counts

# arXiv 2211.17192, table 1: alpha, gamma, operations, speed
TABLE_1 = [
    (0.6, 2, 1.53, 1.96),
    (0.7, 3, 1.58, 2.53),
    (0.8, 2, 1.23, 2.44),
    (0.8, 5, 1.63, 3.69),
    (0.9, 2, 1.11, 2.71),
    (0.9, 10, 1.60, 6.86),
]


@pytest.mark.parametrize(("alpha", "length", "operations", "speed"), TABLE_1)
def test_the_papers_first_table(alpha: float, length: int, operations: float, speed: float) -> None:
    tokens = theory.tokens_per_step(alpha, length)
    assert theory.speed_up(tokens, length, 0.0) == pytest.approx(speed, abs=0.005)
    assert theory.operations(tokens, length, 0.0) == pytest.approx(operations, abs=0.005)
    assert theory.memory(tokens) == pytest.approx(1 / speed, abs=0.005)


@given(st.floats(0.0, 1.0), st.integers(1, 20))
def test_independence_is_a_special_case(alpha: float, length: int) -> None:
    kept = [alpha ** (i + 1) for i in range(length)]
    assert theory.tokens_by_position(kept, length) == pytest.approx(theory.tokens_per_step(alpha, length))
    assert 1.0 <= theory.tokens_per_step(alpha, length) <= length + 1


@given(st.floats(0.05, 0.95), st.floats(0.0, 0.9))
def test_there_is_a_gain_exactly_where_alpha_exceeds_c(alpha: float, c: float) -> None:
    """Corollary 3.9."""
    one = theory.speed_up(theory.tokens_per_step(alpha, 1), 1, c)
    assert one == pytest.approx((1 + alpha) / (1 + c))
    speeds = {n: theory.speed_up(theory.tokens_per_step(alpha, n), n, c) for n in range(1, 30)}
    assert (theory.best_length(speeds) > 0) == (alpha > c) or alpha == pytest.approx(c)


def test_alpha_is_found_again_in_steps_that_chance_makes() -> None:
    chance = np.random.default_rng(3)
    for alpha in (0.2, 0.6, 0.9):
        kept = [int(np.argmin(np.append(chance.random(5) < alpha, False))) for _ in range(20_000)]
        assert theory.alpha_of_runs(kept, 5) == pytest.approx(alpha, abs=0.01)
        assert 1 + np.mean(kept) == pytest.approx(theory.tokens_per_step(alpha, 5), rel=0.02)
    assert theory.alpha_of_runs([], 5) == 0.0
    assert theory.best_length({}) == 0


def test_counts_are_laws() -> None:
    counts = Counts([[1, 2, 1, 2, 1, 3], [4]], 8)
    ids, q = CountDrafter(BIGRAM, counts).law(1, 1.0)
    assert dict(zip(ids, q, strict=True)) == pytest.approx({2: 2 / 3, 3: 1 / 3})
    ids, q = CountDrafter(BIGRAM, counts).law(7, 1.0)
    assert dict(zip(ids, q, strict=True)) == pytest.approx({1: 3 / 7, 2: 2 / 7, 3: 1 / 7, 4: 1 / 7})
    ids, q = CountDrafter(UNIGRAM, counts).law(1, 0.5)
    assert float(q.sum()) == pytest.approx(1.0)
    assert q[0] == pytest.approx(9 / (9 + 4 + 1 + 1))
    assert list(CountDrafter(BIGRAM, counts).law(1, 0.0)[0]) == [2]
