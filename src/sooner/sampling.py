"""From a row of raw logits and a history to the distribution a token is drawn from.

The one place where temperature, truncation, penalties, bias, bans and log-probabilities are computed, for plain and
drafted decoding alike. Knows no draft tree, no cache and no text.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from sooner.errors import TargetError
from sooner.noise import Domain, exponentials, race, stream_key
from sooner.types import NO_BANS, Bans, Logits, Probabilities, Sampling, TokenLogprob

if TYPE_CHECKING:
    from sooner.protocols import Matcher

__all__ = ["Processor", "RowLaw", "log_softmax", "top_logprobs"]

Ids = NDArray[np.uint64]


class RowLaw:
    """A processed distribution over token ids (`protocols.Law`): what the target would draw from at one row.

    Holds the surviving ids (ascending, ``[n]``) and their logits; everything else has probability zero.
    ``temperature`` 0 is the arg-max of the logits, else p ~ exp(logits / temperature).
    """

    __slots__ = ("_ids", "_key", "_logits", "_temperature", "_vocab_size")

    def __init__(
        self, ids: Ids, logits: NDArray[np.floating], *, temperature: float, vocab_size: int, key: int
    ) -> None:
        self._ids = ids
        self._logits = logits
        self._temperature = temperature
        self._vocab_size = vocab_size
        self._key = key

    @property
    def p(self) -> Probabilities:
        """``[V]``, summing to one; one-hot at temperature 0."""
        p = np.zeros(self._vocab_size)
        if self._temperature == 0.0:
            p[self.draw()] = 1.0
            return p
        weights = np.exp((self._logits.astype(np.float64) - float(self._logits.max())) / self._temperature)
        p[self._ids] = weights / weights.sum()
        return p

    def draw(self) -> int:
        """The coupled draw at this row's output position; the arg-max (ties: lowest id) at temperature 0."""
        if self._temperature == 0.0:
            return int(self._ids[self._logits.argmax()])
        return int(self._ids[race(self._key, self._ids, self._logits, self._temperature)])

    def odds(self, tokens: Sequence[int], count: int, least: float) -> tuple[list[float], list[tuple[int, float]]]:
        """The chances of ``tokens``, and the ``count`` likeliest ids of at least ``least``, descending, with theirs.

        At temperature 0 they are those of temperature 1. In the logits' own precision: to be shown, not drawn from.
        """
        weights = np.exp((self._logits - self._logits.max()) / (self._temperature or 1.0))
        total = float(weights.sum(dtype=np.float64))
        at = np.searchsorted(self._ids, np.array(tokens, np.uint64))
        inside = np.minimum(at, len(self._ids) - 1)
        chances = np.where(self._ids[inside] == np.array(tokens, np.uint64), weights[inside] / total, 0.0)
        likely = np.flatnonzero(weights >= least * total)
        likely = likely[np.argsort(-weights[likely], kind="stable")[:count]]
        return [float(p) for p in chances], [(int(self._ids[i]), float(weights[i]) / total) for i in likely]

    def near(self, margin: float) -> tuple[Ids, Probabilities]:
        """The surviving ids within ``margin`` nats of the likeliest, ascending, with probabilities that sum to one.

        At temperature 0 the probabilities are those of temperature 1: how sure the arg-max is.
        """
        temperature = self._temperature or 1.0
        best = float(self._logits.max())
        head = np.flatnonzero(self._logits >= best - margin * temperature)
        weights = np.exp((self._logits[head].astype(np.float64) - best) / temperature)
        return self._ids[head], weights / weights.sum()


