"""What drafting with a model costs and brings, kept per sequence: how deep the next drafts are worth going.

Knows contexts, drafts, steps and milliseconds. Does not know models; `thrift` and `credit` judge.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from sooner.draft.credit import Credit
from sooner.draft.thrift import Thrift
from sooner.protocols import Context
from sooner.types import ROOT, Draft, Step

__all__ = ["Account"]

_INSTALMENT = 1.0 / 16.0
"""Reading a text for the first time is paid for in instalments: this share of the rest at every drafted step."""


class Account:
    """Judges one drafter, greedy and sampled texts apart, since they differ in acceptance and pace.

    ``name``: the source of its tokens. ``most``: the deepest draft.
    """

    def __init__(self, name: str, most: int) -> None:
        self._name = name
        self._judges = {greedy: (Thrift(most), Credit()) for greedy in (True, False)}
        self._greedy: dict[int, bool] = {}
        self._owed: dict[int, float] = {}
        self._proposed: dict[int, tuple[list[int], float]] = {}

    def reach(self, context: Context) -> float:
        """Tokens of the text that a draft of full depth foresees in the mean."""
        return self._judges[self._kind(context)][0].reach

    def depths(self, contexts: Sequence[Context]) -> list[int]:
        """How deep to draft for each; 0 = not at all."""
        kinds = [self._kind(context) for context in contexts]
        depth = {}
        for kind in set(kinds):
            thrift, credit = self._judges[kind]
            depth[kind] = thrift.depth() if credit.ask() else 0
        return [depth[kind] for kind in kinds]

    def _kind(self, context: Context) -> bool:
        kind = self._greedy[context.id] = context.sampling.temperature == 0.0
        return kind

    def drafted(
        self, contexts: Sequence[Context], drafts: Sequence[Draft], level_ms: float, read_ms: Mapping[int, float]
    ) -> None:
        """``drafts`` were made for ``contexts`` in ``level_ms``, besides ``read_ms`` by sequence for reading texts."""
        paths = [followed_path(draft) for draft in drafts]
        levels = max(map(len, paths), default=0)
        for kind in {self._greedy[context.id] for context in contexts}:
            self._judges[kind][0].drafted(levels, level_ms)
        for id, ms in read_ms.items():
            self._owed[id] = self._owed.get(id, 0.0) + ms
        for context, path in zip(contexts, paths, strict=True):
            owed = self._owed.get(context.id, 0.0)
            self._owed[context.id] = owed * (1.0 - _INSTALMENT)
            self._proposed[context.id] = (path, level_ms + owed * _INSTALMENT)

    def observe(self, step: Step) -> None:
        """Learn how far the draft was right, what of it was kept, and the pace."""
        kind = self._greedy.get(step.sequence)
        if kind is None or not step.tokens:
            return
        thrift, credit = self._judges[kind]
        ms = step.draft_ms + step.score_ms + step.verify_ms
        thrift.passed(len(step.tokens), ms, step.score_ms)
        credit.passed(len(step.tokens), ms)
        path, own_ms = self._proposed.pop(step.sequence, ([], 0.0))
        if path:
            trials = min(len(path), len(step.tokens))
            hits = next((i for i in range(trials) if path[i] != step.tokens[i]), trials)
            thrift.learn(hits, min(hits + 1, trials))
            credit.learn(sum(source == self._name for source in step.sources), own_ms)

    def forget(self, id: int) -> None:
        """The sequence ended; what is still owed for reading it is paid."""
        kind = self._greedy.pop(id, None)
        self._proposed.pop(id, None)
        owed = self._owed.pop(id, 0.0)
        if kind is not None and owed:
            self._judges[kind][1].learn(0, owed)


def followed_path(draft: Draft) -> list[int]:
    """The tokens of the chain of first children."""
    path: list[int] = []
    at = ROOT
    for node, parent in enumerate(draft.parents):
        if parent == at:
            path.append(draft.tokens[node])
            at = node
    return path
