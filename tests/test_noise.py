"""The noise: fixed vectors, the law of the draw, independence along every axis; the shortcut equals the full race."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from sooner.noise import Domain, StepCoins, choice_seed, exponentials, fresh_seed, race, stream_key

VECTORS = [
    ((0, Domain.TARGET, 0), 0xB49AB477BB8685E2, [0.2636050859409715, 0.6175541089860559, 0.5534875268706201]),
    ((1, Domain.TARGET, 0), 0xA7ED8821DCA10C0E, [1.0067791333863578, 0.12385507310772492, 0.3959710394563382]),
    ((0, Domain.TARGET, 1), 0x64952F7E0DF9B57B, [2.2338342238278024, 0.8872705482234462, 1.4865902270033433]),
    ((2**64 - 1, Domain.DRAFT, 12345), 0x71781D07009BDCA0, [0.4760625229361631, 0.4671409861225175, 1.338075395131053]),
]


@pytest.mark.parametrize(("stream", "key", "noise"), VECTORS)
def test_the_stream_is_fixed_for_ever(stream: tuple[int, Domain, int], key: int, noise: list[float]) -> None:
    assert stream_key(*stream) == key
    np.testing.assert_allclose(exponentials(key, [0, 1, 49151]), noise, rtol=1e-14)


def test_choice_seeds() -> None:
    assert choice_seed(7, 0) == 7
    assert choice_seed(7, 1) == 4993100527166255076
    assert len({choice_seed(7, j) for j in range(1000)}) == 1000


def test_fresh_seeds_differ() -> None:
    assert len({fresh_seed() for _ in range(50)}) > 45


def test_noise_of_an_id_does_not_depend_on_its_neighbours() -> None:
    key = stream_key(3, Domain.TARGET, 9)
    whole = exponentials(key, np.arange(50_000))
    some = np.array([0, 1, 16383, 16384, 16385, 49_999])
    assert (exponentials(key, some) == whole[some]).all()
    assert all(exponentials(key, [i])[0] == whole[i] for i in some)


@given(
    key=st.integers(0, 2**64 - 1),
    size=st.integers(1, 400),
    spread=st.sampled_from([0.0, 1.0, 8.0, 30.0, 80.0]),
    seed=st.integers(0, 2**32),
    banned=st.booleans(),
)
@settings(max_examples=300, deadline=None)
def test_the_race_is_the_full_argmin(key: int, size: int, spread: float, seed: int, banned: bool) -> None:
    rng = np.random.default_rng(seed)
    logits = rng.normal(size=size) * spread
    if banned and size > 1:
        logits[rng.integers(0, size, size // 2)] = -np.inf
        logits[rng.integers(0, size)] = 0.0
    ids = np.arange(size, dtype=np.uint64)
    full = logits - np.log(exponentials(key, ids))
    assert race(key, ids, logits) == int(full.argmax())


def test_the_tail_does_win_when_it_should() -> None:
    """The shortcut's rare branch: many tokens far below the best, found by hash alone."""
    ids = np.arange(300_000, dtype=np.uint64)
    logits = np.full(len(ids), -13.0)
    logits[0] = 0.0
    won = 0
    for position in range(60):
        key = stream_key(11, Domain.TARGET, position)
        winner = race(key, ids, logits)
        assert winner == int((logits - np.log(exponentials(key, ids))).argmax())
        won += winner != 0
    assert 15 < won < 50  # the tail holds 40 % of the mass


def chi_square(counts: NDArray[np.int64], p: NDArray[np.float64]) -> float:
    expected = p * counts.sum()
    return float(((counts - expected) ** 2 / expected).sum())


P = np.array([0.4, 0.3, 0.2, 0.07, 0.03])
LOGITS = np.log(P)
IDS = np.arange(len(P), dtype=np.uint64)
CRITICAL_4, CRITICAL_16 = 23.5, 45.9  # chi-square, p = 1e-4


def draw(seed: int, position: int, domain: Domain = Domain.TARGET) -> int:
    return race(stream_key(seed, domain, position), IDS, LOGITS)


def sample(axis: str, n: int = 20_000) -> list[int]:
    match axis:
        case "positions":
            return [draw(0, t) for t in range(n)]
        case "seeds":
            return [draw(s, 0) for s in range(n)]
        case "large seeds":
            return [draw(2**64 - 1 - s, 3) for s in range(n)]
        case "choices":
            return [draw(choice_seed(1, j), 0) for j in range(n)]
    raise AssertionError(axis)


@pytest.mark.parametrize("axis", ["positions", "seeds", "large seeds", "choices"])
def test_the_draw_follows_p_and_neighbours_are_independent(axis: str) -> None:
    draws = np.array(sample(axis))
    assert chi_square(np.bincount(draws, minlength=5), P) < CRITICAL_4
    for lag in (1, 2):
        pairs = np.bincount(draws[:-lag] * 5 + draws[lag:], minlength=25)
        assert chi_square(pairs, np.outer(P, P).ravel()) < CRITICAL_16 + 20  # 24 degrees of freedom


def test_domains_are_independent() -> None:
    pairs = np.zeros(25, np.int64)
    for t in range(20_000):
        pairs[draw(0, t, Domain.TARGET) * 5 + draw(0, t, Domain.DRAFT)] += 1
    assert chi_square(pairs, np.outer(P, P).ravel()) < CRITICAL_16 + 20


def test_shared_noise_would_be_caught() -> None:
    """Negative control: the same stream used twice fails the independence test above."""
    pairs = np.zeros(25, np.int64)
    for t in range(20_000):
        pairs[draw(0, t) * 5 + draw(0, t)] += 1
    assert chi_square(pairs, np.outer(P, P).ravel()) > 1000


def test_tokens_are_independent() -> None:
    noise = np.array([exponentials(stream_key(0, Domain.TARGET, t), [0, 1, 2, 40_000]) for t in range(20_000)])
    for a, b in itertools.combinations(range(4), 2):
        assert abs(np.corrcoef(noise[:, a], noise[:, b])[0, 1]) < 0.03
    assert np.abs(noise.mean(axis=0) - 1).max() < 0.03
    assert noise.min() > 0


def test_coins_are_fair_and_their_draws_follow_the_weights() -> None:
    accepted = sum(StepCoins(0, step).accept(0.3) for step in range(20_000))
    assert abs(accepted / 20_000 - 0.3) < 0.013
    drawn = np.bincount([StepCoins(1, step).draw(P * 7) for step in range(20_000)], minlength=5)
    assert chi_square(drawn, P) < CRITICAL_4


def test_coins_never_accept_the_impossible_nor_draw_weight_zero() -> None:
    coins = StepCoins(0, 0)
    assert not any(coins.accept(0.0) for _ in range(1000))
    assert all(coins.accept(1.0) for _ in range(1000))
    assert not coins.accept(0.0, 0.0)
    assert {coins.draw(np.array([0.0, 1.0, 0.0])) for _ in range(1000)} == {1}
