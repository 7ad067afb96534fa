"""The documents say what the results say."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import report
from common import RESULTS

ROOT = Path(report.__file__).parents[1]


@pytest.mark.parametrize("name", report.DOCUMENTS)
def test_documents_are_what_templates_and_results_make(name: str) -> None:
    written = (ROOT / "docs" / name).read_text(encoding="utf-8")
    told = "edit benchmarks/templates, not docs, and run python benchmarks/report.py"
    assert written == report.rendered(name), told


def test_another_result_is_another_document(tmp_path: Path) -> None:
    results = tmp_path / "results"
    shutil.copytree(RESULTS, results)
    path = results / "core-memory.json"
    record = json.loads(path.read_text(encoding="utf-8"))
    path.write_text(json.dumps({**record, "run_peak_mb": 1234.4}), encoding="utf-8")
    changed = report.rendered("benchmarks.md", results)
    assert "1234 MB" in changed
    assert changed != report.rendered("benchmarks.md")
    path.write_text(json.dumps({"machine": {}}), encoding="utf-8")
    with pytest.raises(ValueError, match="core-memory: run_peak_mb"):
        report.rendered("benchmarks.md", results)


def test_figures_in_every_form(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(report, "TEMPLATES", tmp_path)
    rows = [{"name": "a, b", "cost": 0.0345}, {"name": "c", "cost": {"ratio": 2.0, "low": 1.5, "high": 2.5}}]
    (tmp_path / "some.json").write_text(json.dumps({"rows": rows, "many": 72080}), encoding="utf-8")
    figures = {
        "{{some: rows / [name=a\\, b] / cost | percent}}": "3.5 %",
        "{{some: rows / [name=c] / cost | x}}": "2.00x [1.50, 2.50]",
        "{{ some: rows / 0 / cost | .2f }}": "0.03",
        "{{some: many | ,}}": "72,080",
    }
    (tmp_path / "doc.md").write_text("; ".join(figures), encoding="utf-8")
    assert report.rendered("doc.md", tmp_path) == "; ".join(figures.values())
    (tmp_path / "doc.md").write_text("{{some many}}", encoding="utf-8")
    with pytest.raises(ValueError, match="is no figure"):
        report.rendered("doc.md", tmp_path)
