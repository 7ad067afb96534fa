"""The proposer inside vLLM, over a stand-in of its batch: who is who, what is drafted and what is kept."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from fake_vllm import CONTEXT, MOST, VOCABULARY, Asking, Engine, config
from hypothesis import given, settings
from hypothesis import strategies as st

from sooner.control.cost import NOMINAL
from sooner.draft.cascade import CascadeDrafter
from sooner.draft.random import RandomDrafter
from sooner.draft.recycle import RecycleDrafter
from sooner.draft.suffix import SuffixDrafter
from sooner.integrations.vllm import Proposer
from sooner.integrations.vllm_gauge import Gauge, Pacing, widths
from sooner.integrations.vllm_guess import Guessing
from sooner.integrations.vllm_texts import Row, Texts
from sooner.protocols import Context, Drafter
from sooner.types import Draft, Rows, Step


@pytest.fixture(autouse=True)
def vllm(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    """A vLLM that is installed, and a cache of its own."""
    monkeypatch.setenv("SOONER_CACHE", str(tmp_path / "cache"))
    monkeypatch.setitem(sys.modules, "vllm", SimpleNamespace(__version__="0.32.1"))


def cycle(text: Sequence[int]) -> int:
    """A model that goes round in sevens, and in another way after another beginning."""
    return (text[-1] + 1 + text[0] % 3) % 7


def wild(text: Sequence[int]) -> int:
    """A model whose next token nothing before foretells."""
    return hash((len(text), *text[-3:])) % VOCABULARY


def engine(model: Callable[[Sequence[int]], int], options: Mapping[str, Any] | None = None) -> Engine:
    """With `Proposer` in it, made and fed as vLLM does it, by a clock on which passes take time."""
    made = Engine(model, cost=lambda rows: 10.0 + 0.1 * rows)
    proposer = Proposer(config(options))
    proposer.load_model(made)
    proposer._guessing._clock = made.clock
    made.proposer = proposer
    return made


class Empty:
    def propose(self, sampled: Sequence[Sequence[int]], *given: Any, **named: Any) -> list[list[int]]:
        return [[] for _ in sampled]


def plain(model: Callable[[Sequence[int]], int], *requests: Asking) -> list[list[int]]:
    made = Engine(model)
    made.proposer = Empty()
    return made.answer(*requests)


def requests(count: int, most: int = 60) -> list[Asking]:
    return [Asking([i, *range(i % 5, 3 + 4 * i)], most + i) for i in range(1, count + 1)]


@pytest.mark.parametrize("count", [1, 2, 7])
def test_requests_side_by_side_take_fewer_passes_to_the_same_text(count: int) -> None:
    made = engine(cycle)
    assert made.answer(*requests(count)) == plain(cycle, *requests(count))
    passes = len(made.rows)
    made.rows.clear()
    made.answer(*requests(count))  # what passes cost is known by now
    assert len(made.rows) < passes
    assert len(made.rows) < 45


def test_a_request_leaves_in_mid_answer_and_others_go_on() -> None:
    made = engine(cycle)
    asked = requests(5)
    made.running += asked
    for _ in range(9):
        made.step()
    made.leave(asked[1])
    made.leave(asked[4])
    while made.running:
        made.step()
    expected = plain(cycle, *requests(5))
    assert [asked[i].answer[: asked[i].most] for i in (0, 2, 3)] == [expected[i] for i in (0, 2, 3)]


def watching(texts: Texts, moved: list[bool]) -> type[Empty]:
    """Holds each text against its row; ``moved`` gets whether it stood elsewhere before."""

    class Watching(Empty):
        def propose(self, sampled: Sequence[Sequence[int]], *given: Any, **named: Any) -> list[list[int]]:
            counts, held = given
            rows = [Row(one, held[i, : counts[i]]) for i, one in enumerate(sampled)]
            before = {text.id: i for i, text in enumerate(texts._places) if text is not None}
            found, gone = texts.meet(rows)
            for i, (row, text) in enumerate(zip(rows, found, strict=True)):
                assert (text is None) == (not row.sampled)
                if text is not None:
                    assert text.tokens.tolist() == row.tokens.tolist()
                    assert text.followed == (text.id in before)
                    moved.append(before.get(text.id, i) != i)
            assert not {text.id for text in gone} & {text.id for text in found if text is not None}
            return super().propose(sampled)

    return Watching


@given(
    st.lists(st.tuples(st.integers(0, 4), st.integers(1, 40), st.integers(1, 60)), min_size=1, max_size=6),
    st.lists(st.integers(0, 30), max_size=3),
)
@settings(max_examples=25, deadline=None)
def test_each_row_is_met_with_its_own_text(asked: list[tuple[int, int, int]], leaving: list[int]) -> None:
    """Whatever begins, is read in parts, moves or leaves: a text always holds what its row holds."""
    made = Engine(cycle, part=8)
    made.proposer = watching(Texts(10_000), [])()
    made.running = [Asking([i, first, *range(long)], most) for i, (first, long, most) in enumerate(asked)]
    at = 0
    while made.running:
        made.step()
        at += 1
        if at in leaving and made.running:
            made.leave(made.running[0])


def test_a_row_that_moves_keeps_its_text() -> None:
    """The negative control of the law: rows do move there, so whoever went by places would mix texts up."""
    moved: list[bool] = []
    made = Engine(cycle)
    made.proposer = watching(Texts(10_000), moved)()
    made.answer(*requests(3, most=5))
    assert any(moved)


def test_two_requests_with_one_text_stay_two() -> None:
    texts = Texts(100)
    same = np.array([1, 2, 3], np.int32)
    (a, b), _ = texts.meet([Row([3], same), Row([3], same)])
    assert a is not b
    (c, d), gone = texts.meet([Row([4], np.array([1, 2, 3, 4], np.int32)), Row([5], np.array([1, 2, 3, 5], np.int32))])
    assert (c, d, gone) == (a, b, [])


def test_a_pass_without_a_question_is_made_up_for() -> None:
    """Near the end of the context vLLM does not ask; a draft of before is then not taken for that pass's."""
    texts = Texts(100)
    (text,), _ = texts.meet([Row([3], np.array([1, 2, 3], np.int32))])
    (again,), gone = texts.meet([Row([6], np.array([1, 2, 3, 4, 5, 6], np.int32))])
    assert (again, gone) == (text, [])
    assert text is not None
    assert (text.tokens.tolist(), text.followed) == ([1, 2, 3, 4, 5, 6], False)


