"""From a model's files to a torch target: device, precision and memory are decided before anything is loaded.

Knows in which order these are decided. Does not know how a loaded model becomes a target (`adopt`), nor passes.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import torch
import transformers

from sooner.errors import InvalidRequest
from sooner.targets.torch import device as devices
from sooner.targets.torch import model as models
from sooner.targets.torch.adapter import adapter_name
from sooner.targets.torch.adopt import adopt
from sooner.targets.torch.cache import check_version, refuse_state
from sooner.targets.torch.ears import has_ears
from sooner.targets.torch.eyes import has_eyes
from sooner.targets.torch.memory import MemoryPlan, plan_memory
from sooner.targets.torch.pair import adopt_pair, refuse_options, refuse_unread, token_bytes
from sooner.targets.torch.sight import adopt_sight
from sooner.targets.torch.sound import adopt_sound
from sooner.targets.torch.source import SourceTarget
from sooner.targets.torch.target import TorchTarget

__all__ = ["Files", "load"]

Say = Callable[[str], None]


class Files(Protocol):
    """What a target needs to know of a model's files; `sooner.store.ModelFiles` has it."""

    @property
    def folder(self) -> Path:
        """A Hugging Face folder: ``config.json`` and weights."""
        ...

    @property
    def sha256(self) -> str:
        """The name of the weights."""
        ...

    @property
    def context(self) -> int:
        """The most positions, in tokens."""
        ...


def physical_bytes() -> int:
    """Half of the machine's memory: a guess for callers that know no better."""
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2


def load(
    files: Files,
    *,
    device: str = "auto",
    precision: str = "auto",
    quantization: Any = None,
    adapter: str | None = None,
    pool_tokens: int | None = None,
    slots: int = 8,
    threads: int | None = None,
    strict: bool = False,
    compile: bool = False,
    taps: Sequence[int] = (),
    available: Callable[[], int] = physical_bytes,
    log: Say | None = None,
    recall: Callable[[str], Mapping[str, Any] | None] = lambda key: None,
    remember: Callable[[str, dict[str, Any]], None] = lambda key, fact: None,
) -> TorchTarget | SourceTarget:
    """Load a model with transformers and check that it can be driven over our cache.

    ``device``: auto, cpu, cuda, cuda:N or mps. ``precision``: "auto" is float32 on processors and the model's own on
    GPUs; or "f32", "bf16", "f16". ``quantization``: "4bit", "8bit" or a configuration object of transformers; models
    that are stored quantised need none. ``adapter``: a folder with a LoRA adapter. ``pool_tokens``: the most tokens of
    one text. ``slots``: texts in the cache at a time. ``threads``: torch's, for the whole process. ``strict``: every
    pass in one fixed shape. ``compile``: passes of few fixed shapes, compiled (CUDA graphs on CUDA). ``taps``: layers
    whose outgoing rows `Rows.hidden` shows (``[1 + n, len(taps) * H]``; negative counts from the last). ``available``:
    free bytes of main memory. ``recall`` and ``remember`` keep which row rule this model needs on this device.
    Raises `ModelError`, `InvalidRequest`, `TargetError`.
    """
    check_version()
    where = devices.find_device(device)
    _use(threads)
    config = models.read_config(files.folder)
    refuse_state(config, str(files.folder))
    pair = bool(getattr(config, "is_encoder_decoder", False))
    listens = pair and has_ears(config)
    if pair:
        refuse_unread(config, str(files.folder))
        refuse_options({"strict": strict, "compile": compile, "taps": taps, "adapter": adapter})
    eyes = has_eyes(config) and not pair
    sees = eyes and not (strict or compile or taps)
    quantisation = models.quantisation_of(config, quantization)
    dtype = devices.precision(precision, where, getattr(config, "dtype", None))
    plan = _plan(files, config, where, dtype, available, limit=pool_tokens, slots=slots)
    named = {"adapter": adapter_name(adapter)} if adapter else {}
    if quantisation is not None:
        named["quantization"] = str(quantization or "the model's own")
    model = models.load_model(
        files.folder,
        device=where,
        dtype=dtype,
        quantisation=quantisation,
        adapter=adapter,
        kind=_kind(pair, eyes, listens),
        log=log,
    )
    if pair:
        both = partial(adopt_sound, folder=files.folder) if listens else adopt_pair
        return both(model, plan=plan, name=files.sha256, named=named, log=log, recall=recall, remember=remember)
    target = (partial(adopt_sight, folder=files.folder) if sees else adopt)(
        model,
        plan=plan,
        name=files.sha256,
        named=named,
        pack=quantisation is None,
        strict=strict,
        compile=compile,
        taps=taps,
        log=log,
        recall=recall,
        remember=remember,
    )
    if eyes and not sees:
        target.blind = "with --strict, --compile or taps it reads text alone"
    return target


def _use(threads: int | None) -> None:
    if threads is not None:
        if threads < 1:
            raise InvalidRequest(f"threads must be at least 1, not {threads}", "threads")
        torch.set_num_threads(threads)


def _kind(pair: bool, eyes: bool, listens: bool) -> Any:
    if listens:
        return transformers.AutoModelForSpeechSeq2Seq
    if pair:
        return transformers.AutoModelForSeq2SeqLM
    return transformers.AutoModelForImageTextToText if eyes else transformers.AutoModelForCausalLM


def _plan(
    files: Files,
    config: Any,
    where: Any,
    dtype: Any,
    available: Callable[[], int],
    *,
    limit: int | None,
    slots: int,
) -> MemoryPlan:
    """From the configuration alone, before anything is loaded."""
    stored = getattr(config, "dtype", None) or dtype
    quantised = getattr(config, "quantization_config", None) is not None
    scale = 1.0 if quantised else dtype.itemsize / getattr(stored, "itemsize", dtype.itemsize)
    return plan_memory(
        device=str(where),
        available=devices.free_bytes(where, available),
        weights=int(models.weight_bytes(files.folder) * scale),
        token_bytes=_token_bytes(config, dtype.itemsize, min(files.context, limit or files.context)),
        context=files.context,
        limit=limit,
        slots=slots,
    )


def _token_bytes(config: Any, itemsize: int, context: int) -> int:
    """Bytes of one token's entries in all layers."""
    if getattr(config, "is_encoder_decoder", False):
        return token_bytes(config, itemsize, context)
    text = config.get_text_config()
    heads = getattr(text, "num_key_value_heads", None) or text.num_attention_heads
    width = getattr(text, "head_dim", None) or text.hidden_size // text.num_attention_heads
    return int(text.num_hidden_layers * heads * width * 2 * itemsize)
