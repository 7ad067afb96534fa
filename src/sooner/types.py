"""The records that pass between the parts: what is asked, drafted, scored, decided and emitted.

Knows shapes and units. Does not know how any of it is computed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from sooner.errors import InvalidRequest

if TYPE_CHECKING:
    from sooner.protocols import Constraint, Session

__all__ = [
    "EMPTY_DRAFT",
    "NO_BANS",
    "ROOT",
    "RUNNING_STATES",
    "TARGET",
    "Bans",
    "Draft",
    "Finish",
    "Logits",
    "Odds",
    "Probabilities",
    "Request",
    "Rows",
    "Sampling",
    "Source",
    "Step",
    "TokenLogprob",
    "Usage",
    "Verdict",
    "VerifyRule",
    "Work",
]

Logits = NDArray[np.float32]
"""One or more rows of raw target logits, ``[..., V]``."""

Probabilities = NDArray[np.float64]
"""One processed distribution, ``[V]``, summing to one."""

ROOT = -1
"""The parent of a draft's first tokens: the last known token, whose row the target always scores."""

TARGET = "target"
"""The source of tokens that no drafter guessed."""

RUNNING_STATES = ("mamba", "recurrent", "rwkv", "xlstm", "falcon_h1")
"""Words in the names of models, or of their layers, that keep one running state instead of an entry per token."""

VerifyRule = Literal["coupled", "rejection", "block", "typical", "lenience"]
FinishReason = Literal["stop", "length", "abort", "error"]


@dataclass(frozen=True, slots=True)
class Sampling:
    """How tokens are chosen. Immutable; every field is honoured or refused by ``__post_init__``.

    ``logprobs``: None = none, 0 = the chosen token's only, N = the chosen one's and the top N.
    ``logprobs_mode``: "raw" is the model's own log-softmax before processors, "processed" after.
    ``seed``: None draws a fresh one, reported in the result. ``verify``: a `VerifyRule`, with its options where it has
    some, as in ``typical:epsilon=0.1,delta=0.2``.
    Raises `InvalidRequest` naming the offending parameter.
    """

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    typical_p: float = 1.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: Mapping[int, float] = field(default_factory=lambda: MappingProxyType({}))
    bad_words: tuple[str, ...] = ()
    max_tokens: int | None = None
    min_tokens: int = 0
    ignore_eos: bool = False
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    include_stop: bool = False
    seed: int | None = None
    n: int = 1
    logprobs: int | None = None
    logprobs_mode: Literal["raw", "processed"] = "raw"
    verify: str = "coupled"

    def __post_init__(self) -> None:
        for name, ok, want in _SAMPLING_RULES:
            value = getattr(self, name)
            if not ok(value):
                raise InvalidRequest(f"{name} must be {want}, not {value!r}", name)
        if self.max_tokens is not None and self.min_tokens > self.max_tokens:
            raise InvalidRequest(
                f"min_tokens ({self.min_tokens}) must not exceed max_tokens ({self.max_tokens})", "min_tokens"
            )


def _finite(low: float, high: float, *, open_low: bool = False) -> Callable[[Any], bool]:
    def ok(value: Any) -> bool:
        if isinstance(value, bool) or not isinstance(value, int | float) or not np.isfinite(value):
            return False
        return (low < value if open_low else low <= value) and value <= high

    return ok


def _integer(low: int, high: int = 2**63 - 1, *, none: bool = False) -> Callable[[Any], bool]:
    def ok(value: Any) -> bool:
        if value is None:
            return none
        return isinstance(value, int) and not isinstance(value, bool) and low <= value <= high

    return ok


def _biases(value: Any) -> bool:
    return isinstance(value, Mapping) and all(
        isinstance(k, int) and k >= 0 and isinstance(v, int | float) and -100 <= v <= 100 for k, v in value.items()
    )


def _rule(value: Any) -> bool:
    if not isinstance(value, str):
        return False
    name, colon, options = value.partition(":")
    return name in get_args(VerifyRule) and bool(options) == bool(colon)


def _strings(value: Any) -> bool:
    return isinstance(value, tuple) and all(isinstance(s, str) and s for s in value)


