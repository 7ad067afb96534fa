"""``sooner doctor``: what holds on this machine, and what drafting costs here.

Knows how to put measurements into words. Does not know how they are taken.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sooner.cli import groups as g
from sooner.cli import options as o
from sooner.cli.engine import engine_options, open_engine
from sooner.cli.failures import DIFFERENT
from sooner.cli.groups import taking
from sooner.cli.output import notes, print_json, tables
from sooner.errors import InvalidRequest

if TYPE_CHECKING:
    from rich.console import Console

    from sooner.engine import Engine
    from sooner.targets.openvino.memory import MemoryPlan
    from sooner.targets.probe import PassCost, RowVerdict

__all__ = ["HELP", "Diagnosis", "break_even", "doctor"]

HELP = o.page("""Measure what holds on this machine with this model.

Three things are reported: what the machine and the model are and how memory is divided; whether a row of logits is the
same bits however it is scored, which is what makes the drafted text identical to the plain one; and what a pass costs
by the number of rows, with the share of drafted tokens that must be accepted for a draft of that length to pay.

The negative controls are ways of scoring that sooner never uses and that are expected to differ: they show that the
check can see a difference.

[bold]Examples[/bold]

  sooner doctor
  sooner doctor -m model.gguf --json
  sooner doctor --quick

[bold]Exit codes[/bold]

  0  rows are the same bits: the text is identical with and without drafting
  1  they are not: the text is equal up to numeric near-ties
  2  bad input""")

ROWS = (1, 2, 4, 8, 16)
"""Rows per pass that are timed: the last known token and the drafted ones."""


@taking(g.ENGINE)
def doctor(
    context: typer.Context,
    *,
    quick: Annotated[bool, typer.Option("--quick", help="Fewer rows and passes, less certainty.")] = False,
    json: o.Json = False,
) -> None:
    """Measure what holds on this machine (see HELP)."""
    options = engine_options({**context.params, "draft": ("none",)})
    diagnosis = diagnose(open_engine(context, options, max_running=1, warm=not quick), quick=quick)
    if json:
        print_json(diagnosis.to_dict())
    else:
        _report(tables(), diagnosis)
    if not diagnosis.rows.invariant:
        raise typer.Exit(DIFFERENT)


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """What was found. ``costs`` are of one sequence; ``machine`` is the stamp of every kept result."""

    machine: dict[str, Any]
    model: str
    fingerprint: dict[str, str]
    memory: MemoryPlan
    rows: RowVerdict
    costs: tuple[PassCost, ...]

    @property
    def guarantee(self) -> str:
        """What the user can rely on, in plain words."""
        if not self.rows.invariant:
            return (
                "On this machine the model's numbers depend a little on how many tokens are scored together. The "
                "drafted text equals the plain one except where two tokens are practically equally likely."
            )
        found = (
            "The ways that sooner never uses did differ, so the check can see a difference."
            if self.rows.sharp
            else "The ways that sooner never uses did not differ either, so here nothing shows that the check is sharp."
        )
        return (
            "On this machine every row came out as the same bits however it was scored. So the text with drafting is "
            f"the text without it, token for token, at every temperature under the default rule. {found}"
        )

    def to_dict(self) -> dict[str, Any]:
        """The --json object."""
        return {
            "machine": self.machine,
            "model": self.model,
            "fingerprint": self.fingerprint,
            "memory": {**asdict(self.memory), "pool_tokens": self.memory.pool_tokens},
            "row_invariant": self.rows.invariant,
            "controls_differ": self.rows.sharp,
            "checks": [asdict(check) for check in self.rows.lawful],
            "negative_controls": [asdict(check) for check in self.rows.controls],
            "pass_costs": [
                {**asdict(cost), "ratio": ratio, "break_even_acceptance": break_even(cost.rows, ratio)}
                for cost, ratio in zip(self.costs, _ratios(self.costs), strict=True)
            ],
            "guarantee": self.guarantee,
        }


def diagnose(engine: Engine, *, quick: bool) -> Diagnosis:
    """Check the rows and time the passes of the engine's target. Raises `InvalidRequest` if it has no probe."""
    from sooner.bench import stamp
    from sooner.protocols import Encoding

    target: Any = engine.target.decoder if isinstance(engine.target, Encoding) else engine.target
    probe = _probe(target)
    console = notes()
    with console.status("checking rows") as status:
        rows = probe.check_rows(target, 64 if quick else 600)
        status.update("timing passes")
        costs = probe.pass_costs(target, ROWS, (1,), _contexts(target.context), 3 if quick else 9)
    return Diagnosis(stamp(), engine.name, dict(engine.fingerprint), target.plan, rows, tuple(costs))


