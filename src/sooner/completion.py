"""What a finished request looks like to its caller: text, tokens, figures, and a picture of itself.

Renders steps. Knows no model, no cache and no drafter.
"""

from __future__ import annotations

import html
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from types import MappingProxyType
from typing import Any

from sooner.batch import Handle
from sooner.errors import InvalidRequest
from sooner.text import TextCodec
from sooner.types import TARGET, Finish, Step, TokenLogprob, Usage
from sooner.verify import create_verifier

__all__ = ["Completion", "Speculation", "Timings", "completion"]


@dataclass(frozen=True, slots=True)
class Speculation:
    """What drafting did for one text.

    ``steps``: decoding passes after the first token. ``drafts``: those with a draft. ``acceptance_length``: tokens
    per decoding pass, the target's own included. ``acceptance_histogram[k]``: passes that kept k drafted tokens.
    """

    drafter: str
    verify: str
    lossless: bool
    steps: int
    drafts: int
    drafted: int
    accepted: int
    acceptance_length: float
    acceptance_rate: float
    acceptance_histogram: tuple[int, ...]
    warning: str | None = None


@dataclass(frozen=True, slots=True)
class Timings:
    """Milliseconds. ``ttft_ms``: submission to first token; ``tpot_ms``: mean time per token after the first.

    ``draft_ms``, ``score_ms``, ``verify_ms`` and ``overhead_ms`` add up the decoding steps after the first token.
    """

    ttft_ms: float
    tpot_ms: float
    total_ms: float
    draft_ms: float
    score_ms: float
    verify_ms: float
    overhead_ms: float

    @property
    def tokens_per_second(self) -> float:
        """Decoding speed after the first token."""
        return 1000.0 / self.tpot_ms if self.tpot_ms else 0.0


@dataclass(frozen=True, slots=True)
class Completion:
    """One answer. ``pieces`` pairs each token's text with its source (a drafter's name, or "target").

    ``choices`` holds all n answers (this one first). ``seed`` and ``fingerprint`` reproduce the text.
    """

    text: str
    token_ids: tuple[int, ...]
    finish: Finish
    usage: Usage
    speculation: Speculation
    timings: Timings
    seed: int
    logprobs: tuple[TokenLogprob, ...] | None = None
    pieces: tuple[tuple[str, str], ...] = ()
    fingerprint: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    model: str = ""
    choice: int = 0
    others: tuple[Completion, ...] = field(default=(), repr=False)

    @property
    def finish_reason(self) -> str:
        """ "stop", "length", "abort" or "error"."""
        return self.finish.reason

    @property
    def choices(self) -> tuple[Completion, ...]:
        """All n answers, this one first."""
        return (self, *self.others)

    def to_dict(self) -> dict[str, Any]:
        """The JSON object that ``sooner run --json`` prints."""
        return {
            "text": self.text,
            "token_ids": list(self.token_ids),
            "logprobs": None if self.logprobs is None else [_logprob_dict(entry) for entry in self.logprobs],
            "finish_reason": self.finish.reason,
            "finish_detail": self.finish.detail,
            "usage": {
                "prompt_tokens": self.usage.prompt_tokens,
                "completion_tokens": self.usage.completion_tokens,
                "total_tokens": self.usage.prompt_tokens + self.usage.completion_tokens,
                "cached_tokens": self.usage.cached_tokens,
            },
            "speculation": asdict(self.speculation),
            "timings": {**asdict(self.timings), "tokens_per_second": self.timings.tokens_per_second},
            "seed": self.seed,
            "model": self.model,
            "fingerprint": dict(self.fingerprint),
        }

    def _repr_html_(self) -> str:
        """The text with drafted tokens underlined, for notebooks."""
        spans = (
            f'<span title="{html.escape(source)}"'
            + ("" if source == TARGET else ' style="text-decoration:underline;background:rgba(46,160,67,.18)"')
            + f">{html.escape(piece)}</span>"
            for piece, source in self.pieces
        )
        s = self.speculation
        note = f"{s.acceptance_length:.2f} tokens a pass, {s.accepted} of {s.drafted} drafted tokens kept ({s.drafter})"
        return f'<div style="white-space:pre-wrap">{"".join(spans)}</div><small>{html.escape(note)}</small>'


