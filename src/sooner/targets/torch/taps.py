"""Hidden rows for drafters that read them: what chosen layers of the model gave out in the last pass.

Knows where a model keeps its layers. Does not know who reads the rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from sooner.errors import InvalidRequest

__all__ = ["Taps"]


class Taps:
    """Shows the outgoing rows of ``layers`` (negative counts from the last), side by side in that order.

    Raises `InvalidRequest` for a layer that the model does not have.
    """

    def __init__(self, model: Any, layers: Sequence[int], count: int) -> None:
        self._seen: dict[int, Any] = {}
        self._order = [layer + count if layer < 0 else layer for layer in layers]
        if any(not 0 <= layer < count for layer in self._order):
            raise InvalidRequest(f"the model has layers 0 to {count - 1}, not {list(layers)}: name others", "taps")
        if self._order:
            stack = _layers(model, count)
            for layer in set(self._order):
                stack[layer].register_forward_hook(self._remember(layer))

    def take(self, index: Any) -> NDArray[np.float32] | None:
        """``[n, len(layers) * H]`` float32 of the rows ``index`` of the last pass; None without layers."""
        rows = self.rows(index)
        return None if rows is None else rows.float().cpu().numpy()

    def rows(self, index: Any) -> Any:
        """As `take`, but on the device: to be asked within a pass that is captured, whose layers then run unseen."""
        if not self._order:
            return None
        return torch.cat([self._seen[layer][0].index_select(0, index) for layer in self._order], dim=-1)

    def _remember(self, layer: int) -> Any:
        def hook(module: Any, given: Any, result: Any) -> None:
            self._seen[layer] = result[0] if isinstance(result, tuple) else result

        return hook


def _layers(model: Any, count: int) -> Any:
    """The model's decoder layers: the first list of ``count`` modules."""
    for module in model.modules():
        if isinstance(module, nn.ModuleList) and len(module) == count:
            return module
    raise InvalidRequest(
        "the model's layers cannot be found, so no hidden rows can be shown: load it without taps", "taps"
    )
