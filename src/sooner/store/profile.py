"""What was found to be fastest for a model on this machine: written once, picked up whenever nothing else is asked for.

Knows a file per model in the cache, and whether it was made here. Does not know how anything is measured or drafted.
"""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sooner.store.cache import cache_dir, writing

__all__ = ["SCHEMA", "Profile", "cores", "find_profile", "save_profile"]

SCHEMA = 1


@dataclass(frozen=True, slots=True)
class Profile:
    """``draft``: short forms of drafters, none for plain decoding. ``budget``: draft tokens per pass, None where the
    controller decides. ``facts``: what it rests on (speed-up, prompts, time), for the reader. ``skip``: the sublayers
    that the drafter ``layerskip`` leaves out unless it is told others; empty where none were searched for."""

    draft: tuple[str, ...]
    budget: int | None = None
    facts: Mapping[str, Any] = field(default_factory=dict)
    skip: str = ""

    def __str__(self) -> str:
        most = "" if self.budget is None or not self.draft else f", {self.budget} tokens a pass"
        return f"{'+'.join(self.draft) or 'plain decoding'}{most} (sooner tune, {self.facts.get('time', 'no date')})"


def cores() -> int:
    """The processor cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def save_profile(fingerprint: Mapping[str, str], profile: Profile) -> Path:
    """Keep ``profile`` for the model and machine of a target's ``fingerprint``; returns the file.

    Raises `CacheError` if it cannot be written.
    """
    path = _path(fingerprint)
    record = {
        "schema": SCHEMA,
        "fingerprint": _here(fingerprint),
        "cores": cores(),
        "draft": list(profile.draft),
        "budget": profile.budget,
        "skip": profile.skip,
        "facts": dict(profile.facts),
    }
    with writing():
        handle, name = tempfile.mkstemp(dir=path.parent)
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            json.dump(record, file, indent=1)
        os.replace(name, path)
    return path


def find_profile(fingerprint: Mapping[str, str], say: Callable[[str], None]) -> Profile | None:
    """The profile of this model on this machine; one that does not fit is left alone and ``say`` gets one line why."""
    path = _path(fingerprint)
    try:
        record = json.loads(path.read_bytes())
    except FileNotFoundError:
        return None
    except (OSError, ValueError):
        record = None
    complaint = _complaint(record, fingerprint)
    if complaint is None:
        return Profile(tuple(record["draft"]), record["budget"], record.get("facts") or {}, record.get("skip", ""))
    say(f"profile {path} is ignored: {complaint}; sooner tune makes a new one")
    return None


def _complaint(record: Any, fingerprint: Mapping[str, str]) -> str | None:
    if not isinstance(record, dict) or "schema" not in record:
        return "it is damaged"
    if record["schema"] != SCHEMA:
        return f"it was written by another version of sooner (schema {record['schema']})"
    made, here = record.get("fingerprint"), _here(fingerprint)
    if not isinstance(made, dict) or not _readable(record):
        return "it is damaged"
    if made.get("model") != here.get("model"):
        return "it was made for another model"
    if made.get("processor") != here.get("processor") or record.get("cores") != cores():
        return "it was made on another machine"
    changed = [name for name in sorted({*made, *here}) if made.get(name) != here.get(name)]
    return f"it was made with another {', '.join(changed).replace('_', ' ')}" if changed else None


def _readable(record: Mapping[str, Any]) -> bool:
    draft, budget = record.get("draft"), record.get("budget", "missing")
    whole = isinstance(budget, int) and not isinstance(budget, bool) and budget >= 0
    texts = isinstance(draft, list) and all(isinstance(one, str) for one in [*draft, record.get("skip", "")])
    return texts and (budget is None or whole)


def _here(fingerprint: Mapping[str, str]) -> dict[str, str]:
    """What the speed of a model depends on."""
    return {name: value for name, value in fingerprint.items() if name != "noise"}


def _path(fingerprint: Mapping[str, str]) -> Path:
    name = hashlib.sha256(fingerprint.get("model", "").encode()).hexdigest()[:32]
    return cache_dir("profiles") / f"{name}.json"
