"""The core's figures on the default model: plain speed against OpenVINO GenAI, own time, suffix drafting, memory.

Everything interleaved in one process (A B A B). ``python benchmarks/core.py [genai|own|suffix|passes|memory|all]``
"""

from __future__ import annotations

import argparse
import json
import resource
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from common import REWRITE_CODE, keep, prompts

import sooner
from sooner.bench import Ratio, ratio
from sooner.control.cost import measure_cost
from sooner.engine import Engine
from sooner.targets.openvino import OpenVINOTarget

TOKENS = 128

LANES = (2, 4, 8, 16)


def as_dict(found: Ratio) -> dict[str, Any]:
    return {"ratio": found.value, "low": found.low, "high": found.high, "pairs": found.pairs, "text": str(found)}


def seconds(engine: Engine, prompt: Any, *, drafting: bool, tokens: int = TOKENS, **options: Any) -> tuple[float, Any]:
    """Decoding time after the first token, and the answer."""
    answer = engine.generate(prompt, max_tokens=tokens, ignore_eos=True, drafting=drafting, **options)
    return (answer.timings.total_ms - answer.timings.ttft_ms) / 1e3, answer


def genai(engine: Engine, rounds: int = 8) -> dict[str, Any]:
    """Plain decoding (two-row passes) against `openvino_genai.LLMPipeline`, time per token after the first."""
    import openvino_genai

    from sooner.store import resolve

    pipeline = openvino_genai.LLMPipeline(str(resolve().folder), "CPU")
    config = openvino_genai.GenerationConfig()
    config.max_new_tokens, config.ignore_eos, config.apply_chat_template = TOKENS, True, False
    config.do_sample = False
    texts = [group[0] for name, group in prompts(1).items() if name in ("writing", "qa", "translation", "coding")]
    ours: list[float] = []
    theirs: list[float] = []
    for turn in range(rounds + 1):
        for text in texts:
            mine, _ = seconds(engine, text, drafting=False, raw=True)
            metrics = pipeline.generate([text], config).perf_metrics
            other = metrics.get_tpot().mean * (TOKENS - 1) / 1e3
            if turn:  # the first round warms both up
                ours.append(mine)
                theirs.append(other)
    return {
        "sooner_over_genai_speed": as_dict(ratio(theirs, ours)),
        "sooner_tpot_ms": statistics.median(ours) * 1e3 / (TOKENS - 1),
        "genai_tpot_ms": statistics.median(theirs) * 1e3 / (TOKENS - 1),
    }


def own(engine: Engine) -> dict[str, Any]:
    """Milliseconds per step outside the forward pass, median, batch 1."""
    found: dict[str, Any] = {}
    texts = [group[0] for group in prompts(1).values()]
    for temperature in (0.0, 0.8):
        for drafting in (False, True):
            parts: dict[str, list[float]] = {"draft_ms": [], "verify_ms": [], "overhead_ms": []}
            own_ms: list[float] = []
            for text in texts:
                handle = engine.submit(
                    engine.request(
                        text, temperature=temperature, seed=1, max_tokens=64, ignore_eos=True, drafting=drafting
                    )
                )
                for step in list(engine.follow(handle))[1:]:
                    for name, values in parts.items():
                        values.append(getattr(step, name))
                    own_ms.append(step.draft_ms + step.verify_ms + step.overhead_ms)
            key = f"temperature {temperature}, {'suffix' if drafting else 'plain'}"
            found[key] = {"own_ms": statistics.median(own_ms), "p95_ms": sorted(own_ms)[int(len(own_ms) * 0.95)]}
            found[key] |= {name: statistics.median(values) for name, values in parts.items()}
    return found


