"""Which replica a request prefers: the one that holds its conversation's prefix, unless its queue is much longer.

Knows requests' bytes and names of replicas. Does not know Ray.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

__all__ = ["affinity_key", "ranked"]

_BEGINNING = 128
"""Characters of a plain prompt by which its continuations are known again."""


def affinity_key(authorization: bytes, body: bytes) -> str:
    """What the requests of one conversation have in common, as 32 hexadecimal digits; "" for a body that says nothing.

    The caller's key, and with it the first of these that the body has: ``cache_salt``, ``user``, the messages up to the
    first of the user's, the beginning of the prompt. Whatever the body is, nothing is raised.
    """
    try:
        asked = json.loads(body)
        common = _common(asked) if isinstance(asked, dict) else None
        if common is None:
            return ""
        said = json.dumps(common, sort_keys=True)
    except (ValueError, RecursionError):
        return ""
    return hashlib.sha256(authorization + b"\0" + said.encode()).hexdigest()[:32]


def _common(asked: Mapping[str, Any]) -> Any:
    for name in ("cache_salt", "user"):
        if asked.get(name):
            return [name, asked[name]]
    messages = asked.get("messages")
    if isinstance(messages, list) and messages:
        roles = [entry.get("role") if isinstance(entry, dict) else None for entry in messages]
        return messages[: roles.index("user") + 1 if "user" in roles else len(messages)]
    prompt = asked.get("prompt")
    return prompt[:_BEGINNING] if isinstance(prompt, str | list) and prompt else None


def ranked(key: str, loads: Mapping[str, int], *, places: int = 0, slack: int = 0) -> list[str]:
    """The replicas of ``loads`` (requests at each) in the order in which a request with ``key`` asks them.

    Each key has an order of its own over all replicas (rendezvous hashing: Thaler and Ravishankar 1998), so that a
    replica that comes or goes moves only the keys that it gets or had. A replica keeps its preference while one of its
    ``places`` is free, where a request begins at once, or its queue exceeds the shortest by ``slack`` at most. The
    others come last, the shortest queue first: their keys go on to the next of their order (as in consistent hashing
    with bounded loads: Mirrokni, Thorup and Zadimoghaddam 2018).
    """
    if not loads:
        return []
    order = sorted(loads, key=lambda name: _weight(key, name), reverse=True)
    bound = max(places - 1, min(loads.values()) + slack)
    busy = [name for name in order if loads[name] > bound]
    return [name for name in order if loads[name] <= bound] + sorted(busy, key=lambda name: loads[name])


def _weight(key: str, name: str) -> bytes:
    return hashlib.blake2b(f"{key}\0{name}".encode(), digest_size=8).digest()
