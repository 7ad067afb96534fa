"""The per-request switch: which drafter guesses for which sequence, all behind the one drafter the engine has.

Knows drafters by contract and by name. Does not know requests or text.
"""

from __future__ import annotations

import logging
import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import TypeAlias

from sooner.draft import parse_spec
from sooner.errors import DraftError, InvalidRequest
from sooner.protocols import Context, Drafter
from sooner.types import EMPTY_DRAFT, Draft, Rows, Step

__all__ = ["DraftSwitch", "Specs", "checked_specs"]

log = logging.getLogger("sooner.server")

Specs: TypeAlias = tuple[str, ...]
"""Short forms of drafters whose guesses are merged; empty is the server's own drafter."""

_LARGEST = 64
"""The largest number that a request's drafter options may hold: most of them are sizes."""

_KEPT = 8
"""Drafters that requests asked for and that are kept for the next one."""


def checked_specs(text: str, kinds: Sequence[str]) -> Specs | None:
    """A request's ``draft`` as short forms; None for "none". Raises `InvalidRequest` naming ``draft``."""
    if text == "none":
        return None
    try:
        spec = parse_spec(text)
    except DraftError as error:
        raise InvalidRequest(f"draft: {error}", "draft") from error
    if spec["kind"] not in kinds:
        raise InvalidRequest(f"draft: a request may ask for {', '.join(kinds)} or none, not {spec['kind']}", "draft")
    for name, value in spec.items():
        if len(value) > 8 or (value.isdecimal() and int(value) > _LARGEST):
            raise InvalidRequest(f"draft: {name} must be at most {_LARGEST}, not {value[:20]}", "draft")
    return (text,)


class DraftSwitch:
    """A drafter that asks, for each sequence, the drafter assigned to it, or ``default`` (None: no draft).

    ``make`` builds drafters from short forms. One that fails drafts nothing from then on, and takes no other with it;
    ``warning`` says so of the default.
    """

    def __init__(self, default: Drafter | None, make: Callable[[Specs], Drafter]) -> None:
        self.default = default
        self.warning: str | None = None
        self._make = make
        self._lock = threading.Lock()
        self._made: OrderedDict[Specs, Drafter] = OrderedDict()
        self._assigned: dict[int, Drafter] = {}
        self._failed: set[int] = set()

    @property
    def name(self) -> str:
        """The default's."""
        return self.default.name if self.default is not None else "none"

    @property
    def members(self) -> Sequence[Drafter]:
        """The default's members, for those who list what drafts."""
        members: Sequence[Drafter] = getattr(self.default, "members", (self.default,) if self.default else ())
        return members

    def drafter(self, specs: Specs) -> Drafter:
        """The drafter for ``specs``, made on first use; may take a while. Raises `InvalidRequest` naming ``draft``."""
        with self._lock:
            if specs not in self._made:
                try:
                    self._made[specs] = self._make(specs)
                except DraftError as error:
                    raise InvalidRequest(f"draft: {error}", "draft") from error
            self._made.move_to_end(specs)
            self._evict()
            return self._made[specs]

    def assign(self, id: int, drafter: Drafter) -> None:
        """Let ``drafter`` guess for sequence ``id``, from its first step on."""
        self._assigned[id] = drafter

    def propose(self, contexts: Sequence[Context]) -> list[Draft]:
        """One draft per context, each from its own drafter; those of one drafter are asked for together."""
        drafts = [EMPTY_DRAFT] * len(contexts)
        groups: dict[int, tuple[Drafter, list[int]]] = {}
        for i, context in enumerate(contexts):
            drafter = self._assigned.get(context.id, self.default)
            if drafter is not None and id(drafter) not in self._failed:
                groups.setdefault(id(drafter), (drafter, []))[1].append(i)
        for drafter, places in groups.values():
            for i, draft in zip(places, self._ask(drafter, [contexts[i] for i in places]), strict=True):
                drafts[i] = draft
        return drafts

    def observe(self, step: Step, rows: Rows) -> None:
        """Let the sequence's drafter learn."""
        drafter = self._assigned.get(step.sequence, self.default)
        if drafter is not None and id(drafter) not in self._failed:
            try:
                drafter.observe(step, rows)
            except Exception as error:  # a user's drafter, or one that a request asked for
                self._fail(drafter, error)

    def forget(self, id: int) -> None:
        """The sequence ended, or the engine wants its cache back; the assignment lasts until `release`."""
        drafter = self._assigned.get(id, self.default)
        if drafter is not None:
            try:
                drafter.forget(id)
            except Exception as error:  # as in observe
                self._fail(drafter, error)

    def release(self, id: int) -> None:
        """The sequence ended."""
        self._assigned.pop(id, None)

    def _ask(self, drafter: Drafter, contexts: Sequence[Context]) -> list[Draft]:
        try:
            drafts = drafter.propose(contexts)
            if len(drafts) != len(contexts):
                raise ValueError(f"{len(drafts)} drafts for {len(contexts)} sequences")
            return drafts
        except Exception as error:  # as in observe
            self._fail(drafter, error)
            return [EMPTY_DRAFT] * len(contexts)

    def _fail(self, drafter: Drafter, error: Exception) -> None:
        if id(drafter) not in self._failed:
            self._failed.add(id(drafter))
            message = f"drafter {drafter.name} failed and is off: {type(error).__name__}: {error}"
            log.warning("%s", message)
            if drafter is self.default:
                self.warning = message

    def _evict(self) -> None:
        used = set(map(id, list(self._assigned.values())))  # copied at one go: the engine's thread assigns
        for specs in [s for s, drafter in self._made.items() if id(drafter) not in used][: len(self._made) - _KEPT]:
            self._failed.discard(id(self._made.pop(specs)))
