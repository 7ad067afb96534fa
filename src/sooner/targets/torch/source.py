"""An encoder-decoder target: a text is its source, then the decoder's tokens; the first end token divides them.

Knows what of a session's tokens the encoder reads, and keeps what it made of recent sources. Does not know tensors.

So a source is part of the text's tokens: drafters copy from it, cached prefixes are found by it, and a draft model
with an encoder reads it, without anybody being told; one with the same encoder asks the target what it made of it.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from sooner.errors import ContextOverflow, InvalidRequest, TargetError
from sooner.protocols import Target
from sooner.targets.torch.cross import CrossRunner, Encoded
from sooner.targets.torch.memory import MemoryPlan
from sooner.targets.torch.session import TorchSession
from sooner.targets.torch.slots import common
from sooner.targets.torch.target import TorchTarget
from sooner.types import Rows, Source, Work

__all__ = ["SourceSession", "SourceTarget"]

_KEPT = 16


class SourceSession:
    """Holds a source, as soon as it is whole encoded, and behind it the decoder's tokens in a slot."""

    def __init__(self, owner: SourceTarget, salt: str) -> None:
        self.owner = owner
        self.salt = salt
        self.closed = False
        self.encoded: Encoded | None = None
        self.text: TorchSession | None = None
        self.length = 0
        self._tokens: list[int] = []

    @property
    def tokens(self) -> Sequence[int]:
        """Source and decoder's tokens; read-only, it grows and shrinks in place."""
        return self._tokens

    def begin(self, source: Sequence[int], encoded: Encoded, text: TorchSession) -> None:
        """The source is whole; ``text`` is where the decoder's tokens go."""
        self.encoded, self.text, self.length = encoded, text, len(source)
        self._tokens[:] = source
        self.refresh()

    def add_source(self, tokens: Sequence[int]) -> None:
        """More of a source that is not whole yet."""
        self._tokens += tokens

    def refresh(self) -> None:
        """Take over what the decoder's session holds."""
        if self.text is not None:
            self._tokens[self.length :] = self.text.tokens

    def settle(self, path: Sequence[int]) -> None:
        """Keep the draft nodes ``path`` of the last pass. Raises `TargetError` if it is no path of that draft."""
        if self.text is not None:
            self.text.settle(path)
            self.refresh()
        elif path:
            raise TargetError(f"{tuple(path)} is no path of a draft: nothing was scored behind the source yet")

    def sync(self, tokens: Sequence[int]) -> int:
        """Keep the common prefix with ``tokens``, cut the rest; returns its length."""
        n = common(self._tokens, tokens)
        if self.text is not None and n >= self.length:
            self.text.sync(tokens[self.length :])
        elif self.text is not None:
            self.text.close()
            self.text = self.encoded = None
            self.length = 0
        del self._tokens[n:]
        return n

    def close(self) -> None:
        """Give the slot back; the text stays findable until the slot is needed."""
        self.closed = True
        if self.text is not None:
            self.text.close()
        self.text = self.encoded = None
        self.length = 0
        self._tokens = []


@dataclass(slots=True)
class _Feed:
    """A work taken apart: its part of the source, and what the decoder reads behind it."""

    work: Work
    session: SourceSession
    source: tuple[int, ...]
    tokens: tuple[int, ...]
    encoded: Encoded | None
    text: TorchSession | None


