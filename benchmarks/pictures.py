"""The README's pictures from results: decoding side by side, and the peers' speeds. English and Korean, light and dark.

    python benchmarks/pictures.py record     decode a prompt plainly and drafted, in turns: results/race.json
    python benchmarks/pictures.py draw       docs/images/race*.svg and, where results/peers.json is there, peers*.svg

The race is CSS alone, loops, and stands still for readers who ask for less motion. Its times are those of the trace,
slowed down by the factor it states.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from common import RESULTS, REWRITE_CODE, keep

sys.path.append(str(Path(__file__).parent / "peers"))

from pictures_chart import chart
from pictures_race import race

IMAGES = Path(__file__).parents[1] / "docs" / "images"
TURNS = 3


def record(prompt: str, max_tokens: int) -> None:
    """Keep the fastest of a few turns of each way: when each token came, and who guessed it."""
    import sooner

    engine = sooner.load(draft="cascade", max_running=1, warm=True)
    runs: dict[str, list[list[Any]]] = {}
    for turn in range(-1, TURNS):  # the first warms up
        for way in ("plain", "drafted"):
            request = engine.request(prompt, max_tokens=max_tokens, drafting=way == "drafted", salt=f"{way} {turn}")
            found = decoded(engine, request)
            if turn >= 0 and (way not in runs or found[-1][0] < runs[way][-1][0]):
                runs[way] = found
    texts = ["".join(piece for _, pieces in run for piece, _ in pieces) for run in runs.values()]
    assert texts[0] == texts[1], "drafting changed a text"
    print(keep("race", {"model": engine.name, "prompt": prompt, **runs}))


def decoded(engine: Any, request: Any) -> list[list[Any]]:
    """Milliseconds since the first token, and pieces of text with the drafter that guessed each, step by step."""
    handle = engine.submit(request)
    detokenizer = engine.codec.detokenizer()
    found: list[list[Any]] = []
    begin = None
    while not handle.finished:
        for step in engine.step():
            now = time.perf_counter()
            begin = now if begin is None else begin
            pieces = [[detokenizer.push(t), source] for t, source in zip(step.tokens, step.sources, strict=True)]
            found.append([round((now - begin) * 1e3, 2), pieces])
    return found


def draw() -> None:
    """Every picture whose result is there."""
    for name, picture in (("race", race), ("peers", chart)):
        path = RESULTS / f"{name}.json"
        if not path.is_file():
            print(f"{path} is not there: {name} is left as it is", file=sys.stderr)
            continue
        result: Mapping[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        for language, suffix in (("en", ""), ("ko", ".ko")):
            target = IMAGES / f"{name}{suffix}.svg"
            target.write_text(picture(result, language), encoding="utf-8")
            print(f"{target}: {target.stat().st_size / 1024:.0f} kB")


def main(arguments: Sequence[str] | None = None) -> None:
    """Record or draw."""
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=raw)
    parser.add_argument("part", choices=["record", "draw"])
    parser.add_argument("--prompt", default=REWRITE_CODE)
    parser.add_argument("--max-tokens", type=int, default=150)
    options = parser.parse_args(arguments)
    if options.part == "record":
        record(options.prompt, options.max_tokens)
    else:
        draw()


if __name__ == "__main__":
    main()
