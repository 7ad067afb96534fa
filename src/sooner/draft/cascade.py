"""One candidate tree from many drafters: merged, each node's chance calibrated by what the target did before.

Knows its members' claims and what was emitted. Does not know costs: how much of the tree is scored is the
controller's decision.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol, runtime_checkable

from sooner import tree
from sooner.draft.calibration import Calibration, confidence_bin, depth_bin
from sooner.draft.growth import sharpened
from sooner.protocols import Context, Drafter
from sooner.types import EMPTY_DRAFT, ROOT, Draft, Rows, Step

__all__ = ["CascadeDrafter", "Costly"]

Claims = list[tuple[str, Draft]]
"""What members propose for one text, each with its name."""


@runtime_checkable
class Costly(Protocol):
    """A drafter whose guesses take time, as those of a model do."""

    def reach(self, context: Context) -> float:
        """The tokens of a text that its longest draft foresees in the mean."""
        ...


@dataclass(slots=True)
class _Proposal:
    """What was proposed to one sequence, before the controller chose from it: the material to learn from."""

    draft: Draft
    keys: list[tuple[Hashable, ...]]
    length: int


_Weighed = tuple[Draft, list[tuple[Hashable, ...]], list[float]]
"""A merged tree, each node's evidence, and its chance after its parent."""


class CascadeDrafter:
    """Asks all ``members`` and merges what they say; equal prefixes share nodes, the first member gets the credit.

    `Costly` members stand last, so that theirs is the credit for what no other knew, and are spared the texts of which
    the others foresee as much already.
    A node's evidence is the set of members that claim it and how surely; its confidence is how often that evidence was
    right, over all requests of this engine, also where the controller did not choose the node (the emitted text tells).
    """

    def __init__(self, members: Sequence[Drafter]) -> None:
        asked = [(member, member if isinstance(member, Costly) else None) for member in members]
        self._asked = sorted(asked, key=lambda pair: pair[1] is not None)
        self.members = tuple(member for member, _ in self._asked)
        self._calibration = Calibration()
        self._proposals: dict[int, _Proposal] = {}
        self._weighed: dict[tuple[int, int], _Weighed] = {}

    @property
    def name(self) -> str:
        """The members' names."""
        return "+".join(member.name for member in self.members)

    def propose(self, contexts: Sequence[Context]) -> list[Draft]:
        """One merged tree per context. Sampled drafts (under a ratio rule) are not merged: the first one counts."""
        self._weighed.clear()
        claims: list[Claims] = [[] for _ in contexts]
        for member, costly in self._asked:
            asked = list(zip(contexts, claims, strict=True))
            if costly is not None:
                asked = [(context, found) for context, found in asked if self._falls_short(costly, context, found)]
            if not asked:
                continue
            for (_, found), draft in zip(asked, member.propose([context for context, _ in asked]), strict=True):
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

    def _merge(self, context: Context, found: Claims) -> Draft:
        self._proposals.pop(context.id, None)
        if not found:
            return EMPTY_DRAFT
        if sampled := next((draft for _, draft in found if draft.q), None):
            return sampled
        merged, keys, chances = self._weigh(context, found)
        self._proposals[context.id] = _Proposal(merged, keys, len(context.tokens))
        return replace(merged, confidence=tuple(chances))

    def _weigh(self, context: Context, found: Claims) -> _Weighed:
        """``found`` merged and judged, once in a proposal."""
        known = self._weighed.get((context.id, len(found)))
        if known is None:
            known = self._weighed[context.id, len(found)] = self._judge(context, found)
        return known

    def _judge(self, context: Context, found: Claims) -> _Weighed:
        merged = tree.merge([draft for _, draft in found])
        keys = _evidence(merged, found, context.sampling.temperature == 0.0)
        chances = [self._chance(key, merged.confidence[i]) for i, key in enumerate(keys)]
        if context.noise is not None:
            chances = self._with_noise(context, merged, keys, chances)
        return merged, keys, chances

    def _falls_short(self, member: Costly, context: Context, found: Claims) -> bool:
        """Whether what was ``found`` foresees fewer tokens of the text than ``member`` could."""
        reach = member.reach(context)
        if not found:
            return True
        merged, _, chances = self._weigh(context, found)
        values: list[float] = []
        for parent, chance in zip(merged.parents, chances, strict=True):
            values.append(chance * (1.0 if parent == ROOT else values[parent]))
        return sum(values) < reach

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


def _evidence(merged: Draft, found: Claims, greedy: bool) -> list[tuple[Hashable, ...]]:
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
