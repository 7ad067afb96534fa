"""Every touch of transformers' `generate`: the versions it was tried with, what is refused, and the passes of a run.

Knows `custom_generate` (the public hook), what `generate` prepares for it, and a model's own cache. Does not know
drafts' worth or where they come from.
"""

from __future__ import annotations

import copy
import inspect
import time
from collections.abc import Iterable, Sequence
from dataclasses import fields
from typing import Any

import numpy as np
import torch
import transformers
from transformers import DynamicCache, GenerationMixin, StoppingCriteriaList, StopStringCriteria
from transformers.cache_utils import DynamicLayer, DynamicSlidingWindowLayer
from transformers.generation import GenerateDecoderOnlyOutput

from sooner.errors import InvalidRequest, TargetError, UnsupportedModel
from sooner.targets.torch.cache import cache_name, running_states

__all__ = [
    "OLDEST",
    "TOO_NEW",
    "WIDTHS",
    "Passes",
    "check_alone",
    "check_model",
    "check_version",
    "end_ids",
    "measure",
    "pad_id",
    "prompts",
    "result",
    "vocab_size",
    "with_stop_strings",
]

OLDEST, TOO_NEW = (4, 57), (6,)
"""transformers from this version on and before that one."""

_PREPARES = inspect.signature(GenerationMixin.prepare_inputs_for_generation).parameters.keys()
_BY_COUNT = {"next_sequence_length", "is_first_iteration"} <= _PREPARES
_BY_POSITION = not _BY_COUNT and "cache_position" in _PREPARES
"""How ``prepare_inputs_for_generation`` is told which ids are fed: newer versions count them, older ones place them."""

WIDTHS = (1, 2, 4, 8, 16, 24)
"""Rows of a text in a pass whose cost is measured."""

_CONTEXT, _ROUNDS, _PATIENCE = 64, 4, 2.0
"""Tokens before the measured rows, rounds of measurement, and seconds after which a round is the last."""


def check_version() -> None:
    """Raises `TargetError` where the installed transformers has no such hook, or is none this file was tried with."""
    version = tuple(int(part) for part in transformers.__version__.split(".")[:2])
    takes = inspect.signature(GenerationMixin.generate).parameters
    there = "custom_generate" in takes and (_BY_COUNT or _BY_POSITION)
    there = there and hasattr(GenerationMixin, "_update_model_kwargs_for_generation")
    if not there or not OLDEST <= version < TOO_NEW:
        low, high = (".".join(map(str, end)) for end in (OLDEST, TOO_NEW))
        raise TargetError(
            f"transformers {transformers.__version__} is none whose generate sooner can speed up (from {low}, before "
            f"{high}): pip install 'transformers>={low},<{high}', or sooner.load(model, backend=\"torch\")"
        )


def check_alone() -> None:
    """Raises `InvalidRequest` where several processes run one model: their drafts would differ, and so their passes."""
    several = torch.distributed.is_available() and torch.distributed.is_initialized()
    if several and torch.distributed.get_world_size() > 1:
        raise InvalidRequest(
            "synced_gpus is not supported with drafting: several processes run this model; call model.generate",
            "synced_gpus",
        )


def check_model(model: Any) -> None:
    """Raises `UnsupportedModel` for one that `generate` does not run, or whose cache cannot be cut back."""
    if not hasattr(model, "generate") or not hasattr(model, "config"):
        raise UnsupportedModel(f"{type(model).__name__} has no generate: pass a transformers model for text generation")
    if getattr(model.config, "is_encoder_decoder", False):
        raise UnsupportedModel(
            f"{type(model).__name__} is an encoder-decoder model; drafting in generate is for decoder-only ones"
        )
    if found := running_states(model.config):  # version 4's caches do not tell
        raise _uncuttable(type(model).__name__, f"a state of its {', '.join(found)} layers")
    _croppable(DynamicCache(config=model.config.get_text_config(decoder=True)), type(model).__name__)


def pad_id(config: Any) -> int | None:
    """The token that ended texts are filled with: the pad token, else the first of those that end a text."""
    end = config.eos_token_id
    found = config.pad_token_id if config.pad_token_id is not None else end[0] if isinstance(end, list) else end
    return None if found is None else int(found)


