"""``sooner audit --url``: which servers are asked, and what they are told. Does not know how answers are compared."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any

import typer

from sooner.cli.audit_view import repeating, waiting, watching
from sooner.cli.groups import ENGINE
from sooner.cli.output import say, warn
from sooner.errors import InvalidRequest

if TYPE_CHECKING:
    from sooner.audit.asking import Asker
    from sooner.audit.page import Told
    from sooner.audit.plan import Settings
    from sooner.audit.server_report import ServerReport
    from sooner.prompt import Prompt

__all__ = ["audit_server"]

_DRAWS = {False: 400, True: 100}
"""Short answers counted on each side, with and without --quick."""

_HERE = (*ENGINE, "draft", "budget", "negative_control")
"""Options that only a model on this machine could honour."""


def audit_server(
    context: typer.Context, settings: Settings, found: Sequence[tuple[Prompt, str]], tell: Callable[[Told], None]
) -> ServerReport:
    """Ask, compare, ``tell``. Raises `RemoteError` if a server cannot be reached, `InvalidRequest` for bad options."""
    from sooner.audit.journal import open_journal
    from sooner.audit.plan import audit_key
    from sooner.audit.server import ServerAudit
    from sooner.audit.server_report import ServerReport
    from sooner.bench.stamp import stamp

    given = context.params
    _refuse_what_is_not_there(context)
    urls, extra = list(given["url"]), _plain(given["plain"])
    if len(urls) > 2:
        raise InvalidRequest("--url may be given once or twice: the plain server, and the one that speculates", "url")
    if len(urls) == 2 and given["plain"] is not None:
        raise InvalidRequest("--plain is for one server: with two, start the first without speculation", "plain")
    settings = replace(settings, drafters=(), rules=(), draws=_draws(given))
    prompts = _conversations(found)
    plain, drafted = _askers(urls, given["api_key"], extra)
    places = (plain.place, drafted.place)
    report = ServerReport(
        places=places,
        model=plain.model if plain.model == drafted.model else f"{plain.model} and {drafted.model}",
        command=repeating(context),
        machine={},
        settings=asdict(settings),
        prompts=len(prompts),
        switched=len(urls) == 1,
        vouched=given["plain"] is not None,
    )
    subject = {"urls": urls, "models": [plain.model, drafted.model], "plain": extra if len(urls) == 1 else {}}
    started = time.monotonic()
    with open_journal(audit_key(settings, prompts, subject), restart=given["restart"], waiting=waiting) as journal:
        work = ServerAudit(plain, drafted, settings, prompts, journal)
        say(f"{report.model} without speculation against with: {settings.tokens:,} tokens of {len(prompts)} prompts")
        if settings.draws:
            say(f"then {settings.draws} short answers each, counted; Ctrl-C any time: the same command goes on")
        if journal.resumed:
            say(f"going on where it ended: {journal.resumed} parts are done (--restart begins anew)")
        with watching("auditing", work.work) as told:
            report.findings = work.run(told)
        report.machine, report.seconds = stamp(), time.monotonic() - started
        if plain.model != drafted.model:
            report.findings.notes[f"the servers call their models {plain.model} and {drafted.model}"] = None
        tell(report)
        journal.done()
    return report


def _draws(given: Mapping[str, Any]) -> int:
    return _DRAWS[given["quick"]] if given["draws"] is None else int(given["draws"])


def _refuse_what_is_not_there(context: typer.Context) -> None:
    for name in _HERE:
        source = context.get_parameter_source(name)
        if source is not None and source.name == "COMMANDLINE":
            option = "--context" if name == "max_context" else f"--{name.replace('_', '-')}"
            raise InvalidRequest(f"--url audits a server, which {option} cannot change: leave it out", name)


def _plain(text: str | None) -> dict[str, Any]:
    """What a plain request adds. Raises `InvalidRequest` unless it is an object."""
    if text is None:
        return {"draft": "none"}
    try:
        extra = json.loads(text)
    except ValueError:
        extra = None
    if not isinstance(extra, dict) or not extra:
        raise InvalidRequest("--plain must be a JSON object, as in '{\"speculative.n_max\": 0}'", "plain")
    return extra


def _askers(urls: Sequence[str], key: str | None, extra: Mapping[str, Any]) -> tuple[Asker, Asker]:
    from sooner.audit.asking import Asker
    from sooner.remote import Endpoint

    servers = [Endpoint(url, key=key) for url in urls]
    if len(servers) == 2:
        return Asker.reach(servers[0], {}), Asker.reach(servers[1], {})
    drafted = Asker.reach(servers[0], {})
    return Asker(servers[0], drafted.model, extra), drafted


def _conversations(found: Sequence[tuple[Prompt, str]]) -> list[Any]:
    """The prompts that go through a chat API: texts and messages."""
    kept = []
    for number, (prompt, model) in enumerate(found, start=1):
        if model:
            warn(f"prompt {number} is left out: it is a recording's token ids, which no chat API takes")
        else:
            kept.append(prompt if isinstance(prompt, str) else [dict(message) for message in prompt])  # type: ignore[arg-type]  # ids only come with a model
    if not kept:
        raise InvalidRequest("there is no prompt that a chat API takes: give texts or messages")
    return kept
