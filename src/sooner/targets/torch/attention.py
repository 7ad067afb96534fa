"""Attention over the cache's slots: chain by chain, or all slots at once in one fixed shape.

Knows tensors, masks and which rows see which entries. Does not know models, sessions or logits.

Chain by chain a row's bits are its own: every chain attends to consecutive positions of its own slot, in lengths and
row counts for which torch's kernel groups its sums alike. In one fixed shape (`Fixed`) a tree's nodes lie one after
another and a mask tells them apart: one call a layer, which is what graphs need.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import torch
from torch.nn import functional

from sooner.targets.torch.kv import KVTensors, blocks
from sooner.targets.torch.layout import Chain, Text, consecutive

__all__ = ["ROWS", "Attending", "ByChains", "Fixed", "attend"]

ROWS = 4
"""Rows of a chain are padded to a multiple of this: with fewer, matrix products take other kernels."""


class Attending(Protocol):
    """How the rows of the current pass attend."""

    def __call__(self, layer: int, query: Any, key: Any, value: Any, **how: Any) -> Any:
        """``query`` ``[1, heads, rows, d]``, ``key`` and ``value`` ``[1, kv_heads, rows, d]`` of the pass's rows;
        returns ``[1, rows, heads, d]``. ``how``: ``scaling``, ``window``, ``softcap``, ``sinks``."""
        ...


@dataclass(frozen=True, slots=True)
class _Asked:
    """One layer's question: the rows, their own entries, and the layer's entries so far."""

    query: Any
    key: Any
    value: Any
    keys: Any
    values: Any
    how: dict[str, Any]


class ByChains:
    """The texts of a pass one after another, each over its own slot: as many calls a layer as there are chains.

    ``fresh[layer]`` are the pass's keys and values where a draft branches: `settle` writes the kept ones.
    """

    def __init__(self, kv: KVTensors, texts: Sequence[Text]) -> None:
        self._kv = kv
        self._chains = [(text.slot, chain) for text in texts for chain in text.chains]
        self._keep = any(text.tree for text in texts)
        self.fresh: dict[int, tuple[Any, Any]] = {}
        self._masks: dict[tuple[int, int, int, int], Any] = {}
        self._index: dict[tuple[int, ...], Any] = {}

    def __call__(self, layer: int, query: Any, key: Any, value: Any, **how: Any) -> Any:
        """As `Attending`."""
        keys, values = self._kv.layer(layer, key, value)
        if self._keep:
            self.fresh[layer] = (key, value)
        if len(self._chains) == 1:
            return self._alone(_Asked(query, key, value, keys, values, how))
        out = query.new_zeros((1, query.shape[2], query.shape[1], value.shape[3]))
        for slot, chain in self._chains:
            at = chain.write_start
            for tensor, fed in ((keys, key), (values, value)):
                tensor[slot, :, at : at + len(chain.written)] = self._take(fed[0], chain.written)
            rows = chain.rows
            padded = (*rows, *rows[-1:] * (-len(rows) % ROWS))
            asked = _Asked(self._take(query[0], padded)[None], key, value, keys, values, how)
            result = self._scored(slot, chain, asked)
            out[0].index_copy_(0, self._indices(rows, out.device), result[0, : len(rows)])
        return out

    def write(self, text: Text, path: Sequence[int]) -> None:
        """Put the entries of the draft nodes ``path`` behind the text's tokens."""
        start = text.root - text.first + 1 + text.held
        rows = tuple(text.root + 1 + node for node in path)
        for layer, pair in self.fresh.items():
            for tensor, fed in zip(self._kv.layer(layer, *pair), pair, strict=True):
                tensor[text.slot, :, start : start + len(rows)] = self._take(fed[0], rows)

    def _alone(self, asked: _Asked) -> Any:
        """One text without branches, the usual case: nothing is gathered."""
        slot, chain = self._chains[0]
        n, start = len(chain.rows), chain.start
        asked.keys[slot, :, start : start + n] = asked.key[0, :, :n]
        asked.values[slot, :, start : start + n] = asked.value[0, :, :n]
        missing = -asked.query.shape[2] % ROWS
        if missing:
            more = asked.query[:, :, -1:].expand(-1, -1, missing, -1)
            asked = replace(asked, query=torch.cat([asked.query, more], dim=2))
        result = self._scored(slot, chain, asked)
        return result[:, : result.shape[1] - missing]

    def _scored(self, slot: int, chain: Chain, asked: _Asked) -> Any:
        length = min(blocks(chain.start + len(chain.rows), self._kv.block), self._kv.length)
        mask = self._mask(chain, length, asked)
        keys, values = asked.keys[slot : slot + 1, :, :length], asked.values[slot : slot + 1, :, :length]
        return attend(asked.query, keys, values, mask, asked.how)

    def _mask(self, chain: Chain, length: int, asked: _Asked) -> Any:
        like, rows, window = asked.query, asked.query.shape[2], asked.how.get("window")
        groups = like.shape[1] // asked.keys.shape[1]
        key = (id(chain), rows, window or 0, groups)
        mask = self._masks.get(key)
        if mask is None:
            last = chain.start + len(chain.rows) - 1
            positions = torch.arange(chain.start, chain.start + rows, device=like.device).clamp_(max=last)[:, None]
            columns = torch.arange(length, device=like.device)[None]
            hidden = columns > positions
            if window:
                hidden |= columns <= positions - window
            mask = torch.zeros_like(hidden, dtype=like.dtype).masked_fill_(hidden, float("-inf"))
            mask = self._masks[key] = mask.repeat(groups, 1)[None, None]
        return mask

    def _take(self, tensor: Any, rows: tuple[int, ...]) -> Any:
        """``[heads, rows, d]`` at ``rows``: a view where they count up."""
        if consecutive(rows):
            return tensor[:, rows[0] : rows[-1] + 1]
        return tensor.index_select(1, self._indices(rows, tensor.device))

    def _indices(self, rows: tuple[int, ...], device: Any) -> Any:
        index = self._index.get(rows)
        if index is None:
            index = self._index[rows] = torch.tensor(rows, device=device)
        return index


