"""Decoding is one loop. A step drafts some tokens, scores them in one pass of the target, keeps what the target
itself would have written, and adds one token of the target's own. Plain decoding is the same step with an empty draft.

Knows the order of things. Does not know how anything is drafted, scored, verified, laid out or rendered.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from sooner.batch import Batch, Handle, Slot
from sooner.completion import Completion, completion
from sooner.control.fixed import FixedController
from sooner.errors import SoonerError, TargetError, one_line
from sooner.noise import NOISE_VERSION, choice_seed, fresh_seed
from sooner.prompt import Prompt, Template, bad_word_ids, make_request, source_of
from sooner.protocols import Context, Controller, Drafter, Target
from sooner.sampling import Processor
from sooner.sequence import Sequence as Choice
from sooner.targets.works import score_apart
from sooner.text import TextCodec
from sooner.tree import sanitise
from sooner.turns import Turns
from sooner.types import EMPTY_DRAFT, Draft, Finish, Request, Rows, Sampling, Step, Work
from sooner.verify import create_verifier

if TYPE_CHECKING:
    from sooner.control.cost import CostCurve

__all__ = ["Engine", "Handle"]

log = logging.getLogger("sooner")


class Engine:
    """Runs requests on a target, several in one pass. Nothing runs by itself: whoever waits for a text drives `step`.

    ``template`` renders chat messages (None: only raw text and token ids are accepted). Without a drafter every
    step's draft is empty. The other options are those of `batch.Batch`. Safe to use from several threads.
    ``alternatives``, once set, gives the steps of later requests `Odds` that name so many of the likeliest tokens;
    ``cost`` is what the target's passes cost on this machine, where it was measured. ``open_model`` opens draft models
    as the target was opened (None: nobody said how).
    """

    def __init__(
        self,
        target: Target,
        codec: TextCodec,
        *,
        template: Template | None = None,
        drafter: Drafter | None = None,
        controller: Controller | None = None,
        name: str = "",
        max_running: int = 8,
        chunk: int = 256,
        busy_chunk: int = 64,
    ) -> None:
        self.target = target
        self.codec = codec
        self.template = template
        self.drafter = drafter
        self.controller: Controller = controller or FixedController(8)
        self.name = name
        self.batch = Batch(target, max_running=max_running, chunk=chunk, busy_chunk=busy_chunk)
        self.warning: str | None = None
        self.alternatives: int | None = None
        self.cost: CostCurve | None = None
        self.open_model: Callable[[str], tuple[Target, TextCodec]] | None = None
        self._ids = itertools.count()
        self._turns = Turns()
        self._stepping = False
        self._leaving: list[Handle] = []

    @property
    def fingerprint(self) -> Mapping[str, str]:
        """What a text depends on besides prompt, sampling and seed."""
        return {**self.target.fingerprint, "noise": NOISE_VERSION}

    @property
    def busy(self) -> bool:
        """Whether any request is unfinished."""
        return bool(self.batch.waiting or self.batch.running)

    # -- the loop ------------------------------------------------------------------------------------------------

    def submit(self, request: Request) -> Handle:
        """Queue a request; draws the seed if it has none. Raises `InvalidRequest` before anything runs."""
        seed = fresh_seed() if request.sampling.seed is None else request.sampling.seed
        with self._turns.between_passes():
            name = self.drafter.name if self.drafter is not None and request.drafting else "none"
            handle = Handle(next(self._ids), request, seed, time.perf_counter(), name)
            for choice in range(request.sampling.n):
                leader = handle.slots[0] if choice else None
                handle.slots.append(Slot(self._choice(request, choice, choice_seed(seed, choice)), handle, leader))
            self.batch.waiting.extend(handle.slots)
        return handle

    def abort(self, handle: Handle) -> None:
        """End a request now; its cache is free when this returns, its neighbours are untouched."""
        with self._turns.between_passes():
            if self._stepping:  # this very thread, in a pass: the collector found a stream that was left
                self._leaving.append(handle)
                return
            for slot in handle.slots:
                self._end(slot, Finish("abort"))

    def step(self) -> list[Step]:
        """One pass over everything that runs. Returns the emitted steps: none when idle or when only prompts were read.

        What cannot be scored, by itself neither, ends its request (``handle.error``) and raises nothing here.
        """
        with self._turns.driving():
            return self._step()

    def _step(self) -> list[Step]:
        self._stepping = True
        try:
            return self._pass()
        finally:
            self._stepping = False
            while self._leaving:
                self.abort(self._leaving.pop())

    def _pass(self) -> list[Step]:
        begin = time.perf_counter()
        self.batch.admit()
        if not self.batch.running:
            return []
        drafts = self._draft()
        drafted = time.perf_counter()
        works = self.batch.fit(self.batch.works(drafts), self._relieve)
        planned = time.perf_counter()
        rows = score_apart(self.target, [work for _, work in works])
        scored = time.perf_counter()
        applied = [(slot, self._apply(slot, work, r), r) for (slot, work), r in zip(works, rows, strict=True)]
        verified = time.perf_counter()
        fed = sum(len(work.tokens) + len(work.draft) for _, work in works)
        steps: list[tuple[Slot, Step]] = []
        for slot, untimed, r in applied:
            if slot.session is not None:
                slot.session.settle(untimed.path if untimed else ())
            if untimed is None or isinstance(r, Exception) or untimed.finish != slot.sequence.finish:
                continue  # the last: another choice of the request failed in this pass and ended this one, too
            step = replace(
                untimed,
                pass_rows=fed,
                draft_ms=(drafted - begin) * 1e3,
                score_ms=(scored - planned) * 1e3,
                verify_ms=(verified - scored) * 1e3,
            )
            self._learn(step, r)
            steps.append((slot, step))
        overhead_ms = (planned - drafted + time.perf_counter() - verified) * 1e3
        return [self._emit(slot, step, overhead_ms) for slot, step in steps]

    def _draft(self) -> dict[int, Draft]:
        """Drafts by sequence id, for the sequences that decode: guesses, and what their grammars force."""
        asking = [s for s in self.batch.running if s.handle.request.drafting and s.sequence.depth_limit and s.decoding]
        if self.drafter is None or not asking:
            return {}
        contexts = [slot.sequence.context(0) for slot in asking]
        budgets = self.controller.budgets(contexts)
        contexts = [replace(context, budget=budget) for context, budget in zip(contexts, budgets, strict=True)]
        contexts = self.batch.allowed(contexts)
        drafts = self._propose(self.drafter, asking, contexts)
        drafts = [s.sequence.constrained(d, c.budget) for s, d, c in zip(asking, drafts, contexts, strict=True)]
        if any(context.budget for context in contexts) or any(map(len, drafts)):
            drafts = self.controller.select(contexts, drafts)
        return {slot.sequence.id: draft for slot, draft in zip(asking, drafts, strict=True)}

    def _propose(self, drafter: Drafter, asking: Sequence[Slot], contexts: Sequence[Context]) -> list[Draft]:
        """The drafter's guess where there is a budget for one; whatever it returns is made harmless."""
        places = [i for i, context in enumerate(contexts) if context.budget > 0]
        drafts = [EMPTY_DRAFT] * len(contexts)
        try:
            proposed = drafter.propose([contexts[i] for i in places]) if places else []
            for i, draft in zip(places, proposed, strict=True):
                depth, budget = asking[i].sequence.depth_limit, contexts[i].budget
                drafts[i] = sanitise(draft, self.target.vocab_size, depth, budget, drafter.name)
        except Exception as error:  # a user's drafter must not take the answer down with it
            self._drop_drafter(error)
        return drafts

    def _apply(self, slot: Slot, work: Work, rows: Rows | Exception) -> Step | None:
        """The step of one sequence; None where a prompt chunk was read, or there are no rows or unusable ones."""
        if isinstance(rows, Exception):  # whatever a back end raised: this request ends, the engine serves the others
            self._fail(slot, rows)
            return None
        if not work.logits or slot.sequence.finish is not None:
            return None
        try:
            return slot.sequence.apply(work, rows)
        except Exception as error:  # a row, a codec or a rule at fault must not take the neighbours down with it
            self._fail(slot, error)
            return None

    def _fail(self, slot: Slot, error: Exception) -> None:
        said = f"the target failed in a pass: {one_line(error)}"
        failure = error if isinstance(error, SoonerError) else TargetError(said)
        log.warning("%s", failure)
        slot.handle.error = failure
        for choice in slot.handle.slots:
            self._end(choice, Finish("error", str(failure)))

    def _learn(self, step: Step, rows: Rows) -> None:
        self.controller.observe(step)
        try:
            if self.drafter is not None:
                self.drafter.observe(step, rows)
        except Exception as error:  # as in _draft
            self._drop_drafter(error)

    def _drop_drafter(self, error: Exception) -> None:
        name = self.drafter.name if self.drafter is not None else "?"
        self.warning = f"drafter {name} failed and is off: {type(error).__name__}: {error}"
        log.warning("%s", self.warning)
        drafter, self.drafter = self.drafter, None
        for slot in (*self.batch.running, *self.batch.waiting):
            _forget(drafter, slot.sequence.id)

    def _relieve(self) -> None:
        """The cache is full: what a drafter holds in it goes first."""
        for slot in (*self.batch.running, *self.batch.waiting):
            self._forget(slot.sequence.id)

    def _forget(self, id: int) -> None:
        try:
            if self.drafter is not None:
                self.drafter.forget(id)
        except Exception as error:  # as in _draft
            self._drop_drafter(error)

    def _emit(self, slot: Slot, step: Step, overhead_ms: float = 0.0) -> Step:
        handle, now = slot.handle, time.perf_counter()
        step = replace(step, overhead_ms=overhead_ms, at_ms=(now - handle.started) * 1e3)
        handle.last[step.choice] = now
        handle.first.setdefault(step.choice, now)
        handle.steps.append(_without_rows(step))
        if step.finish is not None:
            self.batch.release(slot)
            self._forget(slot.sequence.id)
        return step

    def _end(self, slot: Slot, finish: Finish) -> None:
        """End one sequence from outside; its last step carries the text that was held back."""
        sequence = slot.sequence
        if sequence.finish is None:
            text = sequence.end(finish)
            empty = Step(sequence.id, sequence.choice, sequence.steps, EMPTY_DRAFT, (), (), (), text, finish=finish)
            self.controller.observe(empty)
            self._emit(slot, empty)

    def _choice(self, request: Request, choice: int, seed: int) -> Choice:
        source = source_of(self.target, request.prompt)
        processor = Processor(
            request.sampling,
            vocab_size=self.target.vocab_size,
            seed=seed,
            prompt=request.prompt[source.tokens :],
            eos_ids=self.codec.eos_ids,
            bad_words=bad_word_ids(request.sampling.bad_words, self.codec),
            bans=source.bans,
            matcher=None if request.constraint is None else request.constraint.open(),
        )
        return Choice(
            request,
            id=next(self._ids),
            seed=seed,
            processor=processor,
            verifier=create_verifier(request.sampling.verify),
            detokenizer=self.codec.detokenizer(),
            context=source.context,
            eos_ids=self.codec.eos_ids,
            choice=choice,
            alternatives=self.alternatives,
        )

    # -- what callers use ----------------------------------------------------------------------------------------

    def request(self, prompt: Prompt, sampling: Sampling | None = None, **options: Any) -> Request:
        """A request for ``prompt``: a string (the user's message if the model has a chat template, else raw text),
        chat messages, or token ids. ``options``: any `Sampling` field, and ``raw``, ``expected``, ``salt``,
        ``drafting``, ``constraint``, ``tools`` (see `prompt.make_request`). Raises `InvalidRequest` naming what cannot
        be honoured."""
        return make_request(prompt, sampling, options, codec=self.codec, template=self.template)

    def generate(self, prompt: Prompt, sampling: Sampling | None = None, **options: Any) -> Completion:
        """The whole answer. Arguments as for `request`."""
        return self.generate_many([prompt], sampling, **options)[0]

    def stream(self, prompt: Prompt, sampling: Sampling | None = None, **options: Any) -> Iterator[Step]:
        """The answer step by step (``step.text``). Arguments as for `request`. Leaving early aborts the request."""
        return self._follow_new(self.request(prompt, sampling, **options))

    def generate_many(
        self, prompts: Sequence[Prompt], sampling: Sampling | None = None, **options: Any
    ) -> list[Completion]:
        """One answer per prompt, batched; each equals its solo run. Arguments as for `request`."""
        handles: list[Handle] = []
        try:
            for request in [self.request(p, sampling, **options) for p in prompts]:
                handles.append(self.submit(request))
            for handle in handles:
                for _ in self.follow(handle):
                    pass
        finally:
            for handle in handles:
                self.abort(handle)
        return [self.completion(handle) for handle in handles]

    async def agenerate(self, prompt: Prompt, sampling: Sampling | None = None, **options: Any) -> Completion:
        """`generate`, without blocking the event loop."""
        return (await self.agenerate_many([prompt], sampling, **options))[0]

    async def astream(self, prompt: Prompt, sampling: Sampling | None = None, **options: Any) -> AsyncIterator[Step]:
        """`stream`, without blocking the event loop. Cancelling aborts the request."""
        handle = self.submit(self.request(prompt, sampling, **options))
        async for step in self.afollow(handle):
            yield step

    async def agenerate_many(
        self, prompts: Sequence[Prompt], sampling: Sampling | None = None, **options: Any
    ) -> list[Completion]:
        """`generate_many`, without blocking the event loop."""
        handles: list[Handle] = []
        try:
            for request in [self.request(p, sampling, **options) for p in prompts]:
                handles.append(self.submit(request))
            for handle in handles:
                async for _ in self.afollow(handle):
                    pass
        finally:
            for handle in handles:
                self.abort(handle)
        return [self.completion(handle) for handle in handles]

    def _follow_new(self, request: Request) -> Iterator[Step]:
        yield from self.follow(self.submit(request))

    def follow(self, handle: Handle) -> Iterator[Step]:
        """Drive the engine until ``handle`` has ended, yielding its steps. Leaving early aborts it."""
        seen = 0
        try:
            while new := self._advance(handle, seen):
                seen += len(new)
                yield from new
        finally:
            self.abort(handle)
        if handle.error is not None:
            raise handle.error

    async def afollow(self, handle: Handle) -> AsyncIterator[Step]:
        """`follow`, with the passes in a worker thread."""
        seen = 0
        try:
            while new := await asyncio.to_thread(self._advance, handle, seen):
                seen += len(new)
                for step in new:
                    yield step
        finally:
            self.abort(handle)
        if handle.error is not None:
            raise handle.error

    def _advance(self, handle: Handle, seen: int) -> list[Step]:
        """The steps of ``handle`` after the first ``seen``, with passes until there is one; none once it has ended."""
        while True:
            with self._turns.driving():
                if len(handle.steps) > seen or handle.finished:
                    return handle.steps[seen:]
                self._step()
            self._turns.give_way()  # to whoever submits or aborts: a lock alone would mostly come back to this thread

    def completion(self, handle: Handle) -> Completion:
        """The answer of a finished request, with all its choices."""
        return completion(handle, codec=self.codec, warning=self.warning, fingerprint=self.fingerprint, model=self.name)


def _without_rows(step: Step) -> Step:
    """The step for the record: which parents were sampled, not their vocabulary-sized rows."""
    if not step.draft.q:
        return step
    return replace(step, draft=replace(step.draft, q=dict.fromkeys(step.draft.q, np.empty(0))))


def _forget(drafter: Drafter | None, id: int) -> None:
    try:
        if drafter is not None:
            drafter.forget(id)
    except Exception:  # it has failed before
        log.debug("a failed drafter cannot forget either", exc_info=True)