def _probe(target: object) -> ModuleType:
    """What measures ``target``: the module ``probe`` beside it. Raises `InvalidRequest` if there is none."""
    if not hasattr(target, "plan"):
        raise InvalidRequest(f"doctor measures models, not {type(target).__name__}", "model")
    return import_module(f"{type(target).__module__.rpartition('.')[0]}.probe")


def _contexts(most: int) -> tuple[int, ...]:
    """Tokens before the timed passes: a question's, and, where that fits, a document's."""
    near = min(256, most - max(ROWS) - 1)
    return (near, 4 * near) if 8 * near < most else (near,)


def break_even(rows: int, ratio: float) -> float | None:
    """The acceptance per drafted token at which a pass over ``rows`` rows, ``ratio`` times a plain one, just pays.

    With acceptance a, a chain of rows - 1 tokens gives (1 - a^rows) / (1 - a) tokens a pass (Leviathan et al. 2023,
    equation 1). None if even full acceptance does not pay.
    """
    if ratio >= rows:
        return None if ratio > rows else 1.0
    low, high = 0.0, 1.0
    for _ in range(40):
        middle = (low + high) / 2
        low, high = (middle, high) if sum(middle**i for i in range(rows)) < ratio else (low, middle)
    return high if ratio > 1.0 else 0.0


def _ratios(costs: Sequence[PassCost]) -> list[float]:
    """Each pass's cost in plain passes after as many tokens."""
    plain = {cost.context: cost.ms for cost in costs if cost.rows == 1}
    return [cost.ms / plain[cost.context] for cost in costs]


def _report(console: Console, diagnosis: Diagnosis) -> None:
    from rich.table import Table

    facts = Table.grid(padding=(0, 2, 0, 0))
    facts.add_column(style="bold")
    facts.add_column(overflow="fold")
    machine = diagnosis.machine
    versions = ", ".join(f"{name} {version}" for name, version in machine["versions"].items())
    rows = {
        "machine": f"{machine['processor']}, {machine['cores']} cores, {machine['memory_gb']} GB, {machine['system']}",
        "versions": f"Python {machine['python']}, {versions}",
        **diagnosis.fingerprint,
        "model": f"{diagnosis.model} ({diagnosis.fingerprint.get('model', 'no hash')})",
        "memory": str(diagnosis.memory).removeprefix("memory: "),
    }
    for name, value in rows.items():
        facts.add_row(name.replace("_", " "), value)
    console.print(facts)
    console.print("\n[bold]Is a row the same bits however it is scored?[/bold]")
    yes = diagnosis.rows.invariant
    console.print("yes" if yes else "NO", style="bold green" if yes else "bold red")
    for check in diagnosis.rows.lawful:
        console.print(f"  {check}", markup=False)
    console.print("negative controls, expected to differ", style="dim")
    for check in diagnosis.rows.controls:
        console.print(f"  {check}", markup=False)
    _report_costs(console, diagnosis)
    console.print("\n[bold]What you can rely on[/bold]")
    console.print(diagnosis.guarantee, markup=False)


def _report_costs(console: Console, diagnosis: Diagnosis) -> None:
    from rich.table import Table

    console.print("\n[bold]What does a pass cost?[/bold] (one text)")
    table = Table(box=None, pad_edge=False)
    for title in ("tokens before", "rows", "drafted", "ms", "plain passes", "pays from acceptance"):
        table.add_column(title, justify="right")
    for cost, ratio in zip(diagnosis.costs, _ratios(diagnosis.costs), strict=True):
        least = break_even(cost.rows, ratio)
        pays = "-" if cost.rows == 1 else "never" if least is None else f"{least:.0%} of tokens"
        table.add_row(f"{cost.context:,}", str(cost.rows), str(cost.rows - 1), f"{cost.ms:.1f}", f"{ratio:.2f}", pays)
    console.print(table)
