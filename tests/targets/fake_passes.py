"""A pass without a model: slots that remember tokens, and rows that encode everything their sequence could read."""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from sooner.targets.openvino.graph import BLOCK_SIZE
from sooner.targets.openvino.kv import KVCache
from sooner.targets.openvino.lanes import Lanes
from sooner.targets.openvino.layout import Pass
from sooner.targets.openvino.memory import plan_memory
from sooner.targets.openvino.runner import Runner
from sooner.targets.openvino.target import OpenVINOTarget
from sooner.types import ROOT, Draft, Logits

V = 4


def ideal_row(tokens: Sequence[int] | NDArray[np.int64]) -> Logits:
    """The row after ``tokens``: any other token anywhere gives another row."""
    digest = zlib.crc32(np.asarray(tokens, np.int64).tobytes())
    return np.array([digest >> shift & 0xFF for shift in (0, 8, 16, 24)], np.float32)


class FakeCache(KVCache):
    def __init__(self, blocks: int) -> None:
        self.slots = np.full((blocks, BLOCK_SIZE), -1, np.int64)

    def copy(self, source: int, target: int) -> None:
        self.slots[target] = self.slots[source]


class FakeRunner(Runner):
    """Writes like the kernels do (the rest of a sequence's last block is wiped), then reads back what it can see."""

    def __init__(self, cache: FakeCache) -> None:
        self.cache = cache
        self.passes: list[Pass] = []

    def run(self, flat: Pass) -> tuple[Logits, NDArray[np.float32] | None]:
        self.passes.append(flat)
        rows: list[Logits] = []
        spans = [self._write(flat, i) for i in range(len(flat.past_lens))]
        for table, start, count in spans:
            seen = self.cache.slots[table].reshape(-1)
            rows += [ideal_row(seen[: start + i + 1]) for i in range(count)]
        return np.array([rows[i] for i in flat.rows], np.float32).reshape(-1, V), None

    def _write(self, flat: Pass, i: int) -> tuple[list[int], int, int]:
        start, (first, end) = flat.past_lens[i], flat.begins[i : i + 2]
        table = flat.blocks[slice(*flat.block_begins[i : i + 2])]
        assert end - first >= 2, "a sequence with one row"
        assert len(table) == -(-(start + end - first) // BLOCK_SIZE)
        repeated = flat.positions[end - 1]
        for position, slot in zip(flat.positions[first:end], range(start, start + end - first), strict=True):
            assert position == min(slot, repeated)
        last = start
        for last, token in enumerate(flat.tokens[first:end], start):
            self.cache.slots[table[last // BLOCK_SIZE], last % BLOCK_SIZE] = token
        self.cache.slots[table[-1], last % BLOCK_SIZE + 1 :] = -1
        return table, start, end - first


def fake_target(pool_tokens: int = 1024, context: int = 512) -> OpenVINOTarget:
    plan = plan_memory(
        weights=0, block_bytes=1, vocab_size=V, context=context, pool_tokens=pool_tokens, available=1 << 30
    )
    cache = FakeCache(plan.blocks + 1)
    fingerprint: Mapping[str, str] = {}
    lanes = Lanes(lambda width: FakeRunner(cache), 0)
    return OpenVINOTarget(FakeRunner(cache), cache, plan, lanes, vocab_size=V, fingerprint=fingerprint)


def tree(tokens: Sequence[int], parents: Sequence[int]) -> Draft:
    return Draft(tuple(tokens), tuple(parents), (1.0,) * len(tokens), ("test",) * len(tokens))


def chain(tokens: Sequence[int]) -> Draft:
    return tree(tokens, range(ROOT, len(tokens) - 1))
