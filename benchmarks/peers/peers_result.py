"""The file that a comparison's runs are kept in: one entry a text, with the piece it was measured in.

Knows JSON and what was run. Does not know what it comes to.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from peers_catalogue import Peer

from sooner.bench.stamp import stamp
from sooner.bench.workload import Item

__all__ = ["Result"]


class Result:
    """What ``path`` holds, and what this piece adds. Raises `SystemExit` if other ``settings`` made it."""

    def __init__(self, path: Path, settings: Mapping[str, Any]) -> None:
        self._path = path
        found = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
        if found and found["settings"] != dict(settings):
            raise SystemExit(f"{path} was measured with {found['settings']}: give the same options or another --result")
        self.settings: dict[str, Any] = dict(settings)
        self.runs: list[dict[str, Any]] = found.get("runs", [])
        self.peers: dict[str, dict[str, Any]] = found.get("peers", {})
        self.piece = 1 + max((run["piece"] for run in self.runs), default=0)

    def describe(self, peer: Peer) -> None:
        """Keep what the peer reads and how its variants are set; troubles of an earlier piece are forgotten."""
        entry = self.peers.setdefault(peer.name, {"versions": {}})
        entry["weights"] = peer.weights
        entry["variants"] = {variant.name: variant.setting for variant in peer.variants}
        entry["troubles"] = {}

    def versions(self, peer: str, versions: Mapping[str, str]) -> None:
        """Keep which versions a worker says it has."""
        self.peers[peer]["versions"] = dict(versions)

    def trouble(self, peer: str, variant: str, reason: str) -> None:
        """Keep why a variant was not measured, or not to the end."""
        self.peers[peer]["troubles"][variant] = reason

    def done(self, item: Item, variants: list[tuple[str, str]]) -> bool:
        """Whether some piece has measured the item under every one of ``variants``."""
        by_piece: dict[int, set[tuple[str, str]]] = {}
        for run in self.runs:
            if run["category"] == item.category and run["id"] == item.id:
                by_piece.setdefault(run["piece"], set()).add((run["peer"], run["variant"]))
        return any(found >= set(variants) for found in by_piece.values())

    def add(self, variant: tuple[str, str], item: Item, figures: Mapping[str, Any]) -> None:
        """One text of one variant."""
        about = {"piece": self.piece, "category": item.category, "id": item.id}
        self.runs.append({"peer": variant[0], "variant": variant[1], **about, **figures})

    def save(self) -> None:
        """Write the file whole."""
        record = {"machine": stamp(), "settings": self.settings, "peers": self.peers, "runs": []}
        head = json.dumps(record, indent=1, ensure_ascii=False).removesuffix("[]\n}")
        lines = ",\n".join(f"  {json.dumps(run, ensure_ascii=False)}" for run in self.runs)
        self._path.parent.mkdir(parents=True, exist_ok=True)
        new = self._path.with_suffix(".new")
        new.write_text(f"{head}[\n{lines}\n ]\n}}\n", encoding="utf-8")
        new.replace(self._path)
