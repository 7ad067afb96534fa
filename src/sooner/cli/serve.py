"""``sooner serve``: the OpenAI-compatible server. Knows its options. Does not know how a request is answered."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from sooner.cli import groups as g
from sooner.cli import options as o
from sooner.cli.engine import engine_options, open_engine, remote_engine, startup_lines
from sooner.cli.groups import taking
from sooner.errors import InvalidRequest, MissingExtra

if TYPE_CHECKING:
    from sooner.engine import Engine
    from sooner.server import Settings
    from sooner.trace.folder import TraceFolder

__all__ = ["HELP", "serve"]

HELP = o.page("""Serve the model to OpenAI's clients.

Point any of them at http://127.0.0.1:8000/v1. Requests are decoded side by side, drafted ones and plain ones in the
same passes, and each gets the text it would get alone. /health answers 200 once the model is there.

Only this machine is let in unless --host says otherwise; then an --api-key is needed, or --insecure.

[bold]Examples[/bold]

  sooner serve
  sooner serve model.gguf --port 8080 --draft kind=ngram,max=8
  sooner serve --host 0.0.0.0 --api-key-file keys.txt
  sooner serve --replicas 2
  curl http://127.0.0.1:8000/v1/models

[bold]Signals[/bold]

  SIGTERM and Ctrl-C accept nothing new and let running answers end,
  --drain seconds at most; a second one does not wait.