class Forgetful(SuffixDrafter):
    """Notes what is asked and forgotten."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: set[int] = set()
        self.forgotten: list[int] = []

    def _propose(self, context: Context) -> Draft:
        self.asked.add(context.id)
        return super()._propose(context)

    def forget(self, id: int) -> None:
        self.forgotten.append(id)
        super().forget(id)


def guessing(drafter: Drafter, clock: Callable[[], float], *, tokens: int = 10_000, budget: int | None = None) -> Any:
    """The proposer's heart, with a clock and a drafter of the test's."""
    pacing = Pacing(MOST, budget, lambda message: None)
    more: Any = {"vocab_size": VOCABULARY, "context": CONTEXT, "most": MOST, "clock": clock}
    return Guessing(drafter, pacing, Texts(tokens), **more)


class Direct:
    """`Guessing` where vLLM asks."""

    def __init__(self, inner: Any, engine: Engine | None = None) -> None:
        self.inner = inner
        self._engine = engine

    def propose(self, sampled: Any, counts: Any, held: Any, slot_mappings: Any = None) -> list[list[int]]:
        from sooner.integrations import vllm_0_32 as port

        scored = None if self._engine is None else port.Logits(self._engine.compute_logits())
        found: list[list[int]] = self.inner.next(port.rows(sampled, counts, held), scored)
        return found


def test_who_has_left_is_forgotten_and_memory_is_bounded() -> None:
    drafter = Forgetful()
    made = Engine(cycle)
    texts = Texts(200)
    pacing = Pacing(MOST, 4, print)
    inner = Guessing(drafter, pacing, texts, vocab_size=VOCABULARY, context=CONTEXT, most=MOST)
    made.proposer = Direct(inner)
    made.running += requests(12)
    followed = []
    while made.running:
        made.step()
        assert texts.tokens <= 200
        followed.append(len(drafter._automata))
    assert 1 < max(followed) < 12, "all were followed, or none, whatever the bound"
    inner.next([], None)
    assert set(drafter.forgotten) == drafter.asked
    assert (texts.tokens, drafter._automata) == (0, {})


def engine_with(drafter: Drafter, model: Callable[[Sequence[int]], int], cost: Callable[[int], float]) -> Engine:
    made = Engine(model, cost=cost)
    made.proposer = Direct(guessing(drafter, made.clock), made)
    return made


def test_passes_are_priced_in_passing() -> None:
    def cost(rows: int) -> float:
        return 10.0 + 0.5 * rows

    made = engine_with(CascadeDrafter([SuffixDrafter()]), cycle, cost)
    (answer,) = made.answer(Asking([1, 2], 200))
    assert answer == plain(cycle, Asking([1, 2], 200))[0]
    pacing: Pacing = made.proposer.inner._pacing  # type: ignore[union-attr]  # a Direct
    curve = pacing.controller(1).price.curve  # type: ignore[attr-defined]  # a GoodputController's
    assert curve.rows == widths(MOST) == (1, 2, 4, 9)
    assert curve.ms == pytest.approx([cost(rows) for rows in curve.rows])
    assert pacing.measuring(1) is None
    assert pacing.measuring(2) is not None, "two requests are another matter"


def measured(gauge: Gauge, cost: Callable[[int], float]) -> list[int]:
    """The widths of a round, each of which succeeds."""
    asked = []
    while (width := gauge.wanted) is not None:
        gauge.tried()
        gauge.took(width, width, cost(width))
        asked.append(width)
    return asked


def test_prices_are_measured_again_and_old_ones_leave() -> None:
    gauge = Gauge((1, 2, 4))
    assert measured(gauge, lambda rows: 10.0 * rows) == 3 * [1, 2, 4]
    first = gauge.news()
    assert first is not None
    assert first.ms == (10.0, 20.0, 40.0)
    assert gauge.news() is None
    for _ in range(6):
        for _ in range(399):
            gauge.passed()
        assert gauge.wanted is None
        gauge.passed()
        assert measured(gauge, lambda rows: 20.0 + rows) == [1, 2, 4]
        later = gauge.news()
    assert later is not None
    assert later.ms == (21.0, 22.0, 24.0)


def test_a_measurement_that_always_fails_is_given_up() -> None:
    gauge = Gauge((1, 2, 4))
    tries = 0
    while (curve := gauge.news()) is None:
        assert gauge.wanted == 1
        gauge.tried()
        tries += 1
    assert (tries, curve, gauge.wanted) == (27, NOMINAL, None)


def test_many_requests_are_not_measured_at_every_width() -> None:
    gauge = Pacing(MOST, None, print).measuring(100)
    assert gauge is not None
    assert set(measured(gauge, float)) == {1, 2}


def test_what_never_holds_is_hardly_drafted() -> None:
    """A hostile drafter under a steep cost: beyond the measurement almost all passes are plain."""
    made = engine_with(RandomDrafter(vocab_size=VOCABULARY, max=8), wild, lambda rows: 10.0 * rows)
    for i in range(8):
        made.answer(Asking([i, 3], 200))
    later = made.rows[len(made.rows) // 4 :]
    assert np.mean([rows - 1 for rows in later]) < 0.05


def test_the_controller_takes_what_pays() -> None:
    """The negative control of the one above: the same cost, and drafts that hold."""
    made = engine_with(CascadeDrafter([SuffixDrafter()]), cycle, lambda rows: 10.0 + rows)
    for i in range(4):
        made.answer(Asking([i, 3], 200))
    assert np.mean(made.rows[len(made.rows) // 4 :]) > 4


class Slow(SuffixDrafter):
    """Takes ``each`` seconds of the engine's time for every request; notes how many were asked about together."""

    def __init__(self, engine: Engine, each: float) -> None:
        super().__init__()
        self.together: list[int] = []
        self.asked: set[int] = set()
        self._engine = engine
        self._each = each

    def propose(self, contexts: Sequence[Context]) -> list[Draft]:
        self._engine.time += self._each * len(contexts)
        self.together.append(len(contexts))
        self.asked |= {context.id for context in contexts}
        return super().propose(contexts)


