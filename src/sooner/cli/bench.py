"""``sooner bench``: a workload under several configurations in turns, and what the differences are.

Knows options, files and tables. Does not know how anything is run, timed or concluded.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated

import typer

from sooner.cli import groups as g
from sooner.cli import options as o
from sooner.cli.engine import clipped, engine_options, open_engine, sampling_from
from sooner.cli.failures import DIFFERENT, INTERRUPTED
from sooner.cli.groups import taking
from sooner.cli.output import say, warn
from sooner.cli.progress import bar
from sooner.cli.results import Outputs, complain, print_table
from sooner.errors import DraftError, InvalidRequest

if TYPE_CHECKING:
    from sooner.bench.configuration import Configuration
    from sooner.bench.runner import Runner, Sample
    from sooner.bench.workload import Item
    from sooner.engine import Engine

__all__ = ["HELP", "Config", "bench", "configurations", "left_out", "load_plainly"]

HELP = o.page("""Measure how much sooner a workload's texts come with drafting than without.

FILE holds prompts: one a line, or JSON lines. A JSON line is a Spec-Bench question (question_id, category, turns; the
first turn is asked) or an object with prompt, text or messages, and category and id if it likes. A file that --trace
recorded counts as its prompt. - is standard input.

Every prompt is decoded under every configuration in turns (A B A B), in one process, with one seed and a cold prompt
each time, after a warm-up that does not count. Plain decoding is always the first configuration; without --draft and
--config the second is the default. All texts must be identical: otherwise there is no speed-up to speak of, the table
says which configuration differs, and the exit code is 1.

[bold]The figures[/bold]

Speed-up is total time over total time, of decoding after the first token, with a 95 % interval from resampling
prompts in pairs. It is given twice: over all tokens, and over those before a text first falls into repeating itself,
which small models do and which every drafter is good at. Where an interval includes 1, no difference is shown;
fewer than four prompts (or, for those, rounds) are too few for an interval.
Acceptance length is tokens per pass, the model's own included. Draft share is the share of time that drafting takes.

With --batch N, prompts of one category are decoded N side by side, and the time is that of the whole group, from
submission to its last token.

[bold]Configurations[/bold]

  plain                      no drafting
  cascade                    the default drafters under the controller
  suffix@8                   one drafter, 8 draft tokens a pass
  suffix:max=12+recycle      drafters with options, their guesses merged

[bold]Theory[/bold]

With --theory, drafters are held against the laws of speculative decoding (arXiv 2211.17192): how often a guess is kept
at temperatures 0, 0.8 and 1, and, for chains of several lengths at -t, the speed-up as predicted (by the paper's
formula; with the price of the checking pass; from acceptance by position) and as measured, and the best length by
each. Drafters are named one by one; unigram and bigram count tokens in other prompts' texts.

[bold]Examples[/bold]

  sooner bench prompts.txt
  sooner bench question.jsonl --per-category 10 --json out.json
  sooner bench question.jsonl --evaluation-only --markdown out.md
  sooner bench prompts.txt --config cascade --config suffix@8 --rounds 3
  sooner bench prompts.txt -t 0.8 --batch 4 --csv - | column -ts,
  sooner bench question.jsonl --per-category 2 --theory --plots plots/

