"""The interval of a speed-up: right on known data, honest about noise."""

from __future__ import annotations

import numpy as np
import pytest

from sooner.bench import ratio, stamp


def test_a_clear_difference_is_shown() -> None:
    found = ratio([2.0, 2.1, 1.9, 2.0], [1.0, 1.05, 0.95, 1.0])
    assert found.value == pytest.approx(2.0)
    assert found.low > 1.9
    assert found.shown
    assert str(found).startswith("2.00x [")


def test_noise_is_no_difference() -> None:
    found = ratio([1.0, 1.2, 0.9, 1.1, 1.0, 0.8], [1.1, 0.9, 1.0, 1.0, 0.9, 1.2])
    assert not found.shown
    assert str(found).startswith("no difference shown")


def test_the_interval_covers_the_truth_about_as_often_as_it_says() -> None:
    rng = np.random.default_rng(1)
    hits = 0
    for _ in range(200):
        drift = rng.uniform(0.7, 1.4, 20)  # the machine's own noise hits both of a pair
        a, b = 1.5 * drift * rng.normal(1, 0.05, 20), drift * rng.normal(1, 0.05, 20)
        found = ratio(list(a), list(b), samples=400)
        hits += found.low <= 1.5 <= found.high
    assert 175 <= hits <= 200


def test_unpaired_series_are_refused() -> None:
    with pytest.raises(ValueError, match="equal length"):
        ratio([1.0], [1.0, 2.0])
    with pytest.raises(ValueError, match="equal length"):
        ratio([], [])


def test_the_stamp_names_machine_and_versions() -> None:
    found = stamp()
    assert found["processor"]
    assert "numpy" in str(found["versions"])
