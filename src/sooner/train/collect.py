"""Prompts in, the target's own text out: batched through the engine, one line a text, resumable at any point.

Knows the engine and files. Does not know what the text is for.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from sooner.bench.loops import in_loop
from sooner.engine import Engine, Handle
from sooner.errors import InvalidRequest
from sooner.prompt import Prompt
from sooner.types import Sampling

__all__ = ["Collected", "collect", "read_texts"]

_PASSAGE = 900
"""The most characters of an earlier text that a prompt quotes."""


@dataclass(frozen=True, slots=True)
class Collected:
    """One line of a collection: prompt number, and the token ids of prompt and answer."""

    index: int
    prompt: tuple[int, ...]
    tokens: tuple[int, ...]


def read_texts(path: Path) -> Iterator[Collected]:
    """The complete lines of a collection; a line cut short by a crash is passed over."""
    if not path.exists():
        return
    with path.open(encoding="utf-8", errors="replace") as lines:
        for line in lines:
            try:
                record = json.loads(line)
                yield Collected(record["index"], tuple(record["prompt"]), tuple(record["tokens"]))
            except (ValueError, KeyError, TypeError):
                continue


def collect(
    engine: Engine,
    prompts: Iterable[Prompt],
    out: Path,
    *,
    tokens: int,
    sampling: Sampling,
    quoting: bool = True,
    in_flight: int = 16,
    progress: Callable[[int], None] = lambda done: None,
) -> int:
    """Append the engine's answers to ``prompts`` to ``out`` until it holds ``tokens`` answer tokens; returns how many.

    A text that has fallen into a loop is cut there: more of it would teach nothing. ``{p}`` in a prompt is replaced
    by an earlier text if ``quoting``. Prompt i is answered with the sampling's seed plus i.
    Killed at any point, a second call goes on behind the last complete line.
    """
    done = {text.index: text for text in read_texts(out)}
    total = sum(len(text.tokens) for text in done.values())
    passages = [engine.codec.decode(text.tokens)[:_PASSAGE] for text in list(done.values())[-200:]]
    _end_line(out)
    queue = _unanswered(engine, prompts, done, passages if quoting else None, sampling)
    flying: list[tuple[int, Handle]] = []
    with out.open("a", encoding="utf-8") as file:
        while total < tokens:
            while len(flying) < in_flight and (entry := next(queue, None)) is not None:
                flying.append(entry)
            if not flying:
                break
            engine.step()
            for index, handle in list(flying):
                if not handle.finished and not _looping(handle):
                    continue
                engine.abort(handle)
                flying.remove((index, handle))
                answer = handle.slots[0].sequence.tokens[len(handle.request.prompt) :]
                record = {"index": index, "prompt": list(handle.request.prompt), "tokens": answer}
                file.write(json.dumps(record, separators=(",", ":")) + "\n")
                file.flush()
                total += len(answer)
                passages[:] = [*passages[-200:], engine.codec.decode(answer)[:_PASSAGE]]
                progress(total)
    for _, handle in flying:
        engine.abort(handle)
    return total


def _unanswered(
    engine: Engine,
    prompts: Iterable[Prompt],
    done: dict[int, Collected],
    passages: list[str] | None,
    sampling: Sampling,
) -> Iterator[tuple[int, Handle]]:
    for index, asked in enumerate(prompts):
        if index in done:
            continue
        prompt = asked
        if isinstance(asked, str) and "{p}" in asked and passages is not None:
            if not passages:
                continue
            prompt = asked.replace("{p}", random.Random(index).choice(passages))
        try:
            seeded = replace(sampling, seed=(sampling.seed or 0) + index)
            yield index, engine.submit(engine.request(prompt, seeded))
        except InvalidRequest:  # empty or too long: the collection goes on without it
            continue


def _looping(handle: Handle) -> bool:
    sequence = handle.slots[0].sequence
    return sequence.emitted >= 48 and sequence.emitted % 8 < 2 and in_loop(sequence.tokens[-300:])


def _end_line(path: Path) -> None:
    """Make sure that appending starts on a new line, whatever a crash left behind."""
    if path.exists() and path.stat().st_size:
        with path.open("rb+") as file:
            file.seek(-1, 2)
            if file.read(1) != b"\n":
                file.write(b"\n")
