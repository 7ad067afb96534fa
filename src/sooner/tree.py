"""Draft trees: build, merge, prune, clean, and read their shape. Pure functions on `Draft`.

Knows parents, depths and which siblings may be dropped without bias. Does not know laws, noise or targets.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain as concat
from itertools import islice, repeat
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sooner.errors import DraftError
from sooner.types import EMPTY_DRAFT, ROOT, TARGET, Draft, Probabilities

__all__ = [
    "MAX_NODES",
    "ancestor_mask",
    "best_path",
    "chain",
    "depth",
    "depths",
    "merge",
    "paths",
    "prune",
    "sanitise",
]

MAX_NODES = 1024
"""The most nodes `sanitise` reads of a draft, whatever its size."""


def chain(
    tokens: Sequence[int],
    confidence: float | Sequence[float],
    source: str,
    q: Sequence[Probabilities] | None = None,
) -> Draft:
    """A draft of one child each. ``confidence`` per node or one for all; ``q[i]`` is the row token i was drawn from."""
    n = len(tokens)
    if n == 0:
        return EMPTY_DRAFT
    each = (float(confidence),) * n if isinstance(confidence, int | float) else tuple(confidence)
    if len(each) != n or (q is not None and len(q) != n):
        raise DraftError(f"a chain of {n} tokens needs {n} confidences and q rows: pass one per token")
    rows = {} if q is None else {i - 1: row for i, row in enumerate(q)}
    return Draft(tuple(tokens), tuple(range(ROOT, n - 1)), each, (source,) * n, MappingProxyType(rows))


def merge(drafts: Sequence[Draft]) -> Draft:
    """One tree of all drafts: equal prefixes share nodes, the first draft to have a node keeps its source.

    A shared node's confidence is the larger one: drafters read the same history, so that two of them agree is weak
    evidence. Sampled children tolerate no siblings from elsewhere, and cannot be shared: `DraftError`.
    """
    full = [draft for draft in drafts if len(draft)]
    if len(full) < 2:
        return full[0] if full else EMPTY_DRAFT
    nodes: dict[tuple[int, int], int] = {}
    confidence: list[float] = []
    sources: list[str] = []
    owner: dict[int, int] = {}
    q: dict[int, Probabilities] = {}
    for which, draft in enumerate(full):
        place = {ROOT: ROOT}
        for i, (token, parent) in enumerate(zip(draft.tokens, draft.parents, strict=True)):
            above = place[parent]
            _claim(owner, q, above, which, draft.q.get(parent))
            node = place[i] = nodes.setdefault((above, token), len(nodes))
            if node == len(sources):
                confidence.append(draft.confidence[i])
                sources.append(draft.sources[i])
            confidence[node] = max(confidence[node], draft.confidence[i])
    parents, tokens = zip(*nodes, strict=True)
    return Draft(tokens, parents, tuple(confidence), tuple(sources), MappingProxyType(q))


def _claim(
    owner: dict[int, int], q: dict[int, Probabilities], parent: int, which: int, row: Probabilities | None
) -> None:
    first = owner.setdefault(parent, which)
    if first == which:
        if row is not None:
            q[parent] = row
    elif row is not None or parent in q:
        raise DraftError("sampled drafts cannot share a parent with another draft: use one drafter or verify=coupled")


def prune(draft: Draft, keep: Iterable[int]) -> Draft:
    """The nodes in ``keep`` whose ancestors are all kept, renumbered in order.

    Sampled siblings were drawn in turn, so those after a dropped one go with it. Dropping sampled nodes by their
    *values* is biased under the ratio rules, however it is done: there, ``keep`` may depend on the shape alone.
    """
    wanted = set(keep)
    place = {ROOT: ROOT}
    cut: set[int] = set()
    kept: list[int] = []
    for i, parent in enumerate(draft.parents):
        if parent not in place or parent in cut:
            continue
        if i in wanted:
            place[i] = len(kept)
            kept.append(i)
        elif parent in draft.q:
            cut.add(parent)
    if len(kept) == len(draft):
        return draft
    parents = tuple(place[draft.parents[i]] for i in kept)
    used = set(parents)
    return Draft(
        tuple(draft.tokens[i] for i in kept),
        parents,
        tuple(draft.confidence[i] for i in kept),
        tuple(draft.sources[i] for i in kept),
        MappingProxyType({place[i]: row for i, row in draft.q.items() if i in place and place[i] in used}),
    )


def depths(draft: Draft) -> tuple[int, ...]:
    """Each node's depth; a first-level node has depth 1."""
    levels: list[int] = []
    for parent in draft.parents:
        levels.append(1 if parent == ROOT else levels[parent] + 1)
    return tuple(levels)


def depth(draft: Draft) -> int:
    """The length of the longest path; 0 for the empty draft."""
    return max(depths(draft), default=0)


