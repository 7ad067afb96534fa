"""A trace as Chrome trace events, which https://ui.perfetto.dev and chrome://tracing open.

Knows the Trace Event Format (an object with ``traceEvents``: complete events "X" that nest, counters "C", metadata
"M"; times in microseconds) and step records. Does not know files' names.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from itertools import accumulate
from typing import IO, Any

from sooner.trace.pieces import Pieces
from sooner.trace.reader import Trace
from sooner.trace.stats import PHASES
from sooner.types import TARGET

__all__ = ["events", "export"]

Event = dict[str, Any]

_PROCESS = 1


def export(trace: Trace, file: IO[str]) -> int:
    """Write a trace that has just been opened to ``file``, event by event; returns how many."""
    header = trace.header
    facts = {name: header.get(name) for name in ("model", "drafter", "seed", "sooner", "time", "fingerprint")}
    file.write(f'{{"displayTimeUnit":"ms","otherData":{_line(facts)},"traceEvents":[')
    count = 0
    for event in events(trace):
        file.write((",\n" if count else "\n") + _line(event))
        count += 1
    file.write("\n]}\n")
    return count


def events(trace: Trace) -> Iterator[Event]:
    """The events in the order of time: a track per answer, its steps with their phases inside, and counters."""
    yield _named("process_name", 0, f"sooner: {trace.header.get('model') or 'a model'}")
    ends: dict[int, int] = {}
    for record in trace:
        track = record["choice"] + 1
        if track not in ends:
            ends[track] = 0
            yield _named("thread_name", track, f"answer {track}")
        edges = _edges(record, ends[track])
        if record["index"] == 0 and edges[0] > 0:
            tokens = {"prompt_tokens": trace.header.get("prompt_tokens")}
            yield _slice("waiting and earlier passes", track, 0, edges[0], tokens)
        yield _slice(_title(record), track, edges[0], edges[-1], _facts(record, trace.pieces))
        for phase, begin, end in zip(PHASES, edges, edges[1:], strict=False):
            yield _slice(phase.removesuffix("_ms"), track, begin, end, {})
        ends[track] = edges[-1]
        yield _counter(f"drafted tokens, answer {track}", edges[0], _kept(record))


def _edges(record: Mapping[str, Any], earliest: int) -> list[int]:
    """Where a step's phases begin and the last one ends, in whole nanoseconds, so that slices nest exactly."""
    times = [round(1e6 * record.get(phase, 0.0)) for phase in PHASES]
    end = round(1e6 * record["at_ms"]) if "at_ms" in record else 0
    return list(accumulate(times, initial=max(earliest, end - sum(times))))


def _kept(record: Mapping[str, Any]) -> dict[str, int]:
    kept = sum(source != TARGET for source in record["sources"])
    return {"kept": kept, "rejected": len(record["draft"]["tokens"]) - kept}


def _title(record: Mapping[str, Any]) -> str:
    drafted = len(record["draft"]["tokens"])
    if record["index"] == 0:
        return "step 0: prompt, first token"
    return f"step {record['index']}" + (f": {_kept(record)['kept']} of {drafted} kept" if drafted else "")


def _facts(record: Mapping[str, Any], pieces: Pieces) -> dict[str, Any]:
    names = ("sequence", "rows", "pass_rows", "p", "finish")
    return {
        "text": record["text"],
        "drafted": [_piece(pieces, token) for token in record["draft"]["tokens"]],
        "emitted": [_piece(pieces, token) for token in record["tokens"]],
        "sources": record["sources"],
        **{name: record[name] for name in names if record.get(name) is not None},
    }


def _piece(pieces: Pieces, token: int) -> str:
    return pieces.token_bytes(token).decode("utf-8", "replace") or pieces.token_name(token) or f"<{token}>"


def _slice(name: str, track: int, begin: int, end: int, args: Mapping[str, Any]) -> Event:
    times = {"ts": begin / 1e3, "dur": (end - begin) / 1e3}
    return {"ph": "X", "cat": "sooner", "name": name, "pid": _PROCESS, "tid": track, **times, "args": dict(args)}


def _counter(name: str, begin: int, args: Mapping[str, int]) -> Event:
    return {"ph": "C", "cat": "sooner", "name": name, "pid": _PROCESS, "ts": begin / 1e3, "args": dict(args)}


def _named(what: str, track: int, name: str) -> Event:
    return {"ph": "M", "name": what, "pid": _PROCESS, "tid": track, "ts": 0, "args": {"name": name}}


def _line(value: Mapping[str, Any]) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))
