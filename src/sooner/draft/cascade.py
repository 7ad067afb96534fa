"""One candidate tree from many drafters: merged, each node's chance calibrated by what the target did before.

Knows its members' claims and what was emitted. Does not know costs: how much of the tree is scored is the
controller's decision.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace

from sooner import tree
from sooner.draft.calibration import Calibration, confidence_bin, depth_bin
from sooner.draft.growth import sharpened
from sooner.protocols import Context, Drafter
from sooner.types import EMPTY_DRAFT, ROOT, Draft, Rows, Step

__all__ = ["CascadeDrafter"]


@dataclass(slots=True)
class _Proposal:
    """What was proposed to one sequence, before the controller chose from it: the material to learn from."""

    draft: Draft
    keys: list[tuple[Hashable, ...]]
    length: int


class CascadeDrafter:
    """Asks all ``members`` and merges what they say; equal prefixes share nodes, the first member gets the credit.

    A node's evidence is the set of members that claim it and how surely; its confidence is how often that evidence was
    right, over all requests of this engine, also where the controller did not choose the node (the emitted text tells).
    """

    def __init__(self, members: Sequence[Drafter]) -> None:
        self.members = tuple(members)
        self._calibration = Calibration()
        self._proposals: dict[int, _Proposal] = {}

    @property
    def name(self) -> str:
        """The members' names."""
        return "+".join(member.name for member in self.members)

    def propose(self, contexts: Sequence[Context]) -> list[Draft]:
        """One merged tree per context. Sampled drafts (under a ratio rule) are not merged: the first one counts."""
        claims: list[list[tuple[str, Draft]]] = [[] for _ in contexts]
        for member in self.members:
            for found, draft in zip(claims, member.propose(contexts), strict=True):
                if len(draft):
                    found.append((member.name, draft))
        return [self._merge(context, found) for context, found in zip(contexts, claims, strict=True)]

    def observe(self, step: Step, rows: Rows) -> None:
        """Score every claim against what was emitted, and let the members learn."""
        proposal = self._proposals.pop(step.sequence, None)
        if proposal is not None:
            self._learn(proposal, step)
        for member in self.members:
            member.observe(step, rows)

    def forget(self, id: int) -> None:
        """Drop what was kept for a sequence."""
        self._proposals.pop(id, None)
        for member in self.members:
            member.forget(id)

    def _merge(self, context: Context, found: list[tuple[str, Draft]]) -> Draft:
        self._proposals.pop(context.id, None)
        if not found:
            return EMPTY_DRAFT
        if any(draft.q for _, draft in found):
            return found[0][1]
        merged = tree.merge([draft for _, draft in found])
        greedy = context.sampling.temperature == 0.0
        keys = _evidence(merged, found, greedy)
        self._proposals[context.id] = _Proposal(merged, keys, len(context.tokens))
        chances = [self._chance(key, merged.confidence[i]) for i, key in enumerate(keys)]
        if context.noise is not None:
            chances = self._with_noise(context, merged, keys, chances)
        return replace(merged, confidence=tuple(chances))

    def _chance(self, keys: tuple[Hashable, ...], claim: float) -> float:
        """The joint evidence where there is enough of it, else the strongest single claim."""
        joint, *single = keys
        best = max(self._calibration.estimate(key, _claim(key)) for key in single)
        return self._calibration.estimate(joint, best)

    def _with_noise(
        self, context: Context, draft: Draft, keys: list[tuple[Hashable, ...]], chances: list[float]
    ) -> list[float]:
        """Each chance given the node's own noise, as often as such a one was right: the formula takes a chance for the
        target's probability, which it is only on average, and so says too much."""
        out = []
        for node, told in enumerate(_told_by_noise(context, draft, chances)):
            after, before = confidence_bin(told), confidence_bin(chances[node])
            coarse, fine = ("noise", after), ("noise", after, before)
            keys[node] = (*keys[node], coarse, fine)
            out.append(self._calibration.estimate(fine, self._calibration.estimate(coarse, told)))
        return out

    def _learn(self, proposal: _Proposal, step: Step) -> None:
        draft, at = proposal.draft, ROOT
        children: dict[int, list[int]] = {}
        for node, parent in enumerate(draft.parents):
            children.setdefault(parent, []).append(node)
        for token in step.tokens:
            below = children.get(at, ())
            at = -2
            for node in below:
                hit = draft.tokens[node] == token
                for key in proposal.keys[node]:
                    self._calibration.learn(key, hit)
                if hit:
                    at = node


def _claim(key: Hashable) -> float:
    assert isinstance(key, tuple)
    claim = key[-1]
    assert isinstance(claim, float)
    return claim


_CENTRES = (0.01, 0.035, 0.075, 0.15, 0.25, 0.35, 0.45, 0.55, 0.65, 0.75, 0.84, 0.91, 0.96, 0.985)


def _evidence(merged: Draft, found: list[tuple[str, Draft]], greedy: bool) -> list[tuple[Hashable, ...]]:
    """For each merged node: the key of all claims together, then one key per claim."""
    place: dict[tuple[int, int], int] = {}
    depths: list[int] = []
    for node, (token, parent) in enumerate(zip(merged.tokens, merged.parents, strict=True)):
        place[parent, token] = node
        depths.append(1 if parent == ROOT else depths[parent] + 1)
    claims: list[list[tuple[str, int]]] = [[] for _ in merged.tokens]
    for name, draft in found:
        where = {ROOT: ROOT}
        for i, (token, parent) in enumerate(zip(draft.tokens, draft.parents, strict=True)):
            node = where[i] = place[where[parent], token]
            claims[node].append((name, confidence_bin(draft.confidence[i])))
    return [
        (
            (greedy, *sorted(claim)),
            *((greedy, name, depth_bin(depth), _CENTRES[level]) for name, level in claim),
        )
        for claim, depth in zip(claims, depths, strict=True)
    ]


def _told_by_noise(context: Context, draft: Draft, chances: list[float]) -> list[float]:
    """Each chance given the node's own noise at its position, one look-up per depth."""
    assert context.noise is not None
    position = len(context.tokens) - context.prompt_length
    by_depth: dict[int, list[int]] = {}
    for node, depth in enumerate(tree.depths(draft)):
        by_depth.setdefault(depth, []).append(node)
    out = list(chances)
    for depth, nodes in by_depth.items():
        noise = context.noise(position + depth - 1, [draft.tokens[node] for node in nodes])
        for node, e in zip(nodes, noise, strict=True):
            out[node] = sharpened(chances[node], float(e))
    return out
