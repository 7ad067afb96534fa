"""Whether two models have the same encoder, weight by weight, and what leaving one of them out frees.

Knows modules and their weights, packed ones too. Does not know sources, sessions or who drafts for whom.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import zip_longest
from typing import Any

import torch
from torch import nn

from sooner.targets.torch.linear import PackedLinear

__all__ = ["drop_module", "same_weights"]


def same_weights(ours: Any, theirs: Any) -> bool:
    """Whether two modules are of the same kinds and hold the same weights: their shapes, then every bit of them."""
    for one, other in zip_longest(ours.named_modules(), theirs.named_modules()):
        if one is None or other is None or (one[0], type(one[1])) != (other[0], type(other[1])):
            return False
    if _shapes(ours) != _shapes(theirs):
        return False
    pairs = zip(_weights(ours), _weights(theirs), strict=True)
    return all(torch.equal(_bits(one), _bits(other)) for one, other in pairs)


def drop_module(model: Any, part: Any) -> int:
    """Take ``part`` out of ``model``, which never runs it again; the bytes that are held for it alone."""
    for parent in list(model.modules()):
        for name, child in parent.named_children():
            if child is part:
                setattr(parent, name, nn.Identity())
    kept = {id(tensor) for tensor in _stored(model)}
    return sum(_bytes(tensor) for tensor in {id(t): t for t in _stored(part)}.values() if id(tensor) not in kept)


def _stored(module: Any) -> Iterator[Any]:
    """Its tensors as they lie in memory."""
    for each in module.modules():
        yield from each.parameters(recurse=False)
        yield from each.buffers(recurse=False)
        if isinstance(each, PackedLinear):
            yield each.packed


def _weights(module: Any) -> Iterator[Any]:
    """Its tensors one after another, packed ones unpacked as they are reached."""
    for each in module.modules():
        yield from each.parameters(recurse=False)
        yield from each.buffers(recurse=False)
        if isinstance(each, PackedLinear):
            yield each.dense()


def _shapes(module: Any) -> list[Any]:
    return [(tensor.shape, tensor.dtype, tensor.device) for tensor in _stored(module)]


def _bits(tensor: Any) -> Any:
    """Bytes, so that a NaN equals itself and a negative zero no other."""
    return tensor.detach().contiguous().view(-1).view(torch.uint8)


def _bytes(tensor: Any) -> int:
    return int(tensor.numel() * tensor.element_size())
