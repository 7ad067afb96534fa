"""From a transformers model in memory to a target: the port, the passes, the checks, and the row rule that holds.

Knows which facts about a model and a device are measured, and which are worth remembering. Does not know files.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import torch
import transformers

from sooner.errors import UnsupportedModel
from sooner.targets.machine import model_name, processor
from sooner.targets.probe import quick_check
from sooner.targets.torch.cache import Port, inner
from sooner.targets.torch.check import check_model, whole_text
from sooner.targets.torch.device import full_name
from sooner.targets.torch.fixed import FixedRunner
from sooner.targets.torch.kv import KVTensors
from sooner.targets.torch.layout import RowRule
from sooner.targets.torch.linear import can_pack, pack_linears
from sooner.targets.torch.memory import MemoryPlan
from sooner.targets.torch.runner import Runner
from sooner.targets.torch.taps import Taps
from sooner.targets.torch.target import TorchTarget

__all__ = ["RULES", "adopt", "settle_rule", "tolerance"]

Say = Callable[[str], None]
Recall = Callable[[str], Mapping[str, Any] | None]
Remember = Callable[[str, dict[str, Any]], None]

RULES = (RowRule(4, 4), RowRule(8, 8), RowRule(16, 16), RowRule(32, 32))
"""Row rules that are tried, the cheapest first; where none makes rows invariant, the first is used."""

_TOLERANCE = {torch.float32: 1e-3, torch.float16: 0.05, torch.bfloat16: 0.1}
"""What rows scored in pieces may be off by in the mean, of a row's spread; quantised models: `_QUANTISED`."""

_QUANTISED = 0.25


def adopt(
    model: Any,
    plan: MemoryPlan,
    *,
    name: str,
    named: Mapping[str, str] | None = None,
    pack: bool = False,
    strict: bool = False,
    compile: bool = False,
    taps: Sequence[int] = (),
    kinds: tuple[type[Port], type[Runner], type[TorchTarget]] = (Port, Runner, TorchTarget),
    log: Say | None = None,
    recall: Recall = lambda key: None,
    remember: Remember = lambda key, fact: None,
) -> TorchTarget:
    """A target over ``model``, which lies on its device in evaluation mode; its attention layers are ours from now on.

    ``name`` names the weights, ``named`` what else the fingerprint says of them. ``pack``: linear layers on processors
    give up their weights for packed ones. ``kinds``: of what it is made.
    Other options as for `load`. Raises `UnsupportedModel` where the model
    cannot be driven over our cache.
    """
    text = inner(model).config.get_text_config()
    where, dtype = model.device, next(model.parameters()).dtype
    quantised = getattr(inner(model), "is_quantized", False)
    if quantised:
        dtype = getattr(inner(model).config, "dtype", None) or torch.get_default_dtype()
    tokens, rows = whole_text(model, text.vocab_size, where)
    pack = pack and where.type == "cpu" and not compile  # torch.compile does not take packed weights
    packed = pack and can_pack(dtype) and pack_linears(model) > 0
    port = kinds[0](model)
    port.connect()
    kv = KVTensors(plan.slots, plan.context)
    parts = (port, kv, where, RULES[0], Taps(model, taps, text.num_hidden_layers))
    runner = FixedRunner(*parts, strict=strict, compile=compile, say=log) if strict or compile else kinds[1](*parts)
    kind = str(dtype).removeprefix("torch.")
    fingerprint = {
        "model": name,
        "engine": f"torch {torch.__version__}, transformers {transformers.__version__}",
        "processor": full_name(where, processor(model_name())),
        "precision": kind,
        "kv_precision": kind,
        **({"weights": "packed by oneDNN"} if packed else {}),
        **(named or {}),
        **({"passes": "strict"} if strict else {"passes": "compiled"} if compile else {}),
    }
    target = kinds[2](runner, plan, vocab_size=rows.shape[1], fingerprint=fingerprint)
    check_model(target, tokens, rows, tolerance(model, dtype))
    _all_layers(kv, text.num_hidden_layers)
    target.plan = plan.measured(kv.token_bytes)
    if log:
        log(str(target.plan))
    if not compile:  # there shapes differ by design, and looking would compile many
        key = f"rows\n{sorted(fingerprint.items())}\n{torch.get_num_threads()}"
        settle_rule(target, key, recall, remember, fixed=strict)
    target.slots.purge()
    if log and not target.row_invariant:
        log("rows depend on how they are scored on this device: texts are equal up to numeric near-ties only")
    return target


def tolerance(model: Any, dtype: Any) -> float:
    """What rows scored in pieces may be off by in the mean, of a row's spread."""
    return _QUANTISED if getattr(inner(model), "is_quantized", False) else _TOLERANCE.get(dtype, 0.1)


def _all_layers(kv: KVTensors, layers: int) -> None:
    """Raises `UnsupportedModel` where some layer never asked for attention: it keeps what it needs elsewhere."""
    if len(kv.layers) != layers:
        raise UnsupportedModel(
            f"{len(kv.layers)} of the model's {layers} layers attend over a cache of their own; what the others keep "
            "cannot be cut back to an accepted draft; use another model"
        )


def settle_rule(target: TorchTarget, key: str, recall: Any, remember: Any, *, fixed: bool) -> None:
    """The first rule under which rows are invariant, as measured now or before; ``fixed`` shapes have their own."""
    known = recall(key)
    if known is None:
        found = next(filter(partial(_holds, target), RULES[:1] if fixed else RULES), None)
        known = {"rule": [found.least, found.unit] if found else None}
        remember(key, known)
    rule = known.get("rule")
    target.row_invariant = rule is not None
    if not fixed:
        target.runner.rule = RowRule(*rule) if rule else RULES[0]


def _holds(target: TorchTarget, rule: RowRule) -> bool:
    if not isinstance(target.runner, FixedRunner):
        target.runner.rule = rule
    return quick_check(target)
