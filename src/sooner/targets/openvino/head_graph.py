"""The graph of a trained head: one decoder layer over a state and a token, and the likeliest of its vocabulary.

Knows the arithmetic. Does not know sessions or how often it runs.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from sooner.targets.openvino.weights import int8_linear, shared_tables

if TYPE_CHECKING:
    from sooner.targets.openvino.head import HeadLike

__all__ = ["INPUTS", "head_bytes", "head_graph"]

INPUTS = ("rows", "state", "ids", "cos", "sin", "keys", "values", "mask", "last")
"""For B sequences of T rows, a cache of S slots and N heads of d: ``rows`` ``[B, T, taps * H]`` of the target or zeros,
``state`` ``[B, T, H]`` of the head or zeros, ``ids`` ``[B, T]``, ``cos``, ``sin`` ``[B, 1, T, d / 2]``, ``keys`` and
``values`` ``[B, N, S, d]``, ``mask`` ``[B, 1, T, S + T]``, ``last`` ``[B]``: which of the B * T rows are scored."""


def head_graph(core: Any, head: HeadLike, xml: Path, *, slots: int, width: int) -> Any:
    """An `openvino.Model` from `INPUTS` to the ``width`` best chances and places in the vocabulary ``[B, width]``, the
    scored rows' states ``[B, H]``, and the new keys and values ``[B, N, T, d]``."""
    import openvino as ov
    from openvino import opset13 as ops

    shape, layer = head.shape, "layers.0."
    size, d = shape.hidden, shape.head_dim
    table, lm_head = shared_tables(core, xml, head.vocabulary)
    lm_head = head.weights.get("lm_head.weight", lm_head)
    sizes = {
        "rows": [-1, -1, shape.taps * size],
        "state": [-1, -1, size],
        "ids": [-1, -1],
        "cos": [-1, 1, -1, d // 2],
        "sin": [-1, 1, -1, d // 2],
        "keys": [-1, shape.kv_heads, slots, d],
        "values": [-1, shape.kv_heads, slots, d],
        "mask": [-1, 1, -1, -1],
        "last": [-1],
    }
    inputs = {
        name: ops.parameter(sizes[name], np.int64 if name in ("ids", "last") else np.float32, name) for name in INPUTS
    }

    def linear(x: Any, name: str) -> Any:
        return int8_linear(x, head.weights[f"{name}.weight"])

    def normed(x: Any, name: str) -> Any:
        return _norm(x, head.weights[f"{name}.weight"], shape.eps)

    def heads(x: Any, n: int) -> Any:
        return ops.transpose(ops.reshape(x, _ints(0, 0, n, d), True), _ints(0, 2, 1, 3))

    state = ops.add(inputs["state"], _evened(inputs["rows"], head.weights["fc.weight"]))
    read = normed(state, f"{layer}hidden_norm")
    residual = read if head.norm_before_residual else state
    token = ops.convert(ops.gather(table, inputs["ids"], _ints(0, flat=True)), "f32")
    both = ops.concat([normed(token, f"{layer}input_layernorm"), read], 2)
    q = _rotated(heads(linear(both, f"{layer}self_attn.q_proj"), shape.heads), inputs["cos"], inputs["sin"])
    k = _rotated(heads(linear(both, f"{layer}self_attn.k_proj"), shape.kv_heads), inputs["cos"], inputs["sin"])
    v = heads(linear(both, f"{layer}self_attn.v_proj"), shape.kv_heads)
    keys = _repeated(ops.concat([inputs["keys"], k], 2), shape.heads // shape.kv_heads)
    values = _repeated(ops.concat([inputs["values"], v], 2), shape.heads // shape.kv_heads)
    mixed = ops.scaled_dot_product_attention(q, keys, values, inputs["mask"])
    mixed = ops.reshape(ops.transpose(mixed, _ints(0, 2, 1, 3)), _ints(0, 0, shape.heads * d), True)
    state = ops.add(residual, linear(mixed, f"{layer}self_attn.o_proj"))
    inner = normed(state, f"{layer}post_attention_layernorm")
    gated = ops.multiply(ops.swish(linear(inner, f"{layer}mlp.gate_proj")), linear(inner, f"{layer}mlp.up_proj"))
    state = ops.add(state, linear(gated, f"{layer}mlp.down_proj"))
    last = ops.gather(ops.reshape(state, _ints(-1, size), False), inputs["last"], _ints(0, flat=True))
    chances = ops.softmax(int8_linear(normed(last, "norm"), lm_head), -1)
    best = ops.topk(chances, _ints(width, flat=True), -1, "max", "value")
    results = [ops.result(output) for output in (*best.outputs(), last.output(0), k.output(0), v.output(0))]
    return ov.Model(results, list(inputs.values()), "head")


def head_bytes(graph: Any) -> int:
    """About what ``graph`` takes: its int8 matrices twice, since OpenVINO packs them and keeps what it packed; the rest
    in float32 but for the target's embedding, the largest of it, which is read where the model's file is mapped."""
    constants = [op for op in graph.get_ordered_ops() if op.get_type_name() == "Constant"]
    matrices = [op.get_byte_size() for op in constants if op.get_element_type().get_type_name() == "i8"]
    sizes = [(op.get_byte_size(), int(np.prod(op.get_output_shape(0)))) for op in constants]
    others = sorted(sizes)[:-1]
    return int(2 * sum(matrices) + 4 * (sum(count for _, count in others) - sum(matrices)))


def _ints(*values: int, flat: bool = False) -> Any:
    from openvino import opset13 as ops

    return ops.constant(np.array(values[0] if flat else values, np.int64))


def _evened(x: Any, weights: NDArray[np.float32]) -> Any:
    """`int8_linear` where a few components of ``x`` are a hundred times the others, as in hidden rows: each is first
    scaled by what it can contribute, so that int8 loses little of the small ones beside a large one."""
    from openvino import opset13 as ops

    reach = np.maximum(np.abs(weights).max(axis=0), 1e-12)
    return int8_linear(ops.multiply(x, ops.constant(reach)), weights / reach)


def _norm(x: Any, weight: NDArray[np.float32], eps: float) -> Any:
    from openvino import opset13 as ops

    mean = ops.reduce_mean(ops.power(x, ops.constant(np.float32(2.0))), _ints(-1, flat=True), True)
    root = ops.sqrt(ops.add(mean, ops.constant(np.float32(eps))))
    return ops.multiply(ops.multiply(x, ops.divide(ops.constant(np.float32(1.0)), root)), ops.constant(weight))


def _rotated(x: Any, cos: Any, sin: Any) -> Any:
    from openvino import opset13 as ops

    a, b = ops.split(x, _ints(3, flat=True), 2).outputs()
    first = ops.subtract(ops.multiply(a, cos), ops.multiply(b, sin))
    second = ops.add(ops.multiply(b, cos), ops.multiply(a, sin))
    return ops.concat([first, second], 3)


def _repeated(x: Any, times: int) -> Any:
    """Each key-value head beside itself for the query heads that share it."""
    from openvino import opset13 as ops

    if times == 1:
        return x
    n = x.output(0).get_partial_shape()[1].get_length()
    order = np.repeat(np.arange(n), times)
    return ops.gather(x, ops.constant(order.astype(np.int64)), _ints(1, flat=True))