[bold]Exit codes[/bold]

  0 done, 2 bad input""")

_NET, _LIMITS = "Network", "Limits"

_MOST_REPLICAS = 1000

Name = Annotated[str | None, typer.Argument(metavar="[MODEL]", help="As --model.")]
Host = Annotated[str, typer.Option("--host", metavar="ADDRESS", rich_help_panel=_NET, help="Where to listen.")]
Port = Annotated[
    int, typer.Option("--port", min=0, max=65535, metavar="N", rich_help_panel=_NET, help="0 takes a free one.")
]
ApiKey = Annotated[
    list[str] | None,
    typer.Option(
        "--api-key",
        metavar="KEY",
        rich_help_panel=_NET,
        envvar="SOONER_API_KEY",
        help="What callers must send; may be given more than once. Nothing is shared between two keys.",
    ),
]
ApiKeyFile = Annotated[
    str | None,
    typer.Option("--api-key-file", metavar="FILE", rich_help_panel=_NET, help="Keys from a file, one a line."),
]
Insecure = Annotated[
    bool, typer.Option("--insecure", rich_help_panel=_NET, help="Let other machines in without a key.")
]
LogPrompts = Annotated[
    bool, typer.Option("--log-prompts", rich_help_panel=_NET, help="Write prompts to the log. (default: never)")
]
Pictures = Annotated[
    str | None,
    typer.Option(
        "--pictures",
        metavar="DIR",
        rich_help_panel=_NET,
        help="Let messages show what lies in DIR by file: URL. (default: pictures come in the request alone)",
    ),
]
TraceDir = Annotated[
    str | None,
    typer.Option(
        "--trace-dir",
        metavar="DIR",
        rich_help_panel=_NET,
        help="Write a trace of every request into DIR (see sooner trace): its answer, and its prompt only with "
        "--log-prompts. Drafts may quote the prompt.",
    ),
]
TraceKeep = Annotated[
    int | None,
    typer.Option(
        "--trace-keep", min=1, metavar="N", rich_help_panel=_LIMITS, help="Newest traces in DIR. (default: 1000)"
    ),
]
TraceMegabytes = Annotated[
    int | None,
    typer.Option(
        "--trace-mb", min=1, metavar="N", rich_help_panel=_LIMITS, help="Megabytes of traces in DIR. (default: 1000)"
    ),
]
MaxRunning = Annotated[
    int,
    typer.Option("--max-running", min=1, metavar="N", rich_help_panel=_LIMITS, help="Texts decoded side by side."),
]
MaxWaiting = Annotated[
    int,
    typer.Option(
        "--max-waiting", min=0, metavar="N", rich_help_panel=_LIMITS, help="Texts queued beyond those; then 429."
    ),
]
Timeout = Annotated[
    float,
    typer.Option("--timeout", min=0.1, metavar="S", rich_help_panel=_LIMITS, help="Most seconds for one answer."),
]
Drain = Annotated[
    float,
    typer.Option("--drain", min=0, metavar="S", rich_help_panel=_LIMITS, help="Seconds to end answers on SIGTERM."),
]
MaxBody = Annotated[
    int | None,
    typer.Option(
        "--max-body",
        min=1000,
        metavar="BYTES",
        rich_help_panel=_LIMITS,
        help="Most of one request. (default: 1 MB; 32 MB where the model takes pictures or sounds)",
    ),
]
MaxPrompt = Annotated[
    int | None,
    typer.Option(
        "--max-prompt", min=1, metavar="N", rich_help_panel=_LIMITS, help="Most prompt tokens. (default: the context)"
    ),
]
MaxN = Annotated[
    int, typer.Option("--max-n", min=1, max=128, metavar="N", rich_help_panel=_LIMITS, help="Most answers at once.")
]
Replicas = Annotated[
    str | None,
    typer.Option(
        "--replicas",
        metavar="N|auto",
        rich_help_panel=_NET,
        help="Run N engines side by side on Ray, or as many as the load asks for (needs sooner\\[ray]).",
    ),
]
Memory = Annotated[
    bool | None,
    typer.Option(
        "--memory/--no-memory",
        rich_help_panel=o.PANELS[3],
        help="Drafts also copy from earlier texts of the same key. (default: on, off with several keys)",
    ),
]


LIMITS: g.Group = {
    "max_waiting": (MaxWaiting, 64),
    "timeout_s": (Timeout, 600.0),
    "drain_s": (Drain, 30.0),
    "max_body": (MaxBody, None),
    "max_prompt_tokens": (MaxPrompt, None),
    "max_n": (MaxN, 16),
}
"""What bounds requests, under the names of `Settings`."""


@taking(g.ENGINE, g.DRAFTING, LIMITS)
def serve(
    context: typer.Context,
    name: Name = None,
    *,
    model: o.Model = None,
    host: Host = "127.0.0.1",
    port: Port = 8000,
    api_key: ApiKey = None,
    api_key_file: ApiKeyFile = None,
    insecure: Insecure = False,
    log_prompts: LogPrompts = False,
    pictures: Pictures = None,
    trace_dir: TraceDir = None,
    trace_keep: TraceKeep = None,
    trace_mb: TraceMegabytes = None,
    max_running: MaxRunning = 8,
    replicas: Replicas = None,
    memory: Memory = None,
    verbose: o.Verbose = False,
) -> None:
    """Serve the model (see HELP)."""
    from sooner.verify import create_verifier

    if name is not None and model is not None:
        raise InvalidRequest("MODEL and --model name two models: keep one of them", "model")
    options = engine_options({**context.params, "model": name or model})
    rule = options.drafting()[1]
    create_verifier(rule)
    count = _replicas(replicas)
    settings = _settings(
        host=host,
        keys=tuple(api_key or ()),
        key_file=api_key_file,
        insecure=insecure,
        verify=rule,
        max_running=max_running,
        **{name: context.params[name] for name in LIMITS},
        log_prompts=log_prompts,
        pictures=_folder(pictures),
        traces=_traces(trace_dir, trace_keep, trace_mb),
    )
    remember = len(settings.keys) < 2 if memory is None else memory

    if count is not None:
        opening = partial(remote_engine, context.obj, options, remember=remember, max_running=max_running, warm=True)
        _deploy(opening, settings, (host, port), replicas=count, threads=options.threads, verbose=verbose)
        return

    def open_() -> Engine:
        engine = open_engine(context, options, remember=remember, max_running=max_running, warm=True)
        for line in startup_lines(engine, options):
            logging.getLogger("sooner.server").info("%s", line)
        return engine

    _run(settings, open_, host, port, verbose=verbose)


def _settings(*, host: str, keys: tuple[str, ...], key_file: str | None, insecure: bool, **limits: Any) -> Settings:
    """The server's settings. Raises `InvalidRequest` for what would let others in, `MissingExtra` without FastAPI."""
    try:
        from sooner.server import Settings
        from sooner.server.host import is_loopback, local_names
        from sooner.server.keys import read_keys
    except ModuleNotFoundError as error:
        if (error.name or "").startswith("sooner"):
            raise
        raise MissingExtra("sooner serve", "serve") from error
    keys += read_keys(key_file) if key_file is not None else ()
    keys = tuple(key.strip() for key in keys)
    if not all(keys):
        raise InvalidRequest("--api-key is empty: give a key, or leave it out", "api_key")
    if any(not (key.isascii() and key.isprintable()) for key in keys):
        raise InvalidRequest("an API key travels in a header: give one of ASCII letters, digits and signs", "api_key")
    local = is_loopback(host)
    if not local and not keys and not insecure:
        raise InvalidRequest(f"--host {host} lets other machines in: add --api-key, or --insecure if that is meant")
    hosts = local_names(host) if local and not keys else None
    return Settings(keys=keys, hosts=hosts, **limits)


