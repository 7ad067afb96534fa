"""A tuned profile in the words of other engines: the flags of vLLM, SGLang and llama.cpp that come nearest to it.

Knows drafters by their short forms, and what those engines call the like. Does not know how anything was measured, or
whether such an engine is installed.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from textwrap import wrap

from sooner.draft import parse_spec
from sooner.errors import InvalidRequest, nearest
from sooner.integrations.vllm import METHOD, PORTS
from sooner.loading import DEFAULT_DRAFT
from sooner.store.profile import Profile

__all__ = ["ENGINES", "Export", "Variant", "demand_engine", "export"]

_MOST = 16
"""Where the length of drafts is decided from step to step: the most that is made room for."""

_FIXED = 8
"""Where it was decided from step to step and the other engine drafts the same number each time."""

_MATCH = 3
"""Tokens that must match where the other engine knows only one length; after so many, copies are right more often than
not (`draft.history.match_confidence`)."""

_COPYING = ("suffix", "recycle", "table", "memory", "corpus", "ngram", "given")
"""Drafters that continue from what was read or written before, which all of those engines can do in some way."""


@dataclass(frozen=True, slots=True)
class Variant:
    """One way to run the engine. ``flags``: arguments of its command line, none for plain decoding."""

    title: str
    flags: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Export:
    """``notes``: what is not the same there, and why."""

    engine: str
    variants: tuple[Variant, ...]
    notes: tuple[str, ...]

    def __str__(self) -> str:
        """For a terminal or a file: flags as a shell reads them, everything else as comments."""
        lines = [line for note in self.notes for line in wrap(note, 100, initial_indent="# ", subsequent_indent="#   ")]
        for variant in self.variants:
            lines += [f"# {variant.title}", shlex.join(variant.flags)] if variant.flags else [f"# {variant.title}"]
        return "\n".join(lines)


@dataclass(frozen=True, slots=True)
class _Wanted:
    """The profile's drafters by kind, with their options; ``budget`` as there."""

    kinds: Mapping[str, Mapping[str, str]]
    budget: int | None

    @property
    def copying(self) -> tuple[str, ...]:
        return tuple(kind for kind in self.kinds if kind in _COPYING)

    @property
    def draft_model(self) -> str:
        return self.kinds.get("model", {}).get("path", "")

    def tokens(self, kinds: Sequence[str], free: int) -> int:
        """Draft tokens of drafters ``kinds``: the budget, else the most that one was told, else ``free``."""
        told = [int(most) for kind in kinds if (most := self.kinds[kind].get("max", "")).isdigit()]
        return self.budget or max(told, default=free)


def demand_engine(engine: str) -> None:
    """Raises `InvalidRequest` for an engine that is not in `ENGINES`."""
    if engine not in ENGINES:
        raise InvalidRequest(
            f"--export must be one of {', '.join(ENGINES)}, not {engine!r}{nearest(engine, ENGINES)}", "export"
        )


def export(profile: Profile, engine: str) -> Export:
    """The flags of ``engine`` for ``profile``. Raises as `demand_engine`."""
    demand_engine(engine)
    wanted = _wanted(profile)
    if not wanted.kinds or wanted.budget == 0:
        why = "no drafter was shown to be faster than plain decoding on this machine, and the profile says plain"
        return Export(engine, (Variant("no flags: that is what this engine does without any", ()),), (why,))
    variants, notes = _MAKERS[engine](wanted, profile)
    variants = variants or (Variant("no flags: nothing of this profile is there", ()),)
    return Export(engine, variants, (_Head.format(profile), *notes, *_left_out(wanted, engine)))


_Head = "the profile of this model on this machine: {}"


def _wanted(profile: Profile) -> _Wanted:
    kinds: dict[str, Mapping[str, str]] = {}
    for short in profile.draft:
        options = parse_spec(short)
        kind = options.pop("kind")
        kinds |= {"suffix": {}, "recycle": {}} if kind == DEFAULT_DRAFT else {kind: options}
    return _Wanted(kinds, profile.budget)


