"""sooner and its peers on the same prompts, in turns, each in its own process and at its own documented settings.

    python benchmarks/peers/compare.py install [PEER ...]     each peer into a virtual environment of its own
    python benchmarks/peers/compare.py run [options]          measure; goes on where an earlier run stopped
    python benchmarks/peers/compare.py table                  what benchmarks/results/peers.json comes to

Every prompt (Spec-Bench's evaluation ones) goes to every variant in turns, A B C ..., greedily; all other processes are
stopped meanwhile. A run can be cut into pieces with --category, --part K/N and --minutes; each piece loads every
peer anew, compares within itself, and adds to the result. A peer that is missing, refuses or dies is told as such.
Environments take about 5 GB in the cache directory, or in the folder that SOONER_PEERS names. pip must find a CPU
build of torch: PIP_EXTRA_INDEX_URL can name an index that has one.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
from peers_catalogue import OWN, PEERS, Peer
from peers_install import expanded, home, install, obstacle, python_of
from peers_link import Worker, WorkerFailed
from peers_result import Result
from peers_table import markdown

from sooner.bench.loops import loop_start
from sooner.bench.workload import Item, for_evaluation, per_category, read_workload
from sooner.chat import ChatTemplate
from sooner.prompt import make_request
from sooner.store import resolve
from sooner.text import Tokenizer

ROOT = Path(__file__).parents[2]
SPEC_BENCH = ROOT.parent / "shared" / "data" / "spec_bench" / "question.jsonl"
RESULT = ROOT / "benchmarks" / "results" / "peers.json"
CONTEXT = 2048
WARM_UP = "Count from one to twenty, then explain the plan of a bench."


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """The command line."""
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=raw)
    commands = parser.add_subparsers(dest="command", required=True)
    some = commands.add_parser("install", help="install peers")
    some.add_argument("peers", nargs="*", help="which (default: all)", metavar="PEER")
    run = commands.add_parser("run", help="measure", formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    run.add_argument("--peers", default="", help="only these, with commas between; sooner is always measured")
    run.add_argument("--category", action="append", default=[], help="only this category; may be given again")
    run.add_argument("--per-category", type=int, default=3, help="prompts of each category, at most")
    run.add_argument("--part", default="1/1", help="the K-th of N parts of the prompts", metavar="K/N")
    run.add_argument("--minutes", type=float, default=0.0, help="begin no prompt after so many (0: no limit)")
    run.add_argument("--max-tokens", type=int, default=128, help="new tokens of each text")
    run.add_argument("--eager", action="store_true", help="vLLM without compiling: starts sooner, runs slower")
    run.add_argument("--model", help="a .gguf file that every peer reads; by default the built-in model")
    run.add_argument("--questions", default=str(SPEC_BENCH), help="the prompts: question.jsonl of Spec-Bench")
    for command in (run, commands.add_parser("table", help="show the result")):
        command.add_argument("--result", type=Path, default=RESULT, help="the file that is added to")
    return parser.parse_args(arguments)


class Run:
    """One piece of a measurement: the workers that could be started, and their turns."""

    def __init__(self, options: argparse.Namespace, stack: ExitStack) -> None:
        self._began = time.monotonic()
        files = resolve(options.model, progress=say)
        gguf = _gguf(options.model)
        self.codec = Tokenizer.load(files.folder, eos_ids=files.eos_ids or None)
        self._template = ChatTemplate(
            files.chat_template, bos_token=self.codec.bos_token, eos_token=self.codec.eos_token
        )
        self.options = options
        self.settings = {
            "ir": str(files.folder),
            "gguf": str(gguf),
            "folder": str(expanded(gguf)),
            "context": CONTEXT,
            "threads": len(os.sched_getaffinity(0)),
            "eager": options.eager,
        }
        told = {"model": files.name, "max_tokens": options.max_tokens, "eager": options.eager}
        self.result = Result(options.result, told)
        self.workers: dict[tuple[str, str], Worker] = {}
        known = {peer.name for peer in PEERS}
        wanted = {OWN, *options.peers.split(",")} if options.peers else known
        if unknown := wanted - known:
            raise SystemExit(f"no peer {', '.join(sorted(unknown))}: there are {', '.join(sorted(known))}")
        for peer in PEERS:
            if peer.name in wanted:
                self._start(peer, stack)

    def prompt_ids(self, text: str) -> list[int]:
        """The prompt as every worker gets it."""
        return list(make_request(text, None, {}, codec=self.codec, template=self._template).prompt)

    def _start(self, peer: Peer, stack: ExitStack) -> None:
        names = [variant.name for variant in peer.variants]
        self.result.describe(peer)
        if (reason := obstacle(peer)) is not None:
            for name in names:
                self.result.trouble(peer.name, name, reason)
            return
        for group in [[name] for name in names] if peer.apart else [names]:
            say(f"starting {peer.name}: {', '.join(group)}")
            log = home() / "logs" / f"{peer.name}-{group[0].replace(' ', '-')}.log"
            log.parent.mkdir(parents=True, exist_ok=True)
            script = Path(__file__).with_name("workers") / peer.worker
            venv, threads = python_of(peer).parents[1], self.settings["threads"]
            environment = {name: value.format(venv=venv, threads=threads) for name, value in peer.environment}
            environment |= {"PYTHONPATH": ""} if peer.name != OWN else {}
            try:
                settings = {**self.settings, "variants": group}
                worker = stack.enter_context(Worker(python_of(peer), script, settings, log, environment))
                for name in worker.ready:
                    worker.ask(name, self.prompt_ids(WARM_UP), 32)
                    self.workers[peer.name, name] = worker
            except WorkerFailed as error:
                for name in group:
                    self.result.trouble(peer.name, name, str(error))
                continue
            self.result.versions(peer.name, worker.versions)
            for name, reason in worker.failed.items():
                self.result.trouble(peer.name, name, reason)

    def measure(self, items: Sequence[Item]) -> None:
        """Each item to each worker in turns, the first of them another one every time."""
        for at, item in enumerate(items):
            minutes = (time.monotonic() - self._began) / 60
            if self.options.minutes and minutes > self.options.minutes:
                say(f"stopped after {minutes:.1f} minutes; {len(items) - at} prompts are left")
                break
            prompt = self.prompt_ids(str(item.prompt))
            if len(prompt) + self.options.max_tokens > CONTEXT:
                continue
            say(f"{at + 1} of {len(items)}: {item.category} {item.id}")
            order = list(self.workers)
            for name in order[at % len(order) :] + order[: at % len(order)]:
                self._turn(name, item, prompt)
            self.result.save()

    def _turn(self, name: tuple[str, str], item: Item, prompt: list[int]) -> None:
        try:
            answer = self.workers[name].ask(name[1], prompt, self.options.max_tokens)
        except WorkerFailed as error:
            say(f"{' '.join(name)}: {error}")
            self.result.trouble(*name, f"failed at {item.category} {item.id}: {error}")
            self.workers.pop(name)
            return
        if answer["ticks"]:
            ids = answer["ids"] if "ids" in answer else self.codec.encode(answer["text"], bos=False)
            self.result.add(name, item, _figures(answer, ids))


def _figures(answer: Mapping[str, Any], ids: Sequence[int]) -> dict[str, Any]:
    """What is kept of an answer: decoding after the first piece, the same before the text falls into a loop, all."""
    ticks = answer["ticks"]
    (first, begin), (total, end) = ticks[0], ticks[-1]
    fresh = max(first, total * loop_start(ids) / max(len(ids), 1))
    until = float(np.interp(fresh, [n for n, _ in ticks], [at for _, at in ticks]))
    text = json.dumps(answer.get("ids", answer.get("text")))
    return {
        "tokens": total - first,
        "seconds": round(end - begin, 5),
        "fresh_tokens": round(fresh - first, 1),
        "fresh_seconds": round(until - begin, 5),
        "whole_tokens": total,
        "whole_seconds": round(answer["seconds"], 5),
        "text": hashlib.sha256(text.encode()).hexdigest()[:12],
    }


def _gguf(model: str | None) -> Path:
    """The file that peers without sooner's import read."""
    if model is None:
        from sooner.store.default import default_gguf

        return default_gguf(offline=False, say=say)
    if not model.endswith(".gguf"):
        raise SystemExit(f"{model} is no .gguf file, the one form of weights that every peer can start from")
    return Path(model).resolve()


