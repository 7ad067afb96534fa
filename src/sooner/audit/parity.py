"""Two answers to one request, with and without speculation: where they part, and how far apart their numbers are.

Knows replies. Does not know servers, or what a difference is taken to mean.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from sooner.audit.asking import Reply

__all__ = ["NEAR", "PLACEHOLDER", "SAME", "Parity", "compare_replies"]

SAME, NEAR, APART, PLACEHOLDER = "same", "numeric near-tie", "difference", "placeholder"

_NEAR = 0.5
"""The largest gap, in nats, between two tokens that rounding may have swapped: half-precision servers round so."""


@dataclass(frozen=True, slots=True)
class Parity:
    """``kind``: `SAME`, `NEAR`, `APART`, or `PLACEHOLDER` for log-probabilities that are no measurement. ``position``:
    the first unit that differs. ``margin``: by how much, in nats, the plain answer preferred its token to the other's
    there; None where the server does not tell. ``largest``: of the log-probabilities' differences before that place;
    ``compared`` of them, ``equal`` bit for bit."""

    kind: str
    units: int = 0
    position: int | None = None
    margin: float | None = None
    largest: float = 0.0
    compared: int = 0
    equal: int = 0
    wanted: str = ""
    got: str = ""

    @classmethod
    def from_json(cls, record: Any) -> Parity:
        """What `dataclasses.asdict` and JSON made of it."""
        return cls(**record)


def compare_replies(plain: Reply, drafted: Reply) -> Parity:
    """What sets the two apart."""
    a, b = (plain.units, drafted.units) if bool(plain.tokens) == bool(drafted.tokens) else (plain.text, drafted.text)
    same = next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))
    pairs = list(zip(plain.logprobs[:same], drafted.logprobs[:same], strict=False))
    numbers: dict[str, Any] = {
        "units": max(len(a), len(b)),
        "largest": max((abs(x - y) for x, y in pairs), default=0.0),
        "compared": len(pairs),
        "equal": sum(x == y for x, y in pairs),
    }
    if any(_placeholder(x, y) for x, y in pairs):
        return Parity(PLACEHOLDER, **numbers)
    if same == len(a) == len(b) and plain.text == drafted.text:
        return Parity(SAME, **numbers)
    wanted, got = "".join(a[same : same + 1]), "".join(b[same : same + 1])
    margin = _margin(plain, same, got) if plain.tokens and drafted.tokens else None
    kind = NEAR if margin is not None and margin <= _NEAR else APART
    return Parity(kind, position=same, margin=margin, wanted=wanted, got=got, **numbers)


def _placeholder(plain: float, drafted: float) -> bool:
    """A probability of exactly one, or more, where the plain answer has a measured one: what some servers fill in for
    accepted tokens."""
    return drafted >= 0.0 and plain < -1e-3


def _margin(plain: Reply, at: int, other: str) -> float | None:
    """How much likelier the plain answer's token was than ``other``; None if that is not among the likeliest."""
    if at >= len(plain.tops) or at >= len(plain.logprobs):
        return None
    top = dict(plain.tops[at])
    return plain.logprobs[at] - top[other] if other in top else None
