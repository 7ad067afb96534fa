"""Compiling constraints and walking in them: what is refused, and that a matcher is a pure function of its tokens."""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sooner.constraint import CompiledConstraint, ConstraintKind, GrammarMatcher, compile_constraint
from sooner.constraint import compile as module
from sooner.errors import InvalidRequest, MissingExtra
from toy import ToyCodec
from toy_json import CODEC, PIECES

SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "abc": {"type": "string", "maxLength": 6},
        "b": {"enum": ["ab", "cd"]},
        "n": {"type": "integer", "minimum": 0, "maximum": 50},
    },
    "required": ["abc", "b", "n"],
    "additionalProperties": False,
}
SOURCES: list[tuple[ConstraintKind, Any]] = [
    ("json_schema", SCHEMA),
    ("json_object", None),
    ("regex", "(ab|cd)+[0-9]{2}(안|é)?"),
    ("grammar", 'start: "a" x "b"\nx: "[" x "]" | /[0-9]{1,3}/'),
]
CONSTRAINTS = [compile_constraint(kind, value, CODEC) for kind, value in SOURCES]


def ids(text: str) -> tuple[int, ...]:
    return tuple(CODEC.encode(text))


def looks(matcher: GrammarMatcher, path: tuple[int, ...]) -> tuple[Any, ...]:
    """All that can be seen below ``path``."""
    allowed = matcher.allowed(path).tolist()
    return allowed, matcher.forced(path), [t for t in range(len(PIECES)) if matcher.permits(t, path)]


def wander(open_: Callable[[], GrammarMatcher], again: Callable[[], GrammarMatcher], seed: int) -> bool:
    """Whether a matcher that looked along many paths, also forbidden ones, sees what a fresh one sees at once."""
    chance = random.Random(seed)
    matcher, pushed = open_(), list[int]()
    for _ in range(12):
        path: tuple[int, ...] = ()
        for _ in range(chance.randrange(5)):
            wild = chance.random() < 0.15
            path += (chance.randrange(len(PIECES)) if wild else int(chance.choice(matcher.allowed(path))),)
            look: Callable[[tuple[int, ...]], object] = chance.choice([matcher.forced, matcher.allowed])
            look(path)
            matcher.permits(5, path)
        fresh = again()
        for token in pushed:
            fresh.push(token)
        if looks(matcher, path) != looks(fresh, path):
            return False
        if path and not wild and chance.random() < 0.5:
            if not matcher.permits(path[0]):
                continue
            matcher.push(path[0])
            pushed.append(path[0])
    return True


@pytest.mark.parametrize("which", range(len(SOURCES)))
@given(seed=st.integers(0, 10**6))
@settings(max_examples=25, deadline=None)
def test_a_matcher_is_a_pure_function_of_its_tokens(which: int, seed: int) -> None:
    assert wander(CONSTRAINTS[which].open, CONSTRAINTS[which].open, seed)


class Leaky(GrammarMatcher):
    """Forgets to come back from a path that it looked along."""

    def permits(self, token: int, path: Sequence[int] = ()) -> bool:
        found = super().permits(token, path)
        self._path = ()
        return found


def test_the_check_sees_a_matcher_that_does_not_come_back() -> None:
    """Negative control."""

    def leaky() -> GrammarMatcher:
        return Leaky(CONSTRAINTS[0]._matcher, "json_schema", CODEC)

    assert not all(wander(leaky, CONSTRAINTS[0].open, seed) for seed in range(20))


@pytest.mark.parametrize("which", range(len(SOURCES)))
@given(seed=st.integers(0, 10**6))
@settings(max_examples=25, deadline=None)
def test_what_is_permitted_covers_what_is_allowed_and_what_is_forced_is_all_there_is(which: int, seed: int) -> None:
    chance = random.Random(seed)
    matcher = CONSTRAINTS[which].open()
    while not matcher.ended and chance.random() < 0.95:
        allowed, forced, permitted = looks(matcher, ())
        assert set(allowed) <= set(permitted)
        assert allowed == sorted(allowed)
        if forced:
            assert allowed == [forced[0]]
        matcher.push(chance.choice(allowed))


def test_the_end_is_allowed_where_the_grammar_accepts_and_nowhere_else() -> None:
    matcher = compile_constraint("regex", "ab(cd)?", CODEC).open()
    assert not {0, 1} & set(matcher.allowed().tolist())
    assert not matcher.permits(0)
    matcher.push(*ids("ab"))
    assert {0, 1} < set(matcher.allowed().tolist())
    assert matcher.permits(0)
    assert not matcher.ended
    assert matcher.allowed(ids("cd")).tolist() == [0, 1]
    assert matcher.allowed((0, *ids("cd"))).tolist() == [0, 1]
    assert not matcher.permits(ids("cd")[0], (0,))
    matcher.push(1)
    assert matcher.ended
    assert matcher.forced() == ()


def test_forced_tokens_are_the_tokenizers_own_spelling() -> None:
    matcher = compile_constraint("json_schema", SCHEMA, CODEC).open()
    assert matcher.forced()[:3] == ids('{"abc')
    assert matcher.forced(ids('{"abc": "x", "b": "')) == ()
    assert matcher.forced(ids('{"abc": "x", "b')) == ids('": "')


