"""Which drafters an audit sets against plain decoding, and how each is made: useful ones, and hostile ones.

Knows drafters by name. Does not know what is compared.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from sooner.bench.configuration import parse_configuration
from sooner.draft import create_drafter, parse_spec
from sooner.draft.cascade import CascadeDrafter
from sooner.engine import Engine
from sooner.errors import DraftError
from sooner.loading import DEFAULT_DRAFT, make_drafter
from sooner.protocols import Drafter

__all__ = ["PLAIN", "STANDARD", "Drafters", "expanded"]

PLAIN = "plain"
"""No drafter: texts side by side must be what they are alone."""

_MODEL_FREE = ("suffix", "ngram", "recycle", "table", "memory", "given")
_HOSTILE = (
    "random",
    "random:tree=true",
    "random:malicious=true",
    "oracle",
    "oracle:rate=0.3",
    "oracle:error_at=0",
)

STANDARD = (PLAIN, DEFAULT_DRAFT, *_MODEL_FREE, "self", *_HOSTILE)
"""All that run on any model. ``table`` only where one is shipped for it or was made."""

_ALL = "all"


def expanded(asked: Sequence[str]) -> list[str]:
    """``asked`` (none: all of `STANDARD`) with ``all`` spelt out, each once. Raises `DraftError` for unknown ones."""
    names: dict[str, None] = {}
    for text in asked or (_ALL,):
        for name in STANDARD if text == _ALL else (text,):
            one = parse_configuration(name)
            names[PLAIN if one.plain else one.name] = None
    if set(names) == {PLAIN} and asked:
        raise DraftError("plain decoding alone leaves nothing to compare: name a drafter, or leave out --draft")
    return list(names)


class Drafters:
    """Makes drafters for one engine, each once, with what it learns from text to text; oracles anew for every group.

    ``refused``: those of ``names`` that the model cannot have, and why.
    """

    def __init__(self, engine: Engine, names: Sequence[str]) -> None:
        self._engine = engine
        self._made: dict[str, Drafter | None] = {}
        self.refused: dict[str, str] = {}
        for name in names:
            try:
                self.make(name, {})
            except DraftError as error:
                self.refused[name] = str(error)
        self.names = tuple(name for name in names if name not in self.refused)

    def budget(self, name: str) -> int | None:
        """The draft tokens per pass that the name itself asks for."""
        return parse_configuration(name).budget

    def make(self, name: str, truth: Mapping[tuple[int, ...], Sequence[int]]) -> Drafter | None:
        """The drafter ``name``; ``truth`` is what oracles replay. Raises `DraftError`."""
        specs = parse_configuration(name).draft
        if len(specs) == 1 and specs[0] != DEFAULT_DRAFT and parse_spec(specs[0])["kind"] == "oracle":
            return create_drafter(specs[0], truth=dict(truth))
        if name not in self._made:
            self._made[name] = self._new(specs)
        return self._made[name]

    def _new(self, specs: Sequence[str]) -> Drafter | None:
        if not specs:
            return None
        engine = self._engine
        asked = DEFAULT_DRAFT if tuple(specs) == (DEFAULT_DRAFT,) else list(specs)
        model = engine.fingerprint.get("model", "")
        made = make_drafter(asked, engine.target, engine.codec, model, opening=engine.open_model)
        if isinstance(made, CascadeDrafter) and len(made.members) == 1:
            return made.members[0]  # alone, it is trusted less by nobody: its drafts are scored as they are
        return made
