"""Jobs through many engines, on Ray Data: an engine an actor, blocks of jobs handed to whoever is free, in order.

Knows Ray Data and what an actor is told. Does not know files or how an answer is written down.
"""

from __future__ import annotations

import logging
import pickle
import warnings
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from sooner.engine import Engine
from sooner.errors import TargetError
from sooner.integrations.ray_cluster import connect, demand_ray, failed, reason
from sooner.jobs.lines import Dead, Job
from sooner.jobs.work import Answered, answer_all
from sooner.types import Sampling

__all__ = ["Outcome", "Plan", "answer_on_ray", "identity_on_ray"]

_TRIES = 3
"""Times that a block is given to an actor, should actors die of it; then its jobs are tried one by one, once."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What each actor is told. ``open_engine`` makes its engine; ``identify`` says what the answers of an engine depend
    on; ``written`` makes of an answer what is sent back. ``sampling``, ``options`` and ``ahead``: as `answer_all`'s."""

    open_engine: Callable[[], Engine]
    identify: Callable[[Engine], str]
    written: Callable[[Answered], Any]
    sampling: Sampling
    ahead: int = 32
    options: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of ``job``: ``value`` is what ``Plan.written`` made of its answer, or a `Dead`; ``run`` is what the
    engine identified itself with, "" where none was asked."""

    job: Job | Dead
    value: Any
    run: str = ""


def answer_on_ray(
    plan: Plan, jobs: Iterable[Job | Dead], *, replicas: int, cpus: float = 1.0, verbose: bool = False
) -> Iterator[Outcome]:
    """One outcome per job, in order, from ``replicas`` engines that hold ``cpus`` processors each.

    The jobs are held in memory, here and by Ray. Those of an actor that dies are given to another; one that every actor
    dies of is dead. Raises `MissingExtra` without Ray, `InvalidRequest` without a cluster, and `TargetError` if the
    engines of the cluster would not write the same.
    """
    demand_ray("sooner batch --ray", "ray.data")
    held = list(jobs)
    asked = [job for job in held if isinstance(job, Job)]
    started = bool(asked) and connect(replicas * cpus, verbose=verbose)
    if asked and not verbose:
        _quiet()
    found = _ordered(plan, asked, replicas, cpus)
    run = ""
    try:
        for job in held:
            if isinstance(job, Dead):
                yield Outcome(job, job, run)
                continue
            outcome = next(found)
            run = run or outcome.run
            if outcome.run not in ("", run):
                raise TargetError(
                    "the cluster's machines compute differently, so that texts would depend on who answers: "
                    "give Ray machines of one kind"
                )
            yield outcome
    finally:
        found.close()
        if started:
            import ray

            ray.shutdown()


def identity_on_ray(plan: Plan, *, cpus: float = 1.0, verbose: bool = False) -> str:
    """What an engine of the cluster identifies itself with, where no job is there to be answered. Raises `MissingExtra`
    without Ray, `InvalidRequest` without a cluster, and `TargetError` if the engine does not start."""
    demand_ray("sooner batch --ray", "ray.data")
    started = connect(cpus, verbose=verbose)
    import ray
    from ray.exceptions import RayError

    try:
        return str(ray.get(ray.remote(num_cpus=cpus, max_retries=_TRIES)(_identity).remote(plan)))
    except RayError as error:
        raise TargetError(reason(str(error))) from error
    finally:
        if started:
            ray.shutdown()


def _identity(plan: Plan) -> str:
    """Where the engine is."""
    return _Worker(plan).run


def _ordered(plan: Plan, asked: Sequence[Job], replicas: int, cpus: float) -> Generator[Outcome, None, None]:
    """The outcomes of ``asked``; what comes back without some of them left those behind: they are tried one by one."""
    at = 0
    block = min(plan.ahead, max(1, len(asked) // (2 * replicas)))  # the last blocks should end together
    for number, run, value in _rows(plan, asked, block, replicas, cpus):
        yield from _again(plan, asked[at:number])
        yield Outcome(asked[number], value, run)
        at = number + 1
    yield from _again(plan, asked[at:])


def _again(plan: Plan, lost: Sequence[Job]) -> Iterator[Outcome]:
    """Jobs whose actors died, each by itself: beside the others, since those hold all processors."""
    for job in lost:
        rows = list(_rows(plan, [job], 1, 1, 0))
        if rows:
            yield Outcome(job, rows[0][2], rows[0][1])
        else:
            yield Outcome(job, job.dead("the process that answered it died, each time (often of memory)"))


def _rows(plan: Plan, asked: Sequence[Job], block: int, replicas: int, cpus: float) -> Iterator[tuple[int, str, Any]]:
    """(Number, run, value) of those that were answered, in order."""
    import ray.data

    if not asked:
        return
    context = ray.data.DataContext.get_current()
    context.enable_progress_bars = False
    context.execution_options.preserve_order = True
    context.max_errored_blocks = -1  # what is missing is seen by its number
    rows = [{"number": number, "job": pickle.dumps(job)} for number, job in enumerate(asked)]
    blocks = ray.data.from_items(rows, override_num_blocks=-(-len(rows) // block))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of the last two, which have no other name yet
        data = blocks.map_batches(
            _Worker,
            fn_constructor_kwargs={"plan": plan},
            batch_size=None,
            batch_format="numpy",
            compute=ray.data.ActorPoolStrategy(size=replicas),
            num_cpus=cpus,
            max_restarts=_TRIES,
            max_task_retries=_TRIES - 1,
        )
    found = iter(data.iter_rows())
    while True:
        try:
            row = next(found, None)
        except Exception as error:  # of Ray Data's several kinds
            raise TargetError(reason(str(error))) from error
        if row is None:
            return
        run, value = pickle.loads(row["value"])
        yield int(row["number"]), run, value


def _quiet() -> None:
    """Leave what Ray Data tells of its work to its own log files."""
    import ray.data  # which is what sets the handlers up

    for handler in logging.getLogger(ray.data.__name__).handlers:
        if handler.name == "console":
            handler.setLevel(logging.CRITICAL + 1)


class _Worker:
    """An actor with an engine."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        try:
            self._engine = plan.open_engine()
        except Exception as error:
            raise failed(error) from None
        self.run = plan.identify(self._engine)

    def __call__(self, block: Mapping[str, Any]) -> dict[str, Any]:
        plan = self._plan
        jobs = [pickle.loads(job) for job in block["job"]]
        outcomes = answer_all(self._engine, jobs, plan.sampling, ahead=plan.ahead, **plan.options)
        values = [outcome if isinstance(outcome, Dead) else plan.written(outcome) for outcome in outcomes]
        return {"number": block["number"], "value": [pickle.dumps((self.run, value)) for value in values]}
