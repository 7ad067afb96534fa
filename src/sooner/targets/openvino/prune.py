"""Graph surgery: a model's IR with a few of its layers and other weights in them, written as a model of its own.

Knows the IR as it lies on disk. Does not know how the weights were learned, nor the files beside an IR.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sooner.errors import UnsupportedModel
from sooner.targets.openvino.graph import LAYER_OUTPUT, last_line
from sooner.targets.openvino.skip import leave_out, residual_branches
from sooner.targets.openvino.weights import (
    LayerWeights,
    find_layers,
    find_tables,
    int8_linear,
    norm_factor,
    read_ir,
    read_layer,
)

__all__ = ["Pruned"]


class Pruned:
    """The IR at ``xml`` with the layers ``kept`` (ascending, counted from 0) and no others.

    Embedding and LM head stay as they lie there. Raises `CorruptModel`, `UnsupportedModel`: layers that are not
    attention and a gated MLP one after the other, with norms before both.
    """

    def __init__(self, xml: Path, kept: Sequence[int]) -> None:
        import openvino as ov

        self._core = ov.Core()
        self._xml = xml
        self._model = read_ir(self._core, xml)
        known = [branch.name for branch in residual_branches(self._model, xml)]
        leave_out(self._model, [name for name in known if int(name[:-1]) not in kept], xml)
        self._layers = find_layers(self._model)
        if len(self._layers) != len(kept):
            raise UnsupportedModel(f"{xml} has layers of a kind that cannot be fitted: use a llama or qwen2 model")

    def layers(self) -> list[LayerWeights]:
        """The kept layers' weights, de-quantised."""
        found = [read_layer(self._core, layer) for layer in self._layers]
        weights = [layer for layer in found if layer is not None]
        if len(weights) < len(found):
            raise UnsupportedModel(
                f"{self._xml} has layers of a kind that cannot be fitted: use a llama or qwen2 model"
            )
        return weights

    def logits(self, tokens: Sequence[int]) -> NDArray[np.float32]:
        """``[n, V]``: what the graph makes of ``tokens`` in float32, to compare another copy of the model with."""
        exact = {"INFERENCE_PRECISION_HINT": "f32", "DYNAMIC_QUANTIZATION_GROUP_SIZE": "0"}
        request = self._core.compile_model(self._model, "CPU", exact).create_infer_request()
        n = len(tokens)
        inputs = {
            "input_ids": np.array([tokens], np.int64),
            "attention_mask": np.ones((1, n), np.int64),
            "position_ids": np.arange(n)[None],
            "beam_idx": np.zeros(1, np.int32),
        }
        names = {name for port in self._model.inputs for name in port.names}
        found = request.infer({name: value for name, value in inputs.items() if name in names})
        return np.array(found[0][0], np.float32)

    def write(self, xml: Path, layers: Sequence[LayerWeights], norm: NDArray[np.float32]) -> None:
        """Put ``layers`` in the place of the kept ones, in int8, and ``norm`` ``[H]`` before the LM head, and write
        the model to ``xml`` and the ``.bin`` beside it. This object is used up. Raises `OSError`."""
        import openvino as ov

        _, head = find_tables(self._model, self._xml)
        _replace_norm(head, norm)
        for products, weights in zip(self._layers, layers, strict=True):
            _replace(products, weights)
        _number_layers(self._model)
        try:
            ov.save_model(self._model, xml, compress_to_fp16=False)
        except RuntimeError as error:
            raise OSError(f"OpenVINO could not write {xml}: {last_line(error)}") from error


def _replace(products: Mapping[str, Any], weights: LayerWeights) -> None:
    for name, at in (("q", weights.attention_norm), ("gate", weights.mlp_norm)):
        _replace_norm(products[name], at)
    for name, product in products.items():
        fresh = int8_linear(product.input_value(0), getattr(weights, name))
        product.output(0).replace(fresh.output(0))


def _replace_norm(linear: Any, weight: NDArray[np.float32]) -> None:
    from openvino import opset13 as ops

    factor = norm_factor(linear)
    assert factor is not None  # it was read from there
    shape = factor.source.get_shape()
    factor.product.input(factor.port).replace_source_output(ops.constant(weight.reshape(shape)).output(0))


def _number_layers(model: Any) -> None:
    """Name the layers anew without gaps, so that the file is like any other's."""
    ops, numbers = model.get_ordered_ops(), itertools.count()
    for op in ops:
        name = op.get_friendly_name()
        if match := next(filter(None, (pattern.fullmatch(name) for pattern in LAYER_OUTPUT)), None):
            op.set_friendly_name(f"{name[: match.start(1)]}{next(numbers)}{name[match.end(1) :]}")
