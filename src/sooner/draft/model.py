"""A draft model: any model the store can import guesses for the target, in the target's tokens or by way of its text.

Knows the draft model and both vocabularies. Does not know the engine's sessions, and leaves files to ``open_model``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from sooner.draft.account import Account
from sooner.draft.levels import Job, Levels, Processors
from sooner.draft.options import at_least
from sooner.draft.translate import Translated
from sooner.draft.vocabulary import Pair, Same, first_difference, meaning, shared_tokens
from sooner.errors import DraftError
from sooner.protocols import Context, Encoding, Hearing, Target
from sooner.text import TextCodec
from sooner.types import EMPTY_DRAFT, Draft, Rows, Step

__all__ = ["ModelDrafter", "OpenModel"]

OpenModel = Callable[[str], tuple[Target, TextCodec]]
"""From a model's name or path to its target and tokenizer; `sooner.loading` offers one."""

_ROADS = ("auto", "same", "tokens", "text")


class Road(Protocol):
    """How guesses come about for one pair of vocabularies."""

    def propose(self, contexts: Sequence[Context], depths: Sequence[int]) -> list[Draft]:
        """One draft per context, at most so many of the target's tokens deep."""
        ...

    def observe(self, step: Step) -> None:
        """What a step kept."""
        ...

    def forget(self, id: int) -> None:
        """The sequence ended."""
        ...


class ModelDrafter:
    """Drafts with the model at ``path``, one pass of it per token of depth, all sequences side by side.

    ``max``: the longest path drafted; ``width``: most children per node, the first of which is followed (see
    `levels.Levels`). ``vocabulary``: "same" demands the target's, "tokens" drafts what both vocabularies share, "text"
    drafts freely and reads the text in the target's tokens, "auto" is same where it is the same, else whichever of the
    two the target accepts more of. ``thrifty``: draft only as deep as pays at the pace reached so far, and leave off
    where the model brings less beside the other drafters than its time is worth; else always ``max``. `DraftError` if
    the vocabularies cannot serve that way.
    """

    name = "model"

    def __init__(
        self,
        path: str,
        *,
        open_model: OpenModel,
        target: Target,
        codec: TextCodec,
        max: int = 4,
        width: int = 3,
        vocabulary: str = "auto",
        thrifty: bool = True,
        say: Callable[[str], None] = lambda message: None,
    ) -> None:
        if vocabulary not in _ROADS:
            raise DraftError(f"drafter option vocabulary must be one of {', '.join(_ROADS)}, not {vocabulary!r}")
        self._max = at_least(1, max=max)
        self._width = at_least(1, width=width)
        self._account = Account(self.name, self._max) if thrifty else None
        pair = Pair(target, codec, *open_model(path))
        _check_sources(target, pair.model)
        self._levels = Levels(pair.model, self.name)
        self._road, what = self._choose(vocabulary, pair)
        say(f"draft model {path}: {what}; context {pair.model.context} of the target's {target.context} tokens")
        if isinstance(target, Encoding) and isinstance(pair.model, Encoding):
            say(f"draft model {path}: {_encoder(target.share_encoder(pair.model))}")

    def reach(self, context: Context) -> float:
        """Tokens of the text that a draft of full depth foresees in the mean (see `cascade.Costly`)."""
        return self._account.reach(context) if self._account else float("inf")

    def propose(self, contexts: Sequence[Context]) -> list[Draft]:
        """A chain with siblings per context; nothing where that does not pay."""
        depths = self._account.depths(contexts) if self._account else [self._max] * len(contexts)
        asked = [context for context, depth in zip(contexts, depths, strict=True) if depth]
        drafts = self._road.propose(asked, [depth for depth in depths if depth]) if asked else []
        if self._account and asked:
            self._account.drafted(asked, drafts, self._levels.level_ms, self._levels.read_ms)
        found = iter(drafts)
        return [next(found) if depth else EMPTY_DRAFT for depth in depths]

    def observe(self, step: Step, rows: Rows) -> None:
        """Learn what was right and what it cost; the session is cut back to the kept tokens at the next proposal."""
        self._road.observe(step)
        if self._account:
            self._account.observe(step)

    def forget(self, id: int) -> None:
        """Close the sequence's session."""
        self._levels.forget(id)
        self._road.forget(id)
        if self._account:
            self._account.forget(id)

    def _choose(self, vocabulary: str, pair: Pair) -> tuple[Road, str]:
        at = first_difference(pair.ours, pair.theirs)
        if vocabulary == "same" and at is not None:
            raise DraftError(
                f"the draft model has another vocabulary: token {at} is {meaning(pair.ours, at)!r} in the target "
                f"and {meaning(pair.theirs, at)!r} in the draft; leave out vocabulary=same to have it translated"
            )
        if at is None and vocabulary in ("auto", "same"):
            return _SameRoad(self._levels, pair, self._width), "the target's vocabulary"
        if isinstance(pair.model, Encoding):
            raise DraftError(
                "a draft model with an encoder needs the target's vocabulary, and has another: use one of its own "
                "family, with vocabulary=same or auto"
            )
        pairs = shared_tokens(pair.ours, pair.theirs)
        shared = int((pairs >= 0).sum())
        if vocabulary == "tokens" and shared == 0:
            raise DraftError("the draft model shares no token with the target: use vocabulary=text or another model")
        where = "" if at is None else f", different from token {at} on"
        what = f"another vocabulary{where}; {shared} of the target's {pair.ours.vocab_size} tokens are shared"
        return Translated(self._levels, pair, pairs, width=self._width, road=vocabulary), what


def _check_sources(target: Target, draft: Target) -> None:
    """Raises `DraftError` for a draft model whose encoder reads what the target's texts do not begin with."""
    ours, theirs = (
        "sounds" if isinstance(one, Hearing) else "source texts" if isinstance(one, Encoding) else ""
        for one in (target, draft)
    )
    if theirs and theirs != ours:
        raise DraftError(f"the draft model has an encoder for {theirs} and the target takes none: use another one")


def _encoder(freed: int | None) -> str:
    if freed is None:
        return "its encoder is not the target's, so it reads sources by itself"
    return f"its encoder is the target's, which reads every source once for both; {freed / 2**20:.1f} MB are freed"


class _SameRoad:
    """The draft model reads and writes the target's tokens."""

    def __init__(self, levels: Levels, pair: Pair, width: int) -> None:
        self._levels = levels
        self._tongue = Same(pair.target.vocab_size, pair.model.vocab_size)
        self._processors = Processors(pair.target.vocab_size, pair.ours.eos_ids)
        self._eos_ids = pair.ours.eos_ids
        self._width = width
        self._hears = isinstance(pair.model, Hearing)
        self._context = pair.model.context

    def propose(self, contexts: Sequence[Context], depths: Sequence[int]) -> list[Draft]:
        return self._levels.propose([self._job(*asked) for asked in zip(contexts, depths, strict=True)])

    def observe(self, step: Step) -> None: ...

    def forget(self, id: int) -> None:
        self._processors.forget(id)

    def _job(self, context: Context, depth: int) -> Job:
        known, processor = self._tongue.known(context.tokens), self._processors.read(context)
        if self._hears:  # a text that it has no room for cannot be read through a window: the sound is in front
            known = [*context.sounds, *known]
            depth = depth if len(known) <= self._context else 0
        ends: frozenset[int] = frozenset() if context.sampling.ignore_eos else self._eos_ids
        return Job(context, known, self._tongue, processor, depth, self._width, ends)
