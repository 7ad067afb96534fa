"""Traces: everything a generation did, one JSON object per line. `record` has the format, `file` the writing."""

from __future__ import annotations

from sooner.trace.file import TraceFile
from sooner.trace.record import SCHEMA, footer_record, header_record, read_step, step_record

__all__ = ["SCHEMA", "TraceFile", "footer_record", "header_record", "read_step", "step_record"]
