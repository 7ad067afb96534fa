"""Matrix products whose rows do not depend on how many there are, on processors: oneDNN with weights packed once.

Knows torch's packed products, which are no public interface of torch: every touch of them is here, and without them
models keep their own. Does not know models beyond their linear layers.

Measured on an AVX-512 processor in float32: torch's usual product takes other kernels for 1, for 2 or 3 and for more
rows, and others again where threads share the rows unevenly; the packed one gives the same bits for 2 to any number of
rows, and a pass over 4 rows takes about what one over 1 row does.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

__all__ = ["PackedLinear", "can_pack", "pack_linears"]

_ROUTERS = ("gate", "router")
"""What chooses a token's experts is small, and some models multiply by its weights themselves (DeepSeek V2)."""


class PackedLinear(nn.Module):
    """Computes what ``linear`` did, from ``packed``, a copy of its weights in an order of oneDNN's own. ``weight`` is
    empty: only its type is asked."""

    def __init__(self, linear: Any) -> None:
        super().__init__()
        self.in_features, self.out_features = linear.in_features, linear.out_features
        self.weight = nn.Parameter(linear.weight.detach().new_empty(0), requires_grad=False)
        self.bias = linear.bias
        self.packed = torch.ops.mkldnn._reorder_linear_weight(linear.weight.detach())

    def forward(self, rows: Any) -> Any:
        """``[..., in]`` to ``[..., out]``."""
        return torch.ops.mkldnn._linear_pointwise(rows, self.packed, self.bias, "none", [], "")

    def dense(self) -> Any:
        """``[out, in]``: the weights as they were, bit for bit, in new memory."""
        return self.packed.to_dense()


def can_pack(dtype: Any) -> bool:
    """Whether this build of torch and this processor pack weights of ``dtype``."""
    try:
        return bool(torch.equal(*_both(dtype)))
    except (AttributeError, RuntimeError, NotImplementedError):  # another torch, or one without oneDNN
        return False


def pack_linears(model: Any) -> int:
    """Replace every plain linear layer of ``model`` but routers; how many. The model computes as before and cannot be
    trained."""
    found = [
        (parent, name, child)
        for parent in model.modules()
        for name, child in parent.named_children()
        if type(child) is nn.Linear and name not in _ROUTERS
    ]
    for parent, name, child in found:
        setattr(parent, name, PackedLinear(child))
    return len(found)


def _both(dtype: Any) -> tuple[Any, Any]:
    """The same few rows from two row counts: a first look, long before the model's own rows are compared."""
    linear = nn.Linear(64, 64, bias=False, dtype=dtype)
    rows = torch.linspace(-1, 1, 64 * 8, dtype=torch.float32).reshape(8, 64).to(dtype)
    with torch.no_grad():
        packed = PackedLinear(linear)
        return packed(rows[:4]), packed(rows)[:4]
