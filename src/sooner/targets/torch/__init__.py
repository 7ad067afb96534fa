"""The torch target: any causal language model that transformers loads, on CPU, CUDA or MPS. `load` makes one.

Knows where its parts are, and the extra they need. Imports neither torch nor transformers before one is asked for.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from sooner.errors import MissingExtra

if TYPE_CHECKING:
    from sooner.targets.torch.from_files import load
    from sooner.targets.torch.session import TorchSession
    from sooner.targets.torch.target import TorchTarget

__all__ = ["TorchSession", "TorchTarget", "load"]

_HOME = {"load": "from_files", "TorchSession": "session", "TorchTarget": "target"}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        return getattr(import_module(f"{__name__}.{_HOME[name]}"), name)
    except ModuleNotFoundError as error:
        if error.name in ("torch", "transformers"):
            raise MissingExtra("running models with transformers", "torch") from error
        raise
