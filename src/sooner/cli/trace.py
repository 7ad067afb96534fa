"""``sooner trace``: looks at recorded generations. Knows its commands. Does not know how anything is computed."""

from __future__ import annotations

import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sooner.cli import groups as g
from sooner.cli import options as o
from sooner.cli.failures import DIFFERENT
from sooner.cli.groups import taking
from sooner.cli.output import print_json, say, tables, warn
from sooner.errors import InvalidRequest

if TYPE_CHECKING:
    from sooner.trace import Trace

__all__ = ["HELP", "app"]

HELP = o.page("""Look at recorded generations: what was drafted, what was kept, where the time went.

sooner run --trace FILE and sooner serve --trace-dir FOLDER record. A name that ends in .gz is compressed.

[bold]Examples[/bold]

  sooner run "Why is the sky blue?" --trace sky.jsonl
  sooner trace show sky.jsonl
  sooner trace stats sky.jsonl
  sooner trace view sky.jsonl
  sooner trace verify sky.jsonl
  sooner trace diff sky.jsonl other.jsonl
  sooner trace export --perfetto sky.json sky.jsonl

[bold]Exit codes[/bold]

  0  done; with diff, the texts are the same; with verify, the text is proven
  1  diff or verify found a difference
  2  no such file, no trace, or nothing that can be verified, with a line that says what to do""")

app = typer.Typer(
    help=HELP,
    context_settings={"help_option_names": ["-h", "--help"]},
    rich_markup_mode="rich",
    add_completion=False,
    no_args_is_help=True,
)

File = Annotated[Path, typer.Argument(metavar="FILE", help="A trace, plain or compressed.")]


@app.command()
def show(
    file: File,
    *,
    first: Annotated[int, typer.Option("--from", min=0, metavar="N", help="Begin with the answer's step N.")] = 0,
    count: Annotated[int, typer.Option("--count", min=1, metavar="N", help="How many steps.")] = 64,
    everything: Annotated[bool, typer.Option("--all", help="Every step from there on.")] = False,
    choice: Annotated[int, typer.Option("--choice", min=0, metavar="N", help="Which answer, of several.")] = 0,
) -> None:
    """The text, its drafted tokens in brackets, and a table of the steps.

    Exit codes: 0 done, 2 no such file, or no trace.
    """
    from sooner.cli.trace_text import show_trace

    end = None if everything else first + count
    if not show_trace(tables(), file, choice, first, end):
        if first or choice:
            raise InvalidRequest(f"{file} has no step {first} of answer {choice}: lower --from or --choice")
        raise InvalidRequest(f"{file} ends before its first step: record it again")


@app.command()
def stats(file: File, *, json: o.Json = False) -> None:
    """Acceptance by position and by drafter, lengths, where the time went, speed against plain decoding.

    Exit codes: 0 done, 2 no such file, or no trace.
    """
    from sooner.trace import Trace
    from sooner.trace.stats import collect

    with Trace(file) as trace:
        found = collect(trace)
        _complain_if_cut(trace)
    if json:
        print_json(found.to_dict())
        return
    from sooner.cli.trace_figures import stats_page

    stats_page(tables(), found)


@app.command()
def diff(a: File, b: File, *, json: o.Json = False) -> None:
    """Where two texts part, what was asked differently, and the steps there side by side.

    Exit codes: 0 the texts are the same (drafts and times may differ), 1 they are not, 2 no such file, or no trace.
    """
    from sooner.cli.trace_sides import difference_page
    from sooner.trace import Trace
    from sooner.trace.difference import compare, settings
    from sooner.trace.stats import collect

    with ExitStack() as stack:
        traces = [stack.enter_context(Trace(path)) for path in (a, b)]
        figures = [collect(trace) for trace in traces]
        for trace in traces:
            _complain_if_cut(trace)
    found = compare(a, b, max(one.choices for one in figures))
    asked = settings(*(trace.header for trace in traces))
    if json:
        print_json({**found.to_dict(), "settings": {name: values for name, *values in asked}})
    else:
        difference_page(tables(), (str(a), str(b)), found, asked, figures)
    if not found.same:
        raise typer.Exit(DIFFERENT)


