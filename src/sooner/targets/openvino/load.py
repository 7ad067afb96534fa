"""From a model's files to a target: precisions, threads, compiling, the memory plan.

Knows what the processor can do and which precision pairs are tested. Does not know sessions or passes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, Protocol

from sooner.errors import InvalidRequest, UnsupportedModel
from sooner.targets.machine import processor
from sooner.targets.openvino.graph import paged_graph
from sooner.targets.openvino.kv import KVCache, bytes_per_block
from sooner.targets.openvino.lanes import Lanes
from sooner.targets.openvino.memory import plan_memory
from sooner.targets.openvino.probe import quick_check
from sooner.targets.openvino.runner import Runner
from sooner.targets.openvino.target import Edit, OpenVINOTarget

__all__ = ["Files", "KVPrecision", "Precision", "load"]

Precision = Literal["auto", "bf16", "f32"]
KVPrecision = Literal["auto", "bf16", "f16", "f32"]

_PAIRS = {"bf16": ("bf16",), "f32": ("f16", "f32")}
"""Compute precision -> KV precisions tested with it, the default first. An 8-bit KV cache is never among them: it
quantises keys across a block's tokens, so that a row depends on its neighbours."""


class Files(Protocol):
    """What a target needs to know of a model's files; `sooner.store.ModelFiles` has it."""

    @property
    def xml(self) -> Path:
        """The OpenVINO IR; its ``.bin`` lies beside it."""
        ...

    @property
    def sha256(self) -> str:
        """The name of the weights."""
        ...

    @property
    def context(self) -> int:
        """The most positions, in tokens."""
        ...

    @property
    def sliding_window(self) -> int | None:
        """In tokens; None = full attention everywhere."""
        ...


def load(
    files: Files,
    *,
    threads: int | None = None,
    precision: Precision = "auto",
    kv_precision: KVPrecision = "auto",
    pool_tokens: int | None = None,
    taps: Sequence[int] = (),
    log: Callable[[str], None] | None = None,
    recall: Callable[[str], Mapping[str, Any] | None] = lambda key: None,
    remember: Callable[[str, dict[str, Any]], None] = lambda key, fact: None,
) -> OpenVINOTarget:
    """Compile a model for this processor.

    ``threads``: None lets OpenVINO choose. ``precision``: "auto" is bf16 where the processor computes it, else f32.
    ``pool_tokens``: size of the KV pool; None takes it from the machine's memory. ``taps``: layers whose outgoing
    rows `Rows.hidden` shows (``[1 + n, len(taps) * H]``; negative counts from the last). ``log`` receives the plan.
    Whether rows are invariant is measured here, in some ten short passes, unless
    ``recall`` knows it of the same model, engine, processor and precisions; ``remember`` keeps it.
    Raises `ModelError`, `InvalidRequest`, `TargetError`.
    """
    import openvino as ov

    if files.sliding_window is not None:
        raise UnsupportedModel(
            f"{files.xml} attends through a sliding window of {files.sliding_window} tokens, "
            "which is not proven exact here; use a full-attention model"
        )
    core = ov.Core()
    compute, kv_type = _precisions(core, precision, kv_precision)
    config = _config(threads, compute, kv_type)

    def compile(width: int = 0) -> Any:
        return core.compile_model(paged_graph(core, files.xml, taps, compute, width), "CPU", config)

    def edited(edit: Edit) -> tuple[Any, Sequence[str]]:
        graph = paged_graph(core, files.xml, (), compute)
        names = edit(graph) or ()
        return core.compile_model(graph, "CPU", config), names

    compiled = compile()
    vocab_size = compiled.outputs[0].partial_shape[2].get_length()
    plan = plan_memory(
        weights=files.xml.with_suffix(".bin").stat().st_size,
        block_bytes=bytes_per_block(compiled),
        vocab_size=vocab_size,
        context=files.context,
        pool_tokens=pool_tokens,
    )
    if log:
        log(str(plan))
    kv = KVCache(compiled, plan.blocks + 1)  # the last is scratch for padding
    fingerprint = {
        "model": files.sha256,
        "engine": f"openvino {ov.get_version()}",
        "processor": processor(core.get_property("CPU", "FULL_DEVICE_NAME")),
        "precision": compute,
        "kv_precision": kv_type,
    }
    runner = Runner(compiled, kv.tensors, len(taps))
    lanes = Lanes(lambda width: Runner(compile(width), kv.tensors, len(taps), width), plan.lanes)
    target = OpenVINOTarget(runner, kv, plan, lanes, vocab_size=vocab_size, fingerprint=fingerprint)
    target.edited = edited
    _measure(target, f"rows\n{sorted(fingerprint.items())}\n{threads}", recall, remember)
    if log and not target.row_invariant:
        log("rows depend on how they are scored on this machine: texts are equal up to numeric near-ties only")
    return target


def _measure(
    target: OpenVINOTarget,
    key: str,
    recall: Callable[[str], Mapping[str, Any] | None],
    remember: Callable[[str, dict[str, Any]], None],
) -> None:
    known = recall(key)
    if known is None:
        known = {"row_invariant": quick_check(target)}
        remember(key, known)
    target.row_invariant = bool(known["row_invariant"])


def _precisions(core: Any, precision: str, kv_precision: str) -> tuple[str, str]:
    can_bf16 = "BF16" in core.get_property("CPU", "OPTIMIZATION_CAPABILITIES")
    compute = precision if precision != "auto" else "bf16" if can_bf16 else "f32"
    if compute not in _PAIRS:
        raise InvalidRequest(f"precision must be auto, bf16 or f32, not {precision!r}", "precision")
    if compute == "bf16" and not can_bf16:
        raise InvalidRequest("this processor does not compute bf16: use precision f32", "precision")
    kv_type = kv_precision if kv_precision != "auto" else _PAIRS[compute][0]
    if kv_type not in _PAIRS[compute]:
        raise InvalidRequest(
            f"with precision {compute}, kv_precision must be {' or '.join(_PAIRS[compute])}, not {kv_precision!r}",
            "kv_precision",
        )
    return compute, kv_type


def _config(threads: int | None, compute: str, kv_type: str) -> dict[str, Any]:
    config: dict[str, Any] = {
        "PERFORMANCE_HINT": "LATENCY",
        "NUM_STREAMS": 1,
        "INFERENCE_PRECISION_HINT": compute,
        "KV_CACHE_PRECISION": kv_type,
    }
    if threads is not None:
        if threads < 1:
            raise InvalidRequest(f"threads must be at least 1, not {threads}", "threads")
        config["INFERENCE_NUM_THREADS"] = threads
    return config
