"""Drafters: cheap guesses of the next tokens. Loads them by name from the entry points ``sooner.drafters``.

Knows names, options and their types. Does not know what any drafter does.
"""

from __future__ import annotations

from sooner.draft.spec import DRAFTERS, create_drafter, parse_spec

__all__ = ["DRAFTERS", "create_drafter", "parse_spec"]
