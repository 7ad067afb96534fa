"""The processor's name and the features that decide which kernels run.

Knows where the operating system writes them down. Does not know models.
"""

from __future__ import annotations

import platform
from pathlib import Path

__all__ = ["model_name", "processor"]

_RELEVANT = ("avx2", "fma", "avx512", "avx_vnni", "amx", "f16c", "sve", "asimd", "bf16", "i8mm")


def processor(name: str) -> str:
    """``name`` with the vector features the processor reports, such as "AMD EPYC (avx2, avx512_bf16, ...)"."""
    return f"{name.strip()} ({', '.join(_features()) or platform.machine()})"


def model_name() -> str:
    """The processor's own name, where the operating system tells it."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.machine())


def _features() -> list[str]:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return []
    for line in lines:
        key, _, value = line.partition(":")
        if key.strip().lower() in ("flags", "features"):
            return sorted(flag for flag in value.split() if flag.startswith(_RELEVANT))
    return []