def _vllm(wanted: _Wanted, profile: Profile) -> tuple[tuple[Variant, ...], list[str]]:
    variants, notes = [], []
    if set(wanted.copying) == {"ngram"}:
        options = wanted.kinds["ngram"]
        config: dict[str, object] = {
            "method": "ngram",
            "num_speculative_tokens": wanted.tokens(["ngram"], _FIXED),
            "prompt_lookup_min": int(options.get("min_match", "2")),
            "prompt_lookup_max": int(options.get("max_match", "8")),
        }
        variants.append(Variant("its own n-gram method", _speculative(config)))
        notes += _lengths(wanted, "vLLM's n-gram method drafts the same number of tokens after every match")
    elif wanted.copying:
        config = {
            "method": "suffix",
            "num_speculative_tokens": wanted.tokens(wanted.copying, _MOST),
            "suffix_decoding_max_spec_factor": float(wanted.kinds.get("suffix", {}).get("factor", "1.0")),
            "suffix_decoding_max_cached_requests": 10_000 if "memory" in wanted.kinds else 0,
        }
        variants.append(Variant("its own suffix method (pip install arctic-inference)", _speculative(config)))
        notes += _approximated(wanted, ("suffix", "memory"), "vLLM's suffix method")
        notes += _lengths(wanted, "vLLM's suffix method shortens drafts by how often they were seen, at any cost")
    if wanted.draft_model:
        config = {
            "method": "draft_model",
            "model": wanted.draft_model,
            "num_speculative_tokens": wanted.tokens(["model"], _FIXED),
        }
        variants.append(Variant("its own draft model method", _speculative(config)))
        notes.append("vLLM reads the draft model as a Hugging Face folder with the vocabulary of the model")
    ours = [short for short in profile.draft if parse_spec(short)["kind"] in (*_COPYING, DEFAULT_DRAFT)]
    ours = [short for short in ours if parse_spec(short)["kind"] not in ("corpus", "given")]
    if ours:
        variants.append(_custom(ours, wanted))
        notes.append(
            "sooner inside vLLM runs the same drafters and, without a budget, its controller, which measures vLLM's "
            "passes; a draft is one path there, not a tree"
        )
        if any(parse_spec(short)["kind"] in ("table", DEFAULT_DRAFT) and "path" not in short for short in ours):
            notes.append(
                "a table is found there where sooner train made one for the folder that vLLM reads; any other is named "
                "with table:path=FILE"
            )
    return tuple(variants), notes


def _custom(ours: Sequence[str], wanted: _Wanted) -> Variant:
    (low, high) = max(PORTS)
    config = {"method": "custom_class", "model": METHOD, "num_speculative_tokens": max(_MOST, wanted.budget or 0)}
    options: dict[str, object] = {} if list(ours) == [DEFAULT_DRAFT] else {"draft": list(ours)}
    if wanted.budget is not None:
        options["budget"] = wanted.budget
    more = ("--additional-config", json.dumps({"sooner": options})) if options else ()
    versions = f"{low[0]}.{low[1]} <= vLLM < {high[0]}.{high[1]}"
    return Variant(
        f"sooner's own drafters in it, where sooner is installed too ({versions})", (*_speculative(config), *more)
    )


def _speculative(config: Mapping[str, object]) -> tuple[str, ...]:
    return "--speculative-config", json.dumps(config)