def suffix(engine: Engine, rounds: int = 2) -> dict[str, Any]:
    """`suffix` under the controller against plain, greedy; texts asserted identical."""
    found: dict[str, Any] = {}
    kept = ("summarization", "rag", "writing")
    groups = {**{name: texts for name, texts in prompts(5).items() if name in kept}, "rewrite_code": [REWRITE_CODE]}
    for name, texts in groups.items():
        plain: list[float] = []
        drafted: list[float] = []
        lengths: list[float] = []
        for turn in range(rounds + 1):
            for text in texts if name != "rewrite_code" else texts * 3:
                base, want = seconds(engine, text, drafting=False)
                fast, got = seconds(engine, text, drafting=True)
                assert got.token_ids == want.token_ids, f"drafting changed a text of {name}"
                if turn:
                    plain.append(base)
                    drafted.append(fast)
                    lengths.append(got.speculation.acceptance_length)
        found[name] = {**as_dict(ratio(plain, drafted)), "acceptance_length": statistics.mean(lengths)}
        print(name, found[name]["text"], f"acceptance length {found[name]['acceptance_length']:.2f}", flush=True)
    return found


def passes(engine: Engine) -> dict[str, Any]:
    """Milliseconds of steady passes by rows and what a change of width costs on top, without lanes and on them; and
    what a lane takes."""
    target = engine.target
    assert isinstance(target, OpenVINOTarget)
    curve = measure_cost(target, repeats=8)
    before, begin = _private_mb(), time.perf_counter()
    target.lanes.build(LANES)
    built_s, built_mb = time.perf_counter() - begin, _private_mb() - before
    on_lanes = measure_cost(target, repeats=8)
    return {
        "curve": curve.to_dict(),
        "on_lanes": {"ms": {n: on_lanes.ms[on_lanes.rows.index(n)] for n in LANES}, "change_ms": on_lanes.change_ms},
        "lane_mb": built_mb / len(LANES),
        "lane_s": built_s / len(LANES),
    }


def memory(requests: int = 300) -> dict[str, Any]:
    """Peak resident set of `sooner run`, and growth of one engine's over many requests."""
    script = "import resource, sys; from sooner.cli import main\ntry: main()\nfinally: "
    script += "print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, file=sys.stderr)"
    arguments = [sys.executable, "-c", script, "run", "Why is the sky blue?", "--max-tokens", "256"]
    done = subprocess.run(arguments, capture_output=True, text=True, check=False)
    peak = int(done.stderr.split()[-1]) / 1024
    engine = sooner.load()
    texts = [text for group in prompts(4).values() for text in group]
    sizes = []
    for i in range(requests):
        engine.generate(texts[i % len(texts)], max_tokens=24, temperature=0.8, seed=i)
        sizes.append(_resident_mb())
    warm = requests // 3
    return {
        "run_peak_mb": peak,
        "resident_mb_after": {str(i + 1): sizes[i] for i in (0, warm, 2 * warm, requests - 1)},
        "growth_mb_last_two_thirds": sizes[-1] - sizes[warm],
        "peak_mb_of_this_process": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
    }


def _private_mb() -> float:
    """Memory that is this process's own: without the weights' file, which graphs map together."""
    lines = Path("/proc/self/smaps_rollup").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("Anonymous:")) / 1024


def _resident_mb() -> float:
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    return pages * resource.getpagesize() / 2**20


def main() -> None:
    """Run the parts asked for and keep each result."""
    parts = {"genai": genai, "own": own, "suffix": suffix, "passes": passes}
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("part", nargs="?", default="all", choices=[*parts, "memory", "all"])
    part = parser.parse_args().part
    if part in ("memory", "all"):
        found = memory()
        keep("core-memory", found)
        print(json.dumps(found, indent=1))
    if part != "memory":
        for name in parts if part == "all" else [part]:
            # a pass's price is that of the graph of any width; all else is measured as long use gets it
            engine = sooner.load(draft="suffix", max_running=1, warm=name != "passes")
            found = {"fingerprint": dict(engine.fingerprint), **parts[name](engine)}
            keep(f"core-{name}", found)
            print(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