def test_a_codec_that_cannot_spell_what_is_forced_is_spelt_for() -> None:
    """Some tokenizers put a space in front, or cannot write single bytes: forced text is then spelt token by token."""

    class Spaced(type(CODEC)):  # type: ignore[misc]  # a class made from an instance's
        def encode(self, text: str, *, special: bool = False, bos: bool = True) -> list[int]:
            ids: list[int] = super().encode(" " + text)
            return ids

    codec = Spaced()
    for value in ("안ab12안", "ab: cd: 안"):
        matcher = compile_constraint("regex", value, codec).open()
        text = b""
        while not matcher.ended:
            token = int(matcher.allowed()[0])
            matcher.push(token)
            text += codec.token_bytes(token)
        assert text.decode() == value


def _key(i: int, j: int) -> dict[str, Any]:
    return {"type": "object", "properties": {f"a{i}": {"const": j}}}


NESTED: dict[str, Any] = {}
NESTED["a"] = NESTED
BAD: list[tuple[Any, Any, str, str]] = [
    ("json_schema", {"type": "objekt"}, "response_format", "objekt"),
    ("json_schema", {"type": "string", "minLength": 5, "maxLength": 2}, "response_format", "minLength"),
    ("json_schema", {"not": {}}, "response_format", "not"),
    ("json_schema", {"$ref": "http://example.com/x"}, "response_format", "example.com"),
    ("json_schema", {"$ref": "#"}, "response_format", "no text"),
    ("json_schema", NESTED, "response_format", "ircular"),
    ("json_schema", {"a": object()}, "response_format", "object"),
    ("json_schema", '{"a":' * 500 + "{}" + "}" * 500, "response_format", "recursion"),
    ("json_schema", "{", "response_format", "json_schema"),
    ("json_schema", 7, "response_format", "int"),
    ("json_schema", None, "response_format", "NoneType"),
    ("json_schema", {"enum": ["x" * 70_000]}, "response_format", "65536"),
    ("regex", "((", "regex", "unclosed"),
    ("regex", "(?=a)b", "regex", "look-around"),
    ("regex", r"[^\s\S]", "regex", "no text"),
    ("regex", "", "regex", "non-empty"),
    ("regex", "(" * 3000 + "a" + ")" * 3000, "regex", "cannot be used"),
    ("grammar", "start: foo", "grammar", "foo"),
    ("grammar", "root ::= foo", "grammar", "foo"),
    (
        "json_schema",
        {"allOf": [{"anyOf": [_key(i, j) for j in range(10)]} for i in range(6)]},
        "response_format",
        "too l",
    ),
    (
        "json_schema",
        {"allOf": [{"type": "string", "pattern": f".*a.{{{i}}}"} for i in range(60)]},
        "response_format",
        "1 s",
    ),
    ("json_schema", {"oneOf": [{"type": "null"}, {"enum": [None, 1]}]}, "response_format", "write anyOf"),
    ("json_schema", '{"multiple\\u004ff": 1000003}', "response_format", "more than 1 s"),
    ("grammar", 'start: %json {"multipleOf": 1000003}', "grammar", "more than 1 s"),
    ("grammar", ["start"], "grammar", "list"),
    ("xml", "<a/>", "kind", "json_object"),
]


@pytest.mark.parametrize(("kind", "value", "param", "says"), BAD)
def test_what_cannot_be_used_is_refused_in_one_line_that_names_the_parameter(
    kind: Any, value: Any, param: str, says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "COMPILE_SECONDS", 1)
    with pytest.raises(InvalidRequest, match=says) as caught:
        compile_constraint(kind, value, CODEC)
    assert caught.value.param == param
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 400


def test_what_no_token_of_the_model_can_write_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="no text"):
        compile_constraint("regex", "Z", CODEC)


def test_a_tokenizer_without_an_end_is_refused() -> None:
    class Endless(ToyCodec):
        eos_ids = frozenset()

    with pytest.raises(InvalidRequest, match="ends a text"):
        compile_constraint("regex", "a", Endless())


def test_a_dead_end_in_mid_text_is_an_error_and_no_answer() -> None:
    matcher = compile_constraint("regex", "a(Z|b)Z", CODEC).open()
    matcher.push(*ids("a"))
    matcher.push(*ids("b"))
    assert matcher.forced() == ()
    with pytest.raises(InvalidRequest, match="no token"):
        _ = matcher.ended


def test_a_forbidden_token_is_refused_and_leaves_the_matcher_where_it_was() -> None:
    matcher = CONSTRAINTS[2].open()
    with pytest.raises(InvalidRequest, match="not allowed"):
        matcher.push(*ids("e"))
    assert looks(matcher, ()) == looks(CONSTRAINTS[2].open(), ())


def test_work_beyond_its_bound_is_an_error_of_this_text_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "BOUNDS", {"step_max_items": 12})
    hard = compile_constraint("grammar", 'start: "a" x\nx: x x | "b" | "ab" | "abc"', CODEC)
    matcher = hard.open()

    def walk() -> None:
        for token in (*ids("a"), *ids("b") * 40):
            matcher.push(token)
            assert not matcher.ended

    with pytest.raises(InvalidRequest, match="too complex"):
        walk()
    assert len(hard.open().allowed())


def test_without_the_library_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "llguidance", None)
    with pytest.raises(MissingExtra, match=r"sooner\[serve\]"):
        compile_constraint("regex", "a", CODEC)


def test_a_constraint_says_what_it_is() -> None:
    compiled = compile_constraint("json_schema", {"type": "integer"}, CODEC)
    assert isinstance(compiled, CompiledConstraint)
    assert (compiled.kind, compiled.source) == ("json_schema", '{"type": "integer"}')
