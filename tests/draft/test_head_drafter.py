"""The head drafter with a scripted head: which rows it feeds, the trees it makes, and that the text stays the same."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from sooner import tree
from sooner.draft import create_drafter
from sooner.draft.head import HeadDrafter
from sooner.engine import Engine
from sooner.errors import DraftError
from sooner.protocols import Context
from sooner.targets.toy import ToyTarget
from sooner.types import Rows, Sampling, Step, Work
from test_engine_laws import PROMPTS, check_counts, plain, visible
from toy import V, toy_engine


class ShowingTarget(ToyTarget):
    """A toy target whose hidden row is (position, token) of what was fed."""

    def score(self, works: Sequence[Work]) -> list[Rows]:
        starts = [len(work.session.tokens) for work in works]
        shown = []
        for work, start, rows in zip(works, starts, super().score(works), strict=True):
            root = start + len(work.tokens) - 1
            seen = [(root, work.tokens[-1])]
            depths = tree.depths(work.draft)
            seen += [(root + depth, token) for depth, token in zip(depths, work.draft.tokens, strict=True)]
            shown.append(replace(rows, hidden=np.array(seen[: len(rows.logits)], np.float32).reshape(-1, 2)))
        return shown


@dataclass(frozen=True)
class Guessed:
    ids: tuple[int, ...]
    chances: tuple[float, ...]


@dataclass
class Seen:
    """What a session was fed: (position, token, next token), and what was drafted since."""

    pairs: list[tuple[int, int, int]] = field(default_factory=list)
    drafted: list[int] = field(default_factory=list)


@dataclass
class ScriptedHead:
    """Guesses by a table; remembers what it was fed and how many passes it took."""

    table: Mapping[int, Guessed] = field(default_factory=dict)
    sessions: list[Seen] = field(default_factory=list)
    passes: list[int] = field(default_factory=list)

    def open(self) -> Seen:
        self.sessions.append(Seen())
        return self.sessions[-1]

    def start(
        self, sessions: Sequence[Seen], rows: Sequence[NDArray[np.float32]], tokens: Sequence[Sequence[int]]
    ) -> list[Guessed]:
        self.passes.append(len(sessions))
        for session, own, following in zip(sessions, rows, tokens, strict=True):
            session.drafted.clear()
            session.pairs += [(int(p), int(t), n) for (p, t), n in zip(own.tolist(), following, strict=True)]
        return [self._guess(following[-1]) for following in tokens]

    def extend(self, sessions: Sequence[Seen], tokens: Sequence[int]) -> list[Guessed]:
        self.passes.append(len(sessions))
        for session, token in zip(sessions, tokens, strict=True):
            session.drafted.append(token)
        return [self._guess(token) for token in tokens]

    def _guess(self, token: int) -> Guessed:
        return self.table.get(token) or Guessed(tuple((token + i) % V for i in (1, 2, 3)), (0.6, 0.3, 0.05))


def showing_engine(head: ScriptedHead, **options: Any) -> Engine:
    engine = toy_engine(HeadDrafter(open_head=lambda path, force: head, thrifty=False, **options))
    engine.target.__class__ = ShowingTarget
    return engine


@pytest.mark.parametrize("options", [{"temperature": 0.0, "seed": 1}, {"temperature": 0.9, "seed": 3}])
def test_every_row_is_fed_once_with_its_own_next_token_and_nothing_changes(options: dict[str, Any]) -> None:
    options = {**options, "max_tokens": 40}
    head = ScriptedHead()
    engine = showing_engine(head, least=0.01)
    got = engine.generate_many(PROMPTS, **options)
    assert engine.warning is None
    assert [visible(c) for c in got] == plain(PROMPTS, options)
    check_counts(got)
    assert sum(c.speculation.accepted for c in got) > 0
    texts = [[*engine.request(p).prompt, *c.token_ids] for p, c in zip(PROMPTS, got, strict=True)]
    for session in head.sessions:
        if not session.pairs:
            continue
        start = session.pairs[0][0]
        assert [p for p, _, _ in session.pairs] == list(range(start, start + len(session.pairs)))
        pairs = [(token, following) for _, token, following in session.pairs]
        assert any(pairs == list(zip(text[start:], text[start + 1 :], strict=False))[: len(pairs)] for text in texts), (
            "a row was fed with a token that did not follow it"
        )


def test_sequences_share_a_pass_of_the_head() -> None:
    head = ScriptedHead()
    showing_engine(head).generate_many(PROMPTS[:3], max_tokens=12, ignore_eos=True)
    assert max(head.passes) == 3


def proposal(head: ScriptedHead, budget: int = 8, noise: Any = None, **options: Any) -> Any:
    drafter = HeadDrafter(open_head=lambda path, force: head, thrifty=False, **options)
    step = Step(7, 0, 0, tree.chain((5,), 0.5, "head"), (0,), (5, 6), ("head", "target"), "")
    drafter.observe(step, Rows(np.zeros((2, V), np.float32), np.array([[3, 4], [4, 5]], np.float32)))
    context = Context(id=7, tokens=[1, 2, 3, 4, 5, 6], prompt_length=4, budget=budget, sampling=Sampling())
    return drafter.propose([replace(context, noise=noise)])[0]


def test_a_chain_with_siblings_ends_where_it_is_seldom_reached() -> None:
    table = {6: Guessed((9, 8, 7), (0.6, 0.3, 0.01)), 9: Guessed((2, 3), (0.5, 0.4)), 2: Guessed((1,), (0.5,))}
    draft = proposal(ScriptedHead(table), least=0.25)
    assert (draft.tokens, draft.parents) == ((9, 8, 2, 3, 1), (-1, -1, 0, 0, 2))
    assert draft.confidence == (0.6, 0.3, 0.5, 0.4, 0.5)
    assert set(draft.sources) == {"head"}
    head = ScriptedHead(table)
    assert proposal(head, least=0.4).tokens == (9, 8, 2, 3)
    assert len(head.passes) == 2  # reached with 0.3 only: no third pass
    assert proposal(ScriptedHead(table), least=0.0, max=3).tokens == (9, 8, 2)
    assert proposal(ScriptedHead(table), budget=1).tokens == (9,)
    assert proposal(ScriptedHead(table), depth=1, width=1).tokens == (9,)


def test_under_noise_the_favoured_guess_is_followed() -> None:
    table = {6: Guessed((9, 8), (0.6, 0.3)), 8: Guessed((2,), (0.9,)), 9: Guessed((3,), (0.9,))}

    def noise(position: int, ids: Sequence[int]) -> NDArray[np.float64]:
        return np.array([{9: 5.0, 8: 0.01}.get(i, 0.1) for i in ids])

    draft = proposal(ScriptedHead(table), noise=noise)
    assert draft.tokens[draft.parents.index(draft.tokens.index(8))] == 2
    quiet = proposal(ScriptedHead(table))
    assert quiet.tokens[quiet.parents.index(quiet.tokens.index(9))] == 3


def test_nothing_is_drafted_before_a_row_was_seen_nor_for_a_forgotten_sequence() -> None:
    drafter = HeadDrafter(open_head=lambda path, force: ScriptedHead())
    context = Context(id=1, tokens=[1, 2], prompt_length=2, budget=4, sampling=Sampling())
    assert len(drafter.propose([context])[0]) == 0
    step = Step(1, 0, 0, tree.chain((), 1.0, ""), (), (5,), ("target",), "")
    drafter.observe(step, Rows(np.zeros((1, V), np.float32), np.zeros((1, 2), np.float32)))
    assert len(drafter.propose([context])[0]) > 0
    assert len(drafter.propose([context])[0]) == 0  # nothing new to start from
    drafter.observe(step, Rows(np.zeros((1, V), np.float32), np.zeros((1, 2), np.float32)))
    drafter.forget(1)
    assert len(drafter.propose([context])[0]) == 0


def test_a_target_without_rows_switches_it_off_and_the_answer_goes_on() -> None:
    engine = toy_engine(HeadDrafter(open_head=lambda path, force: ScriptedHead()))
    got = engine.generate(PROMPTS[0], max_tokens=10, seed=2)
    assert visible(got) == plain(PROMPTS[:1], {"max_tokens": 10, "seed": 2})[0]
    assert engine.warning is not None
    assert "hidden rows" in engine.warning


def test_a_head_that_never_foresees_anything_is_asked_ever_less() -> None:
    wrong = ScriptedHead({token: Guessed(((token * 7 + 3) % V,), (0.9,)) for token in range(V)})
    engine = toy_engine(HeadDrafter(open_head=lambda path, force: wrong))
    engine.target.__class__ = ShowingTarget
    got = engine.generate_many(PROMPTS, max_tokens=200, ignore_eos=True, temperature=1.5, seed=5)
    steps = sum(c.speculation.steps for c in got)
    assert 0 < len(wrong.passes) < steps / 8
    assert [visible(c) for c in got] == plain(
        PROMPTS, {"max_tokens": 200, "ignore_eos": True, "temperature": 1.5, "seed": 5}
    )
    assert all(len(session.pairs) < 200 for session in wrong.sessions)


@pytest.mark.parametrize("bad", ["max=0", "depth=0", "width=x", "least=2", "wide=1"])
def test_options_are_checked(bad: str) -> None:
    with pytest.raises(DraftError):
        create_drafter(f"kind=head,{bad}", open_head=lambda path, force: ScriptedHead())
    with pytest.raises(DraftError, match="open_head"):
        create_drafter("head")