def items(options: argparse.Namespace) -> list[Item]:
    """The prompts of this piece."""
    found = per_category(for_evaluation(read_workload(options.questions)), options.per_category)
    if unknown := set(options.category) - set(found):
        raise SystemExit(f"no category {', '.join(sorted(unknown))}: there are {', '.join(found)}")
    part, _, parts = options.part.partition("/")
    wanted = options.category or list(found)
    chosen = [item for name, group in found.items() if name in wanted for item in group]
    return chosen[int(part) - 1 :: int(parts)]


def say(message: str) -> None:
    """To standard error."""
    print(message, file=sys.stderr, flush=True)


def main() -> None:
    """Install, measure or show."""
    options = parse()
    if options.command == "install":
        for peer in PEERS:
            if not options.peers or peer.name in options.peers:
                say(f"installing {peer.name}")
                install(peer)
    if options.command == "run":
        with ExitStack() as stack:
            run = Run(options, stack)
            try:
                run.measure([item for item in items(options) if not run.result.done(item, list(run.workers))])
            except KeyboardInterrupt:
                say("interrupted; whole prompts are kept")
            run.result.save()
    if options.command in ("run", "table"):
        print(markdown(json.loads(options.result.read_text(encoding="utf-8"))))


if __name__ == "__main__":
    main()