def paths(draft: Draft) -> list[tuple[int, ...]]:
    """A path to every leaf; the first is the main chain, which follows first children. ``[()]`` without a draft."""
    n = len(draft.tokens)
    if draft.parents == tuple(range(ROOT, n - 1)):
        return [tuple(range(n))]
    children: dict[int, list[int]] = {}
    for node, parent in enumerate(draft.parents):
        children.setdefault(parent, []).append(node)
    found = []
    stack: list[tuple[int, ...]] = [(node,) for node in reversed(children[ROOT])]
    while stack:
        path = stack.pop()
        below = children.get(path[-1])
        if below is None:
            found.append(path)
        else:
            stack.extend((*path, node) for node in reversed(below))
    return found


def best_path(draft: Draft) -> Draft:
    """The path of a tree that foresees the most tokens: the sum, along it, of the chances of getting so far."""
    if draft.parents == tuple(range(ROOT, len(draft) - 1)):
        return draft if not draft.q else replace(draft, q={})
    chances: list[float] = []
    foreseen: list[float] = []
    for parent, chance in zip(draft.parents, draft.confidence, strict=True):
        chances.append(chance * (chances[parent] if parent != ROOT else 1.0))
        foreseen.append(chances[-1] + (foreseen[parent] if parent != ROOT else 0.0))
    return prune(replace(draft, q={}), draft.path(int(np.argmax(foreseen))))


def ancestor_mask(draft: Draft) -> NDArray[np.bool_]:
    """``[n, n]``: whether column j is row i itself or an ancestor of it (what row i may attend to)."""
    mask = np.eye(len(draft), dtype=np.bool_)
    for i, parent in enumerate(draft.parents):
        if parent != ROOT:
            mask[i] |= mask[parent]
    return mask


def sanitise(draft: object, vocab_size: int, depth: int, budget: int | None = None, source: str = "unknown") -> Draft:
    """A well-formed draft of at most ``budget`` nodes, whatever a drafter returned. Never raises.

    A node with an illegal id, an unknown or later parent, a sibling of the same token, or too deep a place is dropped
    with what hangs below it; confidences are clamped to [0, 1] (NaN: 0); a missing or forged source becomes
    ``source``. A q row that is no distribution over ``vocab_size`` ids, or gives a child no chance, or had a child
    dropped for its value, is removed: its children then count as deterministic, which is never biased. What cannot
    be read at all is the empty draft. (A false but well-formed q cannot be seen; only `coupled` is immune to it.)
    """
    try:
        return _sanitise(draft, vocab_size, depth, MAX_NODES if budget is None else budget, source)
    except Exception:  # reading a stranger's object may raise anything at all
        return EMPTY_DRAFT


def _sanitise(draft: Any, vocab_size: int, depth: int, budget: int, source: str) -> Draft:
    place, level, taken, spoilt = {ROOT: ROOT}, {ROOT: 0}, set(), set()
    tokens: list[int] = []
    parents: list[int] = []
    kept: list[tuple[float, str]] = []
    extras = zip(_padded(draft.confidence, 0.0), _padded(draft.sources, source), strict=False)
    for i, (token, parent, extra) in enumerate(
        islice(zip(draft.tokens, draft.parents, extras, strict=False), MAX_NODES)
    ):
        above, t = place.get(_identifier(parent)), _identifier(token)
        if above is None:
            continue
        if not 0 <= t < vocab_size or (above, t) in taken:
            spoilt.add(above)
        elif level[above] < depth and len(tokens) < budget:
            node = place[i] = len(tokens)
            level[node] = level[above] + 1
            taken.add((above, t))
            tokens.append(t)
            parents.append(above)
            kept.append((_clamped(extra[0]), _honest(extra[1], source)))
    rows = _rows(draft.q, place, tokens, parents, vocab_size) if len(draft.q) else {}
    q = MappingProxyType({parent: row for parent, row in rows.items() if parent not in spoilt})
    return Draft(tuple(tokens), tuple(parents), tuple(c for c, _ in kept), tuple(s for _, s in kept), q)


def _padded(values: Iterable[Any], filler: Any) -> Iterator[Any]:
    return concat(values, repeat(filler))


def _identifier(value: Any) -> int:
    try:
        return operator.index(value)
    except TypeError:
        return -2


def _clamped(value: Any) -> float:
    try:
        number = float(value)
    except (TypeError, ValueError, OverflowError):
        return 0.0
    return 0.0 if math.isnan(number) else min(max(number, 0.0), 1.0)


def _honest(name: Any, source: str) -> str:
    return name if isinstance(name, str) and name and name != TARGET else source


def _rows(
    q: Mapping[int, Any], place: Mapping[int, int], tokens: Sequence[int], parents: Sequence[int], vocab_size: int
) -> dict[int, Probabilities]:
    rows: dict[int, Probabilities] = {}
    for theirs, ours in place.items():
        children = [token for token, parent in zip(tokens, parents, strict=True) if parent == ours]
        given = q.get(theirs) if children else None
        if given is None:
            continue
        row = np.array(given, dtype=np.float64)
        if (
            row.shape == (vocab_size,)
            and row.min() >= 0
            and abs((total := row.sum()) - 1) < 1e-3
            and row[children].all()
        ):
            row /= total
            rows[ours] = row
    return rows
