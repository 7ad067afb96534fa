"""``sooner tune``: which drafters to use for a model on this machine, measured and kept.

Knows options and words. Does not know how anything is measured or decided.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from itertools import islice
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sooner.cli import groups as g
from sooner.cli import options as o
from sooner.cli.bench import Config, configurations, left_out, load_plainly
from sooner.cli.engine import sampling_from
from sooner.cli.failures import DIFFERENT, INTERRUPTED
from sooner.cli.groups import taking
from sooner.cli.output import print_json, say, tables
from sooner.cli.progress import bar
from sooner.errors import InvalidRequest

if TYPE_CHECKING:
    from sooner.bench.runner import Runner, Sample
    from sooner.bench.summary import Figures
    from sooner.bench.tune import Choice
    from sooner.bench.workload import Item
    from sooner.cli.skips import SkipReport

__all__ = ["HELP", "tune"]

HELP = o.page("""Find out which drafters make your prompts' texts appear soonest, and keep the answer.

FILE holds prompts of the kind you use: one a line, or JSON lines with prompt, text, messages or turns, or a recording
made with --trace. Without FILE built-in prompts stand in for them; your own are better, since what drafting brings
depends on the text.

Plain decoding, the default drafters under the controller, its drafters alone and a few fixed budgets are measured in
turns on each prompt. What is clearly slower drops out, and measuring ends when the answer is clear. The texts are the
same under all of them; only the time differs.

The answer becomes the profile of this model on this machine: sooner run and sooner chat use it whenever neither
--draft nor --budget is given. A profile that was made on another machine, for another model or with another version
of the engine is ignored, with a line that says so. Where no drafter is shown to be faster than plain decoding, the
profile says plain, and the table why: tokens a pass against the number needed to break even.

With --layerskip the model is also tried as its own draft, with some attention and MLP layers left out, on its own
weights and cache. Which ones is searched first, by how many of its own tokens the model then foresees and what its
passes take; every set that was measured is kept, so that the next search goes on where this one ended. The set found
belongs to the profile, as what --draft layerskip leaves out. On a small model it seldom pays, and tune says so.

With --export nothing is measured: the profile that was kept is printed as flags of vLLM, SGLang or llama.cpp, with
what is not the same there and why.

[bold]Examples[/bold]

  sooner tune
  sooner tune prompts.txt -m model.gguf
  sooner tune recorded.jsonl --max-tokens 256
  sooner tune prompts.txt --config cascade --config suffix@16 --dry-run
  sooner tune --layerskip -m large.gguf --search-seconds 600
  sooner tune --export vllm

