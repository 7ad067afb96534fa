"""The default set of drafters under the default controller: how much sooner, never slower, and how far from the best.

Spec-Bench's evaluation prompts and code to rewrite, on the default model, interleaved (A B A B) in one process. Every
text is asserted to be the plain one. Speed-ups are total time over total time of decoding, with 95 % paired bootstrap
intervals, over all tokens and over those before a text falls into a loop. Each part prints a table and writes
benchmarks/results/controller-PART....json, also as far as it got when interrupted (Ctrl-C).

    python benchmarks/controller.py PART [options]      python benchmarks/controller.py PART --help
"""

from __future__ import annotations

import argparse
import inspect
from collections.abc import Callable, Sequence
from typing import Any

from common import RESULTS
from controller_parts import FIXED, batch, default, hostile, limit, noise, own, sweep

PARTS: dict[str, tuple[Callable[[argparse.Namespace], None], dict[str, Any]]] = {
    "default": (default, {"per_category": 10, "rounds": 2, "batch": 1}),
    "hostile": (hostile, {"per_category": 10, "rounds": 1}),
    "sweep": (sweep, {"per_category": 4, "rounds": 1, "config": FIXED}),
    "batch": (batch, {"per_category": 16, "rounds": 2, "sizes": [4, 8]}),
    "noise": (noise, {"per_category": 10, "rounds": 1, "temperature": 0.8}),
    "limit": (limit, {"per_category": 10, "rounds": 1}),
    "own": (own, {"per_category": 2, "batch": 1, "temperature": None, "temperatures": [0.0, 0.8]}),
}

HELP = {
    "per_category": "texts of each category, at most",
    "rounds": "times that everything is gone through, drafters new each time",
    "batch": "texts side by side",
    "sizes": "texts side by side, one run each",
    "config": "fixed configurations",
    "temperature": "sampling temperature",
    "temperatures": "sampling temperatures, one after another",
    "top_p": "nucleus",
    "seed": "of every text",
    "max_tokens": "new tokens of each text",
    "category": "only these categories (chat: Spec-Bench's chat ones)",
}

COMMON: dict[str, Any] = {"temperature": 0.0, "top_p": 1.0, "seed": 1, "max_tokens": 128, "category": []}


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """The options of one part."""
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=raw)
    parts = parser.add_subparsers(dest="part", required=True, metavar="PART")
    for name, (part, defaults) in PARTS.items():
        text = inspect.getdoc(part) or ""
        one = parts.add_parser(name, help=text.splitlines()[0], description=text, formatter_class=raw)
        for option, value in {**COMMON, **defaults}.items():
            if value is None:  # not an option of this part
                continue
            several = isinstance(value, list)
            kind = type(value[0]) if several and value else str if several else type(value)
            about = f"{HELP[option]} (default: {' '.join(map(str, value)) or 'all'})" if several else HELP[option]
            about = about if several else f"{about} (default: {value})"
            flag = f"--{option.replace('_', '-')}"
            one.add_argument(flag, type=kind, default=value, help=about, metavar="X", nargs="+" if several else None)
        about = "start as a new process does: graphs for single widths are compiled once they are worth it"
        one.add_argument("--cold", action="store_true", help=about)
        one.add_argument("--ignore-eos", action="store_true", help="write on past the end of the text")
        one.add_argument("--results", default=str(RESULTS), help="the folder of the results", metavar="DIR")
    return parser.parse_args(arguments)


def main() -> None:
    """Run one part. Exit code 130 after Ctrl-C."""
    arguments = parse()
    arguments.interrupted = False
    try:
        PARTS[arguments.part][0](arguments)
    except KeyboardInterrupt:  # where nothing is interleaved; results are written whenever a piece is done
        arguments.interrupted = True
    raise SystemExit(130 if arguments.interrupted else 0)


if __name__ == "__main__":
    main()
