"""Jobs through an engine: as many side by side as it takes, the answers in the jobs' order.

Knows an engine. Does not know files or how an answer is written down.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from sooner.completion import Completion
from sooner.engine import Engine, Handle
from sooner.errors import InvalidRequest, SoonerError
from sooner.jobs.lines import Dead, Job
from sooner.types import Sampling

__all__ = ["Answered", "answer_all"]


@dataclass(frozen=True, slots=True)
class Answered:
    """A job and its answer."""

    job: Job
    completion: Completion


def answer_all(
    engine: Engine, jobs: Iterable[Job | Dead], sampling: Sampling, *, ahead: int = 32, **options: Any
) -> Iterator[Answered | Dead]:
    """One outcome per job, in order; a job that fails is dead and the others go on.

    ``sampling`` and ``options`` are `Engine.request`'s, a job's own options come before them. ``ahead``: jobs
    submitted before the oldest has ended: one long answer does not leave the batch empty, and no more are held in
    memory. Leaving early aborts what is under way.
    """
    queue = iter(jobs)
    flying: deque[tuple[Job, Handle] | Dead] = deque()
    try:
        while True:
            while len(flying) < ahead and (job := next(queue, None)) is not None:
                flying.append(job if isinstance(job, Dead) else _submit(engine, job, sampling, options))
            if not flying:
                return
            yield _finish(engine, flying.popleft())
    finally:
        for entry in flying:
            if not isinstance(entry, Dead):
                engine.abort(entry[1])


def _submit(engine: Engine, job: Job, sampling: Sampling, options: dict[str, Any]) -> tuple[Job, Handle] | Dead:
    own = dict(job.options)
    try:
        rest = {name: own.pop(name) for name in ("expected", "raw") if name in own}
        for name in ("stop", "bad_words", "stop_token_ids"):
            if name in own:
                own[name] = (own[name],) if isinstance(own[name], str) else tuple(own[name])
        request = engine.request(job.prompt, replace(sampling, **own), **(options | rest))
        return job, engine.submit(request)
    except (InvalidRequest, TypeError, ValueError) as error:  # or a value of a kind that no rule looks at
        return job.dead(str(error))


def _finish(engine: Engine, entry: tuple[Job, Handle] | Dead) -> Answered | Dead:
    """Drive the engine until ``entry`` has ended."""
    if isinstance(entry, Dead):
        return entry
    job, handle = entry
    try:
        for _ in engine.follow(handle):
            pass
    except SoonerError as error:
        return job.dead(str(error))
    return Answered(job, engine.completion(handle))
