"""An audit's report as one self-contained HTML page: no scripts, nothing loaded, light and dark.

Knows a report's words and tables. Does not know how they came about.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any, Protocol

from sooner.audit.report import Section

__all__ = ["Told", "as_html"]


class Told(Protocol):
    """What a report tells, whatever was audited."""

    command: str

    @property
    def verdict(self) -> str:
        """One word."""
        ...

    @property
    def exit_code(self) -> int:
        """0 nothing differs, 1 something does, 2 it could not be told."""
        ...

    @property
    def sentence(self) -> str:
        """The verdict as one may quote it."""
        ...

    def to_dict(self) -> dict[str, Any]:
        """The JSON object."""
        ...

    def sections(self) -> Sequence[Section]:
        """The tables."""
        ...

    def facts(self) -> Mapping[str, str]:
        """What the verdict holds for."""
        ...


_STYLE = """
:root { color-scheme: light dark; --ink: #1c2024; --soft: #60656c; --paper: #fff; --line: #e0e3e7; --good: #18794e;
  --bad: #b42318; --unsure: #8a5a00; --tint: #f6f7f9 }
@media (prefers-color-scheme: dark) { :root { --ink: #edeef0; --soft: #a8adb5; --paper: #16181b; --line: #32363b;
  --good: #4cc38a; --bad: #ff8f85; --unsure: #e5b454; --tint: #1e2125 } }
body { margin: 0 auto; padding: 2rem 1rem 4rem; max-width: 68rem; background: var(--paper); color: var(--ink);
  font: 16px/1.5 system-ui, sans-serif }
h1 { font-size: 1.1rem; margin: 0; color: var(--soft); font-weight: 600 }
h2 { font-size: 1.05rem; margin: 2.2rem 0 .4rem }
.verdict { font-size: 1.35rem; line-height: 1.4; margin: .6rem 0 1.4rem; padding-left: .9rem;
  border-left: .35rem solid var(--tone) }
.good { --tone: var(--good) } .bad { --tone: var(--bad) } .unsure { --tone: var(--unsure) }
.scroll { overflow-x: auto }
table { border-collapse: collapse; width: 100%; font-size: .9rem; font-variant-numeric: tabular-nums }
th, td { text-align: left; padding: .3rem .8rem .3rem 0; border-bottom: 1px solid var(--line); vertical-align: top }
th { color: var(--soft); font-weight: 600; white-space: nowrap }
td { overflow-wrap: anywhere; min-width: 3.2rem }
p.note { color: var(--soft); font-size: .9rem; margin: .4rem 0 }
dl { display: grid; grid-template-columns: max-content 1fr; gap: .25rem 1rem; font-size: .9rem; margin: .6rem 0 }
dt { color: var(--soft) } dd { margin: 0; overflow-wrap: anywhere }
code { background: var(--tint); padding: .15rem .4rem; border-radius: .25rem; font-size: .9rem;
  overflow-wrap: anywhere }
"""

_TONES = {0: "good", 1: "bad", 2: "unsure"}


def as_html(report: Told) -> str:
    """The page."""
    facts = "".join(f"<dt>{escape(name)}</dt><dd>{escape(value)}</dd>" for name, value in report.facts().items())
    tables = "".join(map(_table, report.sections()))
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>sooner audit: {escape(report.verdict)}</title><style>{_STYLE}</style></head><body>"
        f'<main><h1>sooner audit</h1><p class="verdict {_TONES[report.exit_code]}">{escape(report.sentence)}</p>'
        f"{tables}<h2>What it holds for</h2><dl>{facts}</dl>"
        f"<h2>Run it again</h2><p><code>{escape(report.command)}</code></p></main></body></html>\n"
    )


def _table(section: Section) -> str:
    head = "".join(f'<th scope="col">{escape(title)}</th>' for title in section.columns)
    body = "".join("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in section.rows)
    note = f'<p class="note">{escape(section.note)}</p>' if section.note else ""
    return (
        f"<section><h2>{escape(section.title)}</h2>{note}"
        f'<div class="scroll"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div></section>'
    )
