"""Who is in the next pass: waiting and running sequences, admission, prompt chunks, preemption, all fair to callers.

Knows sequences, who asked for them and whether the target's cache has room. Does not know drafting, scoring or time.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace

from sooner.errors import InvalidRequest, SoonerError
from sooner.protocols import Context, Session, Target
from sooner.sequence import Sequence
from sooner.types import EMPTY_DRAFT, ROOT, Draft, Request, Step, Work

__all__ = ["Batch", "Handle", "Slot"]


@dataclass(eq=False)
class Handle:
    """A submitted request. ``steps`` grows as the engine steps, all choices together; times are in seconds.

    ``caller``: whose it is; places in the batch are shared evenly between callers.
    """

    id: int
    request: Request
    seed: int
    started: float
    drafter: str = "none"
    caller: str = ""
    slots: list[Slot] = field(default_factory=list, repr=False)
    steps: list[Step] = field(default_factory=list, repr=False)
    first: dict[int, float] = field(default_factory=dict, repr=False)
    last: dict[int, float] = field(default_factory=dict, repr=False)
    error: SoonerError | None = None

    @property
    def finished(self) -> bool:
        """Whether every choice has ended."""
        return all(slot.sequence.finish is not None for slot in self.slots)


@dataclass(eq=False)
class Slot:
    """One choice's place in the engine: waiting without a session, or running with one.

    ``leader``: the request's first choice, whose prompt the others share. ``cached``: prompt tokens found in the
    prefix cache at first admission.
    """

    sequence: Sequence
    handle: Handle
    leader: Slot | None = None
    session: Session | None = None
    cached: int | None = None

    @property
    def decoding(self) -> bool:
        """Whether only the last emitted token is missing from the cache, so that drafting may begin."""
        return self.sequence.emitted > 0 and len(self.held.tokens) == len(self.sequence.tokens) - 1

    @property
    def held(self) -> Session:
        """The session of a running sequence."""
        assert self.session is not None, "a waiting sequence has no session"
        return self.session

    @property
    def blocked(self) -> bool:
        """Whether the leader's prompt is not yet in the cache, so that nothing could be shared."""
        leader = self.leader
        return leader is not None and leader.sequence.finish is None and not leader.sequence.emitted

    def close(self) -> None:
        """Free the cache."""
        if self.session is not None:
            self.session.close()
            self.session = None


