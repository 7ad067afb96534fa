"""Drafters: cheap guesses of the next tokens. Loads them by name from the entry points ``sooner.drafters``.

Knows names, options and their types. Does not know what any drafter does.
"""

from __future__ import annotations

from sooner.draft.spec import DRAFTERS, create_drafter, known_kinds, parse_spec
from sooner.draft.speculative_config import SpeculativeConfig, from_speculative_config

__all__ = [
    "DRAFTERS",
    "SpeculativeConfig",
    "create_drafter",
    "from_speculative_config",
    "known_kinds",
    "parse_spec",
]
