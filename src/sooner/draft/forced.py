"""A draft under a grammar: what it forbids is out, what it forces is in, before anything is scored.

Knows a draft tree and where the text stands in its grammar. Does not know a model, or who drafted.
"""

from __future__ import annotations

from sooner import tree
from sooner.protocols import Matcher
from sooner.types import ROOT, Draft

__all__ = ["GRAMMAR", "follow"]

GRAMMAR = "grammar"
"""The source of drafted tokens that the grammar forces."""


_MOST = 32
"""Forced tokens drafted at once: they are certain, but each is a row of a pass that others wait for."""


def follow(draft: Draft, matcher: Matcher, *, depth: int, budget: int) -> Draft:
    """``draft`` without the nodes that the grammar forbids, and with the tokens it forces below each of the others.

    Forced tokens have confidence 1. Those that come next are no guesses and stay whatever the ``budget``; of more nodes
    than that the likeliest stay. None is deeper than ``depth``.
    A sampled draft is kept as it is (dropping its nodes by their values is biased) or, where the grammar forces the
    next token, replaced: that depends on the text alone.
    """
    if draft.q:
        forced = matcher.forced()[: min(depth, _MOST)]
        return tree.chain(forced, 1.0, GRAMMAR) if forced else draft
    kept = {ROOT}
    chains = []
    for node in range(ROOT, len(draft)):
        if node not in kept:
            continue
        nodes = draft.path(node)
        path = tuple(draft.tokens[i] for i in nodes)
        forced = matcher.forced(path)
        for child in draft.children(node):
            token = draft.tokens[child]
            if token == forced[0] if forced else matcher.permits(token, path):
                kept.add(child)
        if forced:
            chains.append(_chain(draft, nodes, path, forced))
    certain = len(matcher.forced()[:_MOST])
    return _likeliest(tree.merge([*chains, tree.prune(draft, kept)]), depth, max(budget, certain))


def _chain(draft: Draft, nodes: tuple[int, ...], path: tuple[int, ...], forced: tuple[int, ...]) -> Draft:
    """The path to a node as it is, and what is forced below it."""
    size = len(path) + len(forced)
    return Draft(
        (*path, *forced),
        tuple(range(ROOT, size - 1)),
        (*(draft.confidence[i] for i in nodes), *(1.0,) * len(forced)),
        (*(draft.sources[i] for i in nodes), *(GRAMMAR,) * len(forced)),
    )


def _likeliest(draft: Draft, depth: int, budget: int) -> Draft:
    """At most ``budget`` nodes of at most ``depth``: those whose whole paths are the likeliest, of equals the first."""
    values: list[float] = []
    for node, parent in enumerate(draft.parents):
        values.append(draft.confidence[node] * (1.0 if parent == ROOT else values[parent]))
    near = [node for node, level in enumerate(tree.depths(draft)) if level <= depth]
    return tree.prune(draft, sorted(near, key=lambda node: (-values[node], node))[:budget])
