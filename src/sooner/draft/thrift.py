"""How deep a model's draft is worth going: measured acceptance against measured time, at the pace reached so far.

Knows milliseconds and counts. Does not know tokens or models. (Goodput, Liu et al. 2406.14066, for one drafter.)
"""

from __future__ import annotations

__all__ = ["Thrift"]

_DECAY = 0.98
"""What an observation weighs one observation later."""

_PRIOR = (3.2, 4.0)
"""Hits and trials assumed before there are any, so that a drafter gets its chance."""

_ROW = 0.03
"""What one more row to verify costs, in passes."""

_FIRST = 3
"""Proposals of one token each to begin with; the quickest counts, since the very first may have to warm up."""

_FIRST_PAUSE, _LONGEST_PAUSE = 16, 256
"""Proposals without a draft between two trials of a drafter that does not pay."""


class Thrift:
    """Decides the depth of drafts whose every level costs a pass of a model; ``most`` bounds it.

    The i-th level yields a ** i tokens in the mean, where a is how often a level was right, and is worth drafting while
    that is more than what the text would have grown by in the time it takes. Where not even the first is worth it,
    nothing is drafted but a single token now and then, ever more rarely, to see whether that has changed.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._hits, self._trials = _PRIOR
        self._tokens = 0.0
        self._ms = 0.0
        self._pass_ms = 0.0
        self._level_ms: float | None = None
        self._proposals = 0
        self._pause = _FIRST_PAUSE
        self._waited = 0

    @property
    def acceptance(self) -> float:
        """How often a level was right, given that those above it were."""
        return self._hits / self._trials

    @property
    def reach(self) -> float:
        """Tokens that the deepest draft foresees in the mean."""
        return sum(self.acceptance**level for level in range(1, self._most + 1))

    def depth(self) -> int:
        """Levels for the coming proposal; 0 = draft nothing."""
        worth = self._worth()
        if worth:
            self._pause, self._waited = _FIRST_PAUSE, 0
            return worth
        self._waited += 1
        if self._waited < self._pause:
            return 0
        self._pause, self._waited = min(2 * self._pause, _LONGEST_PAUSE), 0
        return 1

    def drafted(self, levels: int, ms: float) -> None:
        """A proposal of ``levels`` levels took ``ms``."""
        if not levels:
            return
        each = ms / levels
        self._proposals += 1
        if self._level_ms is None or self._proposals <= _FIRST:
            self._level_ms = min(each, self._level_ms or each)
        else:
            self._level_ms += 0.1 * (min(each, 3.0 * self._level_ms) - self._level_ms)

    def learn(self, hits: int, trials: int) -> None:
        """Of ``trials`` levels that followed right ones, ``hits`` were right."""
        self._hits = _DECAY * self._hits + hits
        self._trials = _DECAY * self._trials + trials

    def passed(self, tokens: int, ms: float, score_ms: float) -> None:
        """A step of one sequence brought ``tokens`` tokens in ``ms``, ``score_ms`` of them in the target's pass."""
        self._tokens = _DECAY * self._tokens + tokens
        self._ms = _DECAY * self._ms + ms
        self._pass_ms = score_ms if not self._pass_ms else 0.95 * self._pass_ms + 0.05 * score_ms

    def _worth(self) -> int:
        if self._level_ms is None or self._proposals < _FIRST or not self._ms:
            return 1  # the first drafts tell what drafts cost
        price = self._tokens / self._ms * (self._level_ms + _ROW * self._pass_ms)
        depth, gain = 0, self.acceptance
        while depth < self._most and gain > price:
            depth += 1
            gain *= self.acceptance
        return depth
