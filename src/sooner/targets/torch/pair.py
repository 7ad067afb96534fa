"""From an encoder-decoder model in memory to a target: the port, the passes, and the check of both halves.

Knows what such a model's configuration calls things. Does not know files, sessions or text.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
import transformers

from sooner.errors import InvalidRequest, UnsupportedModel, one_line
from sooner.targets.machine import model_name, processor
from sooner.targets.torch.adopt import settle_rule, tolerance
from sooner.targets.torch.check import LENGTH, check_model
from sooner.targets.torch.cross import CrossRunner, EncoderPort
from sooner.targets.torch.device import full_name
from sooner.targets.torch.ears import has_ears
from sooner.targets.torch.kv import KVTensors
from sooner.targets.torch.layout import RowRule
from sooner.targets.torch.linear import can_pack, pack_linears
from sooner.targets.torch.memory import MemoryPlan
from sooner.targets.torch.source import SourceTarget
from sooner.targets.torch.taps import Taps
from sooner.targets.torch.target import TorchTarget
from sooner.types import Logits

__all__ = [
    "adopt_decoder",
    "adopt_pair",
    "refuse_options",
    "refuse_unread",
    "token_bytes",
    "token_id",
]

Say = Callable[[str], None]
_FAR = 4096
"""The longest source, in tokens, of a model whose positions are relative: it has no limit but memory's."""


def refuse_options(given: Mapping[str, Any]) -> None:
    """Raises `InvalidRequest` for options of `load` that decoder-only models alone have."""
    if wanted := [name for name, value in given.items() if value]:
        raise InvalidRequest(f"{wanted[0]} is for decoder-only models, not for an encoder-decoder: drop it", wanted[0])


def refuse_unread(config: Any, name: str) -> None:
    """Raises `UnsupportedModel` for an encoder that reads neither tokens nor sound as Whisper's does."""
    if type(config) not in transformers.MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING and not has_ears(config):
        raise UnsupportedModel(
            f"{name} has an encoder that reads what sooner does not prepare; use a model such as T5, BART or Whisper"
        )


def token_bytes(config: Any, itemsize: int, context: int) -> int:
    """Bytes of one token's entries in the decoder, of texts of ``context`` tokens; a sound's are shared out to them."""
    layers = getattr(config, "num_decoder_layers", None) or getattr(config, "decoder_layers", None)
    heads = getattr(config, "decoder_attention_heads", None) or config.num_attention_heads
    width = getattr(config, "d_kv", None) or config.hidden_size // heads
    share = 1 + config.max_source_positions / context if has_ears(config) else 1
    return int((layers or config.num_hidden_layers) * heads * width * 2 * itemsize * share)


def adopt_pair(model: Any, plan: MemoryPlan, **options: Any) -> SourceTarget:
    """A target over ``model``, as `adopt_decoder`, whose sources are text."""
    config = model.config
    end, first = token_id(model, "eos_token_id"), token_id(model, "decoder_start_token_id")
    longest = int(getattr(config, "max_position_embeddings", None) or _FAR)
    length = min(LENGTH, longest, plan.context)
    given = torch.tensor([_random(config.vocab_size, length)], device=model.device)
    decoder, port = adopt_decoder(model, plan, {"input_ids": given}, **options)
    return SourceTarget(decoder, port.encode, end=end, first=first, longest=longest)


def adopt_decoder(
    model: Any,
    plan: MemoryPlan,
    given: Mapping[str, Any],
    *,
    name: str,
    named: Mapping[str, str],
    log: Say | None,
    recall: Callable[[str], Mapping[str, Any] | None],
    remember: Callable[[str, dict[str, Any]], None],
) -> tuple[TorchTarget, EncoderPort]:
    """A target over the decoder of ``model``, which lies on its device in evaluation mode, and the port that runs both
    halves; the decoder's attention layers are ours from now on. ``given``: inputs of the encoder, which it is checked
    with. Options as for `adopt.adopt`. Raises `UnsupportedModel` where it cannot be driven over our cache."""
    where, dtype = model.device, next(model.parameters()).dtype
    text, rows = _whole(model, given, min(LENGTH, plan.context))
    packed = where.type == "cpu" and not getattr(model, "is_quantized", False) and can_pack(dtype)
    packed = packed and pack_linears(model) > 0
    port = EncoderPort(model)
    port.connect()
    runner = CrossRunner(port, KVTensors(plan.slots, plan.context), where, RowRule(4, 4), Taps(model, (), 0))
    runner.spare = port.entries(port.states(given))
    fingerprint = {
        "model": name,
        "engine": f"torch {torch.__version__}, transformers {transformers.__version__}",
        "processor": full_name(where, processor(model_name())),
        "precision": str(dtype).removeprefix("torch."),
        "kv_precision": str(dtype).removeprefix("torch."),
        **({"weights": "packed by oneDNN"} if packed else {}),
        **named,
    }
    decoder = TorchTarget(runner, plan, vocab_size=rows.shape[1], fingerprint=fingerprint)
    check_model(decoder, text, rows, tolerance(model, dtype))
    decoder.plan = plan.measured(runner.kv.token_bytes)
    if log:
        log(str(decoder.plan))
    key = f"rows\n{sorted(fingerprint.items())}\n{torch.get_num_threads()}"
    settle_rule(decoder, key, recall, remember, fixed=False)
    decoder.slots.purge()
    if log and not decoder.row_invariant:
        log("rows depend on how they are scored on this device: texts are equal up to numeric near-ties only")
    return decoder, port


def _whole(model: Any, given: Mapping[str, Any], length: int) -> tuple[tuple[int, ...], Logits]:
    """A text, and the model's own rows of it behind what the encoder is ``given``. Raises `UnsupportedModel`."""
    text = _random(model.config.vocab_size, length, seed=8)
    with torch.inference_mode():
        try:
            read = torch.tensor([text], device=model.device)
            rows = model(**given, decoder_input_ids=read, use_cache=False).logits[0]
        except Exception as error:
            raise UnsupportedModel(
                f"the model cannot read a source and a text of {length} tokens ({one_line(error)}); use another model"
            ) from error
    return tuple(text), rows.float().cpu().numpy()


def _random(vocab_size: int, length: int, seed: int = 7) -> list[int]:
    tokens: list[int] = np.random.default_rng(seed).integers(0, vocab_size, length).tolist()
    return tokens


def token_id(model: Any, name: str) -> int:
    """The first token id of that name, of the generation's settings or the model's. Raises `UnsupportedModel`."""
    for settings in (getattr(model, "generation_config", None), model.config):
        value = getattr(settings, name, None)
        value = value[0] if isinstance(value, list) and value else value
        if isinstance(value, int):
            return value
    raise UnsupportedModel(f"the model's config.json names no {name}: copy it again from the model's page")
