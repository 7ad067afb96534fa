"""One request's choice as a state machine without IO: `plan` gives the next work, `apply` turns rows into a step.

Knows tokens, sampling, verification and stop rules. Does not know a model, a cache, a drafter or time.
"""

from __future__ import annotations

from collections.abc import Sequence as Tokens

from sooner.draft.forced import follow
from sooner.errors import ContextOverflow, InvalidRequest
from sooner.media import MediaToken, text_of
from sooner.noise import Domain, StepCoins
from sooner.protocols import Context, Session, Verifier
from sooner.sampling import Processor, RowLaw
from sooner.sounds import SoundToken
from sooner.stopping import StopStrings
from sooner.text import Detokenizer
from sooner.types import (
    EMPTY_DRAFT,
    ROOT,
    TARGET,
    Draft,
    Finish,
    Logits,
    Odds,
    Request,
    Rows,
    Step,
    TokenLogprob,
    Usage,
    Verdict,
    Work,
)

__all__ = ["Sequence"]

_LEAST = 0.001
"""What a token must be worth to be named among the likeliest."""


class Sequence:
    """One choice of a request, from prompt to finish.

    Everything that looks at an emitted token happens in `commit`, one token at a time, before it is emitted; so no
    rule can depend on how tokens fall into steps. ``alternatives``: how many of the likeliest tokens each step's `Odds`
    name; None for no odds.
    """

    def __init__(
        self,
        request: Request,
        *,
        id: int,
        seed: int,
        processor: Processor,
        verifier: Verifier,
        detokenizer: Detokenizer,
        context: int,
        eos_ids: frozenset[int] = frozenset(),
        choice: int = 0,
        alternatives: int | None = None,
    ) -> None:
        _check_prompt(request.prompt, processor.vocab_size, context)
        self.request = request
        self.id = id
        self.choice = choice
        self.seed = seed
        self.tokens: list[int] = list(request.prompt)
        self._text = text_of(self.tokens) if _shows(request.prompt) else self.tokens
        self._sounds = tuple(token for token in request.prompt if isinstance(token, SoundToken))
        self.finish: Finish | None = None
        self.steps = 0
        self._processor = processor
        self._verifier = verifier
        self._detokenizer = detokenizer
        self._alternatives = alternatives
        sampling = request.sampling
        self._stops = StopStrings(sampling.stop, include=sampling.include_stop)
        self._ends = frozenset(sampling.stop_token_ids) | (frozenset() if sampling.ignore_eos else eos_ids)
        # The last token of a text is never fed back, so the answer may run one past the cache.
        room = context - len(request.prompt) + 1
        self._limit = room if sampling.max_tokens is None else min(room, sampling.max_tokens)

    @property
    def prompt_length(self) -> int:
        """Tokens of the prompt."""
        return len(self.request.prompt)

    @property
    def emitted(self) -> int:
        """Tokens emitted so far."""
        return len(self.tokens) - self.prompt_length

    @property
    def depth_limit(self) -> int:
        """The deepest draft that could still be emitted whole, with the target's own token after it."""
        return max(0, self._limit - self.emitted - 1)

    @property
    def usage(self) -> Usage:
        """Tokens read and delivered."""
        return Usage(self.prompt_length, self.emitted)

    def context(self, budget: int) -> Context:
        """What a drafter may see before the coming step: the text, without the tokens that stand for what is none."""
        sampling = self.request.sampling
        coupled = sampling.verify == "coupled"
        random = sampling.temperature > 0.0
        return Context(
            id=self.id,
            tokens=self._text,
            prompt_length=len(self._text) - self.emitted,
            budget=budget,
            sampling=sampling,
            expected=self.request.expected,
            noise=self._processor.noise if coupled and random else None,
            coins=StepCoins(self.seed, self.steps, Domain.DRAFT) if random and not coupled else None,
            salt=self.request.salt,
            sounds=self._sounds,
            bans=self._processor.bans,
        )

    def constrained(self, draft: Draft, budget: int) -> Draft:
        """``draft`` without what the request's grammar forbids, with what it forces; unchanged without a grammar."""
        matcher = self._processor.matcher
        return draft if matcher is None else follow(draft, matcher, depth=self.depth_limit, budget=budget)

    def plan(self, session: Session, draft: Draft = EMPTY_DRAFT, chunk: int | None = None) -> Work:
        """The next work: what the session lacks and the draft below it, or a prefill chunk of at most ``chunk`` tokens.

        Prompt, prefix hit and recomputation after preemption are one case: tokens not yet in the cache.
        """
        pending = tuple(self.tokens[len(session.tokens) :])
        if chunk is not None and len(pending) > chunk:
            return Work(session, pending[:chunk], logits=False)
        return Work(session, pending, draft)

    def apply(self, work: Work, rows: Rows, verdict: Verdict | None = None) -> Step:
        """Verify ``work.draft`` against its rows and commit what is kept. ``verdict`` replays a recorded decision."""
        draft = work.draft
        laws = _Laws(self._processor, draft, rows.logits)
        if verdict is None:
            verdict = self._verifier.verify(draft, laws, StepCoins(self.seed, self.steps))
        seen = None if self._alternatives is None else _see(draft, verdict, laws, self._alternatives)
        tokens: list[int] = []
        text: list[str] = []
        logprobs: list[TokenLogprob] = []
        at = ROOT
        for node in (*verdict.path, None):
            token = verdict.token if node is None else draft.tokens[node]
            tokens.append(token)
            text.append(self.commit(token, rows.logits[at + 1], logprobs))
            if self.finish is not None or node is None:
                break
            at = node
        kept = len(tokens)
        sources = (*(draft.sources[node] for node in verdict.path), TARGET)[:kept]
        self.steps += 1
        return Step(
            sequence=self.id,
            choice=self.choice,
            index=self.steps - 1,
            draft=draft,
            path=verdict.path[:kept],
            tokens=tuple(tokens),
            sources=sources,
            text="".join(text),
            logprobs=tuple(logprobs) if self.request.sampling.logprobs is not None else None,
            finish=self.finish,
            rows=len(work.tokens) + len(draft),
            odds=None if seen is None else _odds(draft, seen[:kept]),
        )

    def commit(self, token: int, row: Logits, logprobs: list[TokenLogprob]) -> str:
        """Emit one token: log-probability, penalty and grammar state, text, stop strings, stop tokens, grammar's end,
        length. Returns its text."""
        if self.request.sampling.logprobs is not None:
            logprobs.append(self._processor.logprob(row, token))
        self._processor.push(token)
        self.tokens.append(token)
        if self._text is not self.tokens:
            self._text.append(token)
        text = self._stops.push(self._detokenizer.push(token))
        if self._stops.matched is not None:
            self.finish = Finish("stop", self._stops.matched)
            return text
        if token in self._ends:
            self.finish = Finish("stop", token)
        elif self._processor.matcher is not None and self._processor.matcher.ended:
            self.finish = Finish("stop")
        elif self.emitted >= self._limit:
            self.finish = Finish("length")
        return text + self._flush() if self.finish is not None else text

    def end(self, finish: Finish) -> str:
        """End the text from outside (abort, error); returns what was held back."""
        if self.finish is not None:
            return ""
        self.finish = finish
        return self._flush()

    def _flush(self) -> str:
        return self._stops.push(self._detokenizer.flush()) + self._stops.flush()


