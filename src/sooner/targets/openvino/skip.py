"""Graph surgery for self-speculation: a paged graph with attention or MLP sublayers left out, or with a gate on each.

Knows how the residual stream runs through a graph. Does not know which sublayers are worth leaving out, blocks or
sessions.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from sooner.errors import DraftError, UnsupportedModel

__all__ = ["GATES", "Branch", "add_gates", "leave_out", "residual_branches", "weight_bytes"]

GATES = "gates"
"""Name of the input, ``[S]`` float32, that `add_gates` multiplies the S branches with."""

_ATTENTION = ("PagedAttentionExtension", "ScaledDotProductAttention")
_CACHE = re.compile(r"key_cache\.(\d+)")


@dataclass(frozen=True, slots=True)
class Branch:
    """One sublayer: what it computes is added to the residual stream by ``add``, whose input ``stream`` is the stream.

    ``name``: the layer, counted from 0, and ``a`` for attention or ``m`` for the MLP, such as ``12a``.
    """

    name: str
    add: Any
    stream: int

    @property
    def source(self) -> Any:
        """The stream as it is before this sublayer (after the surgery done so far)."""
        return self.add.input_value(self.stream)


def residual_branches(model: Any, what: object = "the model") -> list[Branch]:
    """The sublayers of ``model``, paged or as it lies on disk, in the order in which they are computed.

    Found by structure, so that names do not matter: a residual addition is one of whose inputs the other depends on,
    and the chain of them runs from the LM head down to the embedding. Attention is what holds an attention, and has
    the number of its cache (on disk: its place in the order). `UnsupportedModel` if that is not how ``model`` is built
    (as where attention and MLP are computed side by side).
    """
    ops = model.get_ordered_ops()
    place = {op.get_name(): i for i, op in enumerate(ops)}
    chain: list[tuple[Any, int, set[str]]] = []
    below: str | None = None
    for add in reversed([op for op in ops if op.get_type_name() == "Add"]):
        if below in (None, add.get_name()) and (residual := _residual(add, place)):
            chain.append((add, *residual))
            below = add.input_value(residual[0]).get_node().get_name()
    found = [op for op in ops if op.get_type_name() in _ATTENTION]
    attention = {op.get_name(): _cache_number(op, i) for i, op in enumerate(found)}
    branches: list[Branch] = []
    layer = -1
    for add, stream, inside in reversed(chain):
        held = [attention[name] for name in inside if name in attention]
        layer = held[0] if held else layer
        branches.append(Branch(f"{layer}{'a' if held else 'm'}", add, stream))
        if len(held) > 1 or not _same_shape(add):
            raise UnsupportedModel(
                f"{what} has no sublayers that could be left out: its layers are not one after another"
            )
    found_layers = [branch.name for branch in branches if branch.name.endswith("a")]
    if sorted(attention.values()) != sorted(int(name[:-1]) for name in found_layers) or len(set(found_layers)) < 2:
        raise UnsupportedModel(f"{what} has no sublayers that could be left out: not all of its attention was found")
    if len({branch.name for branch in branches}) < len(branches) or layer < 0 or branches[0].name.startswith("-1"):
        raise UnsupportedModel(f"{what} has no sublayers that could be left out: its layers have several MLPs each")
    return branches


def leave_out(model: Any, names: Collection[str], what: object = "the model") -> None:
    """Take the sublayers ``names`` out of ``model``; the caches of left out attention are inputs (or on disk: state) no
    more, the others keep their numbers.

    Raises `DraftError` for a name the model does not have and where no attention would be left.
    """
    branches = residual_branches(model, what)
    check_names(names, [branch.name for branch in branches], what)
    for branch in branches:
        if branch.name in names:
            source = branch.source
            for reader in branch.add.output(0).get_target_inputs():
                reader.replace_source_output(source)
    model.validate_nodes_and_infer_types()
    alive = {op.get_name() for op in _needed(model)}
    _drop_state(model, alive)
    for parameter in model.get_parameters():
        if parameter.get_name() not in alive:
            model.remove_parameter(parameter)
    model.validate_nodes_and_infer_types()


def weight_bytes(model: Any) -> int:
    """Bytes of the constants of ``model``, as they are stored."""
    return sum(op.get_byte_size() for op in model.get_ordered_ops() if op.get_type_name() == "Constant")


def check_names(names: Collection[str], known: Sequence[str], what: object = "the model") -> None:
    """Raise `DraftError` unless ``names`` are among the sublayers ``known`` and leave some attention."""
    for name in sorted(names):
        if name not in known:
            raise DraftError(
                f"{what} has no sublayer {name}: its layers are 0 to {known[-1][:-1]}, each with an attention (0a) and "
                "an MLP (0m); was the skip set made for another model? sooner tune --layerskip finds one for this"
            )
    if not any(name.endswith("a") and name not in names for name in known):
        raise DraftError("a skip set must leave some attention in: name fewer layers")


def add_gates(model: Any, what: object = "the model") -> list[str]:
    """Multiply each sublayer's contribution by its own entry of a new input `GATES`; returns their names in order.

    With a 0 a sublayer contributes nothing, as if it were left out, but takes its time: one graph tries every skip set.
    """
    from openvino import opset13 as ops

    branches = residual_branches(model, what)
    gates = ops.parameter([len(branches)], np.float32, name=GATES)
    gates.output(0).get_tensor().set_names({GATES})
    axis = ops.constant(np.array(0, np.int64))
    for i, branch in enumerate(branches):
        port = branch.add.input(1 - branch.stream)
        contribution = port.get_source_output()
        gate = ops.convert(
            ops.gather(gates, ops.constant(np.array(i, np.int64)), axis), contribution.get_element_type()
        )
        port.replace_source_output(ops.multiply(contribution, gate).output(0))
    model.add_parameters([gates])
    model.validate_nodes_and_infer_types()
    return [branch.name for branch in branches]


def _residual(add: Any, place: dict[str, int]) -> tuple[int, set[str]] | None:
    """Which input of ``add`` is the stream, and the names of the nodes between it and ``add``; None if neither is."""
    for stream in (0, 1):
        source, branch = (add.input_value(i).get_node() for i in (stream, 1 - stream))
        if "Constant" in (source.get_type_name(), branch.get_type_name()):
            continue
        if inside := _between(source, branch, place):
            return stream, inside
    return None


def _between(source: Any, branch: Any, place: dict[str, int]) -> set[str] | None:
    """Names of the nodes that ``branch`` depends on and that may depend on ``source``; None if ``branch`` does not."""
    floor = place[source.get_name()]
    inside: set[str] = set()
    reached = False
    stack = [branch]
    while stack:
        node = stack.pop()
        name = node.get_name()
        reached = reached or name == source.get_name()
        if name not in inside and place[name] > floor:
            inside.add(name)
            stack += [value.get_node() for value in node.input_values()]
    return inside if reached else None


def _drop_state(model: Any, alive: Collection[str]) -> None:
    """Remove the state that only nodes read which are not ``alive``."""
    reads = [op for op in model.get_ordered_ops() if op.get_type_name() == "ReadValue" and op.get_name() in alive]
    kept = {op.get_attributes()["variable_id"] for op in reads}
    for sink in model.get_sinks():
        if sink.get_attributes()["variable_id"] not in kept:
            model.remove_sink(sink)
    for variable in model.get_variables():
        if variable.get_info().variable_id not in kept:
            model.remove_variable(variable)


def _cache_number(attention: Any, place: int) -> int:
    if attention.get_type_name() == _ATTENTION[1]:
        return place
    for value in attention.input_values():
        for name in value.get_names():
            if match := _CACHE.fullmatch(name):
                return int(match[1])
    return -1


def _same_shape(add: Any) -> bool:
    """Whether the stream and what is added to it have one shape and type, so that the one can stand for their sum."""
    shapes = {str(value.get_partial_shape()) for value in (*add.input_values(), add.output(0))}
    types = {value.get_element_type().get_type_name() for value in (*add.input_values(), add.output(0))}
    return len(shapes) == len(types) == 1


def _needed(model: Any) -> list[Any]:
    """The nodes that the model's results depend on."""
    found: dict[str, Any] = {}
    stack = list(model.get_results())
    while stack:
        node = stack.pop()
        if node.get_name() not in found:
            found[node.get_name()] = node
            stack += [value.get_node() for value in node.input_values()]
    return list(found.values())
