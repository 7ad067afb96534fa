"""A static back-off table of the target's own successors: after the last three tokens, else two, else one.

Knows counts taken from text that the target wrote (the n-gram approximation of Leviathan et al., section 3.6, made
useful by the target's own text). Does not know the current text beyond its last tokens.
"""

from __future__ import annotations

import os
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sooner.draft.growth import grow
from sooner.draft.one_by_one import OneByOne
from sooner.draft.options import at_least
from sooner.errors import DraftError
from sooner.protocols import Context
from sooner.types import EMPTY_DRAFT, Draft

__all__ = ["ORDERS", "SuccessorTable", "TableDrafter", "context_key"]

ORDERS = (3, 2, 1)
"""Context lengths, longest first."""

FORMAT = 1

_MASK = 2**32 - 1


def context_key(tokens: Sequence[int]) -> int:
    """A 32-bit name of a context. Two contexts that share one cost acceptance, never correctness."""
    key = len(tokens)
    for token in tokens:
        key = ((key ^ token) * 0x9E3779B1) & _MASK
        key ^= key >> 15
    return key


@dataclass(frozen=True, slots=True)
class SuccessorTable:
    """For each order: keys ``[n]`` uint32 ascending, successors ``[n, width]`` uint32 (best first) and their chances
    ``[n, width]`` uint8 in 1/255 (0 ends the list). ``model``: the sha256 of the weights that wrote the text;
    ``recipe``: how the text came about, as JSON."""

    keys: dict[int, NDArray[np.uint32]]
    tokens: dict[int, NDArray[np.uint32]]
    chances: dict[int, NDArray[np.uint8]]
    model: str
    recipe: str = ""

    @property
    def contexts(self) -> int:
        """Contexts of all orders."""
        return sum(map(len, self.keys.values()))

    def save(self, path: Path) -> None:
        """Write a compressed ``.npz``, whole or not at all. Raises `OSError`."""
        texts = {"model": np.array(self.model), "recipe": np.array(self.recipe)}
        arrays: dict[str, NDArray[Any]] = {"format": np.array(FORMAT), **texts}
        for order in self.keys:
            arrays |= {
                f"keys{order}": self.keys[order],
                f"tokens{order}": self.tokens[order],
                f"chances{order}": self.chances[order],
            }
        unfinished = path.with_name(f".{path.name}.{os.getpid()}")
        try:
            with unfinished.open("wb") as file:
                np.savez_compressed(file, allow_pickle=False, **arrays)
            os.replace(unfinished, path)
        finally:
            unfinished.unlink(missing_ok=True)

    @classmethod
    def load(cls, path: Path) -> SuccessorTable:
        """Read what `save` wrote. Raises `DraftError`."""
        try:
            with np.load(path, allow_pickle=False) as file:
                if int(file["format"]) != FORMAT:
                    raise DraftError(f"{path} has table format {file['format']}: make it again with this version")
                keys, tokens, chances = (
                    {order: file[f"{name}{order}"] for order in ORDERS} for name in ("keys", "tokens", "chances")
                )
                recipe = str(file["recipe"]) if "recipe" in file else ""
                return cls(keys, tokens, chances, str(file["model"]), recipe)
        except DraftError:
            raise
        except Exception as error:  # zip, numpy and file errors all mean the same to the user
            raise DraftError(f"{path} is no successor table ({error}): it is damaged or another format") from error


def packaged_table(model: str, tables: Path | None = None) -> Path | None:
    """The table for the weights with sha256 ``model``, if there is one: in the folder ``tables``, where users' own are
    kept, or shipped."""
    shipped = Path(str(resources.files("sooner.draft").joinpath("tables")))
    paths = [folder / f"{model[:16]}.npz" for folder in (tables, shipped) if folder is not None]
    return next((path for path in paths if model and path.is_file()), None)


class TableDrafter(OneByOne):
    """Drafts from a `SuccessorTable`: the one at ``path``, or that for ``model`` (a sha256), made or shipped.

    ``max``: most nodes; ``depth``: deepest; ``width``: successors tried per node. Raises `DraftError`.
    """

    name = "table"

    def __init__(
        self,
        *,
        path: str = "",
        model: str = "",
        tables: Path | None = None,
        max: int = 8,
        depth: int = 6,
        width: int = 3,
    ) -> None:
        found = Path(path) if path else packaged_table(model, tables)
        if found is None:
            raise DraftError(
                "there is no table for this model: make one with sooner train, or draft with suffix,recycle"
            )
        table = SuccessorTable.load(found)
        if model and table.model not in ("", model):
            raise DraftError(f"{found} was made from another model's text: make one for this model")
        self._max = at_least(1, max=max)
        self._depth = at_least(1, depth=depth)
        self._width = at_least(1, width=width)
        self._table = table
        self._keys = {order: keys.data for order, keys in table.keys.items()}

    def _propose(self, context: Context) -> Draft:
        budget = min(self._max, context.budget)
        if budget < 1:
            return EMPTY_DRAFT
        return grow(context, self._successors, ORDERS[0], budget=budget, depth=self._depth, source=self.name)

    def _successors(self, path: Sequence[int]) -> list[tuple[int, float]]:
        for order in ORDERS:
            if len(path) < order:
                continue
            keys = self._keys[order]
            key = context_key(path[-order:])
            at = bisect_left(keys, key)
            if at < len(keys) and keys[at] == key:
                tokens = self._table.tokens[order][at, : self._width].tolist()
                chances = self._table.chances[order][at, : self._width].tolist()
                return [(token, chance / 255) for token, chance in zip(tokens, chances, strict=True) if chance]
        return []
