"""The text audit: plain texts once, then the same texts under every drafter, compared to the bit.

Knows an engine and units of work. Does not know how findings are told, or which units there are.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from sooner.audit.difference import FAULT, Candidate, Difference, Evidence, explain
from sooner.audit.drafters import PLAIN, Drafters
from sooner.audit.journal import Journal
from sooner.audit.plan import Settings, Unit
from sooner.audit.witness import Watched, Witness
from sooner.batch import Handle
from sooner.completion import Completion
from sooner.control.fixed import FixedController
from sooner.engine import Engine
from sooner.errors import DraftError
from sooner.prompt import Prompt
from sooner.protocols import Controller, Drafter
from sooner.types import Logits, Request

__all__ = ["Answer", "DrafterFinding", "TextAudit"]

_EXPLAINED = 3
"""Differences of one drafter that are looked into; the others are counted."""

_PREEMPTION = 7
"""The pass before which a unit's texts are thrown out of the cache, if they are."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What must not change. ``logprobs``: of each token and the two likeliest at its place; ``digests``: of its row."""

    tokens: tuple[int, ...]
    digests: tuple[int, ...]
    logprobs: Any
    text: str
    finish: str

    @classmethod
    def of(cls, completion: Completion, watched: Watched) -> Answer:
        """The answer in a completion and the rows seen behind it."""
        logprobs = [[entry.logprob, [list(pair) for pair in entry.top]] for entry in completion.logprobs or ()]
        finish = f"{completion.finish.reason} {completion.finish.detail}"
        return cls(completion.token_ids, tuple(watched.digests), logprobs, completion.text, finish)

    @classmethod
    def from_json(cls, record: Mapping[str, Any]) -> Answer:
        """What `dataclasses.asdict` and JSON made of it."""
        lists = {name: tuple(record[name]) for name in ("tokens", "digests")}
        return cls(**lists, logprobs=record["logprobs"], text=record["text"], finish=record["finish"])


@dataclass(slots=True)
class DrafterFinding:
    """One drafter against plain decoding. ``different``: texts that are not identical; ``rows``: rows whose bits are
    not, before the texts part. ``drafted`` and ``accepted``: draft tokens scored and kept. ``differences``: the first
    few, looked into. ``failure``: why the drafter dropped out, if it did."""

    name: str
    texts: int = 0
    tokens: int = 0
    drafted: int = 0
    accepted: int = 0
    different: int = 0
    rows: int = 0
    batches: set[int] = field(default_factory=set)
    temperatures: set[float] = field(default_factory=set)
    differences: list[Difference] = field(default_factory=list)
    failure: str | None = None

    @property
    def identical(self) -> bool:
        """Whether every text was the plain one, to the last bit."""
        return not self.different and self.failure is None

    def add(self, unit: Unit, result: Mapping[str, Any]) -> None:
        """Count the result of one unit."""
        self.failure = self.failure or result.get("failure")
        for name in ("texts", "tokens", "drafted", "accepted", "different", "rows"):
            setattr(self, name, getattr(self, name) + result.get(name, 0))
        self.batches.add(unit.batch)
        self.temperatures.add(unit.temperature)
        self.differences += [_difference(record) for record in result.get("differences", ())]


