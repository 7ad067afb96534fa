"""Whether a verification rule keeps the model's distribution: by enumeration on toys, by statistics on the model.

Knows rules, coins and how to drive one sequence with any verifier. Does not know requests, batches or how a finding
is told. Every finding stands beside a rule that is biased on purpose and must be caught.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from sooner import tree
from sooner.audit.controls import PlainResidual, UncappedRatio
from sooner.audit.exact import (
    Drafting,
    Shape,
    Tokens,
    chain_shape,
    chained_steps,
    random_model,
    sampler,
    total_variation,
)
from sooner.audit.statistics import Cells, CountTest, goodness
from sooner.protocols import Session, Target, Verifier
from sooner.sampling import Processor
from sooner.sequence import Sequence as Choice
from sooner.text import Detokenizer
from sooner.types import EMPTY_DRAFT, Draft, Logits, Probabilities, Request, Rows, Sampling, Work
from sooner.verify import create_verifier

__all__ = [
    "CONTROLS",
    "FAMILY",
    "SAMPLED_CONTROL",
    "SHAPES",
    "Draws",
    "ExactLaw",
    "RememberedRows",
    "RuleFinding",
    "check_rule",
    "exact_laws",
]

SHAPES: Mapping[str, Shape] = {"chain": chain_shape(2), "tree": (((),), ())}
"""Drafts of two tokens one after another, and of two that exclude each other, the first with one below."""

CONTROLS: Mapping[str, Callable[[], Verifier]] = {"plain residual": PlainResidual, "uncapped ratio": UncappedRatio}
"""Rules that shipped somewhere and are biased."""

SAMPLED_CONTROL = "lenience:lenience=0.1", "tree"
"""The rule that texts must show to be biased, a lossy one, and the shape of its drafts."""

FAMILY = 0.01
"""The chance that all tests of an audit together see a difference where there is none."""

_EXACT = 1e-12
_TELLING = 1e-3


@dataclass(frozen=True, slots=True)
class ExactLaw:
    """The total variation between what ``rule`` emits over two steps and the target's own law, every coin enumerated.
    ``biased`` rules are controls."""

    rule: str
    shape: str
    distance: float
    biased: bool = False

    @property
    def as_it_should_be(self) -> bool:
        """Exact to rounding, or, for a control, clearly not."""
        return self.distance > _TELLING if self.biased else self.distance < _EXACT


def exact_laws(rules: Sequence[str]) -> list[ExactLaw]:
    """Enumerate ``rules`` (ratio rules) and the biased ones on random models over three tokens."""
    found = []
    model, q = random_model(21, 3), random_model(22, 3)
    for name, shape in SHAPES.items():
        for rule in rules:
            law = chained_steps(create_verifier(rule), model, sampler(q, shape))
            found.append(ExactLaw(rule, name, total_variation(law, model, 3)))
    for name, make in CONTROLS.items():
        law = chained_steps(make(), model, sampler(q, SHAPES["chain"]), steps=1)
        found.append(ExactLaw(name, "chain", total_variation(law, model, 3), biased=True))
    return found


class RememberedRows:
    """A target's rows below ``prompt``, each scored once and then remembered, over the tokens that are likeliest there.

    Thousands of short texts then need few passes, and rows of a few hundred tokens instead of the whole vocabulary. A
    text is numbered within ``ids`` (ascending token ids, at most `_WORDS`), and begins with one 0 for the whole prompt.
    Holds a session of its own; `close` it.
    """

    def __init__(self, target: Target, prompt: Sequence[int]) -> None:
        self._target = target
        self._prompt = tuple(prompt)
        self._session = target.open(salt="sooner.audit.law")
        self._rows: dict[Tokens, Logits] = {}
        head = self._prompt[:-1]
        self._session.sync(head)
        for at in range(len(self._session.tokens), len(head), _CHUNK):
            target.score([Work(self._session, head[at : at + _CHUNK], logits=False)])
        self.ids = self._likeliest() if target.vocab_size > _WORDS else np.arange(target.vocab_size)

    @property
    def vocab_size(self) -> int:
        """V, the length of a row here."""
        return len(self.ids)

    def close(self) -> None:
        """Free the session's cache."""
        self._session.close()

    def row(self, text: Tokens) -> Logits:
        """The row after ``text``, ``[V]``."""
        found: Logits = self.rows(text, EMPTY_DRAFT).logits[0]
        return found

    def rows(self, text: Tokens, draft: Draft) -> Rows:
        """What the target returns for ``draft`` below ``text``, over ``ids``."""
        texts = [text, *(text + tuple(draft.tokens[i] for i in draft.path(node)) for node in range(len(draft)))]
        if any(one not in self._rows for one in texts):
            known = self._prompt + self._named(text[1:])
            scored = self._score(known, replace(draft, tokens=self._named(draft.tokens), q={}))
            for one, row in zip(texts, scored, strict=True):
                self._rows.setdefault(one, row[self.ids])
        return Rows(np.stack([self._rows[one] for one in texts]))

    def _named(self, tokens: Tokens) -> Tokens:
        return tuple(int(self.ids[token]) for token in tokens)

    def _score(self, known: Tokens, draft: Draft) -> Logits:
        self._session.sync(known[:-1])
        work = Work(self._session, known[len(self._session.tokens) :], draft)
        return self._target.score([work])[0].logits

    def _likeliest(self) -> NDArray[np.int64]:
        """The likeliest tokens after the prompt and after each of the three likeliest of these."""
        each = _WORDS // 4
        first = np.argsort(-self._score(self._prompt, EMPTY_DRAFT)[0], kind="stable")[:each]
        found = [first]
        for token in first[:3].tolist():
            row = self._score((*self._prompt, token), EMPTY_DRAFT)[0]
            found.append(np.argsort(-row, kind="stable")[:each])
        return np.unique(np.concatenate(found))


