"""Whether a drafter whose guesses take time brings more, beside cheaper ones, than the time would have brought anyway.

Knows tokens and milliseconds. Does not know models. (Goodput, Liu et al. 2406.14066; the starvation of what is never
tried again is avoided by trials.)
"""

from __future__ import annotations

__all__ = ["Credit"]

_DECAY = 0.98
_TRIAL = 6
"""Drafted steps in a row before the first judgement, and in each trial afterwards."""

_STALE = 0.25
"""What earlier observations weigh when a new trial begins."""

_FIRST_PAUSE, _LONGEST_PAUSE = 32, 512
"""Proposals without drafting between two trials; it doubles while they fail."""


class Credit:
    """Compares the tokens that came from the drafter alone, per millisecond that it took, with the pace of all steps.

    A token is credited to the drafter that is named as its source; a cascade names the first one that had it, so a
    draft model that stands last is credited with what no other knew. Counted per sequence and step, a pass of several
    sequences is judged as a whole.
    """

    def __init__(self) -> None:
        self._own_tokens = self._own_ms = 0.0
        self._tokens = self._ms = 0.0
        self._trial = _TRIAL
        self._pause, self._waited = _FIRST_PAUSE, 0

    def ask(self) -> bool:
        """Whether to draft at the coming proposal."""
        if self._trial > 0:
            return True
        if self.pays:
            self._pause, self._waited = _FIRST_PAUSE, 0
            return True
        self._waited += 1
        if self._waited < self._pause:
            return False
        self._pause, self._waited = min(2 * self._pause, _LONGEST_PAUSE), 0
        self._trial = _TRIAL
        self._own_tokens, self._own_ms = _STALE * self._own_tokens, _STALE * self._own_ms
        return True

    @property
    def pays(self) -> bool:
        """Whether it brought as much per millisecond as the text grew by anyway."""
        return self._own_tokens * self._ms >= self._tokens * self._own_ms

    def learn(self, own_tokens: int, own_ms: float) -> None:
        """One sequence that was drafted for emitted ``own_tokens`` of the drafter's; the proposal took ``own_ms``."""
        self._trial = max(0, self._trial - 1)
        self._own_tokens = _DECAY * self._own_tokens + own_tokens
        self._own_ms = _DECAY * self._own_ms + own_ms

    def passed(self, tokens: int, ms: float) -> None:
        """A step of one sequence emitted ``tokens`` in ``ms``, whoever drafted."""
        self._tokens = _DECAY * self._tokens + tokens
        self._ms = _DECAY * self._ms + ms
