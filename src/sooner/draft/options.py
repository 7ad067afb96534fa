"""Checks of drafters' options. Knows ranges and how to say them. Does not know the drafters."""

from __future__ import annotations

from sooner.errors import DraftError

__all__ = ["at_least", "within"]


def at_least(low: int, **option: int) -> int:
    """The one integer given by name, if it is at least ``low``; else `DraftError` naming it."""
    ((name, value),) = option.items()
    if isinstance(value, bool) or not isinstance(value, int) or value < low:
        raise DraftError(f"drafter option {name} must be an integer of at least {low}, not {value!r}")
    return value


def within(low: float, high: float, **option: float) -> float:
    """The one number given by name, if it is in [low, high]; else `DraftError` naming it."""
    ((name, value),) = option.items()
    if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value <= high:
        raise DraftError(f"drafter option {name} must be a number in [{low:g}, {high:g}], not {value!r}")
    return value