_WORDS = 256
"""The most tokens that a remembered row holds."""

_CHUNK = 256
_LENGTH = 5
"""Tokens of a text that is drawn: one without a draft, then two or more steps with one."""


class Draws:
    """Short texts drawn from the model under one rule, step by step as the engine takes them, with sampled drafts.

    The drafter's q is honest and wrong: the model's six likeliest tokens with chances of their own in every context, so
    that there is mass where the processed row has none. ``temperature`` 1.5 and the four likeliest tokens keep the
    cells few and full.
    """

    def __init__(self, rows: RememberedRows) -> None:
        sampling = Sampling(temperature=1.5, top_k=4, max_tokens=_LENGTH, ignore_eos=True, verify="rejection")
        self.request = Request((0,), sampling)
        self._rows = rows
        self._processor = self._processing(0)
        self._laws: dict[Tokens, dict[int, float]] = {}
        self._q: dict[Tokens, Probabilities] = {}

    def law(self, text: Tokens) -> dict[int, float]:
        """The model's own processed law after ``text``: token to probability."""
        if text not in self._laws:
            p = self._processor.law(self._rows.row(text)).p
            self._laws[text] = {int(i): float(p[i]) for i in np.flatnonzero(p)}
        return self._laws[text]

    def q(self, text: Tokens) -> Probabilities:
        """The drafter's law after ``text``, ``[V]``."""
        if text not in self._q:
            row = self._rows.row(text)
            ids = np.argpartition(row, -_CANDIDATES)[-_CANDIDATES:] if len(row) > _CANDIDATES else np.arange(len(row))
            weights = np.exp(np.random.default_rng([*text[-4:], 5]).normal(size=len(ids)))
            q = np.zeros(len(row))
            q[ids] = weights / weights.sum()
            self._q[text] = q
        return self._q[text]

    def draw(self, verifier: Verifier, shape: Shape, seed: int) -> tuple[Tokens, ...]:
        """What each step of one text emitted."""
        choice = Choice(
            self.request,
            id=seed,
            seed=seed,
            processor=self._processing(seed),
            verifier=verifier,
            detokenizer=Detokenizer(lambda token: b""),  # nobody reads these texts
            context=_CHUNK,
        )
        drafting = sampler(self.q, shape)
        steps: list[Tokens] = []
        while choice.finish is None:
            text = tuple(choice.tokens)
            draft = self._draft(choice, drafting, text) if choice.emitted else EMPTY_DRAFT
            step = choice.apply(Work(_NO_SESSION, text[-1:], draft), self._rows.rows(text, draft))
            steps.append(step.tokens)
        return tuple(steps)

    def _draft(self, choice: Choice, drafting: Drafting, text: Tokens) -> Draft:
        coins = choice.context(_CANDIDATES).coins
        depth = choice.depth_limit
        if coins is None or not depth:
            return EMPTY_DRAFT
        return tree.sanitise(drafting(text, coins), self._rows.vocab_size, depth, _CANDIDATES)

    def _processing(self, seed: int) -> Processor:
        return Processor(self.request.sampling, vocab_size=self._rows.vocab_size, seed=seed, prompt=self.request.prompt)


class _Nowhere:
    """A session for works that are looked up, not scored."""

    tokens: Sequence[int] = ()

    def settle(self, path: Sequence[int]) -> None: ...

    def sync(self, tokens: Sequence[int]) -> int:
        return 0

    def close(self) -> None: ...


