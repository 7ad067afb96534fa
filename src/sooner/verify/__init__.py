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
    """The verifier named ``rule``; lossy rules take ``options``. `InvalidRequest` names what is unknown."""
    if rule not in RULES:
        raise InvalidRequest(f"verify must be one of {', '.join(RULES)}, not {rule!r}{nearest(rule, RULES)}", "verify")
    make = RULES[rule]
    known = list(inspect.signature(make).parameters)
    for name in options:
        if name not in known:
            wanted = f"options are {', '.join(known)}" if known else "it takes no options"
            raise InvalidRequest(f"verify rule {rule} has no option {name!r}: {wanted}", name)
    return make(**options)
