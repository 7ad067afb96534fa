"""sooner: the same text, sooner. Lossless speculative decoding that proves it on your own model.

``sooner.load()`` gives an engine; ``engine.generate("Why is the sky blue?")`` an answer. Names are loaded on first
use, so that importing the package is instant.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sooner.completion import Completion, Speculation, Timings
    from sooner.constraint import compile_constraint
    from sooner.draft import create_drafter
    from sooner.engine import Engine, Handle
    from sooner.errors import (
        CacheError,
        ContextOverflow,
        CorruptModel,
        DraftError,
        InvalidRequest,
        MissingExtra,
        ModelError,
        ModelNotFound,
        SoonerError,
        TargetError,
        UnsupportedModel,
    )
    from sooner.loading import load
    from sooner.protocols import (
        Coins,
        Constraint,
        Context,
        Controller,
        Drafter,
        Law,
        Matcher,
        Session,
        Target,
        Verifier,
    )
    from sooner.types import Draft, Finish, Request, Rows, Sampling, Step, TokenLogprob, Usage, Verdict, Work

_HOMES = {
    "completion": ("Completion", "Speculation", "Timings"),
    "constraint": ("compile_constraint",),
    "draft": ("create_drafter",),
    "engine": ("Engine", "Handle"),
    "errors": (
        "CacheError",
        "ContextOverflow",
        "CorruptModel",
        "DraftError",
        "InvalidRequest",
        "MissingExtra",
        "ModelError",
        "ModelNotFound",
        "SoonerError",
        "TargetError",
        "UnsupportedModel",
    ),
    "loading": ("load",),
    "protocols": (
        "Coins",
        "Constraint",
        "Context",
        "Controller",
        "Drafter",
        "Law",
        "Matcher",
        "Session",
        "Target",
        "Verifier",
    ),
    "types": (
        "Draft",
        "Finish",
        "Request",
        "Rows",
        "Sampling",
        "Step",
        "TokenLogprob",
        "Usage",
        "Verdict",
        "Work",
    ),
}
_HOME = {name: module for module, names in _HOMES.items() for name in names}

__version__ = "0.1.0"

__all__ = [
    "CacheError",
    "Coins",
    "Completion",
    "Constraint",
    "Context",
    "ContextOverflow",
    "Controller",
    "CorruptModel",
    "Draft",
    "DraftError",
    "Drafter",
    "Engine",
    "Finish",
    "Handle",
    "InvalidRequest",
    "Law",
    "Matcher",
    "MissingExtra",
    "ModelError",
    "ModelNotFound",
    "Request",
    "Rows",
    "Sampling",
    "Session",
    "SoonerError",
    "Speculation",
    "Step",
    "Target",
    "TargetError",
    "Timings",
    "TokenLogprob",
    "UnsupportedModel",
    "Usage",
    "Verdict",
    "Verifier",
    "Work",
    "__version__",
    "compile_constraint",
    "create_drafter",
    "load",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'sooner' has no attribute {name!r}")
    value = getattr(import_module(f"sooner.{_HOME[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