class Fixed:
    """All slots in one call: ``slots`` x ``rows`` rows, over ``length`` positions of each slot.

    ``places`` ``[slots, rows]``: the position that each row's entry goes to (``kv.length`` for padding).
    ``hidden`` ``[slots, rows, length]``: the entries a row does not see, all of which it knows by its ``order``
    ``[slots, rows]`` (its depth in the text) and ``reach`` ``[slots, length]`` of windows.
    """

    def __init__(self, kv: KVTensors, slots: int, rows: int, device: Any) -> None:
        self._kv = kv
        self.slots, self.rows, self.length = slots, rows, kv.length
        self.places = torch.zeros((slots, rows), dtype=torch.int64, device=device)
        self.order = torch.zeros((slots, rows), dtype=torch.int64, device=device)
        self.reach = torch.zeros((slots, self.length), dtype=torch.int64, device=device)
        self.hidden = torch.zeros((slots, rows, self.length), dtype=torch.bool, device=device)
        self._slot = torch.arange(slots, device=device)[:, None]

    def __call__(self, layer: int, query: Any, key: Any, value: Any, **how: Any) -> Any:
        """As `Attending`."""
        keys, values = self._kv.layer(layer, key, value)
        for tensor, fed in ((keys, key), (values, value)):
            entries = fed[0].view(fed.shape[1], self.slots, self.rows, fed.shape[3])
            tensor[: self.slots].transpose(1, 2)[self._slot, self.places] = entries.permute(1, 2, 0, 3)
        q = query[0].view(query.shape[1], self.slots, self.rows, query.shape[3]).transpose(0, 1)
        hidden = self.hidden
        if window := how.get("window"):
            hidden = hidden | (self.reach[:, None] <= self.order[:, :, None] - window)
        mask = torch.zeros_like(hidden, dtype=q.dtype).masked_fill_(hidden, float("-inf"))
        groups = q.shape[1] // keys.shape[1]
        mask = mask.repeat(1, groups, 1)[:, None]
        out = attend(q, keys[: self.slots, :, : self.length], values[: self.slots, :, : self.length], mask, how)
        return out.reshape(1, self.slots * self.rows, out.shape[2], out.shape[3])


def attend(query: Any, keys: Any, values: Any, mask: Any, how: dict[str, Any]) -> Any:
    """``query`` ``[b, heads, r, d]`` over ``keys``, ``values`` ``[b, kv_heads, l, d]``; returns ``[b, r, heads, d]``.

    The query heads that share a key head become rows of it, so that no key is copied: ``mask`` is
    ``[b, 1, groups * r, l]``.
    """
    b, heads, r, d = query.shape
    shared = keys.shape[1]
    q = query.reshape(b, shared, heads // shared * r, d)
    if how.get("softcap") or how.get("sinks") is not None:
        out = _by_hand(q, keys, values, mask, how)
    else:
        out = functional.scaled_dot_product_attention(q, keys, values, attn_mask=mask, scale=how.get("scaling"))
    return out.reshape(b, heads, r, -1).transpose(1, 2)


def _by_hand(q: Any, keys: Any, values: Any, mask: Any, how: dict[str, Any]) -> Any:
    """What torch's own attention lacks: capped scores (Gemma 2) and a learned sink in the softmax (gpt-oss)."""
    scaling = how.get("scaling")
    scores = torch.matmul(q, keys.transpose(2, 3)) * (q.shape[-1] ** -0.5 if scaling is None else scaling)
    if softcap := how.get("softcap"):
        scores = torch.tanh(scores / softcap) * softcap
    scores = scores + mask
    sinks = how.get("sinks")
    if sinks is not None:
        shared, groups = keys.shape[1], sinks.numel() // keys.shape[1]
        sink = sinks.reshape(1, shared, groups, 1, 1).expand(q.shape[0], -1, -1, q.shape[2] // groups, -1)
        scores = torch.cat([scores, sink.reshape(q.shape[0], shared, q.shape[2], 1).to(scores.dtype)], dim=-1)
    chances = functional.softmax(scores, dim=-1, dtype=torch.float32).to(q.dtype)
    return torch.matmul(chances[..., : keys.shape[2]], values)
