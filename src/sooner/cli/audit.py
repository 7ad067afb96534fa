"""``sooner audit``: does drafting change anything?

Knows how options become settings and prompts. Does not know how an audit is run or told.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from sooner.cli import audit_options as a
from sooner.cli import groups as g
from sooner.cli import options as o
from sooner.cli.audit_options import HELP
from sooner.cli.audit_view import minutes, repeating, show, waiting, watching
from sooner.cli.chat import ApiKey
from sooner.cli.engine import engine_options, open_engine
from sooner.cli.groups import taking
from sooner.cli.output import say, warn
from sooner.cli.results import prove_writable
from sooner.errors import InvalidRequest

if TYPE_CHECKING:
    from sooner.audit.drafters import Drafters
    from sooner.audit.page import Told
    from sooner.audit.plan import Settings
    from sooner.engine import Engine
    from sooner.prompt import Prompt

__all__ = ["HELP", "audit"]


@taking(g.ENGINE)
def audit(
    context: typer.Context,
    file: a.Prompts = None,
    *,
    quick: a.Quick = False,
    tokens: a.Tokens = None,
    max_tokens: a.Length = None,
    temperature: a.Temperatures = None,
    batch: a.Batches = None,
    seed: a.Seed = 0,
    draws: a.Draws = None,
    draft: a.Drafters = None,
    budget: a.Budgets = None,
    negative_control: a.Control = None,
    url: a.Urls = None,
    plain: a.Plain = None,
    api_key: ApiKey = None,
    json: a.JsonFile = None,
    html: a.HtmlFile = None,
    restart: a.Restart = False,
    verbose: o.Verbose = False,
) -> None:
    """Audit a model or a server (see HELP)."""
    for out in (json, html):
        if out is not None:
            prove_writable(Path(out))
    settings = _settings(context.params)
    prompts = _prompts(file)
    tell = partial(show, json=json, html=html)
    if url:
        from sooner.cli.audit_server import audit_server

        report: Told = audit_server(context, settings, prompts, tell)
    else:
        if plain is not None:
            raise InvalidRequest("--plain goes with --url: it is what a server is told", "plain")
        report = _audit_model(context, settings, prompts, tell)
    if report.exit_code:
        raise typer.Exit(report.exit_code)


def _settings(given: Mapping[str, Any]) -> Settings:
    """The settings that the options ask for. Raises `InvalidRequest` and `DraftError` before a model is loaded."""
    from sooner.audit.drafters import expanded
    from sooner.audit.plan import QUICK, Settings
    from sooner.types import Sampling

    base = QUICK if given["quick"] else Settings()
    named = {
        "tokens": given["tokens"],
        "length": given["max_tokens"],
        "temperatures": _each(given["temperature"]),
        "batches": _each(given["batch"]),
        "budgets": _each(given["budget"]),
        "draws": given["draws"],
        "seed": given["seed"],
        "drafters": tuple(expanded(given["draft"] or ())),
        "fault": given["negative_control"] or "",
    }
    settings = replace(base, **{name: value for name, value in named.items() if value is not None})
    for temperature in settings.temperatures:
        Sampling(temperature=temperature)  # refuses what no text can be drawn with
    return settings if settings.draws else replace(settings, rules=())


def _each(values: Sequence[Any] | None) -> tuple[Any, ...] | None:
    return tuple(dict.fromkeys(values)) if values else None


def _prompts(file: str | None) -> list[tuple[Prompt, str]]:
    """The prompts, each with the model it is bound to ("": any)."""
    from sooner.audit.prompts import PROMPTS
    from sooner.bench.workload import read_workload

    if file is None:
        return [(prompt, "") for prompt in PROMPTS]
    return [(item.prompt, item.model) for item in read_workload(file)]


def _audit_model(
    context: typer.Context, settings: Settings, found: Sequence[tuple[Prompt, str]], tell: Callable[[Told], None]
) -> Told:
    """Audit, and ``tell`` before what was found is forgotten."""
    from sooner.audit.controls import FAULTS, BrokenTarget
    from sooner.audit.journal import open_journal
    from sooner.audit.model import ModelAudit
    from sooner.audit.plan import audit_key
    from sooner.audit.report import Report
    from sooner.bench.stamp import stamp

    engine = _load(context, settings)
    prompts = _usable(engine, found)
    drafters = _drafters(engine, settings, asked=context.params["draft"] or ())
    settings = replace(settings, drafters=drafters.names)
    if settings.fault:
        engine.target = BrokenTarget(engine.target, FAULTS[settings.fault])
    report = Report(
        model=engine.name or "unnamed model",
        command=repeating(context),
        fingerprint=engine.fingerprint,
        machine={},
        settings=asdict(settings),
        prompts=len(prompts),
        refused=drafters.refused,
    )
    started = time.monotonic()
    with open_journal(
        audit_key(settings, prompts, engine.fingerprint), restart=context.params["restart"], waiting=waiting
    ) as journal:
        work = ModelAudit(engine, settings, prompts, drafters, journal)
        _announce(settings, len(prompts), journal.resumed)
        left = work.left
        expected = minutes(left * _pace(engine, prompts[0], settings.length))
        say(f"this takes about {expected}; Ctrl-C any time: the same command goes on")
        with watching("auditing", work.work, work.work - left) as told:
            work.run(report, told)
        report.machine, report.seconds = stamp(), time.monotonic() - started
        tell(report)
        journal.done()
    return report


def _load(context: typer.Context, settings: Settings) -> Engine:
    """The engine, with room for the largest batch and ready for the heads that are to be audited. Nothing is compiled
    beforehand: what long use compiles comes in the middle of the audit, as it does for a user."""
    from sooner.bench.configuration import parse_configuration
    from sooner.draft import parse_spec
    from sooner.loading import DEFAULT_DRAFT

    specs = [spec for name in settings.drafters for spec in parse_configuration(name).draft]
    heads = [spec for spec in specs if spec != DEFAULT_DRAFT and parse_spec(spec)["kind"] == "head"]
    options = engine_options({**context.params, "draft": (DEFAULT_DRAFT,), "budget": None})
    more = {"heads": heads} if heads else {}
    return open_engine(context, options, max_running=settings.group, **more)


def _usable(engine: Engine, found: Sequence[tuple[Prompt, str]]) -> list[Prompt]:
    """The prompts that the model can take; the others are named in warnings."""
    kept = []
    for number, (prompt, model) in enumerate(found, start=1):
        try:
            if model and model != engine.fingerprint.get("model", ""):
                raise InvalidRequest("it was recorded with another model, whose token ids mean other text")
            engine.abort(engine.submit(engine.request(prompt)))
            kept.append(prompt)
        except InvalidRequest as error:
            warn(f"prompt {number} is left out: {error}")
    if not kept:
        raise InvalidRequest("the model can take none of the prompts: give others, or a larger --context")
    return kept


def _drafters(engine: Engine, settings: Settings, *, asked: Sequence[str]) -> Drafters:
    """The drafters, those in ``all`` that the model cannot have left out. Raises `DraftError` for others."""
    from sooner.audit.drafters import Drafters
    from sooner.errors import DraftError

    drafters = Drafters(engine, settings.drafters)
    for name, why in drafters.refused.items():
        if name in asked:
            raise DraftError(f"--draft {name}: {why}")
    return drafters


def _announce(settings: Settings, prompts: int, resumed: int) -> None:
    drafters = ", ".join(name for name in settings.drafters if name != "plain")
    temperatures = ", ".join(f"{t:g}" for t in settings.temperatures)
    sides = ", ".join(map(str, settings.batches))
    say(f"drafting against plain decoding: {settings.tokens:,} tokens of {prompts} prompts, to the last bit")
    say(f"drafters: {drafters}; temperatures {temperatures}; {sides} side by side")
    if settings.rules and not settings.fault:
        say(f"{' and '.join(settings.rules)}: enumerated on a toy, {settings.draws:,} texts each on the model")
    if settings.fault:
        say(f"the model is broken on purpose: {settings.fault}", style="yellow")
    if resumed:
        say(f"going on where it ended: {resumed} parts are done (--restart begins anew)")


def _pace(engine: Engine, prompt: Prompt, length: int) -> float:
    """Seconds that a unit of work takes: a token of a plain text from a cold prompt. Drafts make some of them cheaper,
    hostile ones dearer."""
    drafter, engine.drafter = engine.drafter, None
    try:
        engine.generate(prompt, max_tokens=4, ignore_eos=True, salt="audit pace 0")
        begin = time.perf_counter()
        engine.generate(prompt, max_tokens=length, ignore_eos=True, salt="audit pace 1")
        return (time.perf_counter() - begin) / length
    finally:
        engine.drafter = drafter
