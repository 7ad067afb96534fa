"""Figures as cells of a table, JSON, CSV and Markdown.

Knows figures and samples. Does not know terminals or files.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from typing import Any

from sooner.bench.runner import Sample
from sooner.bench.stamp import stamp
from sooner.bench.summary import Figures, verdict

__all__ = ["COLUMNS", "as_csv", "as_json", "as_markdown", "cells"]

COLUMNS = (
    "category",
    "configuration",
    "tokens/s",
    "speed-up",
    "before loops",
    "acceptance length",
    "draft share",
)


def cells(figures: Figures) -> list[str]:
    """One row under `COLUMNS`."""
    base = figures.ratio is None and not figures.differing
    return [
        figures.category,
        figures.configuration,
        f"{figures.tokens_per_second:.1f}",
        f"{figures.differing} texts DIFFER" if figures.differing else "" if base else verdict(figures.ratio),
        "" if base or figures.differing else verdict(figures.fresh),
        f"{figures.acceptance_length:.2f}",
        f"{figures.draft_share:.0%}",
    ]


def as_json(
    figures: Sequence[Figures], samples: Sequence[Sample], *, fingerprint: Mapping[str, str], **more: Any
) -> dict[str, Any]:
    """Everything: the machine, ``more`` (model, options, ...), the figures, and each run without its token ids."""
    return {
        "machine": stamp(),
        "fingerprint": dict(fingerprint),
        **more,
        "identical": not any(one.differing for one in figures),
        "figures": [one.to_dict() for one in figures],
        "runs": [_run(sample) for sample in samples],
    }


def as_csv(samples: Sequence[Sample]) -> str:
    """One line a run, the same fields as in JSON."""
    out = io.StringIO()
    rows = [{**_run(sample), "items": " ".join(sample.items)} for sample in samples]
    writer = csv.DictWriter(out, fieldnames=list(rows[0]) if rows else [], lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return out.getvalue()


def as_markdown(figures: Sequence[Figures], caption: str) -> str:
    """The table under a caption that says what was run on what."""
    head = f"| {' | '.join(COLUMNS)} |\n|{'---|' * 2}{'---:|' * (len(COLUMNS) - 2)}\n"
    rows = (" | ".join(cell.replace("|", "\\|") for cell in cells(one)) for one in figures)
    return f"{caption}\n\n{head}" + "".join(f"| {row} |\n" for row in rows)


def _run(sample: Sample) -> dict[str, Any]:
    record = {name: getattr(sample, name) for name in sample.__dataclass_fields__ if name != "tokens"}
    return {**record, "items": list(sample.items)}