def _folder(path: str | None) -> Path | None:
    """--pictures. Raises `InvalidRequest`."""
    if path is not None and not Path(path).is_dir():
        raise InvalidRequest(f"--pictures {path} is no folder: check the path", "pictures")
    return None if path is None else Path(path).resolve()


def _traces(path: str | None, files: int | None, megabytes: int | None) -> TraceFolder | None:
    """The folder of traces, proven to take them. Raises `InvalidRequest`."""
    from sooner.trace.folder import TraceFolder

    if path is None:
        if files is not None or megabytes is not None:
            raise InvalidRequest("--trace-keep and --trace-mb bound a folder of traces: add --trace-dir", "trace_keep")
        return None
    return TraceFolder(path, most_files=files or 1000, most_bytes=(megabytes or 1000) * 10**6)


def _run(settings: Settings, open_: Any, host: str, port: int, *, verbose: bool) -> None:
    import sooner
    from sooner.server import Service
    from sooner.server import host as hosting
    from sooner.server.otel import configure

    _log_to_stderr(verbose)
    if (traces := configure(sooner.__version__)) is not None:
        logging.getLogger("sooner.server").info("%s", traces)
    sock = hosting.bind(host, port)
    address = f"[{host}]" if ":" in host else host
    logging.getLogger("sooner.server").info("listening on http://%s:%d", address, sock.getsockname()[1])
    hosting.serve(Service(open_, settings), sock)


def _replicas(text: str | None) -> int | Literal["auto"] | None:
    """``--replicas``. Raises `InvalidRequest`."""
    if text is None:
        return None
    if text == "auto":
        return "auto"
    if not text.isdecimal() or not 1 <= int(text) <= _MOST_REPLICAS:
        raise InvalidRequest(f"replicas must be a number from 1 to {_MOST_REPLICAS}, or auto, not {text}", "replicas")
    return int(text)


def _deploy(
    opening: Callable[[float], Callable[[], Engine]],
    settings: Settings,
    where: tuple[str, int],
    *,
    replicas: int | Literal["auto"],
    threads: int | None,
    verbose: bool,
) -> None:
    """Run several engines on Ray, in the foreground, at an address. ``opening`` gives, for the processors that a
    replica holds, what makes its engine."""
    from sooner.integrations.ray import app
    from sooner.integrations.ray_cluster import demand_ray
    from sooner.integrations.ray_host import serve_until_told
    from sooner.server import host as hosting

    demand_ray("sooner serve --replicas")
    host = where[0]
    with hosting.bind(*where) as sock:  # refused here, in a line, if it is taken
        port = sock.getsockname()[1]
    _log_to_stderr(verbose)
    count = replicas if isinstance(replicas, int) else (os.cpu_count() or 1)
    cpus = float(threads or max(1, (os.cpu_count() or 1) // count))
    make = partial(app, settings, opening(cpus), replicas=replicas, cpus=cpus)
    address = f"[{host}]" if ":" in host else host
    logging.getLogger("sooner.server").info("starting on http://%s:%d, by way of Ray", address, port)
    serve_until_told(make, host, port, cpus=count * cpus, verbose=verbose)


def _log_to_stderr(verbose: bool) -> None:
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
    for name, level in (("sooner", logging.DEBUG if verbose else logging.INFO), ("uvicorn.error", logging.WARNING)):
        logger = logging.getLogger(name)
        logger.handlers = [handler]
        logger.setLevel(level)
