"""What is compared: a drafter (or several, or none) and how much of it is scored, as one short typed form.

Knows the form and how an engine is switched from one to another. Does not know what is measured.
"""

from __future__ import annotations

import copy
import re
from dataclasses import dataclass

from sooner.control.fixed import FixedController
from sooner.draft import known_kinds, parse_spec
from sooner.engine import Engine
from sooner.errors import DraftError
from sooner.loading import DEFAULT_DRAFT, make_drafter
from sooner.protocols import Controller, Drafter

__all__ = ["PLAIN", "Configuration", "Equipment", "parse_configuration"]


@dataclass(frozen=True, slots=True)
class Configuration:
    """``draft``: short forms of drafters whose guesses are merged, none of them for plain decoding. ``budget``: draft
    tokens per pass, None where the controller decides. ``name``: the form it was written in."""

    name: str
    draft: tuple[str, ...] = ()
    budget: int | None = None

    @property
    def plain(self) -> bool:
        """Whether nothing is ever drafted."""
        return not self.draft or self.budget == 0

    def equip(self, engine: Engine, controller: Controller) -> Equipment:
        """A fresh drafter for ``engine`` and a fresh controller: a copy of ``controller`` unless the budget is fixed.

        Raises `DraftError` if the drafter cannot serve the engine's model.
        """
        if self.plain:
            return Equipment(None, FixedController(0))
        specs = DEFAULT_DRAFT if self.draft == (DEFAULT_DRAFT,) else list(self.draft)
        model = engine.fingerprint.get("model", "")
        drafter = make_drafter(specs, engine.target, engine.codec, model, opening=engine.open_model)
        chosen = copy.deepcopy(controller) if self.budget is None else FixedController(self.budget)
        return Equipment(drafter, chosen)


@dataclass(frozen=True, slots=True)
class Equipment:
    """A drafter and a controller, with all they have learned."""

    drafter: Drafter | None
    controller: Controller

    def install(self, engine: Engine) -> None:
        """Let ``engine`` decode with it from its next request on."""
        engine.drafter, engine.controller, engine.warning = self.drafter, self.controller, None


PLAIN = Configuration("plain")

_NEXT = re.compile(r"\+(?=[a-z_]+(?:[:+@,]|$)|kind=)")
"""A plus before another drafter, not one inside a value."""


def parse_configuration(text: str) -> Configuration:
    """``DRAFTER[+DRAFTER...][@BUDGET]``: ``cascade``, ``suffix@8``, ``suffix:max=8+recycle@12``; ``plain`` drafts not.

    Raises `DraftError`.
    """
    drafters, at, budget = text.strip().rpartition("@")
    if not at or not budget.isdecimal():
        drafters, budget = text.strip(), ""
    if drafters in ("plain", "none"):
        if budget:
            raise DraftError(f"configuration {text!r} drafts nothing and needs no budget: write plain")
        return PLAIN
    draft = tuple(_NEXT.split(drafters))
    for spec in draft if draft != (DEFAULT_DRAFT,) else ():
        kind = parse_spec(spec)["kind"]
        if kind not in known_kinds():
            known = ", ".join((DEFAULT_DRAFT, *known_kinds()))
            raise DraftError(f"configuration {text!r} names no drafter {kind!r}: write plain, or some of {known}")
    return Configuration(text.strip(), draft, int(budget) if budget else None)
