"""Plots of a study as PNG and SVG: acceptance, speed-up by length, operations and memory traffic.

Knows a study's record and matplotlib (extra ``plots``). Does not know how anything was measured.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from sooner.bench import theory
from sooner.errors import MissingExtra

__all__ = ["draw", "require_plots"]

_COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#7f7f7f")
"""Okabe and Ito's, which colour-blind readers can tell apart."""

_WAYS = {"paper": (":", "paper (v = 1)"), "priced": ("--", "with v"), "positions": ("-", "by position, with v")}


def require_plots() -> None:
    """Raises `MissingExtra` unless matplotlib is there."""
    try:
        import matplotlib as _  # noqa: F401  # only whether it is there
    except ImportError:
        raise MissingExtra("plotting", "plots") from None


def draw(study: Mapping[str, Any], folder: Path) -> list[Path]:
    """Write every plot the record has figures for, as ``theory-NAME.png`` and ``.svg``. Raises `MissingExtra`."""
    require_plots()
    import matplotlib as mpl

    frame = {"axes.spines.top": False, "axes.spines.right": False}
    settings: Any = {"svg.fonttype": "none", "svg.hashsalt": "sooner", "font.size": 9, **frame}
    plots: dict[str, tuple[str, Callable[[Any, Any], None]]] = {
        "acceptance": ("acceptance", _acceptance),
        "speed": ("lengths", _speed),
        "work": ("lengths", _work),
    }
    written = []
    with mpl.rc_context(settings):
        for name, (part, plot) in plots.items():
            if study[part]:
                written += _write(name, study[part], plot, folder)
    return written


def _write(name: str, rows: Sequence[Mapping[str, Any]], plot: Callable[[Any, Any], None], folder: Path) -> list[Path]:
    from matplotlib.figure import Figure

    figure = Figure(layout="constrained", facecolor="white")
    plot(figure, rows)
    folder.mkdir(parents=True, exist_ok=True)
    paths = [folder / f"theory-{name}.{kind}" for kind in ("png", "svg")]
    for path in paths:
        figure.savefig(path, dpi=120, metadata={"Date": None} if path.suffix == ".svg" else {"Software": None})
    return paths


def _acceptance(figure: Any, rows: Sequence[Mapping[str, Any]]) -> None:
    drafters = list(dict.fromkeys(row["drafter"] for row in rows))
    temperatures = list(dict.fromkeys(row["temperature"] for row in rows))
    figure.set_size_inches(7, 3)
    axes = figure.subplots()
    width = 0.8 / len(temperatures)
    for i, temperature in enumerate(temperatures):
        own = [row for row in rows if row["temperature"] == temperature]
        at = [drafters.index(row["drafter"]) + (i - (len(temperatures) - 1) / 2) * width for row in own]
        error = [[row["alpha"] - row["low"] for row in own], [row["high"] - row["alpha"] for row in own]]
        heights, label = [row["alpha"] for row in own], f"T = {temperature:g}"
        axes.bar(at, heights, width * 0.9, yerr=error, color=_COLOURS[i], label=label)
    axes.set_xticks(range(len(drafters)), [name.partition(":")[0] for name in drafters])
    axes.set_ylabel("acceptance α")
    axes.legend(frameon=False)


def _speed(figure: Any, rows: Sequence[Mapping[str, Any]]) -> None:
    panels = list(dict.fromkeys((row["drafter"], row["temperature"]) for row in rows))
    columns = min(3, len(panels))
    lines = -(-len(panels) // columns)
    figure.set_size_inches(3.2 * columns, 2.4 * lines)
    for i, (drafter, temperature) in enumerate(panels):
        axes = figure.add_subplot(lines, columns, i + 1)
        own = sorted((r for r in rows if (r["drafter"], r["temperature"]) == (drafter, temperature)), key=_length)
        at = [row["length"] for row in own]
        for colour, (way, (style, label)) in zip(_COLOURS[1:], _WAYS.items(), strict=False):
            axes.plot(at, [row["speed"][way] for row in own], style, color=colour, label=label, linewidth=1.3)
        middle = [row["speed"]["measured"] for row in own]
        error = [
            [speed - row["low"] for speed, row in zip(middle, own, strict=True)],
            [row["high"] - speed for speed, row in zip(middle, own, strict=True)],
        ]
        axes.errorbar(at, middle, error, fmt="o", color=_COLOURS[0], markersize=3.5, linewidth=1, label="measured")
        axes.axhline(1.0, color="#999999", linewidth=0.7)
        axes.set_xticks(at)
        axes.set_title(f"{drafter.partition(':')[0]}, T = {temperature:g}", fontsize=9)
        axes.set_xlabel("draft length γ")
        if i == 0:
            axes.legend(frameon=False, fontsize=7)
    figure.supylabel("times as fast as plain", fontsize=9)


def _work(figure: Any, rows: Sequence[Mapping[str, Any]]) -> None:
    figure.set_size_inches(7, 3)
    panels = zip(figure.subplots(1, 2), ("operations", "memory"), ("operations", "weight reads"), strict=True)
    drafters = list(dict.fromkeys(row["drafter"] for row in rows))
    for axes, part, label in panels:
        for i, drafter in enumerate(drafters):
            own = sorted((row for row in rows if row["drafter"] == drafter), key=_length)
            at, colour = [row["length"] for row in own], _COLOURS[i % len(_COLOURS)]
            tokens = [theory.tokens_per_step(row["alpha"], row["length"]) for row in own]
            law = {
                "operations": [theory.operations(t, n, 0.0) for t, n in zip(tokens, at, strict=True)],
                "memory": [theory.memory(t) for t in tokens],
            }[part]
            axes.plot(at, law, "--", color=colour, linewidth=1)
            dots = [row[part]["measured"] for row in own]
            axes.plot(at, dots, "o", color=colour, markersize=3.5, label=drafter.partition(":")[0])
        axes.set_xlabel("draft length γ")
        axes.set_title(f"{label} a token, against plain", fontsize=9)
    figure.axes[0].legend(frameon=False, fontsize=7)


def _length(row: Mapping[str, Any]) -> int:
    return int(row["length"])
