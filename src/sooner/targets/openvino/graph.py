"""Graph surgery: a model's IR becomes a paged graph that scores chosen rows and shows chosen layers' hidden rows.

Knows the IR's shape and names, and the one semi-private OpenVINO call. Does not know blocks, sessions or devices.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from sooner.errors import CorruptModel, TargetError, UnsupportedModel

__all__ = ["BLOCK_SIZE", "INPUTS", "LAYER_OUTPUT", "block_count", "last_line", "paged_graph"]

BLOCK_SIZE = 32
"""Tokens in one block of the CPU plugin's KV cache."""

INPUTS = (
    "input_ids",
    "position_ids",
    "past_lens",
    "subsequence_begins",
    "block_indices",
    "block_indices_begins",
    "max_context_len",
    "qq_bias",
    "qq_bias_begins",
    "rows",
)
"""Inputs of a paged graph besides its ``key_cache.N`` and ``value_cache.N``; ``rows`` is ours, the rest OpenVINO's."""

_HIDDEN = "hidden.{layer}"
"""Name of the output that holds the rows leaving ``layer``."""

_CACHE = re.compile(r"(key|value)_cache\.\d+")
LAYER_OUTPUT = (
    re.compile(r"__module\.model\.layers\.(\d+)/aten::add/Add_1"),  # optimum-intel exports
    re.compile(r"model\.layers\.self_attn\.add1\.layer(\d+)"),  # OpenVINO GenAI's GGUF reader
)
"""What the nodes are called whose output leaves a layer; the group is its number."""

_SLIDING_WINDOW_PORT = 10


def block_count(tokens: int) -> int:
    """Blocks that hold ``tokens`` tokens."""
    return -(-tokens // BLOCK_SIZE)


def paged_graph(core: Any, xml: Path, taps: Sequence[int] = (), precision: str = "f32", width: int = 0) -> Any:
    """Read ``xml`` and return the paged `openvino.Model`, with a ``rows`` input ``[R]`` that picks the scored rows.

    ``width``: every pass has exactly so many tokens and R is as many (no shape is then left to infer); 0 = any number.
    Its outputs are ``[R, 1, V]`` float32 logits and, per layer in ``taps`` (negative counts from the last), the
    ``[R, 1, H]`` hidden rows that leave it, in ``precision``: any other type there would move the whole residual
    stream to it and change the logits. Raises `CorruptModel`, `UnsupportedModel`, `TargetError`.
    """
    try:
        model = core.read_model(xml)
    except RuntimeError as error:
        raise CorruptModel(f"{xml} cannot be read: {last_line(error)}; import the model again") from error
    _make_paged(model, xml)
    _refuse_unsupported(model, xml)
    _gather_rows(model, xml, taps, precision)
    _check_inputs(model, xml)
    if width:
        model.reshape({name: [width] for name in ("input_ids", "position_ids", "rows")})
    return model


def _make_paged(model: Any, xml: Path) -> None:
    try:
        # Semi-private: this is the only use, and `_check_inputs` verifies what came out of it.
        from openvino._offline_transformations import paged_attention_transformation
    except ImportError as error:
        raise TargetError(
            'this openvino has no paged attention transformation: pip install "openvino==2026.4.1"'
        ) from error
    try:
        paged_attention_transformation(model, allow_qq_bias=True)
    except RuntimeError as error:
        raise UnsupportedModel(
            f"{xml} has no attention that can be paged ({last_line(error)}); use a decoder-only llama or qwen2 model"
        ) from error


def _refuse_unsupported(model: Any, xml: Path) -> None:
    attention = [op for op in model.get_ordered_ops() if op.get_type_name() == "PagedAttentionExtension"]
    if not attention:
        raise UnsupportedModel(f"{xml} has no attention that can be paged; use a decoder-only llama or qwen2 model")
    if any(op.get_type_name() in ("ReadValue", "Assign") for op in model.get_ordered_ops()):
        raise UnsupportedModel(f"{xml} keeps recurrent state, which cannot be cut back; use an attention-only model")
    for op in attention:
        window = op.input_value(_SLIDING_WINDOW_PORT).get_node()
        if window.get_type_name() != "Constant" or np.any(window.get_data()):
            raise UnsupportedModel(
                f"{xml} attends through a sliding window, which is not proven exact here; use a full-attention model"
            )


def _gather_rows(model: Any, xml: Path, taps: Sequence[int], precision: str) -> None:
    from openvino import opset13 as ops

    rows = ops.parameter([-1], np.int64, name="rows")
    rows.output(0).get_tensor().set_names({"rows"})
    axis = ops.constant(np.array(0, np.int64))

    def gathered(source: Any) -> Any:
        return ops.gather(source, rows.output(0), axis)

    head = _lm_head(model, xml)
    outputs = _layer_outputs(model, xml, taps)
    head.input(0).replace_source_output(gathered(head.input_value(0)).output(0))
    results = []
    for layer, output in outputs:
        hidden = ops.convert(gathered(output), precision)
        hidden.output(0).get_tensor().set_names({_HIDDEN.format(layer=layer)})
        results.append(ops.result(hidden))
    model.add_parameters([rows])
    model.add_results(results)
    model.validate_nodes_and_infer_types()


def _lm_head(model: Any, xml: Path) -> Any:
    node = model.get_results()[0].input_value(0).get_node()
    while node.get_type_name() != "MatMul":
        if not node.inputs():
            raise UnsupportedModel(f"{xml} has no LM head (a MatMul before its logits); export it as text-generation")
        node = node.input_value(0).get_node()
    return node


def _layer_outputs(model: Any, xml: Path, taps: Sequence[int]) -> list[tuple[int, Any]]:
    if not taps:
        return []
    found = {}
    for op in model.get_ordered_ops():
        for pattern in LAYER_OUTPUT:
            if match := pattern.fullmatch(op.get_friendly_name()):
                found[int(match[1])] = op.output(0)
    layers = [tap if tap >= 0 else len(found) + tap for tap in taps]
    for layer in layers:
        if layer not in found:
            raise UnsupportedModel(f"{xml} has no layer {layer} to tap: it shows {len(found)} layers, counted from 0")
    return [(layer, found[layer]) for layer in layers]


def _check_inputs(model: Any, xml: Path) -> None:
    names = {name for port in model.inputs for name in port.names}
    missing = [name for name in INPUTS if name not in names]
    if not any(_CACHE.fullmatch(name) for name in names):
        missing.append("key_cache.0")
    if missing:
        raise TargetError(
            f"the paged graph of {xml} lacks the inputs {', '.join(missing)}: this openvino does not fit, "
            'pip install "openvino==2026.4.1"'
        )
    unknown = [name for name in sorted(names) if name not in INPUTS and not _CACHE.fullmatch(name)]
    if unknown:
        raise UnsupportedModel(f"{xml} wants the inputs {', '.join(unknown)}, which a plain text model does not have")


def last_line(error: Exception) -> str:
    """What an OpenVINO error comes to: it puts places in its source first and the reason last."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[-1] if lines else type(error).__name__
