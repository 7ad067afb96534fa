"""The torch target: many sequences in one pass of a transformers model, each over its own slot of the cache.

Knows how works become a pass and its rows become results. Does not know sampling, drafting or text.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType

from sooner.errors import TargetError
from sooner.targets.torch.kv import KVTensors
from sooner.targets.torch.layout import RowRule
from sooner.targets.torch.memory import MemoryPlan
from sooner.targets.torch.runner import Runner
from sooner.targets.torch.session import Room, TorchSession
from sooner.targets.torch.slots import Slots
from sooner.targets.works import check_works
from sooner.types import Rows, Work

__all__ = ["TorchTarget"]


class TorchTarget:
    """A `sooner.protocols.Target` over a transformers model; `sooner.targets.torch.load` makes one.

    ``row_invariant`` says whether a check of this model on this device found every row to be the same bits however
    it was scored. Where it is not, texts are equal up to numeric near-ties. ``blind`` says why a model that could look
    at pictures does not.
    """

    blind: str = ""

    def __init__(
        self,
        runner: Runner,
        plan: MemoryPlan,
        *,
        vocab_size: int,
        fingerprint: Mapping[str, str],
    ) -> None:
        self.plan = plan
        self.runner = runner
        self.kv: KVTensors = runner.kv
        self.slots = Slots(plan.slots)
        self.row_invariant = False
        self._room = Room(self.slots, self.kv.copy)
        self._vocab_size = vocab_size
        self._fingerprint = dict(fingerprint)

    @property
    def vocab_size(self) -> int:
        """V, the length of a logits row."""
        return self._vocab_size

    @property
    def context(self) -> int:
        """The most tokens one session can hold: the model's, or what memory has room for."""
        return self.plan.context

    @property
    def fingerprint(self) -> Mapping[str, str]:
        """Model hash, versions, device, precisions and the rule of rows."""
        return MappingProxyType({**self._fingerprint, "rows": str(self.runner.rule)})

    @property
    def widths(self) -> tuple[int, ...]:
        """Row counts of ready-made passes."""
        return self.runner.widths

    @property
    def rule(self) -> RowRule:
        """What row counts passes have."""
        return self.runner.rule

    def open(self, tokens: Sequence[int] = (), salt: str = "") -> TorchSession:
        """A session that holds the longest prefix of ``tokens`` found in a slot, live or kept, under ``salt``."""
        return TorchSession(self._room, tokens, salt)

    def fits(self, works: Sequence[Work]) -> bool:
        """Whether every work's session has a slot, or there is a free one for it."""
        return sum(not self._session(work).placed for work in works) <= self.slots.free

    def score(self, works: Sequence[Work]) -> list[Rows]:
        """Score all works in one pass. Raises `TargetError`; the sessions then hold what they held before."""
        sessions = [self._session(work) for work in works]
        self._check(works, sessions)
        if not works:
            return []
        held = []
        for session in sessions:
            session.drop_pending()
            held.append((session.slot(), len(session.tokens)))
        logits, hidden, keeps = self.runner.run(works, held)
        results = []
        first = 0
        for work, session, keep in zip(works, sessions, keeps, strict=True):
            session.scored(work.tokens, work.draft, keep)
            end = first + (1 + len(work.draft) if work.logits else 0)
            results.append(Rows(logits[first:end], None if hidden is None else hidden[first:end]))
            first = end
        return results

    def _session(self, work: Work) -> TorchSession:
        session = work.session
        if not isinstance(session, TorchSession) or not session.belongs_to(self._room):
            raise TargetError("a work's session was not opened on this target: use target.open()")
        return session

    def _check(self, works: Sequence[Work], sessions: Sequence[TorchSession]) -> None:
        check_works(works, sessions, self.context)
        if not self.fits(works):
            raise TargetError("the KV cache has no room for this pass: ask fits() first, or load with more slots")
