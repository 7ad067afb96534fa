"""The memory plan of a device: weights, and how many slots of how many tokens the cache may grow into.

Knows bytes and limits. Does not know tensors; nothing is allocated here.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from sooner.errors import InvalidRequest, TargetError

__all__ = ["MemoryPlan", "plan_memory", "size"]

_SHARE = 0.5
"""Of what the weights leave, the part the cache may grow into: passes need some, and so do others on the device."""

_SMALLEST = 64
"""Tokens below which a cache is of no use."""


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    """Bytes, and tokens where the name says so. The cache becomes resident as it is used, by doubling.

    ``slots``: texts that can be in the cache at a time. ``context``: the most tokens of each; smaller than
    ``model_context`` where memory or the caller limits it. ``token_bytes``: of one token's entries in all layers.
    """

    device: str
    available: int
    weights: int
    token_bytes: int
    slots: int
    context: int
    model_context: int

    @property
    def pool_tokens(self) -> int:
        """Tokens that all sessions can hold together."""
        return self.slots * self.context

    def __str__(self) -> str:
        text = (
            f"memory: {size(self.available)} available on {self.device}; weights {size(self.weights)}; "
            f"KV cache {self.slots} x {self.context} tokens, {size(self.pool_tokens * self.token_bytes)} when full"
        )
        if self.context < self.model_context:
            text += f" (the model's context is {self.model_context}: memory or --context limits it)"
        return text

    def measured(self, token_bytes: int) -> MemoryPlan:
        """The plan with what entries really take."""
        return replace(self, token_bytes=token_bytes)


def plan_memory(
    *, device: str, available: int, weights: int, token_bytes: int, context: int, limit: int | None, slots: int
) -> MemoryPlan:
    """Divide ``available`` bytes (before the weights are loaded). ``limit``: the most tokens of a text, where given.

    Slots are given up before context. Raises `TargetError` saying what was needed where the weights and a small cache
    do not fit, `InvalidRequest` for a context that small.
    """
    if limit is not None and limit < _SMALLEST:
        raise InvalidRequest(f"pool_tokens must be at least {_SMALLEST}, not {limit}", "pool_tokens")
    wanted = context if limit is None else min(context, limit)
    room = int(max(available - weights, 0) * _SHARE) // max(token_bytes, 1)
    if room < min(_SMALLEST, wanted):
        need = weights + int(_SMALLEST * token_bytes / _SHARE)
        raise TargetError(
            f"{device} has {size(available)} free, the model needs {size(weights)} for its weights and {size(need)} "
            "with a small cache: use a quantised or smaller model, free memory, or --device cpu"
        )
    count = max(1, min(slots, room // wanted))
    return MemoryPlan(device, available, weights, token_bytes, count, min(wanted, room // count), context)


def size(count: int) -> str:
    """Bytes for people."""
    return f"{count / 2**30:.1f} GB" if count >= 2**30 else f"{count / 2**20:.0f} MB"
