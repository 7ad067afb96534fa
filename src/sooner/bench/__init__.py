"""Measuring: ratios of interleaved runs with their intervals, and the stamp of the machine they ran on."""

from __future__ import annotations

from sooner.bench.ratio import Ratio, ratio
from sooner.bench.stamp import stamp

__all__ = ["Ratio", "ratio", "stamp"]
