"""``sooner explain``: one generation, step by step. Knows the order of the page. Does not know how a step looks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from sooner.cli import groups as g
from sooner.cli import options as o
from sooner.cli.answer import follow, warn_about
from sooner.cli.engine import engine_options, open_engine, sampling_from
from sooner.cli.failures import INTERRUPTED
from sooner.cli.groups import taking
from sooner.cli.output import printable, tables
from sooner.cli.prompt import ask, expected_text, read_prompt
from sooner.errors import InvalidRequest

if TYPE_CHECKING:
    from rich.console import Console

    from sooner.completion import Completion
    from sooner.engine import Engine, Handle
    from sooner.types import Step

__all__ = ["HELP", "explain"]

HELP = o.page("""Show one generation step by step.

Every line is one pass of the model: the tokens that were drafted for it, which of them the model would have written
too, and the token it wrote itself in place of the first wrong one or after the last right one.

  [green]\\[accepted][/green]  [red]~rejected~[/red]  [bold cyan]+the target's own token+[/bold cyan]

Then come how many drafted tokens were kept and how long the pass took. Trees of drafts are drawn as trees. Newlines
are shown as ↵, bytes of a character that several tokens share in hex.

[bold]Examples[/bold]

  sooner explain --example              one Korean sentence, no model needed
  sooner explain "List ten animals." --draft ngram
  sooner explain "Fix the typos." -f text.txt --expected @text.txt
  sooner explain "Hello" --draft none   plain decoding: every draft is empty

[bold]Exit codes[/bold]

  0 done, 2 bad input, 130 Ctrl-C""")


@taking(g.ENGINE, g.DRAFTING, g.SAMPLING, max_tokens=64)
def explain(
    context: typer.Context,
    prompt: o.PromptText = None,
    *,
    example: Annotated[bool, typer.Option("--example", help="The worked example, on a toy target.")] = False,
    file: o.File = None,
    system: o.System = None,
    raw: o.Raw = False,
    expected: o.Expected = None,
    verbose: o.Verbose = False,
) -> None:
    """Show one generation step by step (see HELP)."""
    if example:
        if prompt is not None or file is not None:
            raise InvalidRequest("--example brings its own prompt: leave yours out, or leave --example out", "prompt")
        _show_example(tables())
        return
    options = engine_options(context.params)
    guess = expected_text(expected, options.draft)
    sampling = sampling_from(context.params, options.drafting()[1])
    message = ask(read_prompt(prompt, file, raw=raw), system, raw=raw)
    engine = open_engine(context, options)
    more: dict[str, Any] = {} if guess is None else {"expected": guess}
    handle = engine.submit(engine.request(message, sampling, raw=raw, **more))
    console = tables()
    completion, _, interrupted = show_steps(console, engine, handle)
    _print_text(console, completion.text)
    warn_about(completion)
    if interrupted:
        raise typer.Exit(INTERRUPTED)


def show_steps(console: Console, engine: Engine, handle: Handle) -> tuple[Completion, list[Step], bool]:
    """Print a row per step as it happens, then the figures; returns the answer and whether Ctrl-C cut it short."""
    from sooner.cli.render import figures, legend, step_row

    console.print(legend())
    prompt = len(handle.request.prompt)
    console.print(f"[dim]step 0 reads the prompt of {prompt} tokens and writes the first token[/dim]\n")
    seen: list[Step] = []

    def show(step: Step) -> None:
        if step.tokens:  # an abort is no pass
            seen.append(step)
            console.print(step_row(engine.codec, step))

    interrupted = follow(engine, handle, show)
    completion = engine.completion(handle)
    console.print()
    for line in figures(completion, seen):
        console.print(line, markup=False)
    return completion, seen, interrupted


def _show_example(console: Console) -> None:
    from rich.table import Table

    from sooner.cli.example import CONTEXT, DRAFT, PROMPT, TARGET_TEXT, example_engine

    engine = example_engine()
    table = Table.grid(padding=(0, 2, 0, 0))
    table.add_row("so far", CONTEXT, "Today's weather is very ...")
    table.add_row("draft", DRAFT, "... good and sunny.")
    table.add_row("target", TARGET_TEXT, "... good and clear.")
    console.print(table)
    console.print()
    expected = CONTEXT.removeprefix(PROMPT) + " " + DRAFT
    request = engine.request(PROMPT, expected=expected)
    drafted, steps, _ = show_steps(console, engine, engine.submit(request))
    console.print()
    for step in steps:
        if len(step.draft):
            console.print(f"step {step.index}: {_sentence(engine, step)}", markup=False)
    plain = engine.generate(PROMPT, drafting=False)
    same = "the same text" if plain.token_ids == drafted.token_ids else "ANOTHER text"
    passes = (run.speculation.steps + 1 for run in (plain, drafted))
    console.print("without drafting: {}, in {} passes instead of {}".format(same, *passes), markup=False)
    _print_text(console, PROMPT + drafted.text)


def _sentence(engine: Engine, step: Step) -> str:
    """What became of a chain, in words."""
    accepted = [step.draft.tokens[node] for node in step.path]
    rejected = [token for node, token in enumerate(step.draft.tokens) if node not in step.path]
    parts = ((accepted, "accepted"), (rejected, "rejected"), (step.tokens[len(accepted) :], "written by the target"))
    return ", ".join(f"{engine.codec.decode(tokens).strip()} {what}" for tokens, what in parts if tokens)


def _print_text(console: Console, text: str) -> None:
    from rich.text import Text

    console.print()
    console.print(Text(printable(text).strip()))
    console.print()
