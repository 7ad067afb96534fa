"""From a row of raw logits and a history to the distribution a token is drawn from.

The one place where temperature, truncation, penalties, bias, bans and log-probabilities are computed, for plain and
drafted decoding alike. Knows no draft tree, no cache and no text.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from sooner.errors import TargetError
from sooner.noise import Domain, exponentials, race, stream_key
from sooner.types import Logits, Probabilities, Sampling, TokenLogprob

__all__ = ["Processor", "RowLaw", "log_softmax", "top_logprobs"]

Ids = NDArray[np.uint64]


class RowLaw:
    """A processed distribution over token ids (`protocols.Law`): what the target would draw from at one row.

    Holds the surviving ids (ascending) and their tempered logits; everything else has probability zero.
    """

    __slots__ = ("_greedy", "_ids", "_key", "_logits", "_vocab_size")

    def __init__(self, ids: Ids, logits: Probabilities, vocab_size: int, key: int, *, greedy: bool) -> None:
        self._ids = ids
        self._logits = logits
        self._vocab_size = vocab_size
        self._key = key
        self._greedy = greedy

    @property
    def p(self) -> Probabilities:
        """``[V]``, summing to one; one-hot at temperature 0."""
        p = np.zeros(self._vocab_size)
        if self._greedy:
            p[self.draw()] = 1.0
            return p
        weights = np.exp(self._logits - self._logits.max())
        p[self._ids] = weights / weights.sum()
        return p

    def draw(self) -> int:
        """The coupled draw at this row's output position; the arg-max (ties: lowest id) at temperature 0."""
        if self._greedy:
            return int(self._ids[self._logits.argmax()])
        return int(self._ids[race(self._key, self._ids, self._logits)])


class _GreedyRow:
    """The law of an unprocessed row at temperature 0: its arg-max, without a copy of the row."""

    __slots__ = ("_row",)

    def __init__(self, row: Logits) -> None:
        self._row = row

    @property
    def p(self) -> Probabilities:
        p = np.zeros(len(self._row))
        p[self.draw()] = 1.0
        return p

    def draw(self) -> int:
        return int(self._row.argmax())


