"""A model's own weights as arrays, read from its IR: what a trained head shares with its target or starts from.

Knows the IR's shape. Does not know heads, training or passes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sooner.errors import CorruptModel, UnsupportedModel
from sooner.targets.openvino.graph import last_line

__all__ = ["LayerWeights", "SharedWeights", "read_weights", "shared_tables"]

Array = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class LayerWeights:
    """One decoder layer, every matrix ``[out, in]``: ``q`` ``[heads * d, H]``, ``k`` and ``v`` ``[kv_heads * d, H]``,
    ``o`` ``[H, heads * d]``, ``gate`` and ``up`` ``[I, H]``, ``down`` ``[H, I]``; norms ``[H]`` before both parts."""

    q: Array
    k: Array
    v: Array
    o: Array
    gate: Array
    up: Array
    down: Array
    attention_norm: Array
    mlp_norm: Array


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
    model, table, head = _tables(core, xml)
    embedding, lm_head = _value(core, table.input_value(0)), _matrix(core, head)
    if embedding.shape == lm_head.shape and np.array_equal(embedding, lm_head):
        lm_head = embedding
    norm = _norm_before(core, head)
    if norm is None:
        raise UnsupportedModel(f"{xml} shows no norm before its LM head: heads for it cannot be trained")
    return SharedWeights(embedding, lm_head, norm, _last_layer(core, model))


def shared_tables(core: Any, xml: Path, vocabulary: NDArray[np.int64]) -> tuple[Any, Array]:
    """The embedding of the IR at ``xml`` as an expression to gather from, compressed as it lies there, and the rows
    ``vocabulary`` ``[n]`` of its LM head, ``[n, H]`` de-quantised."""
    from openvino import opset13 as ops

    _, table, head = _tables(core, xml)
    chosen, axis = ops.constant(vocabulary.astype(np.int64)), int(not head.get_attributes()["transpose_b"])
    rows = ops.gather(head.input_value(1), chosen, ops.constant(np.array(axis, np.int64)))
    lm_head = _value(core, rows.output(0))
    return table.input_value(0), np.ascontiguousarray(lm_head.T) if axis else lm_head


def _tables(core: Any, xml: Path) -> tuple[Any, Any, Any]:
    """The model at ``xml``, the node that looks up its embedding, and its LM head."""
    try:
        model = core.read_model(xml)
    except RuntimeError as error:
        raise CorruptModel(f"{xml} cannot be read: {last_line(error)}; import the model again") from error
    head = _first_back(model.get_results()[0].input_value(0).get_node(), _is_linear)
    table = next((op for op in model.get_ordered_ops() if op.get_type_name() == "Gather" and _embeds(op)), None)
    if head is None or table is None:
        raise UnsupportedModel(f"{xml} shows no embedding and LM head to share: use a model with plain ones")
    return model, table, head


def _last_layer(core: Any, model: Any) -> LayerWeights | None:
    attention = [op for op in model.get_ordered_ops() if op.get_type_name() == "ScaledDotProductAttention"]
    acts = [op for op in model.get_ordered_ops() if op.get_type_name() == "Swish"]
    if not attention or not acts:
        return None
    q, k, v = (_first_back(attention[-1].input_value(i).get_node(), _is_linear) for i in range(3))
    gate = _first_back(acts[-1], _is_linear)
    product = _consumer(acts[-1], lambda op: op.get_type_name() == "Multiply")
    o, down = _first_ahead(attention[-1]), product and _first_ahead(product)
    act = acts[-1].get_friendly_name()
    others = [value.get_node() for value in product.input_values()] if product else []
    up = next((_first_back(op, _is_linear) for op in others if op.get_friendly_name() != act), None)
    parts = {"q": q, "k": k, "v": v, "o": o, "gate": gate, "up": up, "down": down}
    if any(part is None for part in parts.values()):
        return None
    attention_norm, mlp_norm = _norm_before(core, q), _norm_before(core, gate)
    if attention_norm is None or mlp_norm is None:
        return None
    matrices = {name: _matrix(core, part) for name, part in parts.items()}
    return LayerWeights(**matrices, attention_norm=attention_norm, mlp_norm=mlp_norm)


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


def _norm_before(core: Any, linear: Any) -> Array | None:
    """The weight of the RMS norm whose output ``linear`` reads: the constant factor of its last multiplication."""
    node = linear.input_value(0).get_node()
    while node.get_type_name() in ("Convert", "Reshape", "Slice", "Gather"):
        node = node.input_value(0).get_node()
    if node.get_type_name() != "Multiply":
        return None
    weight = next((value for value in node.input_values() if _constant(value.get_node())), None)
    return None if weight is None else _value(core, weight).reshape(-1)


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
