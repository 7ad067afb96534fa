"""Verification: what of a draft is kept, and the one token of the target's own after it. One file per rule.

Knows the rules' names. Does not know models, caches or time.
"""

from __future__ import annotations

import inspect

from sooner.errors import InvalidRequest, nearest
from sooner.protocols import Verifier
from sooner.verify.block import BlockVerifier
from sooner.verify.coupled import CoupledVerifier
from sooner.verify.lenience import LenienceVerifier
from sooner.verify.rejection import RejectionVerifier
from sooner.verify.typical import TypicalVerifier

__all__ = ["RULES", "create_verifier"]

RULES: dict[str, type[Verifier]] = {
    "coupled": CoupledVerifier,
    "rejection": RejectionVerifier,
    "block": BlockVerifier,
    "typical": TypicalVerifier,
    "lenience": LenienceVerifier,
}
"""The rules by name; ``lossless`` tells the exact ones."""


def create_verifier(rule: str, **options: float) -> Verifier:
    """The verifier that ``rule`` names: ``coupled``, or with options ``typical:epsilon=0.1,delta=0.2``; these may also
    be given as ``options``. `InvalidRequest` names what is unknown."""
    name, _, rest = rule.partition(":")
    if name not in RULES:
        raise InvalidRequest(f"verify must be one of {', '.join(RULES)}, not {name!r}{nearest(name, RULES)}", "verify")
    make = RULES[name]
    known = list(inspect.signature(make).parameters)
    options = _options(rule, rest) | options
    for option in options:
        if option not in known:
            wanted = f"options are {', '.join(known)}" if known else "it takes no options"
            raise InvalidRequest(f"verify rule {name} has no option {option!r}: {wanted}", option)
    return make(**options)


def _options(rule: str, text: str) -> dict[str, float]:
    options: dict[str, float] = {}
    for item in text.split(",") if text else []:
        option, _, value = (part.strip() for part in item.partition("="))
        try:
            options[option] = float(value)
        except ValueError:
            wrong = f"cannot read verify rule {rule!r} at {item!r}: write it as typical:epsilon=0.1,delta=0.2"
            raise InvalidRequest(wrong, "verify") from None
    return options
