"""``sooner batch``: a file of prompts, a file of answers. Knows options, a bar and a last line.

Does not know how lines are read, answered or written.
"""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sooner.cli import groups as g
from sooner.cli import options as o
from sooner.cli.engine import EngineOptions, engine_options, open_engine, remote_engine, sampling_from
from sooner.cli.failures import DIFFERENT, INTERRUPTED
from sooner.cli.groups import taking
from sooner.cli.output import say, warn
from sooner.cli.progress import bar
from sooner.errors import InvalidRequest

if TYPE_CHECKING:
    from sooner.engine import Engine
    from sooner.jobs import Answered, Answers, Dead, Job
    from sooner.types import Sampling

__all__ = ["HELP", "batch"]

HELP = o.page("""Answer a file of prompts, in order, several side by side.

FILE holds prompts: one a line, or JSON lines. A JSON line has prompt, text, messages or turns (the first is asked), an
id if it likes, and any sampling option by its name (max_tokens, temperature, seed, stop, ...), which comes before the
command's own. OpenAI's batch lines (custom_id and body) are read too.

OUT gets one JSON line per prompt, in the order of FILE. Each is the answer that the prompt would get by itself,
whatever was answered beside it. Lines that cannot be answered go to a file beside OUT (answers.errors.jsonl for
answers.jsonl) with their number and the reason, and the others go on.

[bold]When it was interrupted[/bold]

Every answer is written as soon as those before it are. After Ctrl-C, a crash or kill -9 the same command with --resume
goes on behind the last complete line: nothing is lost, nothing is answered twice. It refuses to go on under another
model or other options, which would change the answers; other drafters may be named, since those cannot.

[bold]Examples[/bold]

  sooner batch prompts.jsonl -o answers.jsonl
  sooner batch prompts.jsonl -o answers.jsonl --resume
  sooner batch prompts.jsonl -o answers.jsonl --ray --replicas 4
  sooner batch questions.txt -o answers.jsonl -s "Answer in one sentence." --max-tokens 64

[bold]Exit codes[/bold]

  0  every line was answered
  1  some lines were not: the file beside OUT names them; or sooner itself failed
  2  bad input, with a line that says what to do
  130  Ctrl-C; what was answered stays""")

File = Annotated[str, typer.Argument(metavar="FILE", help="The prompts.")]
Out = Annotated[
    str,
    typer.Option("-o", "--out", metavar="OUT", rich_help_panel="Output", help="Where the answers go, as JSON lines."),
]
Resume = Annotated[
    bool, typer.Option("--resume", rich_help_panel="Output", help="Go on behind the last answer in OUT.")
]
Overwrite = Annotated[bool, typer.Option("--overwrite", rich_help_panel="Output", help="Replace what OUT holds.")]
Side = Annotated[
    int,
    typer.Option(
        "--batch", min=1, max=64, metavar="N", rich_help_panel="Workload", help="Prompts answered side by side."
    ),
]
OnRay = Annotated[
    bool,
    typer.Option(
        "--ray", rich_help_panel="Workload", help="Answer with several engines, on Ray (needs sooner\\[ray])."
    ),
]
Replicas = Annotated[
    int | None,
    typer.Option("--replicas", metavar="N", rich_help_panel="Workload", help="Engines on Ray. (default: 2)"),
]