[bold]Exit codes[/bold]

  0  done
  1  texts differ between configurations; or sooner itself failed
  2  bad input, with a line that says what to do
  130  Ctrl-C; what was measured until then is shown and written""")

_WORKLOAD, _RESULT = "Workload", "Result"

Workload = Annotated[str, typer.Argument(metavar="FILE", help="The prompts. - is standard input.")]
PerCategory = Annotated[
    int | None,
    typer.Option(
        "--per-category", min=1, metavar="N", rich_help_panel=_WORKLOAD, help="The first N prompts of each category."
    ),
]
EvaluationOnly = Annotated[
    bool,
    typer.Option(
        "--evaluation-only",
        rich_help_panel=_WORKLOAD,
        help="Only prompts whose id is divisible by 5 or 7: no drafter that comes with sooner was made from them.",
    ),
]
Rounds = Annotated[
    int,
    typer.Option(
        "--rounds",
        min=1,
        metavar="N",
        rich_help_panel=_WORKLOAD,
        help="Go through the workload N times, cold each time.",
    ),
]
Side = Annotated[
    int,
    typer.Option("--batch", min=1, max=8, metavar="N", rich_help_panel=_WORKLOAD, help="Prompts decoded side by side."),
]
Config = Annotated[
    list[str] | None,
    typer.Option(
        "--config",
        metavar="CONFIG",
        rich_help_panel="Drafting",
        help="A configuration to measure, as above; may be given more than once, instead of --draft and --budget.",
    ),
]
_THEORY = "Theory"

Theory = Annotated[
    bool, typer.Option("--theory", rich_help_panel=_THEORY, help="Predictions against measurement, as above.")
]
Lengths = Annotated[
    str | None,
    typer.Option("--lengths", metavar="N,N,...", rich_help_panel=_THEORY, help="Draft lengths (default 1 to 15)."),
]
Plots = Annotated[
    str | None,
    typer.Option(
        "--plots", metavar="DIR", rich_help_panel=_THEORY, help="Draw into a folder, PNG and SVG (extra plots)."
    ),
]
JsonFile = Annotated[
    str | None,
    typer.Option(
        "--json",
        metavar="OUT",
        rich_help_panel=_RESULT,
        help="Write figures, runs, machine and versions as JSON; - is standard output, in place of the table.",
    ),
]
CsvFile = Annotated[
    str | None, typer.Option("--csv", metavar="OUT", rich_help_panel=_RESULT, help="Write the runs as CSV.")
]
MarkdownFile = Annotated[
    str | None,
    typer.Option("--markdown", metavar="OUT", rich_help_panel=_RESULT, help="Write the table as Markdown."),
]


@taking(g.ENGINE, g.SAMPLING, g.TRUNCATION, max_tokens=128)
def bench(
    context: typer.Context,
    file: Workload,
    *,
    per_category: PerCategory = None,
    evaluation_only: EvaluationOnly = False,
    rounds: Rounds = 1,
    batch: Side = 1,
    draft: o.Draft = None,
    budget: o.Budget = None,
    config: Config = None,
    ignore_eos: o.IgnoreEos = False,
    theory: Theory = False,
    lengths: Lengths = None,
    plots: Plots = None,
    json: JsonFile = None,
    csv: CsvFile = None,
    markdown: MarkdownFile = None,
    verbose: o.Verbose = False,
) -> None:
    """Measure a workload (see HELP)."""
    from sooner.bench.runner import Runner, group_items
    from sooner.bench.summary import summarise
    from sooner.bench.workload import for_evaluation, read_workload
    from sooner.bench.workload import per_category as by_category

    if theory:
        from sooner.cli.theory import run_theory

        return run_theory(context)
    if lengths is not None or plots is not None:
        raise InvalidRequest("--lengths and --plots belong to --theory: add it, or leave them out")
    chosen = configurations(config, draft, budget)
    outputs = Outputs(json, csv, markdown)
    sampling = sampling_from(context.params, "coupled")
    items = read_workload(file)
    categories = by_category(for_evaluation(items) if evaluation_only else items, per_category)
    runner = Runner(load_plainly(context, chosen), chosen, sampling)
    groups = group_items({name: left_out(runner, found) for name, found in categories.items()}, batch)
    if not groups:
        raise InvalidRequest(f"{file}: the model can take none of the prompts; give others, or a larger --context")
    samples, interrupted = _collect(runner, groups, rounds)
    if samples:
        options = {"workload": file, "rounds": rounds, "batch": batch, "interrupted": interrupted}
        figures = summarise(samples)
        outputs.write(runner, figures, samples, options)
        if not outputs.to_stdout:
            print_table(figures)
        complain(figures)
    else:
        say("nothing was measured yet")
    if interrupted:
        raise typer.Exit(INTERRUPTED)
    if any(one.differing for one in figures):
        raise typer.Exit(DIFFERENT)


def configurations(
    config: Sequence[str] | None, draft: Sequence[str] | None, budget: int | None
) -> list[Configuration]:
    """Plain decoding and what is compared with it, each once. Raises `DraftError`."""
    from sooner.bench.configuration import PLAIN, parse_configuration
    from sooner.loading import DEFAULT_DRAFT

    if config and (draft or budget is not None):
        raise DraftError(
            "--config names whole configurations: write suffix@8 there, and leave out --draft and --budget"
        )
    fixed = "" if budget is None else f"@{budget}"
    texts = config or [("+".join(draft) if draft else DEFAULT_DRAFT) + fixed]
    chosen = [_allowed(one) for one in map(parse_configuration, texts)]
    found = {one.name: one for one in (PLAIN, *chosen)}
    drafting = [one for one in found.values() if not one.plain]
    if not drafting:
        raise DraftError("plain decoding alone leaves nothing to compare: name a drafter, such as --config suffix@8")
    return [PLAIN, *drafting]


def _allowed(one: Configuration) -> Configuration:
    """``one`` with a budget that a pass allows."""
    budget = clipped(one.budget)
    return one if budget == one.budget else replace(one, name=f"{'+'.join(one.draft)}@{budget}", budget=budget)


def load_plainly(context: typer.Context, chosen: Sequence[Configuration] = ()) -> Engine:
    """The engine of a command that brings configurations of its own, ``chosen``, whatever profile there is.

    What long use would compile at some time is compiled before anything is measured.
    """
    from sooner.draft import parse_spec

    options = engine_options({**context.params, "draft": ("cascade",), "budget": None})
    named = [spec for one in chosen for spec in one.draft if not one.plain and one.draft != ("cascade",)]
    heads = [spec for spec in named if parse_spec(spec)["kind"] == "head"]
    more = {"heads": heads} if heads else {}
    return open_engine(context, options, max_running=context.params.get("batch", 1), warm=True, **more)


def left_out(runner: Runner, items: Sequence[Item]) -> list[Item]:
    """The items that the engine can take; the others are named in warnings."""
    kept = []
    for item in items:
        reason = runner.refusal(item)
        if reason is None:
            kept.append(item)
        else:
            warn(f"prompt {item.id} is left out: {reason}")
    return kept


def _collect(runner: Runner, groups: Sequence[tuple[Item, ...]], rounds: int) -> tuple[list[Sample], bool]:
    """The samples, all or those until Ctrl-C, and whether it was pressed."""
    samples: list[Sample] = []
    try:
        with bar("measuring", rounds * len(groups) * len(runner.configurations)) as done:
            for sample in runner.interleaved(groups, rounds):
                samples.append(sample)
                done(f"{sample.category}, {sample.configuration}")
    except KeyboardInterrupt:
        return samples, True
    return samples, False
