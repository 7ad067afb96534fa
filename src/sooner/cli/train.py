"""``sooner train``: a drafter made from the model's own text. Knows options and lines. Does not know how it is made."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Literal

import typer

from sooner.cli import options as o
from sooner.cli.engine import engine_options, open_engine, sampling_from
from sooner.cli.failures import INTERRUPTED
from sooner.cli.output import say
from sooner.cli.progress import bar
from sooner.errors import InvalidRequest

__all__ = ["HELP", "train"]

HELP = o.page("""Make a drafter for a model from what it writes.

--kind table: the model answers many prompts, and what it writes after which words is counted into a table of a few
megabytes that guesses the next tokens for nothing. Prompts like those you will ask make the best table; without a file
there are built-in ones. Each line of the file is a prompt, or a JSON object with prompt, messages or turns; a trace
recorded with --trace will do too.

--kind head: a small layer that reads what the model thinks and guesses several tokens ahead, trained on the model's own
text (needs the extra train and some hours).

--kind draft: a model of its own, made of a few of the model's layers and trained likewise; it drafts for it, with
--draft kind=model,path=OUT, or runs with -m OUT.

The steps of both are collect, fit, export and eval; --step does one alone. What they leave lies in a folder beside the
result, OUT.work, which can be removed afterwards.

It can be stopped at any time: the same command goes on where it ended.

[bold]Examples[/bold]

  sooner train                                  a table for the built-in model, found by itself from then on
  sooner train prompts.txt -m model.gguf -o mine.npz
  sooner run "Why?" -m model.gguf --draft kind=table,path=mine.npz
  sooner train prompts.txt --kind head --tokens 1000000 --hours 3 -o my-head
  sooner train --kind head --step eval -o my-head
  sooner train prompts.txt -m model.gguf --kind draft --layers 4 -o my-draft

[bold]Exit codes[/bold]

  0 done, 2 bad input, 130 Ctrl-C; what was collected stays""")

Prompts = Annotated[
    str | None, typer.Argument(metavar="[PROMPTS]", help="A file of prompts (- is standard input). (default: built in)")
]
Kind = Annotated[Literal["table", "head", "draft"], typer.Option("--kind", help="What to make.")]
Out = Annotated[
    str | None,
    typer.Option(
        "-o",
        "--out",
        metavar="PATH",
        help="Where to write: a table's file, a head's or draft's folder. (default: the cache, for this model)",
    ),
]
Tokens = Annotated[
    int, typer.Option("--tokens", metavar="N", min=1, max=5_000_000, help="Tokens of text the model writes for it.")
]
Length = Annotated[int, typer.Option("--max-tokens", metavar="N", min=1, help="Most tokens of one text.")]
Batch = Annotated[int, typer.Option("--batch", metavar="N", min=1, max=256, help="Texts written side by side.")]
OneStep = Annotated[
    Literal["all", "collect", "fit", "export", "eval"],
    typer.Option("--step", help="Which step of making a head or draft."),
]
Hours = Annotated[
    float | None, typer.Option("--hours", metavar="H", min=0.0, help="How long a head or draft is fitted. (default: 2)")
]
Layers = Annotated[
    int | None,
    typer.Option("--layers", metavar="N", min=1, help="Layers that a draft keeps. (default: one in eight)"),
]
Seed = Annotated[int, typer.Option("--seed", metavar="N", min=0, help="Of the prompts' order and the texts.")]


class _Percent:
    """Tells a bar of a hundred steps how many of ``total`` tokens are done."""

    def __init__(self, advance: Callable[[str], None], total: int) -> None:
        self._advance = advance
        self._total = total
        self._shown = 0

    def __call__(self, done: int) -> None:
        while self._shown < min(100, 100 * done // self._total):
            self._shown += 1
            self._advance(f"{done:,} tokens")


def train(
    context: typer.Context,
    prompts: Prompts = None,
    *,
    kind: Kind = "table",
    out: Out = None,
    model: o.Model = None,
    offline: o.Offline = False,
    threads: o.Threads = None,
    tokens: Tokens = 200_000,
    max_tokens: Length = 256,
    batch: Batch = 8,
    step: OneStep = "all",
    hours: Hours = None,
    layers: Layers = None,
    temperature: o.Temperature = 0.5,
    seed: Seed = 0,
    verbose: o.Verbose = False,
) -> None:
    """Make a drafter (see HELP)."""
    import sooner
    from sooner.train import make

    if kind == "table" and (step != "all" or hours is not None):
        raise InvalidRequest("--step and --hours are for heads and drafts: leave them out, a table is made in one go")
    if layers is not None and kind != "draft":
        raise InvalidRequest("--layers is for --kind draft: leave it out")
    if out is not None and kind == "table":
        make.check_out(Path(out))
    name, asked = make.prompts_of(prompts)
    sampling_from(context.params, "coupled")  # refuses what no text can be drawn with before a model is loaded
    if kind != "table":
        from sooner.cli.train_steps import train_steps
        from sooner.train.workshop import STEPS

        train_steps(context, asked, name, STEPS if step == "all" else (step,), 2.0 if hours is None else hours)
        return
    engine = open_engine(context, engine_options(context.params), max_running=batch)
    recipe = make.Recipe(
        prompts=name,
        tokens=tokens,
        max_tokens=max_tokens,
        temperature=temperature,
        seed=seed,
        model=engine.fingerprint.get("model", ""),
        sooner=sooner.__version__,
    )
    path = make.table_path(recipe.model) if out is None else Path(out)
    try:
        with bar("collecting", 100) as advance:
            made = make.make_table(
                engine,
                asked,
                path,
                recipe,
                batch=batch,
                progress=_Percent(advance, tokens),
                waiting=lambda: say(f"waiting: another process is making {path}"),
            )
    except KeyboardInterrupt:
        say(f"what was collected stays in {make.collection_path(path)}: the same command goes on there")
        raise typer.Exit(INTERRUPTED) from None
    use = f"use it with --draft kind=table,path={path}" if out is not None else "drafting uses it from now on"
    short = f" (prompts ran out before {tokens:,})" if made.tokens < tokens else ""
    print(
        f"{path}: {made.contexts:,} contexts, {made.size / 1e6:.2f} MB, from {made.tokens:,} tokens{short} of "
        f"{made.texts:,} texts; {use}",
        flush=True,
    )
