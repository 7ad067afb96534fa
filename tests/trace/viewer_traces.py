"""Traces for the viewer's tests, made without a model: words, drafts that are kept in part, times."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

WORDS = [
    *["", "the", "sky", "is", "blue", "because", "air", "scatters", "light", "more", "than", "red", "does"][1:],
    "하늘은",
    "푸르다",
    "=",
    "(",
]
SOURCES = ("suffix", "recycle", "table")
PIECES: dict[int, Any] = {
    **{i: f" {word}" for i, word in enumerate(WORDS)},
    90: ".\n",
    91: [0xF0, 0x9F],
    92: [0x98, 0x80],
    99: {"name": "<|im_end|>"},
}
PLAIN_MS = 40.0


def header(**more: Any) -> dict[str, Any]:
    """A header with what the page shows of one; ``more`` replaces fields."""
    fingerprint = {"model": "ab" * 32, "engine": "toy 1", "processor": "test", "precision": "f32"}
    sampling = {"temperature": 0.8, "top_p": 0.9, "top_k": 0, "min_p": 0.0, "verify": "coupled"}
    return {
        "type": "header",
        "schema": 1,
        "sooner": "0.1.0",
        "model": "toy-model",
        "fingerprint": fingerprint,
        "drafter": "+".join(SOURCES),
        "lossless": True,
        "seed": 7,
        "prompt_tokens": 3,
        "sampling": sampling,
        "budget": None,
        **more,
    }


def word(position: int) -> int:
    """The token at a position: words, and a line's end every eleven."""
    return 90 if position % 11 == 10 else (position * 7 + position // 13) % len(WORDS)


def step(index: int, position: int, kept: int, drafted: int, at_ms: float, **more: Any) -> dict[str, Any]:
    """A chain of ``drafted`` guesses of which the first ``kept`` are right, and a sibling of the first one."""
    right = [word(position + i) for i in range(drafted)]
    tokens = [token if i < kept else (token + 1) % len(WORDS) for i, token in enumerate(right)]
    source = SOURCES[index % 3]
    parents = list(range(-1, drafted - 1))
    if drafted > 1:
        tokens, parents = [*tokens, (right[0] + 2) % len(WORDS)], [*parents, -1]
    emitted = [word(position + i) for i in range(kept + 1)]
    nodes = len(tokens)
    return {
        "type": "step",
        "choice": 0,
        "index": index,
        "at_ms": at_ms,
        "draft": {
            "tokens": tokens,
            "parents": parents,
            "confidence": [0.75] * nodes,
            "sources": [source] * nodes,
            "sampled": [],
            "p": [0.625 if i <= kept else None for i in range(nodes)],
            "q": [None] * nodes,
        },
        "path": list(range(kept)),
        "tokens": emitted,
        "sources": [source] * kept + ["target"],
        "p": [0.875] * len(emitted),
        "top": [[[token, 0.875], [3, 0.0625]] for token in emitted],
        "text": "".join(str(PIECES[token]) for token in emitted),
        "finish": None,
        "rows": 1 + nodes,
        "pass_rows": 1 + nodes,
        "draft_ms": 1.0,
        "score_ms": 44.0 + nodes,
        "verify_ms": 0.5,
        "overhead_ms": 0.5,
        **more,
    }


def records(tokens: int, **more: Any) -> Iterator[dict[str, Any]]:
    """A whole trace of ``tokens`` tokens; ``more`` goes into the header."""
    yield header(**more)
    yield {"type": "tokens", "pieces": PIECES}
    position, index, at = 0, 0, 300.0
    while position < tokens:
        drafted = 0 if index == 0 else index % 5
        kept = min(index % 4, drafted, tokens - position - 1)
        record = step(index, position, kept, drafted, at)
        if index == 0:
            record["score_ms"] = 298.0
        yield record
        position += kept + 1
        index += 1
        at += 1.0 + 44.0 + (0 if index % 5 == 0 else index % 5 + (index % 5 > 1)) + 1.0
    yield {"type": "footer", "error": None, "choices": [], "plain_ms": PLAIN_MS, "plain_from": "steps"}


def text_of(tokens: int) -> str:
    """What a trace of so many tokens says."""
    return "".join(str(PIECES[word(i)]) for i in range(tokens))


def write(path: Path, found: Iterator[dict[str, Any]] | list[dict[str, Any]]) -> Path:
    """The records as a file."""
    with path.open("w", encoding="utf-8") as file:
        for record in found:
            file.write(json.dumps(record, ensure_ascii=False) + "\n")
    return path
