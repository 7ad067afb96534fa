"""A trace once more: its steps from recorded rows, byte for byte, or its text from the model itself.

Knows how a header becomes the request it came from, and what of a step may differ from run to run. Does not know files.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any

from sooner.errors import InvalidRequest
from sooner.noise import choice_seed
from sooner.prompt import bad_word_ids
from sooner.protocols import Constraint
from sooner.sampling import Processor
from sooner.sequence import Sequence as Choice
from sooner.text import TextCodec
from sooner.trace.record import TIMES, read_step, step_record
from sooner.types import Finish, Probabilities, Request, Rows, Sampling, Step
from sooner.verify import create_verifier

__all__ = ["Scored", "Tape", "replay", "request_of", "sampling_of"]

Record = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Scored:
    """What a pass gave a step: ``rows``, and the rows q that its draft was sampled from, which records lack."""

    rows: Rows
    q: Mapping[int, Probabilities] = field(default_factory=lambda: MappingProxyType({}))


Tape = Callable[[Step], Scored]
"""What a recorded step was scored with."""


def sampling_of(header: Record) -> Sampling:
    """How a header's tokens were chosen, with the seed that was used.

    Raises `InvalidRequest` for a request that cannot be made again: its prompt is withheld, or it has options that this
    version does not know.
    """
    prompt, asked = header.get("prompt"), header.get("sampling")
    if prompt is None:
        raise InvalidRequest("the trace withholds its prompt: record it with sooner run, or serve with --log-prompts")
    if not isinstance(prompt, list) or not isinstance(asked, Mapping):
        raise InvalidRequest("the trace's header has no prompt or no sampling: record it again")
    if unknown := sorted(asked.keys() - Sampling.__dataclass_fields__.keys()):
        raise InvalidRequest(f"the trace has sampling options that are not known here ({', '.join(unknown)}): upgrade")
    try:
        given: dict[str, Any] = dict(asked)
        given |= {name: tuple(value) for name, value in asked.items() if isinstance(value, list)}
        given["logit_bias"] = {int(token): value for token, value in (asked.get("logit_bias") or {}).items()}
        given["seed"] = int(header["seed"])
        return Sampling(**given)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise InvalidRequest(f"the trace's sampling is none ({error!r}): record it again") from error


def request_of(header: Record, codec: TextCodec) -> Request:
    """The request a header records. Raises as `sampling_of`, and for a grammar that is withheld."""
    sampling, expected = sampling_of(header), tuple(header.get("expected") or ())
    return Request(tuple(header["prompt"]), sampling, expected, constraint=_grammar(header, codec))


def _grammar(header: Record, codec: TextCodec) -> Constraint | None:
    told = header.get("constraint")
    if told is None:
        return None
    if not isinstance(told, Mapping) or told.get("source") is None:
        raise InvalidRequest("the trace withholds its grammar: record it with sooner run, or serve with --log-prompts")
    from sooner.constraint import compile_constraint

    return compile_constraint(told["kind"], told["source"], codec)


def replay(header: Record, records: Iterable[Record], tape: Tape, codec: TextCodec) -> Iterator[dict[str, Any]]:
    """The records of ``records``' steps made anew by `Sequence.apply` from the rows on ``tape``.

    Every decision is taken again; only times, and how many rows were fed, are copied. Law: what comes out is what goes
    in, byte for byte. Raises `InvalidRequest` as `request_of`.
    """
    request = request_of(header, codec)
    choices: dict[int, Choice] = {}
    for record in records:
        old = read_step(record)
        if old.choice not in choices:
            choices[old.choice] = _choice(header, request, old, codec)
        new = _again(choices[old.choice], old, tape)
        times = {name: getattr(old, name) for name in TIMES}
        yield step_record(replace(new, pass_rows=old.pass_rows, **times))


def _again(choice: Choice, old: Step, tape: Tape) -> Step:
    if not old.tokens and old.finish is not None:  # it was ended from outside
        end = Finish(old.finish.reason, old.finish.detail)
        return replace(old, index=choice.steps, text=choice.end(end), finish=choice.finish)
    scored = tape(old)
    held = len(choice.tokens) - (old.rows - len(old.draft))
    work = choice.plan(_Held(choice.tokens[:held]), replace(old.draft, q=scored.q))
    return choice.apply(work, scored.rows)


def _choice(header: Record, request: Request, first: Step, codec: TextCodec) -> Choice:
    """One answer at its beginning, as the engine makes it."""
    seed = choice_seed(int(header["seed"]), first.choice)
    eos_ids = frozenset(header["eos_ids"])
    processor = Processor(
        request.sampling,
        vocab_size=header["vocab_size"],
        seed=seed,
        prompt=request.prompt,
        eos_ids=eos_ids,
        bad_words=bad_word_ids(request.sampling.bad_words, codec),
        matcher=None if request.constraint is None else request.constraint.open(),
    )
    return Choice(
        request,
        id=first.sequence,
        seed=seed,
        processor=processor,
        verifier=create_verifier(request.sampling.verify),
        detokenizer=codec.detokenizer(),
        context=header["context"],
        eos_ids=eos_ids,
        choice=first.choice,
        alternatives=header.get("alternatives"),
    )


class _Held:
    """What a session held when the step was planned; there is no cache behind it."""

    def __init__(self, tokens: Sequence[int]) -> None:
        self.tokens = tokens

    def settle(self, path: Sequence[int]) -> None:
        """Nothing is kept."""

    def sync(self, tokens: Sequence[int]) -> int:
        """Nothing is cut."""
        return len(tokens)

    def close(self) -> None:
        """Nothing is freed."""
