"""A model's own weights as arrays, read from its IR: what a trained drafter shares with its target or starts from.

Knows the IR's shape. Does not know drafters, training or passes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sooner.errors import CorruptModel, UnsupportedModel
from sooner.targets.openvino.graph import last_line

__all__ = [
    "LayerWeights",
    "NormFactor",
    "SharedWeights",
    "find_layers",
    "find_tables",
    "int8_linear",
    "norm_factor",
    "read_ir",
    "read_layer",
    "read_weights",
    "shared_tables",
]

Array = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class LayerWeights:
    """One decoder layer, every matrix ``[out, in]``: ``q`` ``[heads * d, H]``, ``k`` and ``v`` ``[kv_heads * d, H]``,
    ``o`` ``[H, heads * d]``, ``gate`` and ``up`` ``[I, H]``, ``down`` ``[H, I]``; norms ``[H]`` before both parts;
    biases ``[out]`` where the model has them."""

    q: Array
    k: Array
    v: Array
    o: Array
    gate: Array
    up: Array
    down: Array
    attention_norm: Array
    mlp_norm: Array
    q_bias: Array | None = None
    k_bias: Array | None = None
    v_bias: Array | None = None


@dataclass(frozen=True, slots=True)
class SharedWeights:
    """Embedding and LM head ``[V, H]`` (the same array where they are tied), the final norm ``[H]``, and the last layer
    if its parts were found."""

    embedding: Array
    lm_head: Array
    norm: Array
    last_layer: LayerWeights | None


def read_weights(xml: Path) -> SharedWeights:
    """De-quantised weights of the IR at ``xml``. Raises `CorruptModel`, `UnsupportedModel`."""
    import openvino as ov

    core = ov.Core()
    model = read_ir(core, xml)
    table, head = find_tables(model, xml)
    embedding, lm_head = _value(core, table.input_value(0)), _matrix(core, head)
    if embedding.shape == lm_head.shape and np.array_equal(embedding, lm_head):
        lm_head = embedding
    norm = norm_factor(head)
    if norm is None:
        raise UnsupportedModel(f"{xml} shows no norm before its LM head: drafters for it cannot be trained")
    layers = find_layers(model)
    last = read_layer(core, layers[-1]) if layers else None
    return SharedWeights(embedding, lm_head, _value(core, norm.source).reshape(-1), last)


def shared_tables(core: Any, xml: Path, vocabulary: NDArray[np.int64]) -> tuple[Any, Array]:
    """The embedding of the IR at ``xml`` as an expression to gather from, compressed as it lies there, and the rows
    ``vocabulary`` ``[n]`` of its LM head, ``[n, H]`` de-quantised."""
    from openvino import opset13 as ops

    table, head = find_tables(read_ir(core, xml), xml)
    chosen, axis = ops.constant(vocabulary.astype(np.int64)), int(not head.get_attributes()["transpose_b"])
    rows = ops.gather(head.input_value(1), chosen, ops.constant(np.array(axis, np.int64)))
    lm_head = _value(core, rows.output(0))
    return table.input_value(0), np.ascontiguousarray(lm_head.T) if axis else lm_head


def read_ir(core: Any, xml: Path) -> Any:
    """The `openvino.Model` as it lies on disk. Raises `CorruptModel`."""
    try:
        return core.read_model(xml)
    except RuntimeError as error:
        raise CorruptModel(f"{xml} cannot be read: {last_line(error)}; import the model again") from error


def find_tables(model: Any, what: object) -> tuple[Any, Any]:
    """The node that looks up the embedding of ``model``, and its LM head. Raises `UnsupportedModel`."""
    head = _first_back(model.get_results()[0].input_value(0).get_node(), _is_linear)
    table = next((op for op in model.get_ordered_ops() if op.get_type_name() == "Gather" and _embeds(op)), None)
    if head is None or table is None:
        raise UnsupportedModel(f"{what} shows no embedding and LM head to share: use a model with plain ones")
    return table, head


def find_layers(model: Any) -> list[Mapping[str, Any]]:
    """Each decoder layer's matrix products by their names in `LayerWeights`, in order; none if some are not found."""
    attention = [op for op in model.get_ordered_ops() if op.get_type_name() == "ScaledDotProductAttention"]
    acts = [op for op in model.get_ordered_ops() if op.get_type_name() == "Swish"]
    if len(attention) != len(acts):
        return []
    layers: list[Mapping[str, Any]] = [_products(*both) for both in zip(attention, acts, strict=True)]
    return layers if all(None not in layer.values() for layer in layers) else []


def _products(attention: Any, act: Any) -> dict[str, Any]:
    q, k, v = (_first_back(attention.input_value(i).get_node(), _is_linear) for i in range(3))
    product = _consumer(act, lambda op: op.get_type_name() == "Multiply")
    others = [value.get_node() for value in product.input_values()] if product else []
    name = act.get_friendly_name()
    up = next((_first_back(op, _is_linear) for op in others if op.get_friendly_name() != name), None)
    gate, down = _first_back(act, _is_linear), product and _first_ahead(product)
    return {"q": q, "k": k, "v": v, "o": _first_ahead(attention), "gate": gate, "up": up, "down": down}