[bold]Exit codes[/bold]

  0  done
  1  texts differ under every drafter; or sooner itself failed
  2  bad input, with a line that says what to do
  130  Ctrl-C; if enough is known by then, the answer is shown and kept""")

Prompts = Annotated[
    str | None, typer.Argument(metavar="[FILE]", help="Your prompts. - is standard input. (default: built-in ones)")
]
Most = Annotated[
    int, typer.Option("--prompts", min=1, metavar="N", rich_help_panel="Input", help="Measure at most N prompts.")
]
LayerSkip = Annotated[
    bool,
    typer.Option("--layerskip", rich_help_panel="Input", help="Also search for layers that drafts can do without."),
]
SearchSeconds = Annotated[
    int,
    typer.Option(
        "--search-seconds", min=1, metavar="N", rich_help_panel="Input", help="Search at most N seconds for layers."
    ),
]
Export = Annotated[
    str | None,
    typer.Option(
        "--export",
        metavar="ENGINE",
        rich_help_panel="Output",
        help="Print the kept answer as flags of vllm, sglang or llama.cpp, and measure nothing.",
    ),
]
DryRun = Annotated[
    bool, typer.Option("--dry-run", rich_help_panel="Output", help="Show the answer without keeping it.")
]


@taking(g.ENGINE, g.SAMPLING, max_tokens=96)
def tune(
    context: typer.Context,
    file: Prompts = None,
    *,
    prompts: Most = 32,
    config: Config = None,
    layerskip: LayerSkip = False,
    search_seconds: SearchSeconds = 300,
    dry_run: DryRun = False,
    export: Export = None,
    json: o.Json = False,
    verbose: o.Verbose = False,
) -> None:
    """Measure and keep the answer (see HELP)."""
    if export is not None:
        from sooner.cli.tune_export import print_export

        print_export(context, export, json=json)
        return
    from sooner.bench.runner import Runner
    from sooner.bench.tune import candidates, choose
    from sooner.bench.workload import read_workload

    chosen = configurations(config, None, None) if config else None
    sampling = sampling_from(context.params, "coupled")
    items = read_workload(file) if file is not None else _builtin(prompts)
    engine = load_plainly(context, chosen or ())
    runner = Runner(engine, chosen or candidates(engine), sampling)
    items = left_out(runner, _spread(items, prompts))
    if not items:
        raise InvalidRequest("the model can take none of the prompts: give others, or a larger --context")
    skips = _skips(runner, items, search_seconds) if layerskip else None
    samples, interrupted = _collect(runner, items)
    choice = choose(runner.configurations, samples)
    path = _keep(runner, choice, samples, skips) if choice is not None and not dry_run else None
    if json:
        print_json(_object(runner, choice, samples, path, skips, interrupted=interrupted))
    else:
        _report(choice, samples, path)
    if interrupted:
        raise typer.Exit(INTERRUPTED)
    if choice is None:
        raise typer.Exit(DIFFERENT)


def _skips(runner: Runner, items: Sequence[Item], seconds: float) -> SkipReport:
    """Search for layers to leave out, say what was found, and have it measured if it promises anything."""
    from sooner.cli.skips import configurations_with, search_skips

    report = search_skips(runner.engine, items, seconds)
    say(str(report))
    runner.configurations += tuple(configurations_with(report))
    return report


def _builtin(most: int) -> list[Item]:
    from sooner.bench.workload import Item
    from sooner.train.templates import builtin_prompts

    texts = (text for text in builtin_prompts(_BUILTIN_SEED) if "{p}" not in text)
    return [Item(str(number), "built-in", text) for number, text in enumerate(islice(texts, most), start=1)]


_BUILTIN_SEED = 7
"""Not the seed that tables are trained from."""


def _spread(items: Sequence[Item], most: int) -> list[Item]:
    """At most ``most`` of the items, in an order that mixes what a file keeps together."""
    return random.Random(0).sample(list(items), min(most, len(items)))


def _collect(runner: Runner, items: Sequence[Item]) -> tuple[list[Sample], bool]:
    """The samples, and whether Ctrl-C cut them short."""
    from sooner.bench.tune import measure, rounds

    samples: list[Sample] = []
    try:
        with bar("tuning", rounds(items) * len(items) * len(runner.configurations)) as done:
            for sample in measure(runner, items):
                samples.append(sample)
                done(sample.configuration)
    except KeyboardInterrupt:
        return samples, True
    return samples, False


def _keep(runner: Runner, choice: Choice, samples: Sequence[Sample], skips: SkipReport | None) -> str:
    """Write the profile; returns its file."""
    from sooner.bench.stamp import stamp
    from sooner.bench.summary import ratio_dict
    from sooner.store.profile import Profile, find_profile, save_profile

    fingerprint = runner.engine.target.fingerprint
    before = find_profile(fingerprint, lambda message: None)
    facts = {
        "configuration": choice.configuration.name,
        "speed_up": ratio_dict(choice.ratio),
        "prompts": len({sample.key for sample in samples}),
        "model": runner.engine.name,
        "temperature": runner.sampling.temperature,
        "time": datetime.now(UTC).isoformat(timespec="seconds"),
        "versions": stamp()["versions"],
    }
    if skips is not None:
        facts["layerskip"] = skips.to_dict()
    skip = skips.found.text if skips is not None else before.skip if before is not None else ""
    return str(save_profile(fingerprint, Profile(choice.configuration.draft, choice.configuration.budget, facts, skip)))


def _object(
    runner: Runner,
    choice: Choice | None,
    samples: Sequence[Sample],
    path: str | None,
    skips: SkipReport | None,
    *,
    interrupted: bool,
) -> dict[str, Any]:
    from sooner.bench.stamp import stamp

    return {
        "model": runner.engine.name,
        "fingerprint": dict(runner.engine.fingerprint),
        "machine": stamp(),
        "interrupted": interrupted,
        "chosen": None if choice is None else asdict(choice.configuration),
        "reason": _nothing(samples) if choice is None else choice.reason,
        "profile": path,
        "layerskip": None if skips is None else skips.to_dict(),
        "figures": [one.to_dict() for one in _overall(samples)],
    }


def _report(choice: Choice | None, samples: Sequence[Sample], path: str | None) -> None:
    if samples:
        _table(_overall(samples), choice)
    if choice is None:
        say(_nothing(samples), style="yellow")
        return
    console = tables()
    console.print(f"\nfastest here: {choice.configuration.name}; {choice.reason}", markup=False)
    if path is not None:
        say(f"kept in {path}: sooner run and sooner chat use it from now on")


def _nothing(samples: Sequence[Sample]) -> str:
    """Why there is no answer."""
    bad = [one.configuration for one in _overall(samples) if one.differing]
    if bad:
        return (
            f"NOT identical: texts differ from the plain ones under {', '.join(bad)}; the rows of this model depend on "
            "how they are scored on this machine: see sooner doctor"
        )
    return "too little was measured for an answer, and nothing was kept: let sooner tune run longer"


def _overall(samples: Sequence[Sample]) -> list[Figures]:
    """The figures over all prompts; none without samples."""
    from sooner.bench.summary import ALL, summarise

    return [one for one in summarise(samples) if one.category == ALL] if samples else []


def _table(figures: Sequence[Figures], choice: Choice | None) -> None:
    from rich.table import Table

    from sooner.bench.summary import verdict

    table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0), header_style="bold")
    table.add_column("configuration")
    for title in ("prompts", "tokens/s", "speed-up", "acceptance\nlength", "to break\neven", "draft\nshare"):
        table.add_column(title, justify="right", min_width=19 if title == "speed-up" else None)
    for one in figures:
        table.add_row(
            one.configuration,
            str(one.texts),
            f"{one.tokens_per_second:.1f}",
            f"{one.differing} texts DIFFER" if one.differing else verdict(one.ratio) if one.ratio else "",
            f"{one.acceptance_length:.2f}",
            f"{one.break_even:.2f}" if one.ratio else "",
            f"{one.draft_share:.0%}",
            style="bold" if choice is not None and one.configuration == choice.configuration.name else None,
        )
    tables().print(table)
