"""Whether a trace's text is what a model writes: decoded again with the recorded text as the draft, and compared.

Knows an engine, and what of a step may differ from run to run. Does not know files or how anything is shown.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from sooner import tree
from sooner.engine import Engine, Handle
from sooner.errors import InvalidRequest
from sooner.protocols import Context
from sooner.trace.record import TIMES, read_step, step_record
from sooner.trace.replay import request_of, sampling_of
from sooner.types import EMPTY_DRAFT, Draft, Request, Rows, Step
from sooner.verify import create_verifier

__all__ = ["Mismatch", "Proof", "check", "prove"]

_CHAIN = 63
"""Recorded tokens that are looked at in one pass."""

_FREE = frozenset({*TIMES, "sequence", "rows", "pass_rows"})
"""What of a step's record depends on the run: the clock, the cache, the neighbours."""

Record = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Mismatch:
    """What is not as recorded. ``what``: "token", or the name of a step's field, or "finish"; ``position``: the output
    position of the token, or of the step's first."""

    choice: int
    position: int
    what: str
    recorded: Any
    found: Any


@dataclass(frozen=True, slots=True)
class Proof:
    """``mismatch`` is None if everything that was ``checked`` (tokens) is what the model writes; ``passes`` it took."""

    checked: int
    passes: int
    mismatch: Mismatch | None


@dataclass(slots=True)
class _Recorded:
    """One answer of a trace. ``steps``: by the output position of their first token."""

    tokens: list[int] = field(default_factory=list)
    steps: dict[int, Record] = field(default_factory=dict)
    finish: Mapping[str, Any] | None = None
    text: str = ""


def prove(engine: Engine, header: Record, records: Iterable[Record], *, steps: bool = False) -> Proof:
    """Let ``engine`` decide every token of a trace again. Its drafter and controller are replaced.

    The recorded tokens are drafted in long chains, so this takes few passes; the verdict is the coupled rule's, which
    emits the target's own draw whatever is drafted. With ``steps`` every recorded draft is scored again instead, and
    all that a step says is compared: path, text, log-probabilities, chances. Of an answer that was cut off or aborted,
    what there is of it is compared. Raises `InvalidRequest` as `check`.
    """
    request = _determined(header, engine)
    answers: dict[int, _Recorded] = defaultdict(_Recorded)
    for record in records:
        _remember(answers[record["choice"]], record, steps=steps)
    answers = defaultdict(_Recorded, {choice: answer for choice, answer in answers.items() if answer.tokens})
    if not answers or max(answers) >= request.sampling.n:
        raise InvalidRequest("the trace holds no answer to its request: record it again")
    engine.alternatives = header.get("alternatives") if steps else None
    engine.drafter = script = _Script(steps=steps)
    engine.controller = _Everything(script)
    handle = engine.submit(request)
    for slot in handle.slots:
        script.answers[slot.sequence.id] = answers.get(slot.sequence.choice, _Recorded())
    return _follow(engine, handle, answers, steps=steps)


def _follow(engine: Engine, handle: Handle, answers: Mapping[int, _Recorded], *, steps: bool) -> Proof:
    """Decode until everything recorded is checked, or something differs."""
    passes = 0
    written: dict[int, _Recorded] = defaultdict(_Recorded)
    left = set(answers)
    for step in engine.follow(handle):
        passes += 1
        if step.choice not in left:
            continue
        answer, so_far = answers[step.choice], written[step.choice]
        mismatch = _compare(answer, so_far, step, steps=steps)
        if mismatch is not None:
            return Proof(sum(len(one.tokens) for one in written.values()), passes, mismatch)
        if len(so_far.tokens) >= len(answer.tokens):
            left.remove(step.choice)
        if not left:
            break
    return Proof(sum(len(answer.tokens) for answer in answers.values()), passes, None)


def check(header: Record) -> None:
    """Raises `InvalidRequest` if a header's prompt and seed do not determine the text, or are not there."""
    sampling = sampling_of(header)
    rule = create_verifier(sampling.verify)
    if not rule.lossless:
        raise InvalidRequest(f"{rule.name} is a lossy rule: such a text is not the model's own, so nothing is verified")
    if rule.name != "coupled" and sampling.temperature > 0:
        raise InvalidRequest(f"under {rule.name} a seed does not determine the text: record one under coupled")


