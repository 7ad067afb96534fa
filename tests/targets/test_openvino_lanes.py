"""Lanes: compiled when they have been missed enough, the same bits as the graph they copy, gone when they are not."""

from __future__ import annotations

import numpy as np
import pytest
from fake_passes import FakeCache, FakeRunner, V, fake_target

from sooner import tree
from sooner.targets.openvino import OpenVINOTarget
from sooner.targets.openvino.lanes import WIDTHS, Lanes
from sooner.targets.openvino.layout import Pass
from sooner.targets.openvino.runner import Runner
from sooner.types import Logits, Work


class WrongRunner(FakeRunner):
    """A lane that computes other bits."""

    def run(self, flat: Pass) -> tuple[Logits, None]:
        rows, _ = super().run(flat)
        return np.nextafter(rows, np.float32(np.inf)), None


def runner(width: int) -> Runner:
    return FakeRunner(FakeCache(4))


def test_the_narrowest_lane_that_is_not_far_too_wide_takes_the_pass() -> None:
    lanes = Lanes(runner)
    assert lanes.find(2) is None
    lanes.build((16, 4))
    assert lanes.ready == (4, 16)
    found = [lane[0] if (lane := lanes.find(tokens)) else 0 for tokens in (2, 3, 4, 5, 7, 8, 16, 17)]
    assert found == [4, 4, 4, 0, 0, 16, 16, 0]


def test_a_lane_is_compiled_once_its_lack_has_cost_as_much() -> None:
    lanes = Lanes(runner, compile_ms=100.0)
    for _ in range(9):
        lanes.owe(7, 11.0)
    lanes.owe(3, 50.0)
    lanes.owe(33, 1e6)  # no lane is that wide
    lanes.wait()
    assert not lanes.ready
    lanes.owe(8, 11.0)
    lanes.wait()
    assert lanes.ready == (8,)


def test_there_are_no_more_lanes_than_there_is_room_for_and_a_failing_one_is_the_last(
    caplog: pytest.LogCaptureFixture,
) -> None:
    lanes = Lanes(runner, most=2)
    lanes.build(WIDTHS)
    assert lanes.ready == WIDTHS[:2]

    def fail(width: int) -> Runner:
        raise MemoryError("no memory")

    lanes = Lanes(fail)
    lanes.build(WIDTHS)
    assert (lanes.ready, lanes.most) == ((), 0)
    assert "no lane of width 2" in caplog.text


@pytest.mark.parametrize("kind", [FakeRunner, WrongRunner])
def test_a_lane_proves_itself_on_its_first_pass_or_goes(
    kind: type[FakeRunner], caplog: pytest.LogCaptureFixture
) -> None:
    target = fake_target()
    assert isinstance(target.kv, FakeCache)
    target.lanes = Lanes(lambda width: kind(target.kv))  # type: ignore[arg-type]  # it is a FakeCache
    target.lanes.build((8,))
    session, other = target.open(), target.open()
    plain = target.score([Work(other, (1, 2, 3), tree.chain([1, 2, 3, 1, 2], 1.0, "t"))])[0].logits
    for _ in range(3):
        rows = target.score([Work(session, (1, 2, 3), tree.chain([1, 2], 1.0, "t"))])[0].logits
        assert np.array_equal(rows, plain[:3])
        session.sync(())
    assert target.widths == ((8,) if kind is FakeRunner else ())
    assert ("other bits" in caplog.text) == (kind is WrongRunner)
    assert rows.shape == (3, V)


def test_rows_of_the_real_model_are_the_same_bits_on_every_lane(target: OpenVINOTarget) -> None:
    text = tuple(range(300, 340))
    session, other = target.open(salt="a"), target.open(salt="b")
    chains = [tree.chain(text[20 : 20 + n], 1.0, "t") for n in (1, 2, 6, 11, 30)]

    def rows() -> list[Logits]:
        target.score([Work(session, text[:19], logits=False)])
        found = []
        for draft in chains:
            found.append(target.score([Work(session, text[19:20], draft)])[0].logits.copy())
            session.sync(text[:19])
        both = target.score([Work(session, text[19:20], chains[1]), Work(other, text[:3], chains[0])])
        found += [row.logits.copy() for row in both]
        session.sync(())
        other.sync(())
        return found

    plain = rows()
    try:
        target.lanes.build((4, 8, 32))
        for _ in range(2):  # the first time each lane proves itself
            for mine, reference in zip(rows(), plain, strict=True):
                assert np.array_equal(mine.view(np.uint32), reference.view(np.uint32))
        assert target.widths == (4, 8, 32)
    finally:
        for width in target.widths:
            target.lanes.drop(width)
        session.close()
        other.close()
