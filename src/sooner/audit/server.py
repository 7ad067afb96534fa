"""The audit of a server from outside: the same requests with and without speculation, compared and counted.

Knows askers, units of work and statistics. Does not know options, terminals or how findings are told.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from itertools import count
from typing import Any

from sooner.audit.asking import Asker, Reply
from sooner.audit.journal import Journal
from sooner.audit.law import FAMILY
from sooner.audit.parity import SAME, Parity, compare_replies
from sooner.audit.plan import Settings
from sooner.audit.report import Control
from sooner.audit.statistics import CountTest, homogeneity
from sooner.errors import SoonerError

__all__ = ["Compared", "ServerAudit", "ServerFindings"]

Told = Callable[[int, str], None]

_SHORT = 5
"""Tokens of an answer that is counted."""

_SAMPLES = ("first token", "first two", "third token", "third and fourth")
_TESTS = len(_SAMPLES)
_GIVEN_UP = 8
"""Requests in a row that fail before the server is given up."""


@dataclass(frozen=True, slots=True)
class Compared:
    """One request with and without speculation. ``repeats``: whether the plain answer came out the same twice, where
    that was tried."""

    temperature: float
    prompt: int
    seed: int
    parity: Parity | None
    failure: str = ""
    repeats: bool | None = None


@dataclass(slots=True)
class ServerFindings:
    """What was found, as far as it went. ``drafted_plain`` and ``drafted``: draft tokens that the server says it had
    without and with speculation; None where it does not say."""

    texts: list[Compared] = field(default_factory=list)
    tests: tuple[CountTest, ...] = ()
    samples: int = 0
    repeated: bool = False
    controls: list[Control] = field(default_factory=list)
    drafted_plain: int | None = None
    drafted: int | None = None
    coupled: bool = False
    logprobs: bool = False
    notes: dict[str, None] = field(default_factory=dict)

    def of(self, *, greedy: bool) -> list[Compared]:
        """The texts at temperature 0, or the others; failures left out."""
        return [one for one in self.texts if one.parity is not None and (one.temperature == 0) == greedy]

    @property
    def failures(self) -> list[str]:
        """Of requests that brought no answer."""
        return [one.failure for one in self.texts if one.parity is None]

    def repeats(self, *, greedy: bool) -> bool | None:
        """Whether the server gives the same answer twice without speculation; None where it was not tried."""
        tried = [one.repeats for one in self.of(greedy=greedy) if one.repeats is not None]
        return all(tried) if tried else None

    @property
    def tokens(self) -> int:
        """Units compared."""
        return sum(one.parity.units for one in self.texts if one.parity is not None)


class ServerAudit:
    """Asks ``plain`` and ``drafted`` (maybe one server told two things) the same. State and resumption as for a model.

    Raises `SoonerError` if the servers answer nothing at all.
    """

    def __init__(
        self, plain: Asker, drafted: Asker, settings: Settings, prompts: Sequence[Any], journal: Journal
    ) -> None:
        self.findings = ServerFindings()
        self._plain = plain
        self._drafted = drafted
        self._settings = settings
        self._prompts = prompts
        self._journal = journal

    @property
    def work(self) -> int:
        """Tokens to be asked for with speculation."""
        return self._settings.tokens + self._settings.draws * _SHORT

    def run(self, told: Told) -> ServerFindings:
        """All of it."""
        self._texts(told)
        if self._settings.draws and any(temperature > 0 for temperature in self._settings.temperatures):
            self._statistics(told)
        self.findings.notes |= self._plain.notes | self._drafted.notes
        return self.findings

    # -- texts -------------------------------------------------------------------------------------------------------

    def _texts(self, told: Told) -> None:
        settings, failing = self._settings, 0
        for number in count():
            for temperature in settings.temperatures:
                told(min(self.findings.tokens, settings.tokens), f"texts at temperature {temperature:g}")
                batch = settings.batches[number % len(settings.batches)]
                for record in self._unit(number, temperature, batch):
                    self._add(record)
                    failing = failing + 1 if record["parity"] is None else 0
                    if failing >= _GIVEN_UP:
                        self._give_up()
                        return
            if self.findings.tokens >= settings.tokens or number > 4 * settings.tokens:
                return

    def _unit(self, number: int, temperature: float, batch: int) -> list[dict[str, Any]]:
        key = f"text {number} {temperature:g}"
        found: list[dict[str, Any]] | None = self._journal.get(key)
        if found is None:
            found = list(self._compare(number, temperature, batch))
            self._journal.keep(key, found)
        return found

    def _compare(self, number: int, temperature: float, batch: int) -> Iterator[dict[str, Any]]:
        """Plain one after another; with speculation ``batch`` side by side."""
        group = self._settings.group
        cases = [((number * group + i) % len(self._prompts), number * group + i) for i in range(group)]

        def asked(asker: Asker, case: tuple[int, int]) -> Reply:
            seed = self._settings.seed + case[1]
            prompt = self._prompts[case[0]]
            return asker.ask(prompt, temperature=temperature, seed=seed, max_tokens=self._settings.length)

        plain = [asked(self._plain, case) for case in cases]
        again = [asked(self._plain, case) for case in cases[:2]] if number < 2 else []
        with ThreadPoolExecutor(batch) as pool:
            drafted = list(pool.map(lambda case: asked(self._drafted, case), cases))
        for i, (case, a, b) in enumerate(zip(cases, plain, drafted, strict=True)):
            failure = a.failure or b.failure
            repeats = None
            if i < len(again) and not (a.failure or again[i].failure):
                repeats = compare_replies(a, again[i]).kind == SAME
            yield {
                "temperature": temperature,
                "prompt": case[0],
                "seed": self._settings.seed + case[1],
                "parity": None if failure else asdict(compare_replies(a, b)),
                "failure": failure,
                "repeats": repeats,
                "drafted": [a.drafted, b.drafted],
                "coupled": b.coupled,
                "logprobs": bool(a.logprobs and b.logprobs),
            }

    def _add(self, record: dict[str, Any]) -> None:
        found = self.findings
        names = ("temperature", "prompt", "seed", "failure", "repeats")
        parity = record["parity"]
        found.texts.append(
            Compared(**{name: record[name] for name in names}, parity=parity and Parity.from_json(parity))
        )
        without, with_ = record["drafted"]
        found.drafted_plain = _plus(found.drafted_plain, without)
        found.drafted = _plus(found.drafted, with_)
        found.coupled = found.coupled or record["coupled"]
        found.logprobs = found.logprobs or record["logprobs"]

    def _give_up(self) -> None:
        if not any(one.parity is not None for one in self.findings.texts):
            raise SoonerError(f"nothing could be audited: {self.findings.failures[-1]}")
        self.findings.notes[f"given up after {_GIVEN_UP} failures in a row: {self.findings.failures[-1]}"] = None

    # -- statistics --------------------------------------------------------------------------------------------------

    def _statistics(self, told: Told) -> None:
        found, draws = self.findings, self._settings.draws
        plain, drafted = self._sample(told, 0, draws, self._plain), self._sample(told, 0, draws, self._drafted)
        found.tests, found.samples = self._tested(plain, drafted), min(len(plain), len(drafted))
        if any(test.rejected for test in found.tests):  # a suspicion is checked on fresh seeds
            plain = self._sample(told, draws, 2 * draws, self._plain)
            drafted = self._sample(told, draws, 2 * draws, self._drafted)
            found.tests, found.samples = self._tested(plain, drafted), min(len(plain), len(drafted))
            found.repeated = True
        if found.samples:
            found.controls += [self._biased(plain, drafted), self._other_seeds(plain)]

    def _sample(self, told: Told, first: int, draws: int, asker: Asker) -> list[tuple[str, ...]]:
        """The units of ``draws`` short answers to one prompt at temperature 1, one seed each. Both sides have seeds of
        their own: the same would make coupled answers equal, and the test say less than it seems to."""
        texts: list[tuple[str, ...]] = []
        side = 0 if asker is self._plain else 1
        wide = self._settings.group
        with ThreadPoolExecutor(wide) as pool:
            for at in range(first, first + draws, _BUNCH):
                done = self._settings.tokens + (at - first) * _SHORT // 2 + side * draws * _SHORT // 2
                told(min(done, self.work), "counting answers")
                key = f"sample {side} {at}"
                kept = self._journal.get(key)
                if kept is None:
                    seeds = [2**20 * (side + 1) + seed for seed in range(at, min(at + _BUNCH, first + draws))]
                    replies = pool.map(lambda seed: self._short(asker, seed), seeds)
                    kept = [list(reply.units[:_SHORT]) for reply in replies if not reply.failure]
                    self._journal.keep(key, kept)
                texts += [tuple(units) for units in kept if units]
        return texts

    def _short(self, asker: Asker, seed: int) -> Reply:
        return asker.ask(self._prompts[0], temperature=1.0, seed=seed, max_tokens=_SHORT)

    def _tested(self, plain: Sequence[tuple[str, ...]], drafted: Sequence[tuple[str, ...]]) -> tuple[CountTest, ...]:
        cuts = (slice(0, 1), slice(0, 2), slice(2, 3), slice(2, 4))
        return tuple(
            homogeneity(
                name, Counter(t[cut] for t in plain), Counter(t[cut] for t in drafted), alpha=FAMILY, among=_TESTS
            )
            for name, cut in zip(_SAMPLES, cuts, strict=True)
        )

    def _biased(self, plain: Sequence[tuple[str, ...]], drafted: Sequence[tuple[str, ...]]) -> Control:
        """A draft that wins too often, made from the answers: every second begins as the most frequent one does."""
        often = Counter(text[:2] for text in plain).most_common(1)[0][0]
        bent = [(*often, *text[2:]) if i % 2 == 0 else text for i, text in enumerate(drafted)]
        tests = self._tested(plain, bent)
        least = min(test.p for test in tests)
        return Control("answers bent towards a draft", any(test.rejected for test in tests), f"p {least:.1g}")

    def _other_seeds(self, plain: Sequence[tuple[str, ...]]) -> Control:
        """Other seeds must give other answers, else equal answers say nothing about seeds."""
        distinct = len(set(plain))
        return Control("other seeds", distinct > 1, f"{distinct} different beginnings in {len(plain)} answers")


_BUNCH = 20
"""Answers that a kill loses."""


def _plus(total: int | None, more: int | None) -> int | None:
    return total if more is None else (total or 0) + more
