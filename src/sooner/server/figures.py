"""The figures at the root of every reply: vLLM's ``metrics.speculative_decoding`` and llama.cpp's ``timings``.

Knows finished handles. Does not know which API's reply they go into.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from sooner.batch import Handle
from sooner.types import Step
from sooner.verify import create_verifier

__all__ = ["figures", "prediction_details", "usage"]


def figures(handles: Sequence[Handle], warning: str | None) -> dict[str, Any]:
    """``metrics``, ``timings`` and the ``seed`` of one reply, all its choices together."""
    return {
        "metrics": {"speculative_decoding": _speculation(handles, warning)},
        "timings": _timings(handles),
        "seed": handles[0].seed,
    }


def usage(handles: Sequence[Handle]) -> dict[str, Any]:
    """OpenAI's ``usage``: prompts once each, all choices' tokens, what the prefix cache had, and predictions."""
    slots = [slot for handle in handles for slot in handle.slots]
    prompt = sum(handle.slots[0].sequence.prompt_length for handle in handles)
    written = sum(slot.sequence.emitted for slot in slots)
    return {
        "prompt_tokens": prompt,
        "completion_tokens": written,
        "total_tokens": prompt + written,
        "prompt_tokens_details": {"cached_tokens": sum(handle.slots[0].cached or 0 for handle in handles)},
        "completion_tokens_details": prediction_details(handles),
    }


def prediction_details(handles: Sequence[Handle]) -> dict[str, int]:
    """Of the tokens that the prediction put forward: those that were kept, and those that were not."""
    steps = [step for handle in handles if handle.request.expected for step in handle.steps]
    kept = sum(source == "given" for step in steps for source in step.sources)
    put = sum(source == "given" for step in steps for source in step.draft.sources)
    return {"accepted_prediction_tokens": kept, "rejected_prediction_tokens": put - kept, "reasoning_tokens": 0}


def _speculation(handles: Sequence[Handle], warning: str | None) -> dict[str, Any]:
    """Steps with a draft, as vLLM counts them: ``mean_acceptance_length`` = 1 + kept drafted tokens per such step."""
    drafting = [step for handle in handles for step in handle.steps if len(step.draft)]
    kept = [step.accepted for step in drafting]
    drafted = sum(len(step.draft) for step in drafting)
    histogram = Counter(kept)
    longest = max((_depth(step) for step in drafting), default=0)
    rule = create_verifier(handles[0].request.sampling.verify)
    return {
        "mean_acceptance_length": 1.0 + sum(kept) / len(drafting) if drafting else 1.0,
        "draft_acceptance_rate": sum(kept) / drafted if drafted else 0.0,
        "acceptance_histogram": [histogram[k] for k in range(longest + 1)],
        "num_spec_steps": len(drafting),
        "num_spec_tokens": longest,
        "num_draft_tokens": drafted,
        "num_accepted_draft_tokens": sum(kept),
        "num_steps": sum(bool(step.tokens) for handle in handles for step in handle.steps),
        "drafter": handles[0].drafter,
        "verify": rule.name,
        "lossless": rule.lossless,
        "warning": warning or _silence(handles, drafted),
    }


_SILENT = 32
"""Steps without a single draft after which a drafter's silence is worth a warning."""


def _silence(handles: Sequence[Handle], drafted: int) -> str | None:
    steps = sum(step.index > 0 for handle in handles for step in handle.steps)
    drafter = handles[0].drafter
    silent = drafter != "none" and not drafted and steps >= _SILENT
    return f"{drafter} drafted nothing for this text" if silent else None


def _depth(step: Step) -> int:
    depths: list[int] = []
    for parent in step.draft.parents:
        depths.append(1 if parent < 0 else depths[parent] + 1)
    return max(depths)


def _timings(handles: Sequence[Handle]) -> dict[str, Any]:
    """Milliseconds: ``prompt_*`` until the first token of all, ``predicted_*`` from there to the last."""
    start = handles[0].started
    first = min((t for handle in handles for t in handle.first.values()), default=start)
    last = max((t for handle in handles for t in handle.last.values()), default=start)
    read = sum(handle.slots[0].sequence.prompt_length - (handle.slots[0].cached or 0) for handle in handles)
    cached = sum(handle.slots[0].cached or 0 for handle in handles)
    written = sum(slot.sequence.emitted for handle in handles for slot in handle.slots)
    prompt_ms, predicted_ms = (first - start) * 1e3, (last - first) * 1e3
    steps = [step for handle in handles for step in handle.steps]
    return {
        "cache_n": cached,
        "prompt_n": read,
        "prompt_ms": prompt_ms,
        "prompt_per_token_ms": prompt_ms / max(read, 1),
        "prompt_per_second": read * 1e3 / max(prompt_ms, 1e-6),
        "predicted_n": written,
        "predicted_ms": predicted_ms,
        "predicted_per_token_ms": predicted_ms / max(written, 1),
        "predicted_per_second": written * 1e3 / predicted_ms if predicted_ms > 0 else 0.0,
        "draft_n": sum(len(step.draft) for step in steps),
        "draft_n_accepted": sum(step.accepted for step in steps),
    }
