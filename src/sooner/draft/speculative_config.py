"""vLLM's ``--speculative-config``: its JSON read as one of our drafters, or refused key by key.

Knows vLLM's key names and what they mean here. Does not know how a drafter works.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass

from sooner.draft.spec import known_kinds
from sooner.errors import DraftError
from sooner.types import VerifyRule

__all__ = ["SpeculativeConfig", "from_speculative_config"]

_OPTIONS: Mapping[str, Mapping[str, str]] = {
    "ngram": {
        "num_speculative_tokens": "max",
        "prompt_lookup_max": "max_match",
        "prompt_lookup_min": "min_match",
    },
    "suffix": {"num_speculative_tokens": "max", "suffix_decoding_max_spec_factor": "factor"},
    "model": {"num_speculative_tokens": "max", "model": "path"},
}
_METHODS = {"draft_model": "model"}
"""What vLLM's methods are called here, where that differs."""

_GENERAL = {"num_speculative_tokens": "max", "model": "model"}
"""What the keys are called here, per method, and for methods without an entry."""

_NEUTRAL: Mapping[str, tuple[object, ...]] = {
    "draft_tensor_parallel_size": (1,),
    "draft_sample_method": ("greedy",),
    "enforce_eager": (True, False),
    "parallel_drafting": (False,),
    "disable_padded_drafter_batch": (False,),
    "suffix_decoding_max_cached_requests": (0,),
}
"""Keys that say nothing here, with the values that may be passed."""

_REASONS = {
    "disable_by_batch_size": "the controller decides by measured cost; leave it out",
    "suffix_decoding_max_tree_depth": "the automaton has no depth limit; leave it out",
    "suffix_decoding_min_token_prob": "the controller decides by confidence; leave it out",
    "suffix_decoding_max_cached_requests": "past requests are not kept; pass 0 or leave it out",
    "draft_sample_method": "the verification rule decides; leave it out",
    "draft_tensor_parallel_size": "there is one device; pass 1 or leave it out",
}
_VERIFY: Mapping[str, VerifyRule] = {"standard": "rejection"}


@dataclass(frozen=True, slots=True)
class SpeculativeConfig:
    """``draft``: a mapping for `create_drafter`. ``verify``: the rule asked for, None for the default."""

    draft: Mapping[str, object]
    verify: VerifyRule | None = None


def from_speculative_config(config: str | Mapping[str, object]) -> SpeculativeConfig:
    """Read vLLM's JSON (text or parsed). Every key is mapped or refused by name with the remedy: `DraftError`."""
    given = _parsed(config)
    method = _method(given)
    names = _OPTIONS.get(method, _GENERAL)
    draft: dict[str, object] = {"kind": method}
    for key, value in given.items():
        if value is None:
            continue
        if key in names:
            draft[names[key]] = value
        elif key not in ("method", "model", "rejection_sample_method") and value not in _NEUTRAL.get(key, ()):
            reason = _REASONS.get(key, f"known for {method} are method, rejection_sample_method, {', '.join(names)}")
            raise DraftError(f"speculative-config key {key!r} = {value!r} is not supported: {reason}")
    if "max_match" in draft:
        draft.setdefault("min_match", 1)
    return SpeculativeConfig(draft, _verify(given.get("rejection_sample_method")))


def _parsed(config: str | Mapping[str, object]) -> dict[str, object]:
    if isinstance(config, str):
        try:
            config = json.loads(config)
        except json.JSONDecodeError as error:
            raise DraftError(f"speculative-config is not JSON ({error.msg} at {error.pos}): quote it whole") from None
    if not isinstance(config, Mapping):
        raise DraftError('speculative-config must be a JSON object, as {"method": "ngram"}')
    return dict(config)


def _method(given: Mapping[str, object]) -> str:
    model = given.get("model")
    method = given.get("method") or ("ngram" if model in ("ngram", "[ngram]") else "draft_model" if model else None)
    if method is None:
        raise DraftError('speculative-config names no method: add "method", as {"method": "ngram"}')
    method = _METHODS.get(str(method), method)
    if method not in known_kinds():
        kinds = ", ".join(known_kinds())
        raise DraftError(f"speculative-config method {method!r} is not available: the methods are {kinds}")
    if "model" not in _OPTIONS.get(str(method), _GENERAL) and model not in (None, method, f"[{method}]"):
        raise DraftError(f"speculative-config method {method!r} takes no model: leave {model!r} out")
    return str(method)


def _verify(method: object) -> VerifyRule | None:
    if method is None:
        return None
    if method not in _VERIFY:
        wanted = ", ".join(_VERIFY)
        raise DraftError(f"speculative-config rejection_sample_method must be one of {wanted}, not {method!r}")
    return _VERIFY[str(method)]
