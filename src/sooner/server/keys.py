"""API keys: who may ask, and what keeps one key's text from another's.

Knows digests of keys. Does not know requests.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from collections.abc import Iterable
from pathlib import Path

from sooner.errors import InvalidRequest

__all__ = ["Keys", "read_keys"]


class Keys:
    """The keys that open a server. Comparing takes the same time whichever key is right, and however much of it."""

    def __init__(self, keys: Iterable[str]) -> None:
        self._digests = [_digest(key) for key in dict.fromkeys(keys)]
        self._pepper = secrets.token_bytes(16)

    def __len__(self) -> int:
        return len(self._digests)

    def salt(self, header: str | None) -> str | None:
        """The salt of the key in an ``Authorization`` header; None if there is none or it is wrong.

        Requests share cached prefixes and what drafters learned only under equal salts. Without keys all share "".
        """
        if not self._digests:
            return ""
        scheme, _, key = (header or "").partition(" ")
        given = _digest(key.strip() if scheme.lower() == "bearer" else "")
        found = -1
        for i, digest in enumerate(self._digests):
            if hmac.compare_digest(digest, given):
                found = i
        return hmac.new(self._pepper, given, "sha256").hexdigest()[:16] if found >= 0 else None


def _digest(key: str) -> bytes:
    return hashlib.sha256(key.encode("utf-8", "surrogateescape")).digest()


def read_keys(path: str) -> tuple[str, ...]:
    """The keys in a file, one a line; empty lines and those that begin with # are skipped.

    Raises `InvalidRequest` if the file cannot be read or holds none.
    """
    try:
        lines = [line.strip() for line in Path(path).read_text(encoding="utf-8").splitlines()]
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is not UTF-8 text"
        raise InvalidRequest(f"--api-key-file {path} cannot be read ({reason}): check the path") from error
    keys = tuple(line for line in lines if line and not line.startswith("#"))
    if not keys:
        raise InvalidRequest(f"--api-key-file {path} holds no key: write one a line")
    return keys
