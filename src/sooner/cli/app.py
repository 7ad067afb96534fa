"""The commands by name. Knows them and the page above them, and nothing else."""

from __future__ import annotations

from typing import Annotated

import typer

from sooner.cli import audit, batch, bench, chat, doctor, explain, models, run, serve, trace, train, tune
from sooner.cli.options import page

__all__ = ["app"]

HELP = page("""The same text, sooner: a language model on your own machine, with drafters that guess ahead.

A pass of the model over eight tokens costs little more than a pass over one. So a cheap drafter guesses the next
tokens, the model checks them all in one pass and keeps exactly what it would have written by itself.

[bold]Start here[/bold]

  sooner run "Why is the sky blue?"     the built-in model answers
  sooner explain --example              the idea in one picture
  sooner doctor                         what holds on this machine

Text goes to stdout, everything else to stderr. Exit codes: 0 done, 1 a comparison found a difference or sooner
itself failed, 2 bad input, 130 Ctrl-C. NO_COLOR switches colours off; SOONER_CACHE moves the cache;
SOONER_DEBUG=1 shows tracebacks.""")

app = typer.Typer(
    name="sooner",
    help=HELP,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    add_completion=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


@app.callback(invoke_without_command=True)
def top(
    context: typer.Context,
    version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False,
) -> None:
    """See HELP."""
    if version:
        import sooner

        print(f"sooner {sooner.__version__}")
        raise typer.Exit
    if context.invoked_subcommand is None:
        print(context.get_help())


app.command("run", help=run.HELP)(run.run)
app.command("batch", help=batch.HELP)(batch.batch)
app.command("explain", help=explain.HELP)(explain.explain)
app.command("chat", help=chat.HELP)(chat.chat)
app.command("serve", help=serve.HELP)(serve.serve)
app.command("bench", help=bench.HELP)(bench.bench)
app.command("tune", help=tune.HELP)(tune.tune)
app.command("audit", help=audit.HELP)(audit.audit)
app.command("train", help=train.HELP)(train.train)
app.command("doctor", help=doctor.HELP)(doctor.doctor)
app.add_typer(models.app, name="models")
app.add_typer(trace.app, name="trace")
