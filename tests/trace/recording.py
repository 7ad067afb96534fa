"""Toy generations recorded with the rows they were scored with."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from sooner.engine import Engine
from sooner.protocols import Context, Drafter
from sooner.trace import Recorder
from sooner.trace.replay import Scored
from sooner.types import Draft, Rows, Step

Record = dict[str, Any]


class TapeRecorder:
    """A drafter that drafts as another does and keeps a copy of what every step was scored with."""

    def __init__(self, drafter: Drafter) -> None:
        self._drafter = drafter
        self._scored: dict[tuple[int, int], Scored] = {}

    @property
    def name(self) -> str:
        return self._drafter.name

    def propose(self, contexts: Sequence[Context]) -> list[Draft]:
        return self._drafter.propose(contexts)

    def observe(self, step: Step, rows: Rows) -> None:
        q = {parent: row.copy() for parent, row in step.draft.q.items()}
        self._scored[step.sequence, step.index] = Scored(Rows(rows.logits.copy()), q)
        self._drafter.observe(step, rows)

    def forget(self, id: int) -> None:
        self._drafter.forget(id)

    def tape(self, step: Step) -> Scored:
        return self._scored[step.sequence, step.index]


def record(engine: Engine, prompt: Sequence[int], *, alternatives: int | None = 3, **options: Any) -> list[Record]:
    """Every record of one request's trace, as it would be read from a file."""
    engine.alternatives = alternatives
    records: list[Record] = []
    handle = engine.submit(engine.request(list(prompt), **options))
    recorder = Recorder(lambda one: records.append(json.loads(json.dumps(one))), engine, handle)
    for step in engine.follow(handle):
        recorder.step(step)
    recorder.finish(engine.completion(handle))
    return records


def steps_of(records: Sequence[Record]) -> list[Record]:
    return [one for one in records if one["type"] == "step"]


def write(path: Path, records: Sequence[Record]) -> Path:
    path.write_text("".join(json.dumps(one, ensure_ascii=False) + "\n" for one in records), encoding="utf-8")
    return path
