"""Encodings that texts share: made once, few kept, no id given twice."""

from __future__ import annotations

import gc
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import pytest

from sooner.targets.torch.kept import Kept


@dataclass(frozen=True, eq=False)
class Made:
    """Encoded from ``key``, with ``ids`` from ``base`` on."""

    key: bytes
    base: int
    ids: int = 1


class Maker:
    """Makes encodings for ``kept`` and remembers of which keys, and which ids they took."""

    def __init__(self, most: int = 3) -> None:
        self.kept: Kept[Made] = Kept(100, most)
        self.made: list[bytes] = []
        self.taken: list[int] = []

    def get(self, key: bytes, ids: int = 1) -> Made:
        return self.kept.get(key, self.of(key, ids))

    def of(self, key: bytes, ids: int) -> Callable[[], Made]:
        def make() -> Made:
            self.made.append(key)
            self.taken += range(self.kept.next, self.kept.next + ids)
            return Made(key, self.kept.next, ids)

        return make


@pytest.mark.parametrize("most", [1, 3])
def test_as_many_stay_as_are_allowed_and_those_were_asked_for_last(most: int) -> None:
    maker = Maker(most)
    for key in (b"a", b"b", b"c", b"d", b"a", b"e"):
        maker.get(key)
        gc.collect()
        assert len(maker.kept) <= most
    maker.made.clear()
    for key in (b"e", b"a", b"d")[:most]:
        maker.get(key)
    assert maker.made == []
    maker.get(b"b")
    assert maker.made == [b"b"]


def test_what_somebody_holds_is_not_made_again_however_many_come_after() -> None:
    maker = Maker()
    held = maker.get(b"held")
    for i in range(10):
        maker.get(bytes([i]))
    gc.collect()
    assert len(maker.kept) == 3 + 1
    assert maker.get(b"held") is held
    del held
    for i in range(10, 13):
        maker.get(bytes([i]))
    gc.collect()
    assert len(maker.kept) == 3


def test_no_id_is_given_twice_even_of_what_is_forgotten() -> None:
    maker = Maker(1)
    for i in range(20):
        maker.get(bytes([i % 5]), ids=i % 4)
    assert maker.taken == [*range(100, maker.kept.next)]
    assert len(maker.made) == 20


def test_what_cannot_be_made_leaves_nothing() -> None:
    maker = Maker()

    def fails() -> Made:
        raise ValueError("no picture")

    with pytest.raises(ValueError, match="no picture"):
        maker.kept.get(b"a", fails)
    assert (len(maker.kept), maker.kept.next) == (0, 100)
    assert maker.get(b"a").base == 100


def test_threads_that_ask_for_one_thing_share_it() -> None:
    maker = Maker(8)
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda i: maker.get(bytes([i % 6]), ids=2), range(120)))
    assert sorted(maker.made) == [bytes([i]) for i in range(6)]
    assert len({id(one) for one in found}) == 6
    assert maker.taken == [*range(100, 112)]