def _sglang(wanted: _Wanted, profile: Profile) -> tuple[tuple[Variant, ...], list[str]]:
    variants, notes = [], []
    if wanted.copying:
        nodes = wanted.tokens(wanted.copying, _FIXED) + 1  # the last known token is one of them
        flags = ("--speculative-algorithm", "NGRAM", "--speculative-num-draft-tokens", str(nodes))
        variants.append(Variant("its n-gram trees", flags))
        notes += _approximated(wanted, (), "SGLang's n-gram trees")
        notes.append("SGLang keeps one trie for all requests: texts are drafted from other callers' texts too")
    if wanted.draft_model:
        nodes = wanted.tokens(["model"], _FIXED) + 1
        steps = ("--speculative-num-steps", str(nodes - 1), "--speculative-eagle-topk", "1")
        flags = ("--speculative-algorithm", "STANDALONE", "--speculative-draft-model-path", wanted.draft_model)
        variants.append(Variant("its draft model", (*flags, *steps, "--speculative-num-draft-tokens", str(nodes))))
        notes.append("SGLang reads the draft model as a Hugging Face folder with the vocabulary of the model")
    if variants:
        notes += _lengths(wanted, "SGLang checks the same number of tokens at every step")
    return tuple(variants), notes


def _llama_cpp(wanted: _Wanted, profile: Profile) -> tuple[tuple[Variant, ...], list[str]]:
    variants, notes = [], []
    if wanted.copying:
        ngram = wanted.kinds.get("ngram", {})
        match = str(int(ngram.get("min_match", "2")) if set(wanted.copying) == {"ngram"} else _MATCH)
        size = (
            "--spec-ngram-simple-size-n",
            match,
            "--spec-ngram-simple-size-m",
            str(wanted.tokens(wanted.copying, _FIXED)),
        )
        variants.append(Variant("its n-gram lookup", ("--spec-type", "ngram-simple", *size)))
        notes += _approximated(wanted, (), "llama.cpp's ngram-simple")
        notes.append(f"ngram-simple knows matches of one length, here {match}; sooner takes the longest there is")
    if wanted.draft_model:
        flags = ("--spec-type", "draft-simple", "--spec-draft-model", wanted.draft_model)
        variants.append(
            Variant("its draft model", (*flags, "--spec-draft-n-max", str(wanted.tokens(["model"], _FIXED))))
        )
        notes.append("llama.cpp reads the draft model as a GGUF file with the vocabulary of the model")
    if variants:
        notes += _lengths(wanted, "llama.cpp drafts as many tokens as it finds, up to this number, at every step")
    return tuple(variants), notes


def _approximated(wanted: _Wanted, same: Sequence[str], by: str) -> list[str]:
    """Which drafters have no equal there."""
    strange = [kind for kind in wanted.copying if kind not in same]
    return (
        [f"{', '.join(strange)}: approximated by {by}, which copies from text but knows no {_what(strange)}"]
        if strange
        else []
    )


def _what(kinds: Sequence[str]) -> str:
    said = {
        "recycle": "successors that the model itself named",
        "table": "table of the model's own successors",
        "memory": "bounded memory of earlier texts",
        "corpus": "collection of files",
        "given": "expected texts",
        "suffix": "matches of any length",
        "ngram": "latest match of any length",
    }
    return ", ".join(said[kind] for kind in kinds)


def _lengths(wanted: _Wanted, there: str) -> list[str]:
    """What becomes of a length that was decided at each step."""
    if wanted.budget is not None:
        return []
    return [f"{there}; sooner's controller decided it at each step by what passes cost, none included"]


def _left_out(wanted: _Wanted, engine: str) -> list[str]:
    """Drafters with no counterpart."""
    strange = [kind for kind in wanted.kinds if kind not in _COPYING and not (kind == "model" and wanted.draft_model)]
    return (
        [f"{', '.join(strange)}: left out, as {engine} has nothing that reads what sooner made for it"]
        if strange
        else []
    )


_Maker = Callable[[_Wanted, Profile], tuple[tuple[Variant, ...], list[str]]]

_MAKERS: Mapping[str, _Maker] = {"vllm": _vllm, "sglang": _sglang, "llama.cpp": _llama_cpp}

ENGINES = tuple(_MAKERS)
"""The engines whose flags are known."""
