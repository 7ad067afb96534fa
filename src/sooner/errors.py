"""Everything sooner raises on purpose. Each message is one line that names the remedy.

SoonerError
├── InvalidRequest        a parameter or prompt that cannot be honoured (``param`` names it)
│   └── ContextOverflow   the prompt does not fit the model's context
├── ModelError            a model file that cannot be used
│   ├── ModelNotFound     no such file, folder or id
│   ├── CorruptModel      truncated, damaged, or not what it claims to be
│   └── UnsupportedModel  an architecture, quantisation or tokenizer sooner refuses
├── DraftError            a drafter that cannot serve this target
├── CacheError            the cache directory cannot be read or written
├── MissingExtra          an optional dependency is not installed (the message has the install line)
└── TargetError           the target failed in a pass (non-finite logits, device lost)
"""

from __future__ import annotations

from collections.abc import Iterable

__all__ = [
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
    "nearest",
    "one_line",
]


def one_line(error: Exception) -> str:
    """A stranger's message as part of one of ours: on one line, of bounded length, its type where it says nothing."""
    return " ".join(str(error).split())[:200] or type(error).__name__


def nearest(name: str, known: Iterable[str]) -> str:
    """The remedy for a mistyped name, `` (did you mean ...?)``; empty where none of ``known`` is near."""
    from difflib import get_close_matches

    near = get_close_matches(name, list(known), n=1)
    return f" (did you mean {near[0]}?)" if near else ""


class SoonerError(Exception):
    """Base of every error raised on purpose."""


class InvalidRequest(SoonerError):
    """A parameter or prompt that cannot be honoured; ``param`` is its name in the public API."""

    def __init__(self, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.param = param


class ContextOverflow(InvalidRequest):
    """The prompt leaves no room for a single new token in the model's context."""


class ModelError(SoonerError):
    """A model file that cannot be used."""


class ModelNotFound(ModelError):
    """No such file, folder or model id."""


class CorruptModel(ModelError):
    """The file is truncated, damaged, or not what it claims to be."""


class UnsupportedModel(ModelError):
    """An architecture, quantisation or tokenizer that sooner refuses, with the reason."""


class DraftError(SoonerError):
    """A drafter that is unknown, misconfigured, or cannot serve this target."""


class CacheError(SoonerError):
    """The cache directory cannot be read or written."""


class MissingExtra(SoonerError):
    """An optional dependency is not installed."""

    def __init__(self, what: str, extra: str) -> None:
        super().__init__(f'{what} needs an extra that is not installed: pip install "sooner[{extra}]"')
        self.extra = extra


class TargetError(SoonerError):
    """The target failed in a pass."""
