"""What a comparison comes to: speeds, ratios of sooner to each variant with their intervals, and whose text changed.

Knows the runs of a result. Does not know how they were taken.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from peers_catalogue import OWN, PEERS

from sooner.bench.ratio import Ratio, ratio

__all__ = ["Row", "by_category", "markdown", "rows"]

_DEFAULT = "default"
_ENOUGH = 4
"""Texts below which a bootstrap interval says nothing."""

Runs = Sequence[Mapping[str, Any]]


@dataclass(frozen=True, slots=True)
class Row:
    """One variant of a peer. ``speed``: tokens a second of decoding after the first token, over all its texts.

    ``decoding``, ``fresh``, ``whole``: how many times as fast sooner's default is, over the time after the first token,
    over that before a text falls into a loop, and over whole requests with their prompts. ``same`` of ``texts`` equal
    the peer's own plain ones. ``best``: the fastest variant of its peer. ``trouble``: why it was not measured.
    """

    peer: str
    variant: str
    speed: float = 0.0
    decoding: Ratio | None = None
    fresh: Ratio | None = None
    whole: Ratio | None = None
    texts: int = 0
    same: int = 0
    best: bool = False
    trouble: str = ""


def rows(result: Mapping[str, Any]) -> list[Row]:
    """Every variant that was to be measured, in the catalogue's order."""
    runs: Runs = result["runs"]
    found = []
    for peer in PEERS:
        about = result["peers"].get(peer.name)
        if about is None:
            continue
        own = [_row(runs, peer.name, name, about["troubles"].get(name, "")) for name in about["variants"]]
        fastest = max(own, key=lambda row: row.speed)
        found += [replace(row, best=row is fastest and row.speed > 0) for row in own]
    return found


def by_category(result: Mapping[str, Any], kind: str = "") -> dict[str, dict[str, float]]:
    """Category to peer to how many times as fast sooner's default decodes as that peer's best variant; with the
    ``kind`` "fresh_" before a text falls into a loop, which a peer's text does elsewhere than sooner's."""
    best = {row.peer: row.variant for row in rows(result) if row.best and row.peer != OWN}
    table: dict[str, dict[str, float]] = {}
    for category in dict.fromkeys(run["category"] for run in result["runs"]):
        inside = [run for run in result["runs"] if run["category"] == category]
        found = {peer: _against(inside, peer, variant, kind) for peer, variant in best.items()}
        table[category] = {peer: one.value for peer, one in found.items() if one is not None}
    return table


def markdown(result: Mapping[str, Any]) -> str:
    """Both tables, and what could not be measured."""
    head = ["peer", "setting", "tokens/s", "sooner is", "before loops", "whole request", "texts equal to its own plain"]
    body = [_cells(row) for row in rows(result)]
    troubles = [f"- {row.peer}, {row.variant}: {row.trouble}" for row in rows(result) if row.trouble]
    table, fresh = by_category(result), by_category(result, "fresh_")
    peers = list(dict.fromkeys(peer for found in table.values() for peer in found))
    inside = [
        [category, *(_both(found.get(peer), fresh[category].get(peer)) for peer in peers)]
        for category, found in table.items()
    ]
    best = {row.peer: row.variant for row in rows(result) if row.best}
    second = _table(["category (before loops)", *(f"{peer}, {best[peer]}" for peer in peers)], inside)
    parts = [_table(head, body), second if peers else "", "\n".join(troubles)]
    return "\n\n".join(part for part in parts if part)


def _row(runs: Runs, peer: str, variant: str, trouble: str) -> Row:
    own = _of(runs, peer, variant)
    if not own:
        return Row(peer, variant, trouble=trouble or "not measured yet")
    plain = {_place(run): run["text"] for run in runs if run["peer"] == peer and run["variant"] == "plain"}
    compared = [run for run in own if _place(run) in plain]
    seconds = sum(run["seconds"] for run in own)
    decoding, fresh, whole = (
        None if (peer, variant) == (OWN, _DEFAULT) else _against(runs, peer, variant, kind)
        for kind in ("", "fresh_", "whole_")
    )
    return Row(
        peer,
        variant,
        sum(run["tokens"] for run in own) / seconds if seconds else 0.0,
        decoding,
        fresh,
        whole,
        texts=len(compared),
        same=sum(run["text"] == plain[_place(run)] for run in compared),
        trouble=trouble,
    )


def _against(runs: Runs, peer: str, variant: str, kind: str) -> Ratio | None:
    """The time that the variant needs at the pace it had on a prompt, for as many tokens as sooner wrote there, over
    sooner's own time; texts differ between peers, and so do their lengths. Pieces of one prompt count as one pair."""
    theirs = {_place(run): run for run in _of(runs, peer, variant)}
    pairs: dict[tuple[str, str], list[float]] = {}
    for run in _of(runs, OWN, _DEFAULT):
        other = theirs.get(_place(run))
        if other is None or min(one[f"{kind}{what}"] for one in (run, other) for what in ("tokens", "seconds")) <= 0:
            continue
        total = pairs.setdefault((run["category"], run["id"]), [0.0, 0.0])
        total[0] += run[f"{kind}tokens"] * other[f"{kind}seconds"] / other[f"{kind}tokens"]
        total[1] += run[f"{kind}seconds"]
    return ratio([a for a, _ in pairs.values()], [b for _, b in pairs.values()]) if pairs else None


def _of(runs: Runs, peer: str, variant: str) -> list[Mapping[str, Any]]:
    return [run for run in runs if (run["peer"], run["variant"]) == (peer, variant)]


def _place(run: Mapping[str, Any]) -> tuple[int, str, str]:
    return run["piece"], run["category"], run["id"]


def _cells(row: Row) -> list[str]:
    name = f"**{row.variant}**" if row.best else row.variant
    if not row.speed:
        return [row.peer, name, row.trouble.split(":")[0], "", "", "", ""]
    plain = row.variant == "plain"
    same = "" if plain else f"yes ({row.texts})" if row.same == row.texts else f"no ({row.same} of {row.texts})"
    return [row.peer, name, f"{row.speed:.1f}", *map(_shown, (row.decoding, row.fresh, row.whole)), same]


def _both(overall: float | None, fresh: float | None) -> str:
    return "-" if overall is None else f"{overall:.2f}x" + ("" if fresh is None else f" ({fresh:.2f}x)")


def _shown(found: Ratio | None) -> str:
    if found is None:
        return ""
    if found.pairs < _ENOUGH:
        return f"{found.value:.2f}x (too few texts)"
    return f"{found.value:.2f}x [{found.low:.2f}, {found.high:.2f}]"


def _table(head: Sequence[str], body: Iterable[Sequence[str]]) -> str:
    lines = [f"| {' | '.join(cells)} |" for cells in (head, *body)]
    lines.insert(1, f"|{'---|' * len(head)}")
    return "\n".join(lines)
