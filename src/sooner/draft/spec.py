"""How users name a drafter: the short typed form, vLLM's JSON, and the entry points that both lead to.

Knows names, options and their annotated types. Does not know what any drafter does.
"""

from __future__ import annotations

import inspect
import types
from collections.abc import Mapping
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from typing import Any, Union, get_args, get_origin, get_type_hints

from sooner.errors import DraftError, nearest
from sooner.protocols import Drafter

__all__ = ["DRAFTERS", "create_drafter", "known_kinds", "parse_spec"]

DRAFTERS = "sooner.drafters"
"""The entry-point group in which drafters register, the built-in ones too: name = "module:Class"."""


def parse_spec(spec: str) -> dict[str, str]:
    """The options in ``kind=ngram,max=8``, ``ngram:max=8`` or ``ngram``, as text; else `DraftError`."""
    head, _, rest = spec.partition(":")
    if "=" in head:
        head, rest = "", spec
    options: dict[str, str] = {"kind": head.strip()} if head.strip() else {}
    for item in rest.split(",") if rest.strip() else []:
        name, equals, value = (part.strip() for part in item.partition("="))
        if not equals or not name or not value:
            raise DraftError(f"cannot read drafter {spec!r} at {item.strip()!r}: write it as kind=ngram,max=8")
        if name in options:
            raise DraftError(f"drafter {spec!r} gives {name} twice: keep one")
        options[name] = value
    if "kind" not in options:
        raise DraftError(
            f"drafter {spec!r} names no kind: write it as kind=ngram,max=8 (kinds: {_list(_registered())})"
        )
    return options


def create_drafter(spec: str | Mapping[str, object], **given: object) -> Drafter:
    """The drafter that ``spec`` describes (text as in `parse_spec`, or a mapping with ``kind``).

    Text values are read by the types the constructor is annotated with. ``given`` is what the caller can offer
    (``target``, ``vocab_size``, ``eos_ids``, ``truth``, ...): the constructor gets what it names and ``spec`` lacks.
    `DraftError` names an unknown kind or option and the known ones.
    """
    options: dict[str, object] = dict(parse_spec(spec)) if isinstance(spec, str) else dict(spec)
    kind = options.pop("kind", None)
    make = _load(kind)
    parameters = _parameters(make)
    for name in options:
        if name not in parameters:
            hint = nearest(name, parameters)
            raise DraftError(f"drafter {kind} has no option {name!r}{hint}: its options are {_list(parameters)}")
    hints = get_type_hints(make.__init__)
    typed = {name: _typed(f"{kind} option {name}", value, hints.get(name, Any)) for name, value in options.items()}
    offered = {name: value for name, value in given.items() if name in parameters and name not in typed}
    arguments = offered | typed
    missing = [n for n, p in parameters.items() if p.default is inspect.Parameter.empty and n not in arguments]
    if missing:
        writable = all(hints.get(name) in (str, int, float, bool) for name in missing)
        written = f"write kind={kind},{','.join(f'{name}=...' for name in missing)}"
        remedy = written if writable else f"construct {make.__name__} in Python and pass it"
        raise DraftError(f"drafter {kind} needs {_list(missing)}: {remedy}")
    drafter: Drafter = make(**arguments)
    return drafter


def known_kinds() -> tuple[str, ...]:
    """The names of all registered drafters, sorted."""
    return tuple(sorted(_registered()))


@cache
def _registered() -> Mapping[str, EntryPoint]:
    return types.MappingProxyType({point.name: point for point in entry_points(group=DRAFTERS)})


def _load(kind: object) -> Any:
    registered = _registered()
    if not isinstance(kind, str) or kind not in registered:
        raise DraftError(f"unknown drafter {kind!r}{nearest(str(kind), registered)}: the kinds are {_list(registered)}")
    return registered[kind].load()


def _parameters(make: Any) -> dict[str, inspect.Parameter]:
    named = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    return {name: p for name, p in inspect.signature(make).parameters.items() if p.kind in named}


def _list(names: Any) -> str:
    return ", ".join(sorted(names)) or "none"


_TRUE, _FALSE = ("true", "yes", "on", "1"), ("false", "no", "off", "0")


def _typed(what: str, value: object, hint: Any) -> object:
    if not isinstance(value, str) or hint in (Any, str, object):
        return value
    if get_origin(hint) in (Union, types.UnionType):
        if value.lower() == "none" and type(None) in get_args(hint):
            return None
        hint = next((arm for arm in get_args(hint) if arm is not type(None)), hint)
    if hint is str:
        return value
    if hint is bool and value.lower() in _TRUE + _FALSE:
        return value.lower() in _TRUE
    if hint in (int, float):
        try:
            number: object = hint(value)
        except ValueError:
            pass
        else:
            return number
    wanted = {bool: "true or false", int: "an integer", float: "a number"}.get(hint)
    if wanted is None:
        raise DraftError(f"{what} cannot be written as text: construct the drafter in Python and pass it")
    raise DraftError(f"{what} must be {wanted}, not {value!r}")
