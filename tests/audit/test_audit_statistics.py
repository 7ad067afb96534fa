"""Tests of counts: known values, honest levels, and differences that must be seen."""

from __future__ import annotations

import math

import numpy as np
import pytest

from sooner.audit.statistics import chi_square_tail, goodness, homogeneity, power


@pytest.mark.parametrize(
    ("x", "df", "tail"),
    [
        (3.841458820694124, 1, 0.05),
        (18.307038053275146, 10, 0.05),
        (6.634896601021213, 1, 0.01),
        (124.34211340400407, 100, 0.05),
        (2.705543454095404, 1, 0.1),
        (0.0, 5, 1.0),
        (math.inf, 5, 0.0),
    ],
)
def test_the_tail_has_its_tabled_values(x: float, df: int, tail: float) -> None:
    assert chi_square_tail(x, df) == pytest.approx(tail, rel=1e-9)


def test_two_degrees_of_freedom_are_an_exponential() -> None:
    for x in (0.1, 1.0, 3.9, 4.1, 30.0, 300.0):
        assert chi_square_tail(x, 2) == pytest.approx(math.exp(-x / 2), rel=1e-9)


def test_power_is_the_share_of_samples_in_which_an_effect_is_seen() -> None:
    """Against simulation; without an effect it is the level itself."""
    assert power(1000, 7, 0.0, 0.03) == pytest.approx(0.03, abs=1e-6)
    rng = np.random.default_rng(1)
    p = np.array([0.4, 0.3, 0.2, 0.1])
    bent = p + np.array([0.05, -0.05, 0.0, 0.0])
    w = math.sqrt(float(((bent - p) ** 2 / p).sum()))
    seen = 0
    for _ in range(400):
        counts = dict(enumerate(map(float, rng.multinomial(500, bent))))
        seen += goodness("x", [(counts, dict(enumerate(map(float, p))))], alpha=0.05).rejected
    assert seen / 400 == pytest.approx(power(500, 3, w, 0.05), abs=0.08)


def _draws(rng: np.random.Generator, p: list[float], n: int) -> dict[int, float]:
    return dict(enumerate(map(float, rng.multinomial(n, p))))


def test_goodness_keeps_its_level_and_sees_a_difference() -> None:
    rng = np.random.default_rng(0)
    p = [0.5, 0.3, 0.15, 0.05]
    law = dict(enumerate(p))
    honest = [goodness("x", [(_draws(rng, p, 400), law)], alpha=0.05).rejected for _ in range(200)]
    bent = [goodness("x", [(_draws(rng, [0.4, 0.4, 0.15, 0.05], 400), law)], alpha=0.05).rejected for _ in range(50)]
    assert sum(honest) / 200 < 0.1
    assert sum(bent) / 50 > 0.9


def test_what_the_law_holds_impossible_is_never_excused() -> None:
    test = goodness("x", [({"a": 10_000.0, "b": 1.0}, {"a": 1.0})], alpha=0.01)
    assert test.rejected
    assert test.p == 0.0


def test_rare_cells_are_pooled_and_empty_groups_say_nothing() -> None:
    law = {0: 0.9, **dict.fromkeys(range(1, 101), 0.001)}
    test = goodness("x", [({0: 90.0, 3: 6.0, 7: 4.0}, law), ({}, {"a": 1.0})], alpha=0.01)
    assert (test.df, test.n) == (1, 100)
    assert test.p > 0.5
    assert goodness("x", [], alpha=0.01).p == 1.0


def test_homogeneity_keeps_its_level_and_sees_a_difference() -> None:
    rng = np.random.default_rng(2)
    p, q = [0.5, 0.3, 0.15, 0.05], [0.35, 0.45, 0.15, 0.05]
    same = [homogeneity("x", _draws(rng, p, 300), _draws(rng, p, 500), alpha=0.05).rejected for _ in range(200)]
    other = [homogeneity("x", _draws(rng, p, 300), _draws(rng, q, 500), alpha=0.05).rejected for _ in range(50)]
    assert sum(same) / 200 < 0.1
    assert sum(other) / 50 > 0.9
    assert homogeneity("x", {}, {"a": 3.0}, alpha=0.05).p == 1.0


def test_what_is_visible_is_what_is_seen_in_nine_cases_of_ten() -> None:
    test = goodness("x", [({0: 500.0, 1: 300.0, 2: 200.0}, {0: 0.5, 1: 0.3, 2: 0.2})], alpha=0.01)
    assert power(test.n, test.df, 2 * test.visible, 0.01) == pytest.approx(0.9, abs=0.01)
    assert goodness("x", [], alpha=0.01).visible == 1.0


def test_tests_that_share_a_level_divide_it() -> None:
    law = {0: 0.5, 1: 0.5}
    alone = goodness("x", [({0: 60.0, 1: 40.0}, law)], alpha=0.05)
    among = goodness("x", [({0: 60.0, 1: 40.0}, law)], alpha=0.05, among=20)
    assert alone.p == among.p
    assert alone.rejected
    assert not among.rejected