_NO_SESSION: Session = _Nowhere()
_CANDIDATES = 6


@dataclass(frozen=True, slots=True)
class RuleFinding:
    """What ``draws`` texts under ``rule`` with drafts of ``shape`` say. ``biased`` rules are controls. ``accepted``:
    drafted tokens kept per drafted step, which shows that acceptance and residual were both exercised.
    ``repeated``: a first sample looked different, and this is a second, larger one on fresh seeds."""

    rule: str
    shape: str
    draws: int
    accepted: float
    tests: tuple[CountTest, ...]
    biased: bool = False
    repeated: bool = False

    @property
    def rejected(self) -> bool:
        """Whether any test saw more than chance."""
        return any(test.rejected for test in self.tests)

    @property
    def as_it_should_be(self) -> bool:
        """No difference seen, or, for a control, one."""
        return self.rejected == self.biased


def check_rule(
    draws: Draws,
    rule: str,
    shape: str,
    *,
    count: int,
    seed: int = 0,
    among: int = 1,
    progress: Callable[[], None] = lambda: None,
) -> RuleFinding:
    """Draw ``count`` texts under ``rule`` and test them against the model's own law. Lossy rules count as controls.

    ``among``: tests in the whole audit. Where a test sees a difference, twice as many texts on fresh seeds decide.
    """
    finding = _sample(draws, rule, shape, count=count, seed=seed, among=among, progress=progress)
    if finding.rejected and not finding.biased:
        again = _sample(draws, rule, shape, count=2 * count, seed=seed + 1, among=among, progress=progress)
        return replace(again, repeated=True)
    return finding


def _sample(
    draws: Draws, rule: str, shape: str, *, count: int, seed: int, among: int, progress: Callable[[], None]
) -> RuleFinding:
    verifier = create_verifier(rule)
    texts = []
    for i in range(count):
        texts.append(draws.draw(verifier, SHAPES[shape], seed * 2**20 + i))
        if i % _TOLD == _TOLD - 1:
            progress()
    steps = [step for text in texts for step in text[1:-1]]
    accepted = sum(len(step) - 1 for step in steps) / max(1, len(steps))
    return RuleFinding(rule, shape, count, accepted, _compared(draws, texts, among), not verifier.lossless)


def _compared(draws: Draws, texts: Sequence[tuple[Tokens, ...]], among: int) -> tuple[CountTest, ...]:
    """Against the model's own law: the first drafted token, the pair after the first token, and the first token of
    the second drafted step, given what was accepted before it."""
    firsts, pairs, seconds = (defaultdict[Tokens, Counter[Tokens]](Counter) for _ in range(3))
    for text in texts:
        flat = tuple(token for step in text for token in step)
        firsts[flat[:1]][flat[1:2]] += 1
        pairs[flat[:1]][flat[1:3]] += 1
        if len(text) > 2:
            seconds[text[0] + text[1]][text[2][:1]] += 1

    def law(before: Tokens, length: int) -> dict[Tokens, float]:
        longer: dict[Tokens, float] = {(): 1.0}
        for _ in range(length):
            longer = {
                (*text, token): chance * part
                for text, chance in longer.items()
                for token, part in draws.law(draws.request.prompt + before + text).items()
            }
        return longer

    def test(name: str, found: Mapping[Tokens, Counter[Tokens]], length: int) -> CountTest:
        groups = _with_rare_ones_joined([(counts, law(before, length)) for before, counts in found.items()])
        return goodness(name, groups, alpha=FAMILY, among=among)

    return (
        test("first drafted token", firsts, 1),
        test("pairs", pairs, 2),
        test("first token of the second step", seconds, 1),
    )


def _with_rare_ones_joined(groups: Sequence[tuple[Counter[Tokens], dict[Tokens, float]]]) -> list[tuple[Cells, Cells]]:
    """Contexts that were met too seldom to be tested alone are tested together, by the rank of what followed."""
    often: list[tuple[Cells, Cells]] = []
    counts: Counter[int] = Counter()
    expected: dict[int, float] = defaultdict(float)
    for found, law in groups:
        n = found.total()
        if n >= _OFTEN:
            often.append((found, law))
            continue
        for rank, token in enumerate(sorted(law, key=lambda token: -law[token])):
            counts[rank] += found[token]
            expected[rank] += n * law[token]
    total = sum(expected.values())
    return [*often, (counts, {rank: value / total for rank, value in expected.items()})] if total else often


_OFTEN = 40
"""Texts that must share a context for it to be tested by itself."""

_TOLD = 100
"""Texts between two calls of a progress function."""
