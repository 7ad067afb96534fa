"""``--compare``: the same text decoded plainly and drafted in turns, and what the difference is.

Knows how to interleave, and what is said of the result. Does not know how a ratio's interval is computed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from sooner.cli.failures import DIFFERENT
from sooner.cli.output import notes, print_json, say, tables

if TYPE_CHECKING:
    from sooner.bench import Ratio
    from sooner.completion import Completion
    from sooner.engine import Engine
    from sooner.types import Request

__all__ = ["Comparison", "compare", "run_compare"]


@dataclass(frozen=True, slots=True)
class Comparison:
    """Paired runs, plain and drafted in turns, of one request under one seed."""

    plain: tuple[Completion, ...]
    drafted: tuple[Completion, ...]

    @property
    def identical(self) -> bool:
        """Whether all runs gave the same token ids and the same text."""
        return len({(run.token_ids, run.text) for run in (*self.plain, *self.drafted)}) == 1

    @property
    def ratio(self) -> Ratio:
        """How many times as fast the drafted runs were, from submission to the last token, per token."""
        from sooner.bench import ratio

        return ratio(*([_seconds_per_token(run) for run in runs] for runs in (self.plain, self.drafted)))

    def to_dict(self) -> dict[str, Any]:
        """The JSON object: the figures of each side, every run's times, the ratio and whether the text is the same."""
        from sooner.bench import stamp

        ratio, first = self.ratio, self.drafted[0]
        return {
            "plain": _figures(self.plain),
            "drafted": _figures(self.drafted),
            "ratio": {
                "value": ratio.value,
                "low": ratio.low,
                "high": ratio.high,
                "pairs": ratio.pairs,
                "difference_shown": ratio.shown,
            },
            "identical": self.identical,
            "seed": first.seed,
            "model": first.model,
            "fingerprint": dict(first.fingerprint),
            "machine": stamp(),
        }


def compare(engine: Engine, request: Request, pairs: int) -> Iterator[Completion]:
    """Runs in the order plain, drafted, plain, drafted, ..., the first pair being the warm-up.

    All have one seed, and a salt each, so that none finds the others' prompt in the prefix cache.
    """
    from sooner.noise import fresh_seed

    seed = request.sampling.seed if request.sampling.seed is not None else fresh_seed()
    sampling = replace(request.sampling, seed=seed)
    for turn in range(2 * (pairs + 1)):
        handle = engine.submit(replace(request, sampling=sampling, drafting=turn % 2 == 1, salt=f"compare {turn}"))
        for _ in engine.follow(handle):
            pass
        yield engine.completion(handle)


def run_compare(engine: Engine, request: Request, pairs: int, *, json: bool) -> int:
    """Compare, report on stdout, and return the exit code: 1 if the texts differ."""
    runs: list[Completion] = []
    with notes().status("comparing") as status:
        for run in compare(engine, request, pairs):
            runs.append(run)
            status.update(f"comparing, run {len(runs)} of {2 * (pairs + 1)}")
    result = Comparison(tuple(runs[2::2]), tuple(runs[3::2]))
    if json:
        print_json(result.to_dict())
    else:
        _report(result)
    return 0 if result.identical else DIFFERENT


def _report(result: Comparison) -> None:
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("")
    for title in ("tokens/s", "TTFT ms", "TPOT ms", "acceptance length"):
        table.add_column(title, justify="right")
    for name, runs in (("plain", result.plain), (result.drafted[0].speculation.drafter, result.drafted)):
        figures = _figures(runs)
        table.add_row(
            name,
            f"{figures['tokens_per_second']:.1f}",
            f"{figures['ttft_ms']:.0f}",
            f"{figures['tpot_ms']:.1f}",
            f"{figures['acceptance_length']:.2f}",
        )
    console = tables()
    console.print(table)
    tokens = result.drafted[0].usage.completion_tokens
    console.print(f"\nratio: {result.ratio} over {result.ratio.pairs} pairs of {tokens} tokens", markup=False)
    yes = result.identical
    console.print(Text.assemble("identical: ", ("yes", "bold green") if yes else ("no", "bold red")))
    if not yes:
        say(_why(result), style="yellow")


def _why(result: Comparison) -> str:
    speculation = result.drafted[0].speculation
    if not speculation.lossless:
        return f"{speculation.verify} is a LOSSY rule: it changes the text; --verify coupled does not"
    if speculation.verify != "coupled":
        return f"{speculation.verify} keeps the distribution, not the text; --verify coupled keeps both"
    return "the rows of this model depend on how they are scored on this machine: see sooner doctor"


def _seconds_per_token(run: Completion) -> float:
    return run.timings.total_ms / 1e3 / max(1, run.usage.completion_tokens)


def _figures(runs: Sequence[Completion]) -> dict[str, Any]:
    tokens = sum(run.usage.completion_tokens for run in runs)
    seconds = sum(run.timings.total_ms for run in runs) / 1e3
    speculation = runs[0].speculation
    return {
        "drafter": speculation.drafter,
        "verify": speculation.verify,
        "lossless": speculation.lossless,
        "completion_tokens": runs[0].usage.completion_tokens,
        "tokens_per_second": tokens / seconds if seconds else 0.0,
        "ttft_ms": _mean([run.timings.ttft_ms for run in runs]),
        "tpot_ms": _mean([run.timings.tpot_ms for run in runs]),
        "acceptance_length": speculation.acceptance_length,
        "total_ms": [run.timings.total_ms for run in runs],
    }


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)