class _Laws:
    """The processed rows of one draft, computed on first use. Row i sees the prefix and the drafts before i."""

    def __init__(self, processor: Processor, draft: Draft, logits: Logits) -> None:
        self._processor = processor
        self._draft = draft
        self._logits = logits
        self._known: dict[int, RowLaw] = {}

    def __call__(self, node: int) -> RowLaw:
        if node not in self._known:
            path = [self._draft.tokens[i] for i in self._draft.path(node)]
            self._known[node] = self._processor.law(self._logits[node + 1], path)
        return self._known[node]


_Seen = tuple[float, tuple[tuple[int, float], ...], dict[int, float]]
"""Of one row: the chance of the token emitted there, the likeliest tokens, the chances of the draft nodes below."""


def _see(draft: Draft, verdict: Verdict, laws: _Laws, count: int) -> list[_Seen]:
    """What the target thought at the rows that verification went through, before any of it is committed."""
    seen: list[_Seen] = []
    at = ROOT
    for node in (*verdict.path, None):
        nodes = draft.children(at)
        token = verdict.token if node is None else draft.tokens[node]
        chances, top = laws(at).odds([token, *(draft.tokens[child] for child in nodes)], count, _LEAST)
        seen.append((chances[0], tuple(top), dict(zip(nodes, chances[1:], strict=True))))
        at = at if node is None else node
    return seen


def _odds(draft: Draft, seen: list[_Seen]) -> Odds:
    below = {node: chance for _, _, chances in seen for node, chance in chances.items()}
    drawn = zip(draft.tokens, draft.parents, strict=True)
    return Odds(
        tuple(chance for chance, _, _ in seen),
        tuple(top for _, top, _ in seen),
        tuple(below.get(node) for node in range(len(draft))),
        tuple(float(draft.q[parent][token]) if parent in draft.q else None for token, parent in drawn),
    )


def _check_prompt(prompt: Tokens[int], vocab_size: int, context: int) -> None:
    if not prompt:
        raise InvalidRequest("the prompt is empty: give at least one token", "prompt")
    if len(prompt) > context:
        raise ContextOverflow(
            f"the prompt has {len(prompt)} tokens and the context holds {context}: shorten the prompt", "prompt"
        )
    if min(prompt) < 0 or max(prompt if not _shows(prompt) else text_of(prompt), default=0) >= vocab_size:
        raise InvalidRequest(f"the prompt holds a token id outside [0, {vocab_size})", "prompt")


def _shows(prompt: Tokens[int]) -> bool:
    return any(isinstance(token, MediaToken) for token in prompt)