class Processor:
    """The logits processors of one sequence, with the state they need.

    ``eos_ids`` are banned until ``min_tokens`` tokens are out, together with ``sampling.stop_token_ids``.
    ``bad_words``: token sequences whose last token is banned where the others precede it. ``bans``: what the model does
    not write. ``matcher``: the grammar, which has the last word: penalties and truncation act on what it allows, and a
    ban of all of that is void.
    The state advances by `push` only, one emitted token at a time; the tokens of a draft path are passed to `law`.
    """

    def __init__(
        self,
        sampling: Sampling,
        *,
        vocab_size: int,
        seed: int,
        prompt: Sequence[int] = (),
        eos_ids: Iterable[int] = (),
        bad_words: Sequence[Sequence[int]] = (),
        bans: Bans = NO_BANS,
        matcher: Matcher | None = None,
    ) -> None:
        self.sampling = sampling
        self.matcher = matcher
        self.seed = seed
        self.vocab_size = vocab_size
        self._ids: Ids = np.arange(vocab_size, dtype=np.uint64)
        self._prompt_ids = {t for t in prompt if 0 <= t < vocab_size} if sampling.repetition_penalty != 1.0 else set()
        self._eos = sorted(eos_ids)
        self._ends = sorted(t for t in {*self._eos, *sampling.stop_token_ids} if 0 <= t < vocab_size)
        self._bad_words = tuple(tuple(word) for word in bad_words if word)
        self._history: list[int] = list(prompt) if self._bad_words else []
        self.bans = bans
        self._counts: Counter[int] = Counter()
        self._emitted = 0
        self._bias = _bias_arrays(sampling.logit_bias, vocab_size)
        self._penalised = (
            sampling.repetition_penalty != 1.0 or sampling.presence_penalty != 0.0 or sampling.frequency_penalty != 0.0
        )
        banned = self._bad_words or bans.never or bans.first or sampling.min_tokens
        self._edits = bool(self._penalised or banned or sampling.logit_bias)

    def push(self, token: int) -> None:
        """Count one emitted token."""
        self._emitted += 1
        if self._penalised:
            self._counts[token] += 1
        if self._bad_words:
            self._history.append(token)
        if self.matcher is not None:
            self.matcher.push(token)

    def law(self, row: Logits, path: Sequence[int] = ()) -> RowLaw:
        """The law at the row after everything pushed and the draft tokens ``path``. ``row``: ``[V]`` raw logits.

        The row is read, not copied, where nothing edits it. Raises `TargetError` if it holds NaN or infinity: such a
        row has no arg-max to trust.
        """
        if not np.isfinite(row.max()):
            raise TargetError("the model's logits are not finite: the weights or the precision are at fault")
        ids: Ids = self._ids
        logits: NDArray[np.floating] = row
        allowed = None if self.matcher is None else self._allowed(self.matcher, path)
        if self._edits:
            edited = row.astype(np.float64)
            self._edit(edited, path, allowed)
            logits = edited
        if allowed is not None:
            ids, logits = allowed, logits[allowed]
        temperature = self.sampling.temperature
        if temperature > 0.0:
            ids, logits = _truncate(ids, logits, self.sampling)
        key = stream_key(self.seed, Domain.TARGET, self._emitted + len(path))
        return RowLaw(ids, logits, temperature=temperature, vocab_size=self.vocab_size, key=key)

    def noise(self, position: int, ids: Sequence[int]) -> Probabilities:
        """The exponential noise E of the coupled draw at output position ``position`` for ``ids``."""
        return exponentials(stream_key(self.seed, Domain.TARGET, position), ids)

    def logprob(self, row: Logits, token: int, path: Sequence[int] = ()) -> TokenLogprob:
        """The log-probability of ``token`` at ``row`` and of the top ones, as the sampling parameters ask."""
        count = self.sampling.logprobs or 0
        if self.sampling.logprobs_mode == "raw":
            return top_logprobs(log_softmax(row), token, count)
        with np.errstate(divide="ignore"):
            return top_logprobs(np.log(self.law(row, path).p), token, count)

    def _allowed(self, matcher: Matcher, path: Sequence[int]) -> Ids:
        """What the grammar allows; with ``ignore_eos`` an end only where nothing else is."""
        ids = matcher.allowed(path)
        if self.sampling.ignore_eos:
            others = ids[~np.isin(ids, self._eos)]
            ids = others if len(others) else ids
        return ids

    def _edit(self, logits: Probabilities, path: Sequence[int], allowed: Ids | None) -> None:
        """Bias, bans and penalties, in place."""
        bias_ids, bias = self._bias
        logits[bias_ids] += bias
        if self._penalised:
            self._penalise(logits, path)
        banned = self._banned(path)
        if banned:
            before = logits[banned].copy()
            logits[banned] = -np.inf
            left = logits if allowed is None else logits[allowed]
            if not np.isfinite(left).any():  # everything banned: a ban that leaves no token at all is void
                logits[banned] = before

    def _penalise(self, logits: Probabilities, path: Sequence[int]) -> None:
        s = self.sampling
        counts = self._counts
        if path:
            counts = counts + Counter(path)
        if s.repetition_penalty != 1.0:
            seen = np.fromiter(self._prompt_ids.union(counts), dtype=np.int64)
            values = logits[seen]
            logits[seen] = np.where(values > 0, values / s.repetition_penalty, values * s.repetition_penalty)
        if counts and (s.presence_penalty or s.frequency_penalty):
            ids = np.fromiter(counts.keys(), dtype=np.int64, count=len(counts))
            times = np.fromiter(counts.values(), dtype=np.float64, count=len(counts))
            logits[ids] -= s.presence_penalty + s.frequency_penalty * times

    def _banned(self, path: Sequence[int]) -> list[int]:
        banned = list(self.bans.never)
        at = self._emitted + len(path)
        if at == 0:
            banned += self.bans.first
        if at < self.sampling.min_tokens:
            banned += self._ends
        for word in self._bad_words:
            head = word[:-1]
            if not head or _tail(self._history, path, len(head)) == head:
                banned.append(word[-1])
        return banned