def test_slow_drafters_are_asked_about_as_many_as_a_pass_takes_in_turns() -> None:
    made = Engine(cycle, cost=lambda rows: 10.0)
    slow = Slow(made, 0.004)
    made.proposer = Direct(guessing(slow, made.clock, budget=2), made)
    made.answer(*requests(6))
    assert max(slow.together[20:-6]) == 2
    assert slow.asked == set(range(6))
    quick = Slow(made, 0.0001)
    made.proposer = Direct(guessing(quick, made.clock, budget=2), made)
    made.answer(*requests(6))
    assert max(quick.together) == 6


class Seeing(RecycleDrafter):
    """Notes the rows it is shown."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[tuple[Step, Any]] = []

    def observe(self, step: Step, rows: Rows) -> None:
        self.seen.append((step, rows.logits))
        super().observe(step, rows)


@pytest.mark.parametrize("cut", [list, lambda draft: draft[:1]])
def test_rows_are_told_apart_or_left_alone(cut: Callable[[list[int]], list[int]]) -> None:
    drafter = Seeing()
    made = Engine(cycle, cut=cut)
    made.proposer = Direct(guessing(drafter, made.clock, budget=4), made)
    made.answer(*requests(3))
    assert drafter.seen
    for step, logits in drafter.seen:
        assert logits.shape == (len(step.tokens), VOCABULARY)
        assert logits.argmax(axis=1).tolist() == list(step.tokens)
    if cut is list:
        assert max(step.accepted for step, _ in drafter.seen) == 4


class Failing(SuffixDrafter):
    def _propose(self, context: Context) -> Draft:
        raise ZeroDivisionError("no luck")


def test_a_drafter_that_fails_is_off_and_the_text_goes_on(caplog: pytest.LogCaptureFixture) -> None:
    made = Engine(cycle)
    made.proposer = Direct(guessing(Failing(), made.clock), made)
    assert made.answer(*requests(2)) == plain(cycle, *requests(2))
    assert [record.message for record in caplog.records] == [
        "drafter suffix failed and is off: ZeroDivisionError: no luck"
    ]


def test_a_budget_is_kept_and_zero_is_one() -> None:
    made = engine(cycle, {"budget": 3, "draft": "suffix"})
    made.answer(Asking([1, 2], 100))
    assert set(made.rows[8:-1]) == {4}
    none = engine(cycle, {"budget": 0})
    none.answer(Asking([1, 2], 100))
    assert set(none.rows[1:]) == {1}


def test_the_model_is_watched_from_the_first_question_on() -> None:
    from sooner.integrations import vllm_0_32 as port

    model = SimpleNamespace(compute_logits=lambda hidden: np.zeros((hidden, 3), np.float32))
    watch = port.watch()
    assert watch.attach(model)
    model.compute_logits(64)  # vLLM tries how much memory the largest pass takes
    assert watch.take() is None
    assert model.compute_logits(2).shape == (2, 3)
    scored = watch.take()
    assert scored is not None
    assert scored.count == 2
    assert watch.take() is None
    assert not port.watch().attach(SimpleNamespace())