def prompts(ids: Any, mask: Any) -> list[list[int]]:
    """The tokens of each text of ``ids`` ``[B, P]``, without what its attention ``mask`` leaves out."""
    if mask is None or mask.shape != ids.shape:
        found: list[list[int]] = ids.tolist()
        return found
    return [text[seen.bool()].tolist() for text, seen in zip(ids, mask, strict=True)]


def vocab_size(model: Any) -> int:
    """The length of a row of logits."""
    return int(model.config.get_text_config(decoder=True).vocab_size)


def end_ids(model: Any) -> tuple[int, ...]:
    """The tokens that end a text."""
    ends = model.generation_config.eos_token_id
    return tuple(ends) if isinstance(ends, list) else () if ends is None else (int(ends),)


def with_stop_strings(model: Any, options: dict[str, Any], tokenizer: Any) -> dict[str, Any]:
    """``options`` of `generate` with stop strings as a criterion of ours.

    `generate` gives custom loops no tokenizer, and itself none either. Raises `InvalidRequest` without one.
    """
    given = options.get("generation_config")
    places = (options.get("stop_strings"), getattr(given, "stop_strings", None), model.generation_config.stop_strings)
    strings = next((one for one in places if one is not None), None)
    if strings is None:
        return options
    if tokenizer is None:
        raise InvalidRequest("stop_strings need the model's tokenizer: pass tokenizer=...", "stop_strings")
    options = dict(options)
    stops = StopStringCriteria(tokenizer=tokenizer, stop_strings=strings)
    options["stopping_criteria"] = StoppingCriteriaList([*(options.get("stopping_criteria") or ()), stops])
    if given is not None:
        options["generation_config"] = copy.deepcopy(given)
        options["generation_config"].stop_strings = None
    options.pop("stop_strings", None)
    if given is None or places[2] is not None:
        options["stop_strings"] = None
    return options


def result(ids: Any, config: Any, scores: Any, logits: Any, cache: Any) -> Any:
    """What `generate` returns."""
    if not config.return_dict_in_generate:
        return ids
    names = [field.name for field in fields(GenerateDecoderOnlyOutput)]
    held = {"cache" if "cache" in names else "past_key_values": cache}
    return GenerateDecoderOnlyOutput(sequences=ids, scores=scores, logits=logits, **held)


def measure(model: Any, texts: int, widths: Sequence[int]) -> tuple[float, ...]:
    """Milliseconds of passes over each of ``widths`` rows of ``texts`` texts, interleaved; monotone."""
    config = model.config.get_text_config(decoder=True)
    most = getattr(config, "max_position_embeddings", None) or _CONTEXT + widths[-1]
    held = max(1, min(_CONTEXT, most - widths[-1]))
    ids = torch.arange(held + widths[-1], device=model.device).mul_(7).remainder_(config.vocab_size)
    ids = ids[None].expand(texts, -1)
    cache = DynamicCache()
    given = {cache_name(model): cache, "use_cache": True}
    model(input_ids=ids[:, :held], **given)
    times: dict[int, float] = {}
    begin = time.perf_counter()
    for _ in range(_ROUNDS):
        for width in widths:
            start = time.perf_counter()
            rows = model(input_ids=ids[:, held : held + width], **given).logits
            rows[:, -1].argmax().item()  # waits for the device
            times[width] = min(times.get(width, float("inf")), (time.perf_counter() - start) * 1e3)
            cache.crop(-width)
        if time.perf_counter() - begin > _PATIENCE:
            break
    return tuple(np.maximum.accumulate([times[width] for width in widths]).tolist())


