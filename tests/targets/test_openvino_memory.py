"""The memory plan and the pool's bookkeeping."""

from __future__ import annotations

from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import given

from sooner.errors import InvalidRequest, TargetError
from sooner.targets.openvino.lanes import WIDTHS
from sooner.targets.openvino.memory import MemoryPlan, available_bytes, graph_bytes, plan_memory, return_freed, size
from sooner.targets.openvino.pool import BlockPool


def plan(**changes: Any) -> MemoryPlan:
    given: dict[str, Any] = {
        "weights": 90 << 20,
        "block_bytes": 720 << 10,
        "vocab_size": 49152,
        "context": 8192,
        "pool_tokens": None,
        "available": 8 << 30,
    }
    return plan_memory(**(given | changes))


def test_a_large_machine_gets_the_full_context_and_a_bounded_pool() -> None:
    made = plan(available=1 << 40)
    assert made.context == 8192
    assert made.blocks == 16 * 256 + 1
    assert made.kept_blocks == 256


def test_a_small_machine_gets_a_smaller_context_and_says_so() -> None:
    made = plan(available=200 << 20)
    assert 0 < made.context < 8192
    assert made.pool_bytes <= 100 << 20
    assert "the model's is 8192" in str(made)
    assert "\n" not in str(made)


@given(st.integers(128, 20000), st.integers(64, 9000))
def test_one_session_of_full_context_and_a_copied_block_always_fit(pool_tokens: int, context: int) -> None:
    made = plan(pool_tokens=pool_tokens, context=context)
    assert made.context == min(pool_tokens, context)
    assert made.blocks * 32 >= max(pool_tokens, made.context + 32)


def test_too_little_memory_and_too_small_a_pool_are_refused_with_the_remedy() -> None:
    with pytest.raises(TargetError, match="free memory"):
        plan(available=50 << 20)
    with pytest.raises(InvalidRequest, match="at least 128") as refusal:
        plan(pool_tokens=64)
    assert refusal.value.param == "pool_tokens"


def test_the_machine_has_some_memory() -> None:
    assert 1 << 20 < available_bytes() < 1 << 50


def test_equal_blocks_are_found_by_all_their_tokens_and_become_one() -> None:
    pool = BlockPool(4, keep=4)
    first, second = pool.take(), pool.take()
    block, serial = pool.file(first, "", (1,) * 32)
    assert pool.find("", (1,) * 32) == (first, serial)
    assert pool.find("salt", (1,) * 32) is None
    assert pool.find(serial, (1,) * 32) is None
    assert pool.file(second, "", (1,) * 32) == (first, serial)
    assert pool.shared(block)
    pool.drop((first,))
    pool.drop((first,))
    assert (pool.held, pool.idle, pool.available) == (0, 1, 4)


def test_eviction_takes_the_oldest_and_a_block_before_the_one_it_follows() -> None:
    pool = BlockPool(4, keep=2)
    chain = [pool.take() for _ in range(3)]
    parent: int | str = ""
    for i, block in enumerate(chain):
        _, parent = pool.file(block, parent, (i,) * 32)
    pool.drop(chain)
    assert pool.idle == 2, "at most `keep` blocks stay"
    root = pool.find("", (0,) * 32)
    assert root is not None
    assert pool.find(root[1], (1,) * 32) is not None
    assert [pool.take() for _ in range(3)][-1] == chain[1], "the free ones first, then the end of the chain"


def test_serials_of_evicted_blocks_never_return() -> None:
    pool = BlockPool(2, keep=2)
    first, child = pool.take(), pool.take()
    _, old = pool.file(first, "", (1,) * 32)
    pool.file(child, old, (2,) * 32)
    pool.drop((first,))
    assert pool.take() == first
    _, new = pool.file(first, "", (3,) * 32)
    assert pool.find(new, (2,) * 32) is None


def test_an_exhausted_pool_refuses() -> None:
    pool = BlockPool(1, keep=1)
    pool.take()
    with pytest.raises(TargetError, match="pool_tokens"):
        pool.take()


def test_a_further_graph_is_planned_by_its_weights_and_freed_memory_can_be_given_back() -> None:
    assert graph_bytes(100) == 170
    assert plan().lane_bytes == graph_bytes(plan().weights)
    assert plan(weights=8 << 30).lanes == 0
    assert plan(weights=100).lanes == len(WIDTHS), "there is one for each width at most"
    kept = [bytes(100_000) for _ in range(400)]
    kept.clear()
    return_freed()
    assert size(3 << 20) == "3 MB"
