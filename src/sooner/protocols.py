"""The contracts between the parts. A class that fits one needs no import from here.

Knows who may know what. Does not know any implementation.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from sooner.types import NO_BANS, Bans, Draft, Probabilities, Rows, Sampling, Source, Step, Verdict, Work

if TYPE_CHECKING:
    from sooner.waves import Sound

__all__ = [
    "Coins",
    "Constraint",
    "Context",
    "Controller",
    "Drafter",
    "Encoding",
    "Hearing",
    "Law",
    "Matcher",
    "Seeing",
    "Session",
    "Target",
    "Verifier",
]


class Session(Protocol):
    """One sequence's place in a target's cache. Owns blocks and tokens, knows nothing of text or sampling.

    Law: the cache is a pure function of ``tokens``; a fresh session over the same tokens scores the same rows.
    """

    @property
    def tokens(self) -> Sequence[int]:
        """What the cache holds, without pending draft nodes."""
        ...

    def settle(self, path: Sequence[int]) -> None:
        """Keep the draft nodes ``path`` (root downwards) of the last scored `Work` and drop its other nodes."""
        ...

    def sync(self, tokens: Sequence[int]) -> int:
        """Keep the common prefix with ``tokens``, cut the rest; returns its length. The only rollback there is."""
        ...

    def close(self) -> None:
        """Free every block. Calling it again does nothing."""
        ...


class Target(Protocol):
    """A model that scores tokens: weights, cache, device. Knows nothing of sampling, drafting or text.

    How a draft tree is laid out in a pass (mask, sibling chains, one chain after another) is its own business.
    """

    @property
    def vocab_size(self) -> int:
        """V, the length of a logits row (it may exceed the tokenizer's vocabulary)."""
        ...

    @property
    def context(self) -> int:
        """The most tokens one session can hold, prompt and answer together."""
        ...

    @property
    def fingerprint(self) -> Mapping[str, str]:
        """All that the bits of a row depend on: model hash, engine version, processor features, precisions."""
        ...

    @property
    def row_invariant(self) -> bool:
        """Whether a row is the same bits however it is scored: alone, in a chain, in a tree, in a batch."""
        ...

    @property
    def widths(self) -> Sequence[int]:
        """Row counts for which passes are ready-made at the moment, ascending: a pass is padded up to the next, and
        changing between them costs nothing. None where that makes no difference."""
        ...

    def open(self, tokens: Sequence[int] = (), salt: str = "") -> Session:
        """A session that holds the longest prefix of ``tokens`` found in the cache under ``salt`` (maybe none)."""
        ...

    def fits(self, works: Sequence[Work]) -> bool:
        """Whether the cache has room for one pass over ``works``. One plain work alone always fits."""
        ...

    def score(self, works: Sequence[Work]) -> list[Rows]:
        """Score all works in one pass; the i-th result belongs to ``works[i]``.

        Afterwards each session's tokens include its work's ``tokens``; its draft nodes are pending until `settle`
        (an unsettled session drops them at its next pass).
        """
        ...


@runtime_checkable
class Encoding(Protocol):
    """What a target with an encoder offers besides: its texts begin with the source, which the encoder reads whole.

    The source is part of a session's tokens, so that drafters copy from it and cached prefixes are found by it.
    """

    @property
    def decoder(self) -> Target:
        """Scores texts without a source, behind a stand-in: what passes cost is measured there."""
        ...

    def source(self, prompt: Sequence[int]) -> Source:
        """What of ``prompt`` is its source. Raises `InvalidRequest` where a part is missing or too long."""
        ...

    def share_encoder(self, draft: Target) -> int | None:
        """Let ``draft``, a model that drafts for this target, read sources by this target's encoder if its own is the
        same: a source is then encoded once for both. The bytes that frees; None where it keeps its own."""
        ...


@runtime_checkable
class Seeing(Protocol):
    """What a target that looks at pictures offers besides: their tokens, each a `sooner.pictures.PictureToken`."""

    @property
    def context(self) -> int:
        """As `Target.context`."""
        ...

    @property
    def picture_mark(self) -> int:
        """The token by which a text says that a picture belongs there."""
        ...

    def see(self, picture: bytes) -> list[int]:
        """The tokens of a picture file, those around it that are text included; it is encoded now, once. Raises
        `InvalidRequest` for what is no picture or too large, `TargetError` where encoding fails."""
        ...

    def check_pictures(self, prompt: Sequence[int]) -> None:
        """Raises `InvalidRequest` for a mark without a picture, and for another target's picture."""
        ...


@runtime_checkable
class Hearing(Protocol):
    """What a target that writes down sounds offers besides: their tokens, each a `sooner.sounds.SoundToken`."""

    def hear(
        self, sound: Sound, language: str | None = None, task: str | None = None, before: Sequence[int] = ()
    ) -> list[int]:
        """The token of a sound, which is encoded now, once, and behind it those that the decoder begins with.

        ``language`` and ``task``: as the model's settings name them; None leaves the choice to these, or to what is
        heard. ``before``: what was said before it. Raises `InvalidRequest` for what the model does not have and for a
        sound that is too long, `TargetError` where encoding fails.
        """
        ...


class Law(Protocol):
    """The target's processed distribution at one row: what plain decoding would sample from there."""

    @property
    def p(self) -> Probabilities:
        """``[V]``, processed (penalties, temperature, truncation), summing to one; one-hot at temperature 0."""
        ...

    def draw(self) -> int:
        """The target's own token at this row: the coupled draw at its output position (arg-max at temperature 0)."""
        ...


class Coins(Protocol):
    """A source of independent randomness for one step: never the noise of the coupled draw."""

    def accept(self, numerator: float, denominator: float = 1.0) -> bool:
        """True with probability ``min(1, numerator / denominator)``: ``U * denominator < numerator``, strictly."""
        ...

    def draw(self, weights: Probabilities) -> int:
        """An index with probability proportional to ``weights`` (non-negative, not all zero)."""
        ...


class Verifier(Protocol):
    """Decides what of a draft is kept. A pure function of draft, rows and randomness; knows no model and no time."""

    @property
    def name(self) -> str:
        """The name users choose it by."""
        ...

    @property
    def lossless(self) -> bool:
        """Whether the output follows the target's processed distribution exactly."""
        ...

    def verify(self, draft: Draft, law: Callable[[int], Law], coins: Coins) -> Verdict:
        """``law(node)`` gives the row below ``node`` (`ROOT` for the root's own); it is computed on first use."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Context:
    """What a drafter may look at when it proposes for one sequence.

    ``id`` names the sequence for as long as it lives. ``tokens`` is prompt and output, the last is the draft's
    root; read-only, it grows in place, so a drafter remembers lengths, not copies. ``budget`` is the most nodes
    wanted. ``noise(position, ids)`` is the target's own exponential noise E for output position ``position`` (the
    root's row draws ``position = len(tokens) - prompt_length``) under the coupled rule at temperature > 0, else
    None: ranking candidates by E/q then agrees with the target more often. ``coins`` is set when the verifier is a
    ratio rule that profits from sampled drafts; it is independent of the verifier's own. ``salt``: what was learned
    from a sequence must not be proposed to one of another salt. ``sounds``: the tokens of sounds that ``tokens`` stand
    behind (`sooner.sounds.SoundToken`), for a model that listens. ``bans``: what the target does not write.
    """

    id: int
    tokens: Sequence[int]
    prompt_length: int
    budget: int
    sampling: Sampling
    expected: Sequence[int] = ()
    noise: Callable[[int, Sequence[int]], Probabilities] | None = None
    coins: Coins | None = None
    salt: str = ""
    sounds: Sequence[int] = ()
    bans: Bans = NO_BANS


class Drafter(Protocol):
    """Guesses ahead. May be wrong, must be cheap; whatever it proposes, it cannot change the output.

    Knows the token history, its own model or index. Does not know the target's cache, sampling or stop rules.
    """

    @property
    def name(self) -> str:
        """The name shown as a token's source."""
        ...

    def propose(self, contexts: Sequence[Context]) -> list[Draft]:
        """One draft per context, each of at most ``budget`` nodes; an empty draft is always allowed."""
        ...

    def observe(self, step: Step, rows: Rows) -> None:
        """Learn from what a step of sequence ``step.sequence`` kept; ``rows`` are those the target scored."""
        ...

    def forget(self, id: int) -> None:
        """The sequence ended: drop what was kept for it."""
        ...


class Controller(Protocol):
    """Decides what drafting is worth. Knows costs and yields, never tokens or text. Zero is always a choice."""

    def budgets(self, contexts: Sequence[Context]) -> list[int]:
        """The most draft nodes worth asking a drafter for, per sequence of the coming pass; 0 asks for none."""
        ...

    def select(self, contexts: Sequence[Context], drafts: Sequence[Draft]) -> list[Draft]:
        """What of the drafts to score; nodes below a sampled parent are kept or dropped by shape alone.

        What a grammar forces is among them even where no drafter was asked: it is certain and costs no guess.
        """
        ...

    def observe(self, step: Step) -> None:
        """Learn from a finished step. Feedback flows this way only."""
        ...


class Constraint(Protocol):
    """A grammar that texts must follow. Compiled once, immutable, shared by any number of texts; knows no drafts."""

    @property
    def kind(self) -> str:
        """What it was compiled from: json_object, json_schema, regex or grammar."""
        ...

    @property
    def source(self) -> str:
        """The text it was compiled from."""
        ...

    def open(self) -> Matcher:
        """A matcher at the beginning of a text."""
        ...


class Matcher(Protocol):
    """Where one text stands in its grammar: a pure function of the tokens pushed.

    ``path`` is what a draft adds to them; looking along a path leaves no trace. After an end-of-text token, and below
    a token that the grammar forbids, nothing but the end is allowed.
    """

    @property
    def ended(self) -> bool:
        """Whether nothing but the end of the text is allowed next. Raises `InvalidRequest` where not even that is."""
        ...

    def push(self, token: int) -> None:
        """Advance by one emitted token. Raises `InvalidRequest` if the grammar forbids it."""
        ...

    def allowed(self, path: Sequence[int] = ()) -> NDArray[np.uint64]:
        """The ids that may come next, ascending, never none; the end-of-text tokens where the text may end."""
        ...

    def permits(self, token: int, path: Sequence[int] = ()) -> bool:
        """Whether ``token`` may come next, as `allowed` says, but cheaper. Never raises."""
        ...

    def forced(self, path: Sequence[int] = ()) -> tuple[int, ...]:
        """The tokens that come next without an alternative; maybe none, never an end of text. Never raises."""
        ...
