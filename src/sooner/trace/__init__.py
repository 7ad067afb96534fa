"""Traces: everything a generation did, one JSON object per line.

`record` has the format, `pieces` how tokens read, `recorder` a trace as it grows, `file` the writing, `reader` the
reading; `stats`, `difference`, `perfetto` and `replay` are what is done with one.
"""

from __future__ import annotations

from sooner.trace.file import TraceFile
from sooner.trace.pieces import Pieces
from sooner.trace.reader import Trace
from sooner.trace.record import SCHEMA, footer_record, header_record, read_step, step_record
from sooner.trace.recorder import Recorder

__all__ = [
    "SCHEMA",
    "Pieces",
    "Recorder",
    "Trace",
    "TraceFile",
    "footer_record",
    "header_record",
    "read_step",
    "step_record",
]