class Processor:
    """The logits processors of one sequence, with the state they need.

    ``eos_ids`` are banned until ``min_tokens`` tokens are out, together with ``sampling.stop_token_ids``.
    ``bad_words``: token sequences whose last token is banned where the others precede it.
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
    ) -> None:
        self.sampling = sampling
        self.seed = seed
        self.vocab_size = vocab_size
        self._ids: Ids = np.arange(vocab_size, dtype=np.uint64)
        self._prompt_ids = {t for t in prompt if 0 <= t < vocab_size} if sampling.repetition_penalty != 1.0 else set()
        self._ends = sorted(t for t in {*eos_ids, *sampling.stop_token_ids} if 0 <= t < vocab_size)
        self._bad_words = tuple(tuple(word) for word in bad_words if word)
        self._history: list[int] = list(prompt) if self._bad_words else []
        self._counts: Counter[int] = Counter()
        self._emitted = 0
        self._bias = _bias_arrays(sampling.logit_bias, vocab_size)
        self._penalised = (
            sampling.repetition_penalty != 1.0 or sampling.presence_penalty != 0.0 or sampling.frequency_penalty != 0.0
        )
        self._edits = bool(self._penalised or self._bad_words or sampling.logit_bias or sampling.min_tokens)

    def push(self, token: int) -> None:
        """Count one emitted token."""
        self._emitted += 1
        if self._penalised:
            self._counts[token] += 1
        if self._bad_words:
            self._history.append(token)

    def law(self, row: Logits, path: Sequence[int] = ()) -> RowLaw | _GreedyRow:
        """The law at the row after everything pushed and the draft tokens ``path``. ``row``: ``[V]`` raw logits.

        Raises `TargetError` if the row holds NaN or infinity: such a row has no arg-max to trust.
        """
        if not np.isfinite(row.max()):
            raise TargetError("the model's logits are not finite: the weights or the precision are at fault")
        greedy = self.sampling.temperature == 0.0
        if greedy and not self._edits:
            return _GreedyRow(row)
        logits = row.astype(np.float64)
        if self._edits:
            self._edit(logits, path)
        key = stream_key(self.seed, Domain.TARGET, self._emitted + len(path))
        if greedy:
            return RowLaw(self._ids, logits, self.vocab_size, key, greedy=True)
        logits /= self.sampling.temperature
        ids, logits = _truncate(self._ids, logits, self.sampling)
        return RowLaw(ids, logits, self.vocab_size, key, greedy=False)

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

    def _edit(self, logits: Probabilities, path: Sequence[int]) -> None:
        """Bias, bans and penalties, in place."""
        bias_ids, bias = self._bias
        logits[bias_ids] += bias
        if self._penalised:
            self._penalise(logits, path)
        banned = self._banned(path)
        if banned:
            before = logits[banned].copy()
            logits[banned] = -np.inf
            if not np.isfinite(logits).any():  # everything banned: a ban that leaves no token at all is void
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
        banned: list[int] = []
        if self._emitted + len(path) < self.sampling.min_tokens:
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


def _truncate(ids: Ids, logits: Probabilities, s: Sampling) -> tuple[Ids, Probabilities]:
    """Min-p, top-k, top-p and typical-p, in this order, each on what the one before left; at least one id survives."""
    if s.min_p > 0.0:
        ids, logits = _keep(ids, logits, logits >= logits.max() + np.log(s.min_p))
    if 0 < s.top_k < len(ids):
        threshold = np.partition(logits, len(ids) - s.top_k)[len(ids) - s.top_k]
        order = np.argsort(-logits[at := np.flatnonzero(logits >= threshold)], kind="stable")[: s.top_k]
        at = np.sort(at[order])
        ids, logits = ids[at], logits[at]
    if s.top_p < 1.0:
        ids, logits = _nucleus(ids, logits, s.top_p)
    if s.typical_p < 1.0:
        ids, logits = _typical(ids, logits, s.typical_p)
    return ids, logits


def _keep(ids: Ids, logits: Probabilities, mask: NDArray[np.bool_]) -> tuple[Ids, Probabilities]:
    return ids[mask], logits[mask]


def _nucleus(ids: Ids, logits: Probabilities, mass: float) -> tuple[Ids, Probabilities]:
    """The smallest set of likeliest tokens that holds ``mass`` (Holtzman et al. 1904.09751)."""
    p = np.exp(logits - logits.max())
    p /= p.sum()
    # Tokens below this lie in the cut tail whatever their order: together they hold less than 1 - mass.
    at = np.flatnonzero(p >= (1.0 - mass) / len(p))
    order = at[np.argsort(-p[at], kind="stable")]
    kept = order[: int(np.searchsorted(np.cumsum(p[order]), mass)) + 1]
    kept.sort()
    return ids[kept], logits[kept]


def _typical(ids: Ids, logits: Probabilities, mass: float) -> tuple[Ids, Probabilities]:
    """The tokens whose surprise is nearest the entropy, up to ``mass`` (Meister et al. 2202.00666)."""
    log_p = logits - logits.max()
    log_p -= np.log(np.exp(log_p).sum())
    p = np.exp(log_p)
    entropy = -float((p * np.where(p > 0, log_p, 0.0)).sum())
    order = np.argsort(np.abs(-log_p - entropy), kind="stable")
    kept = np.sort(order[: int(np.searchsorted(np.cumsum(p[order]), mass)) + 1])
    return ids[kept], logits[kept]


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
    count = min(count, len(logprobs))
    threshold = np.partition(logprobs, len(logprobs) - count)[len(logprobs) - count]
    at = np.flatnonzero(logprobs >= threshold)
    at = at[np.argsort(-logprobs[at], kind="stable")[:count]]
    return TokenLogprob(token, float(logprobs[token]), tuple((int(i), float(logprobs[i])) for i in at))
