"""The settings of `generate` that a run with drafts honours, and the refusal of all others by name.

Knows the names in a `GenerationConfig`. Does not know what they do. A name that is not listed here, as of a later
version, is refused once it is set.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from transformers.generation import GenerationMode

from sooner.errors import InvalidRequest

__all__ = ["check_config"]

_DONE = frozenset(
    {
        "max_length",
        "max_new_tokens",
        "min_length",
        "min_new_tokens",
        "max_time",
        "stop_strings",
        "temperature",
        "top_k",
        "top_p",
        "min_p",
        "top_h",
        "typical_p",
        "epsilon_cutoff",
        "eta_cutoff",
        "repetition_penalty",
        "encoder_repetition_penalty",
        "no_repeat_ngram_size",
        "encoder_no_repeat_ngram_size",
        "bad_words_ids",
        "renormalize_logits",
        "forced_bos_token_id",
        "forced_eos_token_id",
        "remove_invalid_values",
        "exponential_decay_length_penalty",
        "suppress_tokens",
        "begin_suppress_tokens",
        "sequence_bias",
        "guidance_scale",
        "watermarking_config",
        "num_return_sequences",
        "do_sample",
        "output_scores",
        "output_logits",
        "return_dict_in_generate",
        "pad_token_id",
        "bos_token_id",
        "eos_token_id",
        "decoder_start_token_id",
    }
)
"""What `generate` has turned into processors, criteria and inputs, or a run honours itself."""

_IDLE = frozenset(
    {
        "early_stopping",
        "length_penalty",
        "num_assistant_tokens",
        "num_assistant_tokens_schedule",
        "assistant_confidence_threshold",
        "assistant_lookbehind",
        "target_lookbehind",
        "max_matching_ngram_size",
        "compile_config",
        "disable_compile",
        "cache_config",
        "low_memory",
        "continuous_batching_config",
        "transformers_version",
    }
)
"""What plain `generate` does not look at either, in these modes and with this cache."""

_ONLY: Mapping[str, tuple[Any, ...]] = {
    "use_cache": (None, True),
    "cache_implementation": (None, "dynamic", "dynamic_full"),
    "num_beams": (None, 1),
    "num_beam_groups": (None, 1),
    "diversity_penalty": (None, 0.0),
}
"""Settings of which only these values are supported."""

_MODES = (GenerationMode.GREEDY_SEARCH, GenerationMode.SAMPLE)


def check_config(config: Any) -> None:
    """Raises `InvalidRequest` naming the setting of ``config`` (prepared by `generate`) that cannot be honoured."""
    for name, value in config.to_dict().items():
        if name in _ONLY:
            if value not in _ONLY[name]:
                wanted = " or ".join(repr(one) for one in _ONLY[name] if one is not None)
                raise InvalidRequest(f"{name}={value!r} is not supported with drafting: use {wanted}", name)
        elif name not in _DONE and name not in _IDLE and not name.startswith("_") and _set(value):
            raise InvalidRequest(f"{name} is not supported with drafting: leave it out, or call model.generate", name)
    mode = config.get_generation_mode()
    if mode not in _MODES:
        name = mode.value
        raise InvalidRequest(f"{name} is not supported with drafting: use greedy search or sampling", name)


def _set(value: Any) -> bool:
    return value is not None and value is not False and value not in ({}, [])