_SAMPLING_RULES: tuple[tuple[str, Callable[[Any], bool], str], ...] = (
    ("temperature", lambda v: _finite(0.0, 1e4)(v) and not 0 < v < 1e-6, "0 or a number in [1e-6, 1e4]"),
    ("top_k", _integer(0), "an integer of at least 0 (0 = off)"),
    ("top_p", _finite(0.0, 1.0, open_low=True), "in (0, 1]"),
    ("min_p", _finite(0.0, 1.0), "in [0, 1]"),
    ("typical_p", _finite(0.0, 1.0, open_low=True), "in (0, 1]"),
    ("repetition_penalty", _finite(0.0, 1e4, open_low=True), "a number above 0"),
    ("presence_penalty", _finite(-2.0, 2.0), "in [-2, 2]"),
    ("frequency_penalty", _finite(-2.0, 2.0), "in [-2, 2]"),
    ("logit_bias", _biases, "a map of token ids to values in [-100, 100]"),
    ("bad_words", _strings, "a tuple of non-empty strings"),
    ("max_tokens", _integer(1, none=True), "an integer of at least 1"),
    ("min_tokens", _integer(0), "an integer of at least 0"),
    ("ignore_eos", lambda v: isinstance(v, bool), "true or false"),
    ("stop", _strings, "a tuple of non-empty strings"),
    ("stop_token_ids", lambda v: isinstance(v, tuple) and all(map(_integer(0), v)), "a tuple of token ids"),
    ("include_stop", lambda v: isinstance(v, bool), "true or false"),
    ("seed", _integer(0, 2**64 - 1, none=True), "an integer in [0, 2**64)"),
    ("n", _integer(1, 128), "an integer in [1, 128]"),
    ("logprobs", _integer(0, 1000, none=True), "an integer in [0, 1000]"),
    ("logprobs_mode", lambda v: v in ("raw", "processed"), "'raw' or 'processed'"),
    (
        "verify",
        _rule,
        f"one of {', '.join(get_args(VerifyRule))}, or typical:epsilon=0.1",
    ),
)


@dataclass(frozen=True, slots=True)
class Request:
    """One prompt to continue.

    ``prompt``: token ids, at least one. ``expected``: tokens the caller believes the answer to be (predicted
    outputs; read by the ``given`` drafter only). ``salt``: requests share cached prefixes only under equal salts.
    ``drafting``: False decodes this request plainly, whatever the engine's drafter. ``constraint``: the grammar that
    the text must follow.
    """

    prompt: tuple[int, ...]
    sampling: Sampling = field(default_factory=Sampling)
    expected: tuple[int, ...] = ()
    salt: str = ""
    drafting: bool = True
    constraint: Constraint | None = None


@dataclass(frozen=True, slots=True)
class Bans:
    """Token ids that a model ``never`` writes, and those that no answer has ``first``."""

    never: tuple[int, ...] = ()
    first: tuple[int, ...] = ()


NO_BANS = Bans()


@dataclass(frozen=True, slots=True)
class Source:
    """Of a prompt, what an encoder reads: its first ``tokens``. ``context``: the most that prompt and answer have.
    ``bans``: what the model does not write behind it."""

    tokens: int
    context: int
    bans: Bans = NO_BANS


@dataclass(frozen=True, slots=True)
class Draft:
    """A token tree of n guesses below the last known token. A chain has one child each; an empty tree drafts nothing.

    ``tokens[i]`` is node i's token, ``parents[i]`` its parent node (`ROOT` for the first level; always < i),
    ``confidence[i]`` in [0, 1] the drafter's estimate that the target agrees at node i given that it reached the
    parent, ``sources[i]`` the drafter's name. Siblings carry distinct tokens.

    ``q`` holds, for each parent whose children were *sampled*, the distribution ``[V]`` the first child was drawn
    from; further children were drawn without replacement, in node order. Parents absent from ``q`` have
    deterministic children. (A parent cannot mix both: it either has a row or not.)
    """

    tokens: tuple[int, ...] = ()
    parents: tuple[int, ...] = ()
    confidence: tuple[float, ...] = ()
    sources: tuple[str, ...] = ()
    q: Mapping[int, Probabilities] = field(default_factory=lambda: MappingProxyType({}))

    def __len__(self) -> int:
        return len(self.tokens)

    def children(self, node: int) -> tuple[int, ...]:
        """The nodes below ``node`` in order."""
        return tuple(i for i, parent in enumerate(self.parents) if parent == node)

    def child(self, node: int, token: int) -> int | None:
        """The child of ``node`` that carries ``token``, if any."""
        for i, parent in enumerate(self.parents):
            if parent == node and self.tokens[i] == token:
                return i
        return None

    def path(self, node: int) -> tuple[int, ...]:
        """The nodes from the first level down to ``node``; empty for `ROOT`."""
        nodes = []
        while node != ROOT:
            nodes.append(node)
            node = self.parents[node]
        return tuple(reversed(nodes))


