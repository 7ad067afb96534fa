"""The memory plan: what of the machine's memory goes to weights, KV pool and logits.

Knows bytes and limits. Does not know models or tensors; nothing is allocated here.
"""

from __future__ import annotations

import ctypes
import os
from dataclasses import dataclass
from pathlib import Path

from sooner.errors import InvalidRequest, TargetError
from sooner.targets.openvino.graph import BLOCK_SIZE, block_count
from sooner.targets.openvino.lanes import WIDTHS

__all__ = ["MemoryPlan", "available_bytes", "graph_bytes", "plan_memory", "return_freed", "size"]

_SHARE = 0.5
"""Of the memory available at load, the part the KV pool may grow into."""

_CONTEXTS = 16
"""Full contexts beyond which a larger pool helps nobody by default."""

_SMALLEST = 128
"""Tokens below which a pool is of no use."""

_LANES = 0.1
"""Of the memory available at load, the part that lanes may take."""

_GRAPH = 1.7
"""What a further graph takes in units of its weights: they are packed anew (the plug-in shares packed weights within a
compiled model, never between two), scales and zero points become float32, and so does the LM head's share of a
table that is also the embedding. Measured: 1.6 for 4 bits in groups of 32, 1.2 for 8 bits per channel."""

_LOGIT_ROWS = 256
"""Rows of logits that one pass is planned for."""


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    """Bytes, and tokens where the name says so. The pool becomes resident as it is used, block by block.

    ``context``: the most tokens of one session; smaller than ``model_context`` where the pool is.
    ``blocks``: size of the pool. ``kept_blocks``: at most so many of them stay for their prefix when nobody
    holds them. ``lanes``: at most so many further copies of the graph may be compiled, of ``lane_bytes`` each.
    """

    available: int
    weights: int
    block_bytes: int
    blocks: int
    kept_blocks: int
    context: int
    model_context: int
    logits: int
    lanes: int

    @property
    def pool_bytes(self) -> int:
        """Bytes of the pool when every block is in use."""
        return self.blocks * self.block_bytes

    @property
    def lane_bytes(self) -> int:
        """About what one lane takes."""
        return graph_bytes(self.weights)

    @property
    def pool_tokens(self) -> int:
        """Tokens that all sessions can hold together."""
        return self.blocks * BLOCK_SIZE

    def __str__(self) -> str:
        text = (
            f"memory: {size(self.available)} available; weights {size(self.weights)}; "
            f"KV pool {self.pool_tokens} tokens, {size(self.pool_bytes)} when full "
            f"({size(self.kept_blocks * self.block_bytes)} of it kept for prefixes); "
            f"logits {size(self.logits)} for {_LOGIT_ROWS} rows; "
            f"up to {self.lanes} lanes of {size(self.lane_bytes)}; context {self.context}"
        )
        if self.context < self.model_context:
            text += f" (the model's is {self.model_context}: memory or pool_tokens limits it)"
        return text


def plan_memory(
    *,
    weights: int,
    block_bytes: int,
    vocab_size: int,
    context: int,
    pool_tokens: int | None,
    available: int | None = None,
) -> MemoryPlan:
    """Divide ``available`` bytes (default: what the machine has). ``pool_tokens`` overrides the pool's size.

    One session of the planned context always fits: it has its blocks and one more to copy a shared one to.
    Raises `TargetError` if too little fits, `InvalidRequest` for a pool that small.
    """
    available = available_bytes() if available is None else available
    logits = _LOGIT_ROWS * vocab_size * 4
    if pool_tokens is not None:
        if pool_tokens < _SMALLEST:
            raise InvalidRequest(f"pool_tokens must be at least {_SMALLEST}, not {pool_tokens}", "pool_tokens")
        usable = min(context, pool_tokens)
        blocks = max(block_count(pool_tokens), block_count(usable) + 1)
    else:
        blocks = min(int((available - logits) * _SHARE) // block_bytes, _CONTEXTS * block_count(context) + 1)
        if blocks * BLOCK_SIZE <= min(_SMALLEST, context):
            raise TargetError(f"{size(available)} leave no room for a KV cache: free memory or use a smaller model")
        usable = min(context, (blocks - 1) * BLOCK_SIZE)
    lanes = min(int(available * _LANES / graph_bytes(weights)), len(WIDTHS)) if weights else 0
    return MemoryPlan(available, weights, block_bytes, blocks, block_count(usable), usable, context, logits, lanes)


def graph_bytes(weights: int) -> int:
    """About the most that one more compiled graph over ``weights`` bytes takes of its own."""
    return int(weights * _GRAPH)


def return_freed() -> None:
    """Give back to the system what was freed: the C library keeps it, where it has a way to be asked."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None) if os.name == "posix" else None
    if trim is not None:
        trim(0)


def available_bytes() -> int:
    """Bytes this process can still take: the machine's, or what its control group leaves of its limit."""
    return min([_machine_bytes(), *_control_group_bytes()])


def _machine_bytes() -> int:
    try:
        for line in Path("/proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    except OSError:
        pass
    if hasattr(os, "sysconf") and "SC_PHYS_PAGES" in os.sysconf_names:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2
    return 4 << 30


def _control_group_bytes() -> list[int]:
    """What each control group above this process leaves, for version 2 and 1 of the interface."""
    found = []
    for root, limit, used in (
        ("/sys/fs/cgroup", "memory.max", "memory.current"),
        ("/sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.usage_in_bytes"),
    ):
        for folder in _folders(Path(root)):
            try:
                found.append(int((folder / limit).read_text()) - int((folder / used).read_text()))
            except (OSError, ValueError):  # no such file here, or the limit is the word "max"
                continue
    return found


def _folders(root: Path) -> list[Path]:
    try:
        lines = Path("/proc/self/cgroup").read_text().splitlines()
    except OSError:
        return [root]
    own = [root / line.split(":", 2)[2].lstrip("/") for line in lines if line.count(":") >= 2]
    return [root, *(folder for start in own for folder in (start, *start.parents) if root in folder.parents)]


def size(count: int) -> str:
    """Bytes for people."""
    return f"{count / 2**30:.1f} GB" if count >= 2**30 else f"{count / 2**20:.0f} MB"
