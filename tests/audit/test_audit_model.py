"""The audit of the default model, in small: identical, with controls that are caught."""

from __future__ import annotations

from dataclasses import asdict

import sooner
from sooner.audit.drafters import Drafters
from sooner.audit.journal import Journal
from sooner.audit.law import Draws, RememberedRows, check_rule
from sooner.audit.model import ModelAudit
from sooner.audit.plan import Settings
from sooner.audit.prompts import PROMPTS
from sooner.audit.report import Report
from sooner.bench import stamp

NAMES = ("plain", "cascade", "oracle:rate=0.3", "random:tree=true")


def test_the_default_model_is_identical_and_what_is_broken_is_caught() -> None:
    engine = sooner.load(draft=None, pool_tokens=4096)
    settings = Settings(tokens=1, length=10, temperatures=(0.8,), batches=(2,), drafters=NAMES, rules=())
    drafters = Drafters(engine, NAMES)
    assert drafters.names == NAMES
    audit = ModelAudit(engine, settings, PROMPTS[:4], drafters, Journal())
    words: list[str] = []
    report = Report("m", "again", engine.fingerprint, stamp(), asdict(settings), 4)
    audit.run(report, lambda done, word: words.append(word))
    assert report.verdict == "identical", report.sentence
    assert report.tokens == 80
    assert report.spread == 0.0
    assert len(report.controls) == 3
    assert all(control.caught for control in report.controls), report.controls
    drafted = {finding.name: finding.drafted for finding in report.drafters}
    assert drafted["plain"] == 0 < min(drafted["oracle:rate=0.3"], drafted["random:tree=true"])
    assert audit.left == 0
    assert not engine.busy
    prompt = engine.request(PROMPTS[1]).prompt
    rows = RememberedRows(engine.target, prompt)
    found = check_rule(Draws(rows), "block", "tree", count=8, among=12)
    rows.close()
    assert 64 <= rows.vocab_size <= 256
    assert not found.rejected
    assert found.accepted > 0