EMPTY_DRAFT = Draft()


@dataclass(frozen=True, slots=True)
class Work:
    """What one sequence asks of a pass: feed ``tokens`` after what the session holds, then score ``draft`` below.

    ``tokens``: known tokens not yet in the session's cache, at least one; the last is the draft's root.
    ``logits``: False for a prefill chunk whose rows nobody reads (the draft is then empty).
    """

    session: Session
    tokens: tuple[int, ...]
    draft: Draft = EMPTY_DRAFT
    logits: bool = True


@dataclass(frozen=True, slots=True)
class Rows:
    """What a pass returns for one `Work`.

    ``logits``: ``[1 + n, V]`` float32; row 0 is the root's, row i + 1 that of draft node i; ``[0, V]`` if the work
    asked for none. ``hidden``: ``[1 + n, H]`` float32 where the target taps hidden states, else None.
    Both are valid until the next pass of the target: copy what must survive.
    """

    logits: Logits
    hidden: NDArray[np.float32] | None = None


@dataclass(frozen=True, slots=True)
class Verdict:
    """What verification decided: the accepted nodes (root downwards) and the target's own token after them."""

    path: tuple[int, ...]
    token: int


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """Natural-log probability of a token, and of the most likely ones at its position (descending)."""

    token: int
    logprob: float
    top: tuple[tuple[int, float], ...] = ()


@dataclass(frozen=True, slots=True)
class Odds:
    """What the target thought of the tokens of one step, by the distribution it draws from (at temperature 0: that of
    temperature 1).

    ``emitted[i]``: its chance of the i-th emitted token. ``top[i]``: the likeliest tokens at that place, descending.
    ``drafted[i]``: its chance of draft node i's token, None where verification did not get to the node's parent.
    ``q[i]``: the chance of node i's token in the row that its first sibling was drawn from, None if it was not drawn.
    """

    emitted: tuple[float, ...]
    top: tuple[tuple[tuple[int, float], ...], ...]
    drafted: tuple[float | None, ...]
    q: tuple[float | None, ...]


@dataclass(frozen=True, slots=True)
class Finish:
    """Why a text ended. ``detail``: the stop string or stop token id for "stop", a message for "error"."""

    reason: FinishReason
    detail: str | int | None = None


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens read and delivered. ``cached_tokens`` of the prompt came from the prefix cache."""

    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int = 0


@dataclass(frozen=True, slots=True)
class Step:
    """One pass of one sequence, the spine of the product: chunks, trace lines, metrics and frames render it.

    ``tokens`` are what was emitted, in order: the accepted nodes' tokens (``path``) and then the target's own,
    cut where the text ended. ``sources[i]`` names the drafter of ``tokens[i]``, or "target". ``text`` is the text
    that became certain with this step (characters and stop-string prefixes in doubt are held back).
    ``rows``: tokens this sequence fed. Times are milliseconds of this step; those of a shared pass are the whole
    pass's, and so are ``pass_rows``. ``at_ms``: when it ended, from the request's submission. ``odds``: None unless
    the engine was told to look (`Engine.alternatives`).
    """

    sequence: int
    choice: int
    index: int
    draft: Draft
    path: tuple[int, ...]
    tokens: tuple[int, ...]
    sources: tuple[str, ...]
    text: str
    logprobs: tuple[TokenLogprob, ...] | None = None
    finish: Finish | None = None
    rows: int = 0
    pass_rows: int = 0
    draft_ms: float = 0.0
    score_ms: float = 0.0
    verify_ms: float = 0.0
    overhead_ms: float = 0.0
    at_ms: float = 0.0
    odds: Odds | None = None

    @property
    def accepted(self) -> int:
        """Drafted tokens that were emitted."""
        return sum(source != TARGET for source in self.sources)
