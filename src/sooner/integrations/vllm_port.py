"""Which versions of vLLM are supported, each by which module, and what such a module tells of a running vLLM.

Knows version numbers and names. Does not know vLLM: only the modules named here meet it.
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol, cast

from sooner.errors import TargetError
from sooner.integrations.vllm_guess import Scored
from sooner.integrations.vllm_texts import Row

__all__ = ["PORTS", "Place", "Port", "Watch", "installed", "port_for"]


@dataclass(frozen=True, slots=True)
class Place:
    """The engine that asks. ``model``: a folder or a name; ``context``: the most tokens of a request; ``most``: the
    draft tokens that it makes room for; ``options``: ours, as users wrote them; ``obstacle``: why nothing can be
    drafted there, with the remedy, or nothing."""

    model: str
    vocab_size: int
    context: int
    most: int
    options: Mapping[str, Any] = field(default_factory=dict)
    obstacle: str = ""


class Watch(Protocol):
    """Sees the logits of each pass."""

    def attach(self, model: Any) -> bool:
        """From now on watch ``model``; False if it cannot be watched."""
        ...

    def take(self) -> Scored | None:
        """Those of the pass just over, if there were any; they are not held on to."""
        ...


class Port(Protocol):
    """The module for a range of versions."""

    def read(self, config: Any) -> Place:
        """What vLLM's configuration says."""
        ...

    def rows(self, *given: Any, **named: Any) -> list[Row]:
        """The batch after a pass, from the arguments of the hook."""
        ...

    def watch(self) -> Watch:
        """To see logits with."""
        ...


PORTS: Mapping[tuple[tuple[int, int], tuple[int, int]], str] = {
    ((0, 32), (0, 33)): "sooner.integrations.vllm_0_32",
}
"""From a version on, before another: the module."""


def installed() -> str:
    """The version of vLLM here. Raises `TargetError`."""
    try:
        import vllm
    except ModuleNotFoundError as error:
        if error.name != "vllm":
            raise
        raise TargetError(f"vLLM is not installed here: pip install {_wanted()}") from error
    return str(vllm.__version__)


def port_for(version: str) -> Port:
    """The module that meets vLLM ``version``. Raises `TargetError`, which says what is supported."""
    numbers = tuple(int(part) for part in re.findall(r"\d+", version)[:2])
    for (oldest, too_new), module in PORTS.items():
        if oldest <= numbers < too_new:
            return cast(Port, importlib.import_module(module))
    ranges = ", ".join(f"from {_dotted(low)}, before {_dotted(high)}" for low, high in PORTS)
    raise TargetError(
        f"vLLM {version} is none that sooner drafts in ({ranges}): pip install {_wanted()}, or draft with vLLM's own "
        "methods (sooner tune --export vllm)"
    )


def _wanted() -> str:
    low, high = max(PORTS)
    return f"'vllm>={_dotted(low)},<{_dotted(high)}'"


def _dotted(version: tuple[int, int]) -> str:
    return ".".join(map(str, version))