@app.command()
def export(
    file: File,
    *,
    perfetto: Annotated[
        Path, typer.Option("--perfetto", metavar="OUT", help="Chrome trace events, for https://ui.perfetto.dev.")
    ],
) -> None:
    """The steps as slices on a time line, in another program's format.

    Exit codes: 0 done, 2 no such file, no trace, or OUT cannot be written.
    """
    from sooner.trace import Trace
    from sooner.trace.perfetto import export as export_events

    if perfetto.resolve() == file.resolve():
        raise InvalidRequest("--perfetto names the trace itself: give another file")
    with Trace(file) as trace:
        try:
            with perfetto.open("w", encoding="utf-8") as out:
                count = export_events(trace, out)
        except OSError as error:
            reason = error.strerror or str(error)
            raise InvalidRequest(f"{perfetto} cannot be written ({reason}): give another path") from None
        _complain_if_cut(trace)
    say(f"{count:,} events in {perfetto}: open it in https://ui.perfetto.dev", style="")


@app.command()
def view(
    file: Annotated[
        Path | None, typer.Argument(metavar="[FILE]", help="A trace; without it, the empty viewer.")
    ] = None,
    *,
    output: Annotated[
        Path | None, typer.Option("-o", "--output", metavar="OUT", help="Where to keep the page. (default: a new file)")
    ] = None,
    opening: Annotated[
        bool | None, typer.Option("--open/--no-open", help="Open it in a browser. (default: where -o is not given)")
    ] = None,
) -> None:
    """One page with the trace in it that needs no network: text, drafts, chances, times, playback.

    Exit codes: 0 done, 2 no such file, no trace, or OUT cannot be written.
    """
    from sooner.trace import Trace
    from sooner.trace.viewer import page

    if file is not None:
        with Trace(file):  # refuses in a line what the page could only complain of
            pass
    where = _keep(page(file), output, "viewer" if file is None else file.name)
    print(where)
    if output is None if opening is None else opening:
        import webbrowser

        if not webbrowser.open(where.resolve().as_uri()):
            say("no browser can be opened here: open the page yourself", style="")


@app.command()
@taking(g.ENGINE)
def verify(
    context: typer.Context,
    file: File,
    *,
    steps: Annotated[
        bool, typer.Option("--steps", help="Score every recorded draft again, and compare all that a step says.")
    ] = False,
    json: o.Json = False,
) -> None:
    """Let the model decide every recorded token again: this text is what the model writes for this prompt and seed.

    The model is that of the trace unless --model names another. The recorded text is the draft, so this takes far
    fewer passes than writing it did.

    Exit codes: 0 every token is the model's own, 1 one is not, 2 it cannot be told, with a line that says why.
    """
    from sooner.cli.trace_verify import verify_trace
    from sooner.trace import Trace

    with Trace(file) as trace:
        proven = verify_trace(context, trace, steps=steps, json=json)
        _complain_if_cut(trace)
    if not proven:
        raise typer.Exit(DIFFERENT)


def _complain_if_cut(trace: Trace) -> None:
    if trace.footer is None:
        warn(f"{trace.path} was cut off: it has no footer")
    elif trace.footer.get("error"):
        warn(f"{trace.path} ends with an error: {trace.footer['error']}")


def _keep(page: str, output: Path | None, name: str) -> Path:
    """Write the viewer's page to ``output``, or to a new file of the system's own; returns where it is."""
    try:
        if output is None:
            with tempfile.NamedTemporaryFile(
                "w", encoding="utf-8", prefix=f"sooner-{Path(name).stem}-", suffix=".html", delete=False
            ) as file:
                file.write(page)
            return Path(file.name)
        output.write_text(page, encoding="utf-8")
        return output
    except OSError as error:
        where, reason = output or tempfile.gettempdir(), error.strerror or str(error)
        raise InvalidRequest(f"{where} cannot be written ({reason}): give another path with -o") from None