def _determined(header: Record, engine: Engine) -> Request:
    """The request under the coupled rule, which gives the same text. Raises `InvalidRequest`."""
    check(header)
    request = request_of(header, engine.codec)
    if max(request.prompt, default=0) >= engine.target.vocab_size:
        raise InvalidRequest(
            "the prompt has tokens that the model does not know, such as those of pictures and sounds, which traces do "
            "not keep: nothing is verified"
        )
    sampling = request.sampling
    theirs, ours = (dict(facts or {}).get("noise") for facts in (header.get("fingerprint"), engine.fingerprint))
    if sampling.temperature > 0 and theirs != ours:
        raise InvalidRequest(f"the trace was drawn with noise version {theirs}, this is {ours}: use that version")
    room = max(1, int(header.get("context") or engine.target.context) - len(request.prompt) + 1)
    most = room if sampling.max_tokens is None else min(room, sampling.max_tokens)
    sampling = replace(sampling, verify="coupled", max_tokens=most, min_tokens=min(sampling.min_tokens, most))
    return replace(request, sampling=sampling, salt="verify", expected=())


def _remember(answer: _Recorded, record: Record, *, steps: bool) -> None:
    if steps and record["tokens"]:
        answer.steps[len(answer.tokens)] = record
    answer.tokens += record["tokens"]
    answer.text += record["text"]
    answer.finish = record.get("finish") or answer.finish


def _compare(answer: _Recorded, so_far: _Recorded, step: Step, *, steps: bool) -> Mismatch | None:
    """What of ``step`` is not as recorded, if anything; ``so_far`` goes on by it."""
    position = len(so_far.tokens)
    for at, token in enumerate(step.tokens[: len(answer.tokens) - position], start=position):
        if token != answer.tokens[at]:
            return Mismatch(step.choice, at, "token", answer.tokens[at], token)
    so_far.tokens += step.tokens
    so_far.text += step.text
    if steps and (recorded := answer.steps.get(position)) is not None:
        old, new = step_record(read_step(recorded)), step_record(step)
        for name in old:
            if name not in _FREE and new.get(name) != old[name]:
                return Mismatch(step.choice, position, name, old[name], new.get(name))
    return _compare_ends(answer, so_far, step)


def _compare_ends(answer: _Recorded, so_far: _Recorded, step: Step) -> Mismatch | None:
    """Whether the text ends where the recorded one does, for the same reason, with the same text."""
    end, recorded = len(so_far.tokens), len(answer.tokens)
    if step.finish is None and end < recorded:
        return None
    found = None if step.finish is None else {"reason": step.finish.reason, "detail": step.finish.detail}
    ended = answer.finish is not None and answer.finish["reason"] in ("stop", "length")
    if end < recorded or (ended and found != answer.finish):
        return Mismatch(step.choice, min(end, recorded), "finish", answer.finish if ended else None, found)
    if ended and so_far.text != answer.text:
        return Mismatch(step.choice, end, "text", answer.text, so_far.text)
    return None


class _Script:
    """Drafts what was recorded (`protocols.Drafter`): the text in long chains, or the drafts of its steps."""

    name = "trace"

    def __init__(self, *, steps: bool) -> None:
        self.answers: dict[int, _Recorded] = {}
        self._steps = steps

    def draft(self, context: Context) -> Draft:
        """What comes after the tokens of ``context`` in the record."""
        answer = self.answers[context.id]
        at = len(context.tokens) - context.prompt_length
        if self._steps:
            recorded = answer.steps.get(at)
            return EMPTY_DRAFT if recorded is None else read_step(recorded).draft
        return tree.chain(answer.tokens[at : at + _CHAIN], 1.0, self.name)

    def propose(self, contexts: Sequence[Context]) -> list[Draft]:
        """A draft each."""
        return [self.draft(context) for context in contexts]

    def observe(self, step: Step, rows: Rows) -> None:
        """Learns nothing."""

    def forget(self, id: int) -> None:
        """Keeps nothing."""


class _Everything:
    """Lets the script draft as much as it has (`protocols.Controller`)."""

    def __init__(self, script: _Script) -> None:
        self._script = script

    def budgets(self, contexts: Sequence[Context]) -> list[int]:
        """As many nodes as there are."""
        return [len(self._script.draft(context)) for context in contexts]

    def select(self, contexts: Sequence[Context], drafts: Sequence[Draft]) -> list[Draft]:
        """All of them."""
        return list(drafts)

    def observe(self, step: Step) -> None:
        """Learns nothing."""