class Passes:
    """A model and its cache as `generate` left them before the first pass, and the passes after that.

    ``kwargs`` are the model's inputs besides the ids, for the ids so far. The cache holds all ids but the last.
    ``config``: `generate`'s, as prepared.
    """

    def __init__(self, model: Any, kwargs: dict[str, Any], config: Any) -> None:
        self.model = model
        mask = kwargs.get("attention_mask")  # newer versions leave out one that hides nothing, and note its length
        self._masked = getattr(config, "_mask_length", None) if mask is None else mask.shape[1]
        self._kwargs = kwargs
        self._name = cache_name(model)
        self.cache = self._cuttable(kwargs.get(self._name))
        self._held = 0
        self._outputs: Any = None

    def first(self, ids: Any) -> Any:
        """Logits ``[B, 1, V]`` after the prompt ``ids`` ``[B, P]``."""
        kwargs, past = self._kwargs, self.cache.get_seq_length()
        fed = kwargs.get("inputs_embeds", ids)
        whole = fed is not ids or self._masked == ids.shape[1]
        count = fed.shape[1] - (past if whole else 0)
        if count < 1:
            raise InvalidRequest("past_key_values hold the whole prompt: cut them back by a token", "past_key_values")
        return self._run(self._prepared(ids, kwargs, count, first=True), 1)

    def next(self, ids: Any, draft: Any) -> Any:
        """Logits ``[B, 1 + n, V]`` of the last of ``ids`` ``[B, L]`` and of each of ``draft`` ``[B, n]``."""
        count = 1 + draft.shape[1]
        kwargs = self._longer(draft.shape[1]) if draft.shape[1] else self._kwargs
        if "logits_to_keep" in kwargs:
            kwargs = {**kwargs, "logits_to_keep": count}
        return self._run(self._prepared(torch.cat([ids, draft], dim=1), kwargs, count), count)

    def keep(self, count: int) -> None:
        """``count`` tokens follow from the last pass: what its cache holds of others is cut off."""
        self._kwargs = self._longer(count)
        rest = self.cache.get_seq_length() - self._held - count
        if rest > 0:
            self.cache.crop(-rest)  # how many to remove: what to keep is not asked any more from some 5.x on

    def _prepared(self, ids: Any, kwargs: dict[str, Any], count: int, *, first: bool = False) -> dict[str, Any]:
        """A forward's inputs for the last ``count`` of ``ids``."""
        how: dict[str, Any] = {"next_sequence_length": count, "is_first_iteration": first}
        if _BY_POSITION:
            past = self.cache.get_seq_length()
            how = {"cache_position": torch.arange(past, past + count, device=ids.device)}
            if not first:
                how["inputs_embeds"] = None  # as long as what is fed, they would be taken for it
        inputs: dict[str, Any] = self.model.prepare_inputs_for_generation(ids, **{**kwargs, **how})
        return inputs

    def _run(self, inputs: dict[str, Any], count: int) -> Any:
        self._outputs = self.model(**inputs, return_dict=True)
        self._held = self.cache.get_seq_length() - count
        return self._outputs.logits[:, -count:]

    def _longer(self, count: int) -> dict[str, Any]:
        """The inputs for ``count`` more ids, one after another as in `generate`; those so far stay as they are."""
        longer = dict(self._kwargs)
        if _BY_POSITION:
            longer["cache_position"] = torch.zeros(1, dtype=torch.int64)  # counted up there, and given anew here
        for _ in range(count):
            longer = self.model._update_model_kwargs_for_generation(self._outputs, longer)
        return longer

    def _cuttable(self, cache: Any) -> Any:
        """``cache``, or, where it forgets by itself and is empty, one in its place that does not."""
        name = type(self.model).__name__
        _croppable(cache, name)
        if any(isinstance(layer, DynamicSlidingWindowLayer) for layer in cache.layers):
            if cache.get_seq_length():
                raise InvalidRequest(
                    "past_key_values with sliding windows cannot be cut back to an accepted draft: pass DynamicCache()",
                    "past_key_values",
                )
            cache = self._kwargs[self._name] = DynamicCache()
        return cache


def _croppable(cache: Any, name: str) -> None:
    """Raises `UnsupportedModel` for a cache that is not one entry per token in every layer."""
    kinds = {type(layer) for layer in cache.layers} if type(cache) is DynamicCache else {type(cache)}
    strange = _names(kinds - {DynamicLayer, DynamicSlidingWindowLayer})
    if strange:
        raise _uncuttable(name, strange)


def _uncuttable(name: str, what: str) -> UnsupportedModel:
    return UnsupportedModel(
        f"{name} keeps {what}, which cannot be cut back to an accepted draft: call model.generate by itself, or use a "
        "dynamic cache and a model with attention in every layer"
    )


def _names(kinds: Iterable[type]) -> str:
    return ", ".join(sorted(kind.__name__ for kind in kinds))