class TextAudit:
    """Runs units on ``engine``, whose drafter and controller it replaces, and keeps each in ``journal`` as it ends.

    ``findings`` by drafter, as far as units have run. Prompts must fit the model.
    """

    def __init__(
        self, engine: Engine, settings: Settings, prompts: Sequence[Prompt], drafters: Drafters, journal: Journal
    ) -> None:
        self.findings = {name: DrafterFinding(name) for name in settings.drafters}
        self._engine = engine
        self._settings = settings
        self._prompts = prompts
        self._drafters = drafters
        self._journal = journal
        self._controller = engine.controller
        self._plain: list[Answer] = []

    @property
    def tokens(self) -> int:
        """Drafted tokens compared so far."""
        return sum(finding.tokens for finding in self.findings.values())

    def run(self, unit: Unit) -> None:
        """Run ``unit``, or take its result from the state file."""
        result = self._journal.get(unit.key)
        if result is None:
            dropped = unit.drafter and self.findings[unit.drafter].failure is not None
            result = {} if dropped else self._drafted(unit) if unit.drafter else self._reference(unit)
            self._journal.keep(unit.key, result)
        if unit.drafter:
            self.findings[unit.drafter].add(unit, result)
        else:
            self._plain = [Answer.from_json(record) for record in result]

    def _reference(self, unit: Unit) -> list[dict[str, Any]]:
        requests = self._requests(unit, None)
        answers = self._write(unit, requests, None, [Watched() for _ in requests])
        return [asdict(Answer.of(completion, watched)) for completion, watched in answers]

    def _drafted(self, unit: Unit) -> dict[str, Any]:
        requests = self._requests(unit, self._plain)
        truth = {request.prompt: answer.tokens for request, answer in zip(requests, self._plain, strict=True)}
        watching = [Watched((answer.tokens, answer.digests)) for answer in self._plain]
        try:
            answers = self._write(unit, requests, self._drafters.make(unit.drafter, truth), watching)
        except DraftError as error:
            return {"failure": str(error)}
        result: dict[str, Any] = {"texts": len(requests), "differences": []}
        counts = dict.fromkeys(("tokens", "drafted", "accepted", "different", "rows"), 0)
        for i, (completion, watched) in enumerate(answers):
            got, wanted = Answer.of(completion, watched), self._plain[i]
            counts["tokens"] += len(wanted.tokens)
            counts["drafted"] += completion.speculation.drafted
            counts["accepted"] += completion.speculation.accepted
            counts["rows"] += watched.differing
            if got != wanted:
                counts["different"] += 1
                if len(self.findings[unit.drafter].differences) + len(result["differences"]) < _EXPLAINED:
                    found = self._explained(unit, i, (wanted, got), requests[i], watched)
                    result["differences"].append(asdict(found))
        return result | counts

    def _requests(self, unit: Unit, plain: Sequence[Answer] | None) -> list[Request]:
        """The unit's requests; half of an expected text is what the plain one was, the rest is one token off."""
        made = []
        for i, (prompt, seed) in enumerate(unit.cases(self._settings, len(self._prompts))):
            expected = () if plain is None else _with_a_gap(plain[i].tokens)
            salt = f"audit {unit.key} {i}" if unit.cold else "audit"
            base = self._engine.request(
                self._prompts[prompt],
                temperature=unit.temperature,
                seed=seed,
                max_tokens=self._settings.length,
                ignore_eos=unit.round % 2 == 1,
                logprobs=2,
                salt=salt,
            )
            made.append(replace(base, expected=expected))
        return made

    def _write(
        self, unit: Unit, requests: Sequence[Request], drafter: Drafter | None, watching: Sequence[Watched]
    ) -> list[tuple[Completion, Watched]]:
        """The answers of a unit. Raises `DraftError` if its drafter failed, and what the target raises."""
        engine, witness = self._engine, Witness(drafter)
        engine.drafter, engine.controller, engine.warning = witness, self._controlling(unit), None
        try:
            answers = []
            for at in range(0, len(requests), unit.batch):
                handles = self._submit(witness, requests[at : at + unit.batch], watching[at : at + unit.batch])
                self._drive(handles, preempted=unit.preempted)
                answers += [engine.completion(handle) for handle in handles]
            if engine.warning is not None:
                raise DraftError(engine.warning)
        finally:
            engine.drafter, engine.controller, engine.warning = None, self._controller, None
        return list(zip(answers, watching, strict=True))

    def _submit(self, witness: Witness, requests: Sequence[Request], watching: Sequence[Watched]) -> list[Handle]:
        handles = []
        for request, text in zip(requests, watching, strict=True):
            handles.append(self._engine.submit(request))
            witness.watch(handles[-1].slots[0].sequence.id, text)
        return handles

    def _drive(self, handles: Sequence[Handle], *, preempted: bool) -> None:
        passes = 0
        try:
            while not all(handle.finished for handle in handles):
                if preempted and passes == _PREEMPTION:
                    self._engine.batch.preempt()
                self._engine.step()
                passes += 1
        finally:
            for handle in handles:
                self._engine.abort(handle)
        for handle in handles:
            if handle.error is not None:
                raise handle.error

    def _controlling(self, unit: Unit) -> Controller:
        if not unit.drafter or unit.drafter == PLAIN:
            return FixedController(0)
        budget = self._drafters.budget(unit.drafter)
        budget = unit.budget if budget is None else budget
        return copy.deepcopy(self._controller) if budget is None else FixedController(budget)

    # -- differences -------------------------------------------------------------------------------------------------

    def _explained(
        self, unit: Unit, text: int, answers: tuple[Answer, Answer], request: Request, watched: Watched
    ) -> Difference:
        wanted, got = answers
        prompt, seed = unit.cases(self._settings, len(self._prompts))[text]
        place = watched.parting or watched.first
        fields: dict[str, Any] = {"kind": FAULT, "why": _unseen(wanted, got)}
        position = _first_difference(wanted, got) if place is None else place[0]
        if place is not None and position < min(len(wanted.tokens), len(got.tokens)):
            row = self._plain_row(replace(request, expected=(), salt=f"again {unit.key}"), position)
            tokens = wanted.tokens[position], got.tokens[position]
            evidence = Evidence(request, wanted.tokens[:position], row, place[1], *tokens)
            fields = explain(evidence, self._engine.target, self._engine.codec)
        return Difference(unit.drafter, unit.batch, unit.budget, unit.temperature, prompt, seed, position, **fields)

    def _plain_row(self, request: Request, position: int) -> Logits:
        """The row behind output ``position`` of the plain text, by writing it again."""
        sampling = replace(request.sampling, max_tokens=position + 1, logprobs=None)
        again = _At(position)
        self._write(Unit(0, request.sampling.temperature), [replace(request, sampling=sampling)], None, [again])
        assert again.row is not None
        return again.row


