"""sooner's drafters inside vLLM against vLLM's own n-gram method, on summaries and chat, a request at a time, in turns.

    python benchmarks/vllm_proposer.py [options]

Each engine has a process of its own (vLLM allows one in a process): plain, n-gram and, with --suffix, suffix drafting
as its documentation sets them, and sooner's proposer with the default drafters. Each prompt (Spec-Bench's evaluation
ones) goes to all in turns; whoever is not asked is stopped meanwhile. Figures are decoding time per token after the
first piece. The environment is that of `benchmarks/peers/compare.py install vllm`; sooner is put on its path, and
nothing is installed there.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from importlib.metadata import distribution
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import platformdirs
from common import SPEC_BENCH, keep

import sooner
from sooner.bench import ratio
from sooner.bench.summary import ratio_dict
from sooner.bench.workload import Item, for_evaluation, per_category, read_workload
from sooner.chat import ChatTemplate
from sooner.draft.table import packaged_table
from sooner.prompt import make_request
from sooner.store import resolve
from sooner.store.cache import cache_dir
from sooner.store.default import DEFAULT_SHA256, default_gguf
from sooner.text import Tokenizer

sys.path.insert(0, str(Path(__file__).parent / "peers"))
from peers_catalogue import PEERS
from peers_install import expanded, home, obstacle, python_of
from peers_link import Worker

OWN, RIVAL, SUFFIX, PLAIN = "sooner", "ngram", "suffix", "plain"
VLLM = next(peer for peer in PEERS if peer.name == "vllm")
CHAT = ("writing", "roleplay", "reasoning", "math", "coding", "extraction", "stem", "humanities")
"""The categories of MT-Bench."""

WARM_UP = "Count from one to fifty, then from fifty to one."
CONTEXT = 2048


def parse() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--summaries", type=int, default=12, help="prompts of summarization (default: 12)")
    parser.add_argument("--chat", type=int, default=2, help="prompts of each of the 8 chat categories (default: 2)")
    parser.add_argument("--rounds", type=int, default=2, help="how often all is asked (default: 2)")
    parser.add_argument("--max-tokens", type=int, default=128, help="new tokens of each text (default: 128)")
    parser.add_argument("--minutes", type=float, default=8.0, help="begin no prompt after so many (default: 8)")
    parser.add_argument("--threads", type=int, default=1, help="of each engine; vLLM warns of more (default: 1)")
    parser.add_argument("--suffix", action="store_true", help="measure vLLM's suffix method too")
    parser.add_argument("--eager", action="store_true", help="vLLM without compiling: starts sooner, runs slower")
    parser.add_argument("--name", default="vllm-proposer", help="the result's name (default: vllm-proposer)")
    return parser.parse_args()


def prompts(options: argparse.Namespace) -> list[tuple[str, Item]]:
    """(group, prompt) in an order that mixes the groups."""
    found = per_category(for_evaluation(read_workload(str(SPEC_BENCH))), None)
    summaries = [("summarization", item) for item in found["summarization"][: options.summaries]]
    chat = [("chat", item) for name in CHAT for item in found[name][: options.chat]]
    longer, shorter = sorted((summaries, chat), key=len, reverse=True)
    step = len(longer) / max(len(shorter), 1)
    places = [(i, pair) for i, pair in enumerate(longer)] + [(i * step, pair) for i, pair in enumerate(shorter)]
    return [pair for _, pair in sorted(places, key=lambda place: place[0])]


def beside(folder: Path) -> None:
    """What has to be on vLLM's path for sooner to run there: itself with its entry points, and what it needs."""
    record = next(Path(str(distribution("sooner").locate_file(""))).glob("sooner-*.dist-info"))
    for path in (Path(sooner.__file__).parent, record, Path(platformdirs.__file__).parent):
        (folder / path.name).symlink_to(path)


def settings(options: argparse.Namespace, variant: str) -> dict[str, Any]:
    """What a worker is told."""
    folder = expanded(default_gguf(offline=False, say=print))
    told: dict[str, Any] = {"folder": str(folder), "context": CONTEXT, "eager": options.eager, "variants": [variant]}
    table = packaged_table(DEFAULT_SHA256)  # the table was made of these weights, which vLLM reads in another form
    if variant == OWN and table is not None:
        told["additional_config"] = {"sooner": {"draft": ["suffix", "recycle", f"table:path={table}"]}}
    return told


def start(options: argparse.Namespace, path: Path, stack: ExitStack) -> dict[str, Worker]:
    """A worker for each variant."""
    python = python_of(VLLM)
    logs = home() / "logs"
    logs.mkdir(parents=True, exist_ok=True)
    script = Path(__file__).parent / "peers" / "workers" / VLLM.worker
    venv = python.parents[1]
    shared = {name: value.format(venv=venv, threads=options.threads) for name, value in VLLM.environment}
    workers = {}
    for variant in (PLAIN, RIVAL, *([SUFFIX] if options.suffix else []), OWN):
        print(f"starting {variant}", file=sys.stderr, flush=True)
        environment = {**shared, "PYTHONPATH": str(path) if variant == OWN else ""}
        if variant == OWN:
            environment["SOONER_CACHE"] = str(cache_dir())
        log = logs / f"vllm-proposer-{variant}.log"
        worker = stack.enter_context(Worker(python, script, settings(options, variant), log, environment))
        if worker.failed:
            raise SystemExit(f"{variant}: {worker.failed[variant]} (see {log})")
        workers[variant] = worker
    return workers