@taking(g.ENGINE, g.DRAFTING, g.SAMPLING, g.TRUNCATION, g.PENALTIES)
def batch(
    context: typer.Context,
    file: File,
    *,
    out: Out,
    resume: Resume = False,
    overwrite: Overwrite = False,
    batch: Side = 4,
    ray: OnRay = False,
    replicas: Replicas = None,
    system: o.System = None,
    raw: o.Raw = False,
    stop: o.Stop = None,
    ignore_eos: o.IgnoreEos = False,
    verbose: o.Verbose = False,
) -> None:
    """Answer a file of prompts (see HELP)."""
    from sooner.jobs import Answers, read_jobs

    options = engine_options(context.params)
    sampling = sampling_from(context.params, options.drafting()[1])
    if resume and overwrite:
        raise InvalidRequest("--resume keeps what OUT holds and --overwrite empties it: leave one out")
    if system is not None and raw:
        raise InvalidRequest("--raw continues the text as it stands and has no place for --system: leave one out")
    if replicas is not None and (replicas < 1 or not ray):
        raise InvalidRequest("replicas must be at least 1, and are for --ray", "replicas")
    lines = _count(Path(file))
    mode: Any = "resume" if resume else "overwrite" if overwrite else "new"
    with Answers(Path(out), mode) as answers:
        jobs = _behind(answers, read_jobs(Path(file), system), file)
        if answers.place.line:
            say(f"going on behind line {answers.place.line} of {lines}")
        asked = Asked(context=context, options=options, sampling=sampling, system=system, raw=raw, batch=batch)
        outcomes = asked.on_ray(answers, jobs, replicas or 2) if ray else asked.here(answers, jobs)
        tally = Tally()
        try:
            with bar("answering", lines) as advance:
                for _ in range(answers.place.line):
                    advance("")
                _write(outcomes, answers, tally, advance)
        except KeyboardInterrupt:
            say(f"{tally.line()}; the same command with --resume goes on there")
            raise typer.Exit(INTERRUPTED) from None
    say(tally.line())
    if answers.dead.exists():
        dead = _count(answers.dead)
        warn(f"{dead} line{'s' if dead > 1 else ''} could not be answered: {answers.dead} says why")
        raise typer.Exit(DIFFERENT)


@dataclass(frozen=True, slots=True)
class Written:
    """An answer as it is written and counted: the ``record`` of line ``line``, whose digest is ``digest``."""

    line: int
    digest: str
    record: dict[str, Any]
    tokens: int
    passes: int


def written(outcome: Answered) -> Written:
    """What is kept of an answer."""
    choices = outcome.completion.choices
    tokens = sum(choice.usage.completion_tokens for choice in choices)
    passes = sum(choice.speculation.steps + 1 for choice in choices)
    return Written(outcome.job.line, outcome.job.digest, record(outcome), tokens, passes)


