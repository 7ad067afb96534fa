"""docs/benchmarks.md, docs/scaling.md and docs/theory.md from their templates and the committed results.

A template is the document with figures left out: ``{{core-memory: run_peak_mb | .0f}}`` is a number of
results/core-memory.json in Python's format. Keys of a path are set apart by " / ", and ``[category=qa]`` picks from a
list; ``| x`` writes a ratio with its interval, ``| percent`` and ``| machine`` what they say. ``{{> NAME}}`` is a table
made here. A figure that is not in the results is an error: what a document says was measured.

    python benchmarks/report.py            write the documents
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from common import RESULTS

ROOT = Path(__file__).parents[1]
TEMPLATES = Path(__file__).parent / "templates"
DOCUMENTS = ("benchmarks.md", "scaling.md", "theory.md")

_FIGURE = re.compile(r"\{\{\s*([\w.-]+)\s*:\s*(.+?)\s*\|\s*([^|{}]+?)\s*\}\}")
_TABLE = re.compile(r"\{\{>\s*([\w-]+)\s*\}\}")


def rendered(name: str, results: Path = RESULTS) -> str:
    """The document ``name`` as its template and the results make it. Raises `ValueError` for a figure that is not."""

    def figure(match: re.Match[str]) -> str:
        stem, path, form = match.groups()
        try:
            return _written(_found(_read(results / f"{stem}.json"), path), form)
        except (KeyError, IndexError, OSError, TypeError, ValueError, StopIteration) as error:
            raise ValueError(f"{name}: {match.group(0)} is not in the results ({error!r})") from None

    def table(match: re.Match[str]) -> str:
        return TABLES[match.group(1)](results)

    text = (TEMPLATES / name).read_text(encoding="utf-8")
    text = _FIGURE.sub(figure, _TABLE.sub(table, text))
    if "{{" in text:
        raise ValueError(f"{name}: {text[text.index('{{') :][:60]!r} is no figure")
    return text


def _read(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8"))


def _found(value: Any, path: str) -> Any:
    for key in path.split(" / "):
        if key.startswith("["):
            wanted = dict(pair.replace("\\,", ",").split("=", 1) for pair in re.split(r"(?<!\\),", key.strip("[]")))
            value = next(row for row in value if all(str(row[name]) == what for name, what in wanted.items()))
        else:
            value = value[int(key)] if isinstance(value, list) else value[key]
    return value


def _written(value: Any, form: str) -> str:
    if form == "x":
        middle = value.get("value", value.get("ratio"))
        return f"{middle:.2f}x [{value['low']:.2f}, {value['high']:.2f}]"
    if form == "machine":
        versions = value["versions"]
        engines = ", ".join(f"{name} {versions[name]}" for name in ("openvino", "openvino-genai"))
        about = f"{value['processor']}, {value['cores']} cores, {value['memory_gb']:.1f} GB"
        return f"{about}, Python {value['python']}, {engines}"
    if form == "percent":
        return f"{100 * value:.1f} %"
    return format(value, form)


def _peers(results: Path) -> str:
    sys.path.append(str(Path(__file__).parent / "peers"))
    from peers_table import markdown

    path = results / "peers.json"
    if not path.is_file():
        return "Not measured yet: `python benchmarks/peers/compare.py run` writes the tables that belong here."
    result = _read(path)
    settings = result["settings"]
    machine = _written(result["machine"], "machine")
    what = f"{settings['model']}, greedy, {settings['max_tokens']} new tokens at most; {machine}."
    versions = {
        name: ", ".join(f"{package} {found}" for package, found in about["versions"].items())
        for name, about in result["peers"].items()
    }
    lines = [f"- {name} ({versions[name]}): {about['weights']}." for name, about in result["peers"].items()]
    return "\n\n".join([what, "\n".join(lines), markdown(result)])


def _torch(results: Path) -> str:
    """The torch target and drafting in `generate`, by category, over `generate` and its prompt lookup."""
    record = _read(results / "torch_cpu.json")
    ways = ("prompt lookup", "speed_up", "sooner plain", "sooner")

    def row(name: str, found: Mapping[str, Any]) -> list[str]:
        ratios = [(found[way], "over generate") for way in ways] + [(found["sooner"], "over prompt lookup")]
        return [name, *("{:.2f} [{:.2f}, {:.2f}]".format(*of[over]) for of, over in ratios)]

    head = ["category", *(f"{way} / generate" for way in ways), "sooner / prompt lookup"]
    body = [row(name.replace("_", " "), found) for name, found in record["categories"].items()]
    return _table(head, [*body, row("all", record["all"])])


def _acceptance(results: Path) -> str:
    """Alpha by drafter and temperature."""
    path = results / "theory-acceptance.json"
    if not path.is_file():
        return "Not measured yet: `python benchmarks/theory.py acceptance` writes the table that belongs here."
    record = _read(path)
    rows = record["acceptance"]
    temperatures = list(dict.fromkeys(row["temperature"] for row in rows))
    head = ["drafter", *(f"alpha, T = {temperature:g}" for temperature in temperatures), "guesses at", "repeats"]
    body = []
    for drafter in dict.fromkeys(row["drafter"] for row in rows):
        own = {row["temperature"]: row for row in rows if row["drafter"] == drafter}
        cells = [f"{row['alpha']:.2f} [{row['low']:.2f}, {row['high']:.2f}]" for row in own.values()]
        first = own[temperatures[0]]
        again = "-" if first["repeats"] is None else f"{first['repeats']:.1f}x"
        body.append([f"`{drafter}`", *cells, f"{first['covered']:.0%} of positions", again])
    what = (
        f"{record['model']}, {record['texts']} of Spec-Bench's evaluation prompts, {record['max_tokens']} tokens each:"
    )
    return "\n\n".join([what, _table(head, body), f"![{ACCEPTANCE}](images/theory-acceptance.svg)"])


def _lengths(results: Path) -> str:
    """Speed-ups predicted and measured, and the best lengths."""
    paths = sorted(results.glob("theory-lengths-*.json"))
    if not paths:
        return "Not measured yet: `python benchmarks/theory.py lengths` writes the tables that belong here."
    parts = []
    for path in paths:
        record = _read(path)
        body = [
            [
                f"`{row['drafter']}`",
                str(row["length"]),
                f"{row['c']:.3f}",
                f"{row['v']:.2f}",
                *(f"{row['speed'][way]:.2f}{'' if row['holds'][way] else ' *'}" for way in WAYS),
                f"{row['speed']['measured']:.2f} [{row['low']:.2f}, {row['high']:.2f}]",
                f"{row['operations']['measured']:.2f}",
                f"{row['memory']['measured']:.2f}",
            ]
            for row in record["lengths"]
        ]
        best = [
            [f"`{row['drafter']}`", *(str(row["length"][way]) for way in (*WAYS, "measured"))] for row in record["best"]
        ]
        head = ["drafter", "γ", "c", "v", "paper", "with v", "by position", "measured", "operations", "weight reads"]
        temperature = record["lengths"][0]["temperature"]
        parts += [f"Temperature {temperature:g}, {record['texts']} texts; * is more than 10 % off:", _table(head, body)]
        count = len(record["lengths"])
        held = ", ".join(f"{LABELS[way]} {sum(row['holds'][way] for row in record['lengths'])}" for way in WAYS)
        parts += [f"Within 10 % of the measured speed-up, of {count} predictions each: {held}."]
        parts += ["Best length by each:", _table(["drafter", "paper", "with v", "by position", "found"], best)]
    parts += [f"![{about}](images/theory-{name}.svg)" for name, about in DRAWN.items()]
    return "\n\n".join(parts)


def _simulation(results: Path) -> str:
    """Rules of routing at two loads."""
    names = {
        "affinity": "affinity (ours)",
        "patient": "affinity, the home's queue longer by a batch at most",
        "load": "shortest queue",
        "hash": "home, whatever its queue",
    }
    head = ["rule", "load", "follow-up turns at home", "mean time to first token", "95 % within"]
    body = [
        [
            names[row["rule"]],
            f"{row['load']:.0%}",
            f"{row['stayed']:.0%}",
            *(f"{1e3 * row[name]:.0f} ms" for name in ("ttft_mean_s", "ttft_p95_s")),
        ]
        for row in _read(results / "affinity-simulation.json")["rows"]
        if row["asked"] in (0.5, 0.75)
    ]
    return _table(head, body)


def _table(head: Sequence[str], body: Sequence[Sequence[str]]) -> str:
    lines = [f"| {' | '.join(cells)} |" for cells in (head, *body)]
    return "\n".join([lines[0], f"|{'---|' * len(head)}", *lines[1:]])


LABELS = {"paper": "paper", "priced": "with v", "positions": "by position"}
WAYS = tuple(LABELS)
ACCEPTANCE = "acceptance by drafter and temperature"
DRAWN = {"speed": "speed-up by length, predicted and measured", "work": "operations and weight reads"}
TABLES: Mapping[str, Callable[[Path], str]] = {
    "peers": _peers,
    "simulation": _simulation,
    "theory-acceptance": _acceptance,
    "theory-lengths": _lengths,
    "torch": _torch,
}


def main() -> None:
    """Write the documents."""
    for name in DOCUMENTS:
        (ROOT / "docs" / name).write_text(rendered(name), encoding="utf-8")


if __name__ == "__main__":
    main()