class _At(Watched):
    """Keeps the row behind one output position."""

    def __init__(self, position: int) -> None:
        super().__init__()
        self._position = position
        self.row: Logits | None = None

    def see(self, token: int, row: Logits) -> None:
        if len(self.digests) == self._position:
            self.row = row.copy()
        super().see(token, row)


def _with_a_gap(tokens: Sequence[int]) -> tuple[int, ...]:
    middle = len(tokens) // 2
    return (*tokens[:middle], *tokens[middle + 1 :])


def _first_difference(wanted: Answer, got: Answer) -> int:
    pairs = zip(wanted.tokens, got.tokens, wanted.logprobs, got.logprobs, strict=False)
    for i, (a, b, p, q) in enumerate(pairs):
        if a != b or p != q:
            return i
    return min(len(wanted.tokens), len(got.tokens))


def _unseen(wanted: Answer, got: Answer) -> str:
    """What differs although all rows and common tokens are the same bits."""
    if len(wanted.tokens) != len(got.tokens):
        return f"one text ended earlier: {len(wanted.tokens)} tokens plain, {len(got.tokens)} drafted"
    for name in ("tokens", "logprobs", "text", "finish"):
        if getattr(wanted, name) != getattr(got, name):
            return f"the rows are the same bits, the {name} differ"
    return "the rows differ in bits"


def _difference(record: Mapping[str, Any]) -> Difference:
    fields = dict(record)
    for name in ("wanted", "got"):
        fields[name] = Candidate(**fields[name]) if fields[name] else None
    for name in ("plain", "drafted"):
        fields[name] = tuple(Candidate(**one) for one in fields[name])
    return Difference(**fields)