class Batch:
    """``max_running``: sequences in one pass. ``chunk``: the most prompt tokens of a pass when nothing decodes;
    ``busy_chunk``: tokens of a pass in which something decodes, drafts and prompt together, so that prompts do not
    starve it. ``preemptions`` counts them."""

    def __init__(self, target: Target, *, max_running: int, chunk: int, busy_chunk: int) -> None:
        for name, value in (("max_running", max_running), ("chunk", chunk), ("busy_chunk", busy_chunk)):
            if value < 1:
                raise InvalidRequest(f"{name} must be at least 1, not {value}", name)
        self._target = target
        self._max_running = max_running
        self._chunk = chunk
        self._busy_chunk = busy_chunk
        self.waiting: deque[Slot] = deque()
        self.running: list[Slot] = []
        self.preemptions = 0
        self._served: dict[str, int] = {}  # when each caller last got a place, counted in places
        self._entered = 0

    def admit(self) -> None:
        """Move waiting sequences into the batch while the cache has room for a pass.

        Next is the caller with the fewest places, of equals the one who has waited longest for one, and of each
        caller's sequences the first that came. Where there is no room, a caller with two places more cedes its
        youngest: one who asks for much does not keep others waiting.
        """
        while (slot := self._next()) is not None:
            while not self._enter(slot):
                if not self._cede(slot):
                    return

    def works(self, drafts: Mapping[int, Draft]) -> list[tuple[Slot, Work]]:
        """What each running sequence feeds next; ``drafts`` by sequence id."""
        decoding = [slot for slot in self.running if slot.decoding]
        plans = {
            id(slot): slot.sequence.plan(slot.held, drafts.get(slot.sequence.id, EMPTY_DRAFT)) for slot in decoding
        }
        shares = self._shares(self._prompt_rows(len(decoding)))
        works = []
        for slot in self.running:
            if plan := plans.get(id(slot)):
                works.append((slot, plan))
            elif share := shares[id(slot)]:
                works.append((slot, slot.sequence.plan(slot.held, chunk=share)))
        return works

    def allowed(self, contexts: list[Context]) -> list[Context]:
        """``contexts`` with their budgets for the coming pass, as far as prompts leave room in it: who waits for a
        first token goes before who would get several at once. (A pass with a prompt in it has one size, whatever is
        drafted: some targets charge for a change.)

        Where a ratio rule decides, a draft's length may follow from its tokens. Leaving it out because it is long would
        be biased, so whether the cache has room for the largest is asked before anything is drafted.
        """
        decoding = sum(slot.decoding for slot in self.running)
        prompts = self._prompt_rows(decoding)
        read = sum(self._shares(prompts).values())
        if read:
            room = max(self._busy_chunk - 2 * decoding - read, 0) // max(decoding, 1)
            contexts = [replace(context, budget=min(context.budget, room)) for context in contexts]
        if any(context.coins is not None and context.budget for context in contexts):
            largest = {context.id: _largest(context.budget) for context in contexts}
            if not self._fits(self.works(largest)):
                return [context if context.coins is None else replace(context, budget=0) for context in contexts]
        return contexts

    def _prompt_rows(self, decoding: int) -> int:
        """The most prompt tokens of a pass in which ``decoding`` sequences write."""
        return max(self._busy_chunk - 2 * decoding, self._busy_chunk // 4) if decoding else self._chunk

    def fit(self, works: list[tuple[Slot, Work]], relieve: Callable[[], None]) -> list[tuple[Slot, Work]]:
        """Make the pass fit the cache: without drafts, then by ``relieve`` (what drafters hold in it), then by
        preempting the youngest sequence of the caller with the most."""
        if self._fits(works):
            return works
        works = [(slot, replace(work, draft=EMPTY_DRAFT)) for slot, work in works]
        if not self._fits(works):
            relieve()
        while len(self.running) > 1 and not self._fits(works):
            self._preempt(self._youngest())
            works = self.works({})
        return works

    def preempt(self) -> None:
        """Send every running sequence back to wait; each is recomputed when it returns, to the same bits."""
        for slot in reversed(list(self.running)):
            self._preempt(slot)

    def release(self, slot: Slot) -> None:
        """A sequence ended: free its cache and its place."""
        slot.close()
        if slot in self.running:
            self.running.remove(slot)
        elif slot in self.waiting:
            self.waiting.remove(slot)

    def _next(self) -> Slot | None:
        """Whose turn it is."""
        ready = [slot for slot in self.waiting if not slot.blocked]
        if not ready:
            return None
        places = self._places()
        return min(ready, key=lambda slot: (places[slot.handle.caller], self._served.get(slot.handle.caller, 0)))

    def _enter(self, slot: Slot) -> bool:
        """Move ``slot`` into the batch; False if there is no room."""
        if len(self.running) >= self._max_running:
            return False
        slot.session = self._target.open(slot.sequence.tokens[:-1], slot.handle.request.salt)
        if slot.cached is None:
            slot.cached = len(slot.session.tokens)
        self.running.append(slot)
        if len(self.running) > 1 and not self._fits(self.works({})):
            self.running.pop()
            slot.close()
            return False
        self.waiting.remove(slot)
        self._entered += 1
        self._served[slot.handle.caller] = self._entered
        return True

    def _cede(self, slot: Slot) -> bool:
        """Make room for ``slot`` at the cost of a caller who has at least two places more; False if there is none."""
        places = self._places()
        youngest = self._youngest() if self.running else slot
        if places[youngest.handle.caller] < places[slot.handle.caller] + 2:
            return False
        self._preempt(youngest)
        return True

    def _places(self) -> Counter[str]:
        return Counter(slot.handle.caller for slot in self.running)

    def _youngest(self) -> Slot:
        """The youngest sequence of the caller with the most."""
        places = self._places()
        return max(reversed(self.running), key=lambda slot: places[slot.handle.caller])

    def _shares(self, left: int) -> dict[int, int]:
        """Of ``left`` prompt tokens, how many each prompt reads: evenly between callers (what one leaves, the others
        take), and within each caller's first come, first served."""
        queues: dict[str, list[tuple[int, int]]] = {}
        for slot in self.running:
            if not slot.decoding:
                lacking = len(slot.sequence.tokens) - len(slot.held.tokens)
                queues.setdefault(slot.handle.caller, []).append((id(slot), lacking))
        shares: dict[int, int] = {}
        for i, queue in enumerate(sorted(queues.values(), key=lambda queue: sum(lacking for _, lacking in queue))):
            share = -(-left // (len(queues) - i))
            for which, lacking in queue:
                shares[which] = min(lacking, share)
                share -= shares[which]
                left -= shares[which]
        return shares

    def _preempt(self, slot: Slot) -> None:
        self.running.remove(slot)
        slot.close()
        self.waiting.appendleft(slot)
        self.preemptions += 1

    def _fits(self, works: Iterable[tuple[Slot, Work]]) -> bool:
        return self._target.fits([work for _, work in works])


def _largest(nodes: int) -> Draft:
    """Of all drafts of ``nodes`` nodes one that no other needs more room than: every branch has an end of its own."""
    return Draft(tuple(range(nodes)), (ROOT,) * nodes, (0.0,) * nodes, ("",) * nodes)
