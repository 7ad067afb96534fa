"""``sooner bench --theory``: the paper's laws beside what is measured, as tables, JSON and plots.

Knows options, tables and files. Does not know how anything is measured or predicted.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from json import dumps
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from sooner.cli.engine import sampling_from
from sooner.cli.output import say, tables
from sooner.cli.progress import bar
from sooner.cli.results import prove_writable, write_result
from sooner.errors import DraftError, InvalidRequest

if TYPE_CHECKING:
    from sooner.engine import Engine
    from sooner.types import Sampling

__all__ = ["drafters", "gammas", "run_theory"]


_WAYS = ("paper", "priced", "positions")


def drafters(config: Sequence[str] | None, draft: Sequence[str] | None) -> list[str]:
    """The drafters asked for, one by one, else those that any model can have. Raises `DraftError`."""
    from sooner.bench.configuration import parse_configuration
    from sooner.bench.theory_counts import BIGRAM, UNIGRAM
    from sooner.bench.theory_study import DRAFTERS

    names = list(dict.fromkeys(config or draft or DRAFTERS))
    for name in names:
        if name in (UNIGRAM, BIGRAM):
            continue
        found = parse_configuration(name)
        if found.plain or found.budget is not None or len(found.draft) != 1 or name == "cascade":
            raise DraftError(f"--theory takes drafters one by one, without a budget, not {name!r}: write suffix, say")
    return names


def gammas(text: str | None) -> list[int]:
    """Draft lengths from ``1,2,4``. Raises `InvalidRequest`."""
    from sooner.bench.theory_study import LENGTHS

    if text is None:
        return list(LENGTHS)
    words = [word.strip() for word in text.split(",")]
    if not all(word.isdecimal() and 1 <= int(word) <= 64 for word in words):
        raise InvalidRequest(f"--lengths takes draft lengths from 1 to 64 with commas between, not {text!r}")
    return sorted({int(word) for word in words})


def run_theory(context: typer.Context) -> None:
    """What ``sooner bench --theory`` does with its options. Raises `SoonerError`."""
    from sooner.bench.theory_plots import draw, require_plots
    from sooner.cli.bench import load_plainly

    options = context.params
    _refuse(options)
    names, lengths = drafters(options["config"], options["draft"]), gammas(options["lengths"])
    output, plots = options["json"], options["plots"]
    if output not in (None, "-"):
        prove_writable(Path(output))
    if plots is not None:
        require_plots()
    sampling = sampling_from(options, "coupled")
    record = _measure(load_plainly(context), sampling, names, lengths, options)
    if output != "-":
        _print(record)
    text = dumps(record, indent=1, ensure_ascii=False) + "\n"
    if output == "-":
        print(text, end="", flush=True)
    elif output is not None:
        write_result(Path(output), text)
    if plots is not None:
        try:
            written = draw(record, Path(plots))
        except OSError as error:
            reason = error.strerror or error
            raise InvalidRequest(f"{plots} cannot be written ({reason}): name another folder") from None
        say(f"drawn: {', '.join(path.name for path in written)}")


def _refuse(options: Mapping[str, Any]) -> None:
    usual = {
        "budget": None,
        "rounds": 1,
        "batch": 1,
        "top_p": 1.0,
        "top_k": 0,
        "min_p": 0.0,
        "csv": None,
        "markdown": None,
    }
    for name, value in usual.items():
        if options[name] != value:
            flag = name.replace("_", "-")
            raise InvalidRequest(
                f"--theory takes one text at a time, samples by temperature alone and writes JSON: leave out --{flag}"
            )


def _measure(
    engine: Engine, sampling: Sampling, names: Sequence[str], lengths: Sequence[int], options: Mapping[str, Any]
) -> dict[str, Any]:
    from sooner.bench.runner import Runner
    from sooner.bench.theory_run import Lab
    from sooner.bench.theory_study import TEMPERATURES, split, study
    from sooner.bench.workload import for_evaluation, per_category, read_workload
    from sooner.cli.bench import left_out

    everything = read_workload(options["file"])
    allowed = for_evaluation(everything) if options["evaluation_only"] else everything
    runner = Runner(engine, (), sampling)
    groups = per_category(allowed, options["per_category"]).values()
    chosen = [item for group in groups for item in left_out(runner, group)]
    others = [item for item in everything if item not in chosen and runner.refusal(item) is None]
    items, training = split(chosen, others)
    if not items:
        raise InvalidRequest(f"{options['file']}: the model can take none of the prompts; give others")
    temperatures = list(dict.fromkeys([*TEMPERATURES, sampling.temperature]))
    lab = Lab(engine, replace(sampling, temperature=0.0), training)
    with bar("measuring", len(temperatures) + len(items) * (1 + len(names) * len(lengths))) as done:
        timed = (sampling.temperature,)
        return study(lab, names, items, gammas=lengths, temperatures=temperatures, timed=timed, say=done)


def _print(record: Mapping[str, Any]) -> None:
    """Acceptance, then every length, then the best ones."""
    from rich.table import Table

    def table(*columns: str) -> Table:
        made = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0), header_style="bold")
        for i, column in enumerate(columns):
            made.add_column(column, justify="right" if i else "left")
        return made

    first = table("drafter", "T", "alpha", "95 %", "covered", "repeats")
    for row in record["acceptance"]:
        again = "-" if row["repeats"] is None else f"{row['repeats']:.1f}x"
        span = f"{row['low']:.2f}-{row['high']:.2f}"
        told = (f"{row['temperature']:g}", f"{row['alpha']:.3f}", span, f"{row['covered']:.0%}", again)
        first.add_row(row["drafter"], *told)
    second = table("drafter", "length", "c", "v", "paper", "with v", "by position", "measured")
    for row in record["lengths"]:
        cells = [_predicted(row, way) for way in _WAYS]
        measured = f"{row['speed']['measured']:.2f} [{row['low']:.2f}, {row['high']:.2f}]"
        second.add_row(row["drafter"], str(row["length"]), f"{row['c']:.3f}", f"{row['v']:.2f}", *cells, measured)
    third = table("drafter", "best length: paper", "with v", "by position", "found")
    for row in record["best"]:
        third.add_row(row["drafter"], *(str(row["length"][way]) for way in _WAYS), str(row["length"]["measured"]))
    for made in (first, second, third):
        tables().print(made)
        tables().print()
    count = len(record["lengths"])
    held = (sum(row["holds"][way] for row in record["lengths"]) for way in _WAYS)
    summary = ", ".join(
        f"{label} {right}" for label, right in zip(("paper", "with v", "by position"), held, strict=True)
    )
    say(f"predicted within 10 % of the measured speed-up (others have a *), of {count} each: {summary}")


def _predicted(row: Mapping[str, Any], way: str) -> str:
    return f"{row['speed'][way]:.2f}{'' if row['holds'][way] else '*'}"