class SourceTarget:
    """A `sooner.protocols.Target` with an encoder. ``decoder`` scores what is behind the sources; `end` ends a source
    of at most ``longest`` tokens, which ``encode`` reads. ``first`` are the decoder's first tokens, for messages;
    ``kept``: sources that stay encoded when no session holds them."""

    def __init__(
        self,
        decoder: TorchTarget,
        encode: Callable[[Sequence[int]], Encoded],
        *,
        end: int,
        first: int,
        longest: int,
        kept: int = _KEPT,
    ) -> None:
        assert isinstance(decoder.runner, CrossRunner)
        self.decoder = decoder
        self._runner = decoder.runner
        self._encode = encode
        self._end, self._first, self._longest = end, first, longest
        self._most = kept
        self._kept: OrderedDict[tuple[int, ...], Encoded] = OrderedDict()

    @property
    def vocab_size(self) -> int:
        """V, the length of a logits row."""
        return self.decoder.vocab_size

    @property
    def context(self) -> int:
        """The longest source, and the decoder's context behind it."""
        return self._longest + self.decoder.context

    @property
    def plan(self) -> MemoryPlan:
        """The decoder's memory."""
        return self.decoder.plan

    @property
    def fingerprint(self) -> Mapping[str, str]:
        """As `TorchTarget.fingerprint`."""
        return self.decoder.fingerprint

    @property
    def row_invariant(self) -> bool:
        """As `TorchTarget.row_invariant`."""
        return self.decoder.row_invariant

    @property
    def widths(self) -> tuple[int, ...]:
        """Row counts of ready-made passes."""
        return self.decoder.widths

    def source(self, prompt: Sequence[int]) -> Source:
        """What of ``prompt`` is its source. Raises `InvalidRequest` where a part is missing or too long."""
        n = self._whole(prompt)
        if n is None or n == len(prompt):
            raise InvalidRequest(
                f"the prompt lacks the decoder's part: give the source, its end (token {self._end}), and the decoder's "
                f"first token ({self._first})",
                "prompt",
            )
        if n > self._longest:
            raise ContextOverflow(
                f"the source has {n} tokens and the encoder reads {self._longest}: shorten the prompt", "prompt"
            )
        return Source(n, n + self.decoder.context)

    def share_encoder(self, draft: Target) -> int | None:
        """As `Encoding.share_encoder`."""
        if not isinstance(draft, SourceTarget) or not self._runner.shares(draft._runner):
            return None
        port, plan = draft._runner.port, draft.plan
        draft._encode = lambda source: port.entries(self._read(tuple(source)).states)
        freed = port.drop_encoder()
        draft.decoder.plan = replace(plan, weights=max(plan.weights - freed, 0))
        return freed

    def open(self, tokens: Sequence[int] = (), salt: str = "") -> SourceSession:
        """A session that holds the longest prefix of ``tokens`` found under ``salt``: a source that is still encoded,
        and what a slot holds of the decoder's tokens."""
        session = SourceSession(self, salt)
        n = self._whole(tokens)
        source = tuple(tokens[:n]) if n is not None else ()
        if source in self._kept:
            self._kept.move_to_end(source)
            text = self.decoder.open(tokens[len(source) :], _key(salt, source))
            session.begin(source, self._kept[source], text)
        return session

    def fits(self, works: Sequence[Work]) -> bool:
        """Whether every work's session has a slot, or there is a free one for it."""
        texts = [self._session(work).text for work in works]
        return sum(text is None or not text.placed for text in texts) <= self.decoder.slots.free

    def score(self, works: Sequence[Work]) -> list[Rows]:
        """Encode the sources that became whole, score the rest in one pass of the decoder. Raises `TargetError`; the
        sessions then hold what they held before."""
        sessions = [self._session(work) for work in works]
        if len(set(map(id, sessions))) < len(sessions):
            raise TargetError("two works of one pass share a session: score one after the other")
        if not self.fits(works):
            raise TargetError("the KV cache has no room for this pass: ask fits() first, or load with more slots")
        feeds = [self._feed(work, session) for work, session in zip(works, sessions, strict=True)]
        try:
            rows = iter(self._scored(feeds))
        except BaseException:
            for feed in feeds:
                if feed.text is not None and feed.session.text is None:
                    feed.text.close()
            raise
        return [self._taken(feed, next(rows) if feed.tokens else None) for feed in feeds]

    def _scored(self, feeds: Sequence[_Feed]) -> list[Rows]:
        works: list[Work] = []
        sources: dict[int, Encoded] = {}
        for feed in feeds:
            if feed.tokens:
                assert feed.text is not None
                assert feed.encoded is not None
                works.append(Work(feed.text, feed.tokens, feed.work.draft, feed.work.logits))
                sources[feed.text.slot()] = feed.encoded
        self._runner.sources = sources
        try:
            return self.decoder.score(works)
        finally:
            self._runner.sources = {}

    def _taken(self, feed: _Feed, rows: Rows | None) -> Rows:
        """Write a finished pass into the work's session."""
        session = feed.session
        if session.text is None and feed.text is not None:
            assert feed.encoded is not None
            session.begin((*session.tokens, *feed.source), feed.encoded, feed.text)
        elif session.text is None:
            session.add_source(feed.source)
        else:
            session.refresh()
        return rows if rows is not None else Rows(np.empty((0, self.vocab_size), dtype=np.float32))

    def _feed(self, work: Work, session: SourceSession) -> _Feed:
        if session.text is not None:
            return _Feed(work, session, (), work.tokens, session.encoded, session.text)
        held = session.tokens
        n = self._whole(work.tokens)
        source = work.tokens if n is None else work.tokens[:n]
        tokens = work.tokens[len(source) :]
        if len(held) + len(source) > self._longest:
            raise TargetError(f"a source is longer than the encoder's {self._longest} tokens: shorten it")
        if not tokens and (work.logits or len(work.draft)):
            raise TargetError("a work asks for rows of a source, which has none: feed the decoder's first token")
        if n is None:
            return _Feed(work, session, source, (), None, None)
        whole = (*held, *source)
        return _Feed(work, session, source, tokens, self._read(whole), self.decoder.open((), _key(session.salt, whole)))

    def _read(self, source: tuple[int, ...]) -> Encoded:
        encoded = self._kept.get(source)
        if encoded is None:
            encoded = self._encode(source)
        self._kept[source] = encoded
        self._kept.move_to_end(source)
        while len(self._kept) > self._most:
            self._kept.popitem(last=False)
        return encoded

    def _whole(self, tokens: Sequence[int]) -> int | None:
        """The length of the source that ``tokens`` begin with; None if its end is not among them."""
        try:
            return tokens.index(self._end) + 1
        except ValueError:
            return None

    def _session(self, work: Work) -> SourceSession:
        session = work.session
        if not isinstance(session, SourceSession) or session.owner is not self:
            raise TargetError("a work's session was not opened on this target: use target.open()")
        if session.closed:
            raise TargetError("a work's session is closed: open a new one")
        return session


def _key(salt: str, source: Sequence[int]) -> str:
    """Decoders' entries depend on the source: they are shared under equal ones only."""
    return f"{salt}\n{' '.join(map(str, source))}"
