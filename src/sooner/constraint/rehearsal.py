"""Compiling a grammar in a process of its own first, which dies with what it costs.

Knows processes and their limits, because some grammars slip through the library's own bounds (``multipleOf`` a million
takes hours) and no thread can be stopped. Does not know what a grammar means.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path

from sooner.constraint.vocabulary import library

__all__ = ["BOUNDS", "affordable"]

BOUNDS: Mapping[str, int] = {"max_grammar_size": 200_000, "max_items_in_row": 10_000}
"""The library's own bounds, in units of work: what they refuse does not depend on the machine or its load."""

_PATIENCE_SECONDS = 30
"""Seconds of anybody's time: on a loaded machine seconds of processor time take longer."""

_REHEARSAL = """
import json, sys
try:
    import resource
    seconds = int(sys.argv[2])
    resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds))
    resource.setrlimit(resource.RLIMIT_AS, (1 << 30, 1 << 30))
except ImportError:  # Windows: the caller's patience is the only bound
    pass
sys.path.append(sys.argv[1])
from llguidance import LLMatcher, LLParserLimits, LLTokenizer
limits = LLParserLimits(**json.loads(sys.argv[3]))
matcher = LLMatcher(LLTokenizer("byte"), sys.stdin.buffer.read().decode(), log_level=0, limits=limits)
matcher.is_error() or matcher.compute_logit_bias()
"""


def affordable(grammar: str, seconds: int, salt: str = "") -> bool:
    """Whether compiling ``grammar`` takes at most ``seconds`` of processor time and 1 GiB. Good ones are remembered
    for callers of the same ``salt``."""
    try:
        _rehearse(grammar, seconds, salt)
    except (subprocess.SubprocessError, OSError):
        return False
    return True


@lru_cache(maxsize=64)
def _rehearse(grammar: str, seconds: int, salt: str) -> None:
    place = str(Path(str(library().__file__)).parent.parent)
    command = [sys.executable, "-I", "-S", "-c", _REHEARSAL, place, str(seconds), json.dumps(dict(BOUNDS))]
    subprocess.run(command, input=grammar.encode(), capture_output=True, timeout=_PATIENCE_SECONDS, check=True)