@dataclass
class Tally:
    """What a run came to so far."""

    answered: int = 0
    dead: int = 0
    tokens: int = 0
    passes: int = 0
    started: float = field(default_factory=time.perf_counter)

    def add(self, answer: Written) -> None:
        """Count one answer."""
        self.answered += 1
        self.tokens += answer.tokens
        self.passes += answer.passes

    def line(self) -> str:
        """The figures on one line."""
        seconds = max(time.perf_counter() - self.started, 1e-9)
        facts = [f"{self.answered} answered", f"{self.tokens} tokens", f"{self.tokens / seconds:.1f} tokens/s"]
        if self.passes:
            facts.append(f"{self.tokens / self.passes:.2f} tokens a pass")
        return " · ".join(facts)


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What a run of the command was asked for, whoever answers."""

    context: typer.Context
    options: EngineOptions
    sampling: Sampling
    system: str | None
    raw: bool
    batch: int

    @property
    def run(self) -> Callable[[Engine], str]:
        """What an engine's answers depend on, as a digest."""
        return partial(_run, sampling=self.sampling, system=self.system, raw=self.raw)

    def here(self, answers: Answers, jobs: Iterator[Job | Dead]) -> Iterator[Written | Dead]:
        """The answers of an engine in this process."""
        from sooner.jobs import Dead, answer_all

        engine = open_engine(self.context, self.options, max_running=self.batch)
        answers.begin(self.run(engine))
        outcomes = answer_all(engine, jobs, self.sampling, ahead=8 * self.batch, raw=self.raw)
        return (outcome if isinstance(outcome, Dead) else written(outcome) for outcome in outcomes)

    def on_ray(self, answers: Answers, jobs: Iterator[Job | Dead], replicas: int) -> Iterator[Written | Dead]:
        """The answers of ``replicas`` engines on Ray. The files are opened once an engine has said what it is."""
        from sooner.jobs.ray import Plan, answer_on_ray, identity_on_ray

        cpus = float(self.options.threads or max(1, (os.cpu_count() or 1) // replicas))
        opening = remote_engine(self.context.obj, self.options, cpus, max_running=self.batch)
        plan = Plan(opening, self.run, written, self.sampling, ahead=8 * self.batch, options={"raw": self.raw})
        waiting: list[Dead] = []  # lines that could not be read, before the first that was answered
        begun = False
        verbose = self.options.verbose
        for outcome in answer_on_ray(plan, jobs, replicas=replicas, cpus=cpus, verbose=verbose):
            if not begun and not outcome.run:
                waiting.append(outcome.value)
                continue
            if not begun:
                answers.begin(outcome.run)
                begun = True
                yield from waiting
            yield outcome.value
        if not begun:
            answers.begin(identity_on_ray(plan, cpus=cpus, verbose=verbose))
            yield from waiting


def _write(outcomes: Iterator[Written | Dead], answers: Answers, tally: Tally, advance: Callable[[str], None]) -> None:
    from sooner.jobs import Dead

    at = answers.place.line
    for outcome in outcomes:
        if isinstance(outcome, Dead):
            tally.dead += 1
            answers.bury(outcome.line, outcome.digest, outcome.id, outcome.reason, outcome.raw)
            line = outcome.line
        else:
            tally.add(outcome)
            line = outcome.line
            answers.write(line, outcome.digest, outcome.record)
        for _ in range(line - at):  # blank lines count too
            advance(f"{tally.tokens} tokens")
        at = line


def record(outcome: Answered) -> dict[str, Any]:
    """An answer as a line of OUT."""
    completion = outcome.completion
    spoken = completion.speculation
    found: dict[str, Any] = {"id": outcome.job.id, "text": completion.text}
    if completion.others:
        found["texts"] = [choice.text for choice in completion.choices]
    whole = completion.to_dict()
    found |= {name: whole[name] for name in ("finish_reason", "usage", "logprobs", "seed", "model")}
    if found["logprobs"] is None:
        del found["logprobs"]
    found["speculation"] = {
        "drafter": spoken.drafter,
        "lossless": spoken.lossless,
        "drafted": spoken.drafted,
        "accepted": spoken.accepted,
        "acceptance_length": round(spoken.acceptance_length, 4),
    }
    return found


def _run(engine: Engine, *, sampling: Sampling, system: str | None, raw: bool) -> str:
    """A digest of all that the answers depend on besides the lines: not the drafter, which changes none."""
    options = {name: getattr(sampling, name) for name in sampling.__dataclass_fields__}
    depends = [dict(engine.fingerprint), {**options, "logit_bias": sorted(sampling.logit_bias.items())}, system, raw]
    return hashlib.sha256(json.dumps(depends, sort_keys=True).encode()).hexdigest()[:16]


def _behind(answers: Answers, jobs: Iterator[Job | Dead], file: str) -> Iterator[Job | Dead]:
    """The jobs that are not in ``answers`` yet. Raises `InvalidRequest` if the last that is reads otherwise now, or
    there are none."""
    place = answers.place
    if not place.line:
        first = next(jobs, None)
        if first is None:
            raise InvalidRequest(f"{file} holds no prompts: write one a line, or JSON lines with prompt or messages")
        return chain([first], jobs)
    for job in jobs:
        if job.line == place.line and job.digest == place.digest:
            return jobs
        if job.line >= place.line:
            break
    raise InvalidRequest(f"{file} has changed since {answers.out} was written: --overwrite begins again")


def _count(path: Path) -> int:
    """The lines of a file, the last one with or without its newline. Raises `InvalidRequest`."""
    lines, last = 0, b"\n"
    try:
        with path.open("rb") as file:
            while block := file.read(1 << 20):
                lines, last = lines + block.count(b"\n"), block[-1:]
    except OSError as error:
        raise InvalidRequest(f"{path} cannot be read ({error.strerror or error}): check the path") from None
    return lines + (last != b"\n")