def read_layer(core: Any, layer: Mapping[str, Any]) -> LayerWeights | None:
    """The weights of one of `find_layers`; None if no norms were found before its parts."""
    norms = norm_factor(layer["q"]), norm_factor(layer["gate"])
    if norms[0] is None or norms[1] is None:
        return None
    matrices = {name: _matrix(core, product) for name, product in layer.items()}
    attention_norm, mlp_norm = (_value(core, norm.source).reshape(-1) for norm in norms if norm)
    return LayerWeights(
        **matrices,
        attention_norm=attention_norm,
        mlp_norm=mlp_norm,
        q_bias=_bias(core, layer["q"]),
        k_bias=_bias(core, layer["k"]),
        v_bias=_bias(core, layer["v"]),
    )


def int8_linear(x: Any, weights: Array) -> Any:
    """``x @ weights.T`` with the weights in int8, one scale per output."""
    from openvino import opset13 as ops

    scale = np.maximum(np.abs(weights).max(axis=1, keepdims=True), 1e-12) / 127.0
    rounded = np.rint(weights / scale).astype(np.int8)
    matrix = ops.multiply(ops.convert(ops.constant(rounded), "f32"), ops.constant(scale.astype(np.float32)))
    return ops.matmul(x, matrix, False, True)


def _embeds(gather: Any) -> bool:
    shape = gather.input_value(0).get_partial_shape()
    return bool(shape.rank.is_static and len(shape) == 2 and _constant(gather.input_value(0).get_node()))


def _is_linear(op: Any) -> bool:
    return op.get_type_name() == "MatMul" and _constant(op.input_value(1).get_node())


def _constant(op: Any) -> bool:
    """Whether ``op`` depends on constants alone."""
    if op.get_type_name() == "Constant":
        return True
    inputs = op.input_values()
    return bool(inputs) and all(_constant(value.get_node()) for value in inputs)


def _first_back(op: Any, wanted: Callable[[Any], bool]) -> Any:
    """The nearest node that ``op`` depends on (or is) and that is ``wanted``, breadth first."""

    def sources(node: Any) -> list[Any]:
        return [value.get_node() for value in node.input_values()]

    return next((found for found in _walk(op, sources) if wanted(found)), None)


def _first_ahead(op: Any) -> Any:
    def readers(node: Any) -> list[Any]:
        return [port.get_node() for out in node.outputs() for port in out.get_target_inputs()]

    return next((found for found in _walk(op, readers) if found is not op and _is_linear(found)), None)


def _consumer(op: Any, wanted: Callable[[Any], bool]) -> Any:
    nodes = (port.get_node() for out in op.outputs() for port in out.get_target_inputs())
    return next((node for node in nodes if wanted(node)), None)


def _walk(op: Any, following: Callable[[Any], list[Any]]) -> Iterator[Any]:
    queue, seen = [op], set()
    while queue:
        node = queue.pop(0)
        if node.get_friendly_name() in seen:
            continue
        seen.add(node.get_friendly_name())
        yield node
        queue += following(node)


@dataclass(frozen=True, slots=True)
class NormFactor:
    """Where the weight of an RMS norm enters: the constant ``source`` is input ``port`` of ``product``."""

    product: Any
    port: int

    @property
    def source(self) -> Any:
        """The weight as an expression."""
        return self.product.input_value(self.port)


def norm_factor(linear: Any) -> NormFactor | None:
    """The weight of the RMS norm whose output ``linear`` reads: the constant factor of its last multiplication."""
    node = linear.input_value(0).get_node()
    while node.get_type_name() in ("Convert", "Reshape", "Slice", "Gather"):
        node = node.input_value(0).get_node()
    if node.get_type_name() != "Multiply":
        return None
    port = next((i for i, value in enumerate(node.input_values()) if _constant(value.get_node())), None)
    return None if port is None else NormFactor(node, port)


def _bias(core: Any, linear: Any) -> Array | None:
    add = _consumer(linear, lambda op: op.get_type_name() == "Add")
    values = add.input_values() if add else []
    bias = next((value for value in values if _constant(value.get_node())), None)
    return None if bias is None else _value(core, bias).reshape(-1)


def _matrix(core: Any, linear: Any) -> Array:
    weights = _value(core, linear.input_value(1))
    return weights if linear.get_attributes()["transpose_b"] else np.ascontiguousarray(weights.T)


def _value(core: Any, output: Any) -> Array:
    """What a constant expression comes to, in float32."""
    import openvino as ov
    from openvino import opset13 as ops

    model = ov.Model([ops.result(ops.convert(output, "f32"))], [])
    compiled = core.compile_model(model, "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
    return np.array(compiled({})[0], np.float32)