_SILENT_STEPS = 32
"""Decoding passes without a single draft after which a drafter's silence is worth a warning."""


def completion(
    handle: Handle, *, codec: TextCodec, warning: str | None, fingerprint: Mapping[str, str], model: str
) -> Completion:
    """The answer of a finished request."""
    drafter = handle.drafter
    if not handle.finished:
        raise InvalidRequest("the request has not finished: drive the engine to its end first")
    rule = create_verifier(handle.request.sampling.verify)
    answers = []
    for slot in handle.slots:
        sequence = slot.sequence
        steps = [step for step in handle.steps if step.choice == sequence.choice]
        tokens = tuple(sequence.tokens[sequence.prompt_length :])
        pushed = map(codec.detokenizer().push, tokens)
        sources = (source for step in steps for source in step.sources)
        logprobs = tuple(entry for step in steps for entry in step.logprobs or ())
        figures = _speculation(steps, drafter=drafter, verify=rule.name, lossless=rule.lossless)
        silent = drafter != "none" and not figures.drafted and figures.steps >= _SILENT_STEPS
        complaint = warning or (f"{drafter} drafted nothing for this text" if silent else None)
        assert sequence.finish is not None
        answers.append(
            Completion(
                text="".join(step.text for step in steps),
                token_ids=tokens,
                finish=sequence.finish,
                usage=replace(sequence.usage, cached_tokens=slot.cached or 0),
                speculation=replace(figures, warning=complaint),
                timings=_timings(steps, handle, sequence.choice),
                seed=handle.seed,
                logprobs=logprobs if handle.request.sampling.logprobs is not None else None,
                pieces=tuple(zip(pushed, sources, strict=True)),
                fingerprint=fingerprint,
                model=model,
                choice=sequence.choice,
            )
        )
    return replace(answers[0], others=tuple(answers[1:]))


def _speculation(steps: Sequence[Step], *, drafter: str, verify: str, lossless: bool) -> Speculation:
    """Count one choice's steps; the first token's is not a decoding pass."""
    decoding = [step for step in steps if step.index > 0 and step.tokens]
    kept = [step.accepted for step in decoding]
    drafted = sum(len(step.draft) for step in decoding)
    tokens = sum(len(step.tokens) for step in decoding)
    histogram = Counter(kept)
    return Speculation(
        drafter=drafter,
        verify=verify,
        lossless=lossless,
        steps=len(decoding),
        drafts=sum(len(step.draft) > 0 for step in decoding),
        drafted=drafted,
        accepted=sum(kept),
        acceptance_length=tokens / len(decoding) if decoding else 1.0,
        acceptance_rate=sum(kept) / drafted if drafted else 0.0,
        acceptance_histogram=tuple(histogram[k] for k in range(max(kept, default=0) + 1)),
    )


def _timings(steps: Sequence[Step], handle: Handle, choice: int) -> Timings:
    """Times of one choice; passes after the first token's are decoding."""
    start = handle.started
    first, end = handle.first.get(choice, start), handle.last.get(choice, start)
    decoding = [step for step in steps if step.index > 0]
    tokens = sum(len(step.tokens) for step in decoding)
    return Timings(
        ttft_ms=(first - start) * 1e3,
        tpot_ms=(end - first) * 1e3 / tokens if tokens else 0.0,
        total_ms=(end - start) * 1e3,
        draft_ms=sum(step.draft_ms for step in decoding),
        score_ms=sum(step.score_ms for step in decoding),
        verify_ms=sum(step.verify_ms for step in decoding),
        overhead_ms=sum(step.overhead_ms for step in decoding),
    )


def _logprob_dict(entry: TokenLogprob) -> dict[str, Any]:
    """JSON knows no infinity: a token that processors banned has the log-probability null."""
    top = [[token, _finite(logprob)] for token, logprob in entry.top]
    return {"token_id": entry.token, "logprob": _finite(entry.logprob), "top": top}


def _finite(logprob: float) -> float | None:
    return logprob if math.isfinite(logprob) else None