def _tail(history: Sequence[int], path: Sequence[int], n: int) -> tuple[int, ...]:
    """The last n tokens of ``history + path``."""
    return tuple(path[-n:]) if len(path) >= n else (*history[len(history) - (n - len(path)) :], *path)


def _bias_arrays(bias: Mapping[int, float], vocab_size: int) -> tuple[NDArray[np.int64], Probabilities]:
    inside = {k: v for k, v in bias.items() if k < vocab_size}
    return np.array(list(inside), dtype=np.int64), np.array(list(inside.values()), dtype=np.float64)


def _truncate(ids: Ids, logits: NDArray[np.floating], s: Sampling) -> tuple[Ids, NDArray[np.floating]]:
    """Min-p, top-k, top-p and typical-p, in this order, each on what the one before left; at least one id survives.

    All of them judge p ~ exp(logits / temperature); the logits themselves are passed on as they are.
    """
    if s.min_p > 0.0:
        kept = np.flatnonzero(logits >= logits.max() + s.temperature * np.log(s.min_p))
        ids, logits = ids[kept], logits[kept]
    if 0 < s.top_k < len(ids):
        kept = _highest(logits, s.top_k)
        ids, logits = ids[kept], logits[kept]
    if s.top_p < 1.0:
        kept = _nucleus(logits, s.temperature, s.top_p)
        ids, logits = ids[kept], logits[kept]
    if s.typical_p < 1.0:
        kept = _typical(logits, s.temperature, s.typical_p)
        ids, logits = ids[kept], logits[kept]
    return ids, logits


Indices = NDArray[np.intp]


def _highest(values: NDArray[np.floating], count: int) -> Indices:
    """The ascending indices of the ``count`` highest values; among equal ones the lowest indices."""
    threshold = np.partition(values, len(values) - count)[len(values) - count]
    at = np.flatnonzero(values >= threshold)
    return np.sort(at[np.argsort(-values[at], kind="stable")[:count]])


_BLOCK = 8192
"""Exponentials summed at a time: larger temporaries cost more than the arithmetic."""


def _total(logits: NDArray[np.floating], temperature: float) -> float:
    """The sum of exp((logits - max) / temperature), in float64."""
    best = float(logits.max())
    blocks = (logits[i : i + _BLOCK].astype(np.float64) for i in range(0, len(logits), _BLOCK))
    return float(sum(np.exp((block - best) / temperature).sum() for block in blocks))


def _nucleus(logits: NDArray[np.floating], temperature: float, mass: float) -> Indices:
    """The smallest set of likeliest tokens that holds ``mass`` (Holtzman et al. 1904.09751)."""
    total = _total(logits, temperature)
    best = float(logits.max())
    # Tokens below this lie in the cut tail whatever their order: together they hold less than 1 - mass.
    least = (1.0 - mass) / len(logits) * total
    at = np.flatnonzero(logits >= best + temperature * np.log(least) - 1e-3)
    p = np.exp((logits[at].astype(np.float64) - best) / temperature) / total
    order = np.argsort(-p, kind="stable")
    return np.sort(at[order[: int(np.searchsorted(np.cumsum(p[order]), mass)) + 1]])


def _typical(logits: NDArray[np.floating], temperature: float, mass: float) -> Indices:
    """The tokens whose surprise is nearest the entropy, up to ``mass`` (Meister et al. 2202.00666)."""
    log_p = (logits.astype(np.float64) - float(logits.max())) / temperature
    log_p -= np.log(np.exp(log_p).sum())
    p = np.exp(log_p)
    entropy = -float((p * np.where(p > 0, log_p, 0.0)).sum())
    order = np.argsort(np.abs(-log_p - entropy), kind="stable")
    return np.sort(order[: int(np.searchsorted(np.cumsum(p[order]), mass)) + 1])


def log_softmax(row: Logits) -> Probabilities:
    """Natural-log probabilities of a raw row in float64, a fixed sequence of operations on the row's bits."""
    x = row.astype(np.float64)
    x -= x.max()
    x -= np.log(np.exp(x).sum())
    return x


def top_logprobs(logprobs: Probabilities, token: int, count: int) -> TokenLogprob:
    """The chosen token's log-probability and the ``count`` highest, ties by lowest id."""
    if count <= 0:
        return TokenLogprob(token, float(logprobs[token]))
    at = _highest(logprobs, min(count, len(logprobs)))
    at = at[np.argsort(-logprobs[at], kind="stable")]
    return TokenLogprob(token, float(logprobs[token]), tuple((int(i), float(logprobs[i])) for i in at))