def measure(options: argparse.Namespace, workers: Mapping[str, Worker]) -> list[dict[str, Any]]:
    """Every prompt to every worker in turns, the first another one each time."""
    files = resolve()
    codec = Tokenizer.load(files.folder, eos_ids=files.eos_ids or None)
    assert files.chat_template is not None
    template = ChatTemplate(files.chat_template, bos_token=codec.bos_token, eos_token=codec.eos_token)

    def ids(text: str) -> list[int]:
        return list(make_request(text, None, {}, codec=codec, template=template).prompt)

    for name, worker in workers.items():
        worker.ask(name, ids(WARM_UP), 128)  # compiles, and prices passes
    begin = time.monotonic()
    records: list[dict[str, Any]] = []
    for turn in range(options.rounds):
        for at, (group, item) in enumerate(prompts(options)):
            if (time.monotonic() - begin) / 60 > options.minutes:
                return records
            prompt = ids(str(item.prompt))
            if len(prompt) + options.max_tokens > CONTEXT:
                continue
            order = list(workers)
            first = (at + turn) % len(order)
            answers = {
                name: workers[name].ask(name, prompt, options.max_tokens) for name in order[first:] + order[:first]
            }
            if all(len(answer["ticks"]) > 1 for answer in answers.values()):
                records.append({"group": group, "id": item.id, "turn": turn, **compared(answers)})
                print(f"{group} {item.id}: {records[-1]['ms_per_token']}", file=sys.stderr, flush=True)
    return records


def compared(answers: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """What is kept of a prompt's answers; ``same_as_plain``: tokens before the first that differs from plain vLLM's."""
    per_token, passes = {}, {}
    for name, answer in answers.items():
        (first, begin), *_, (total, end) = answer["ticks"]
        per_token[name] = round((end - begin) / (total - first) * 1e3, 4)
        passes[name] = len(answer["ticks"])
    plain = answers[PLAIN]["ids"]
    return {
        "tokens": {name: len(answer["ids"]) for name, answer in answers.items()},
        "passes": passes,
        "ms_per_token": per_token,
        "same_as_plain": {name: agreeing(plain, answer["ids"]) for name, answer in answers.items() if name != PLAIN},
    }


def agreeing(a: Sequence[int], b: Sequence[int]) -> int | None:
    """How many first tokens two texts share; None if all are equal."""
    if list(a) == list(b):
        return None
    return next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))


def summary(records: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Speed-ups with intervals over prompts, by group."""
    found: dict[str, Any] = {}
    for group in ("summarization", "chat", "all"):
        of = [record for record in records if group in (record["group"], "all")]
        if not of:
            continue
        names = [name for name in (PLAIN, RIVAL, SUFFIX, OWN) if name in of[0]["ms_per_token"]]
        times = {name: [record["ms_per_token"][name] for record in of] for name in names}
        pairs = [(OWN, name) for name in names if name != OWN] + [(name, PLAIN) for name in names[1:] if name != OWN]
        found[group] = {
            **{f"{a} over {b}": ratio_dict(ratio(times[b], times[a])) for a, b in pairs},
            "tokens_per_pass": {
                name: round(sum(r["tokens"][name] for r in of) / sum(r["passes"][name] for r in of), 3)
                for name in names
            },
            "texts": len(of),
            "texts_as_plain": {
                name: sum(r["same_as_plain"][name] is None for r in of) for name in names if name != PLAIN
            },
        }
    return found


def main() -> None:
    """Measure, keep and print."""
    options = parse()
    if (reason := obstacle(VLLM)) is not None:
        print(f"vLLM is {reason} vllm (in benchmarks/peers); nothing is measured", file=sys.stderr)
        return
    with TemporaryDirectory() as folder, ExitStack() as stack:
        beside(Path(folder))
        workers = start(options, Path(folder), stack)
        versions = dict(workers[OWN].versions)
        try:
            records = measure(options, workers)
        except KeyboardInterrupt:
            raise SystemExit("interrupted, and nothing is kept") from None
    if not records:
        raise SystemExit("no prompt was answered by all: give more --minutes")
    told = {name: getattr(options, name) for name in ("max_tokens", "rounds", "threads", "eager")}
    result: dict[str, Any] = {
        "peer_versions": versions,
        "options": told,
        "summary": summary(records),
        "prompts": records,
    }
    print(keep(options.name, result))
    for group, figures in result["summary"].items():
        print(group, figures)


if __name__ == "__main__":
    main()
