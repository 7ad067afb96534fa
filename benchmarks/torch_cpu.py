"""The torch target against transformers' own `generate` on the processor, in float32, on the default model: plain, its
prompt lookup, its `generate` drafting with `speed_up`, and ours, taken in turns on the same prompts. Writes
benchmarks/results/torch_cpu.json.

    python benchmarks/torch_cpu.py [--per-category 2] [--max-tokens 48] [--categories summarization rag writing]

Needs the extra torch; `make soak`, which has none, passes over it.
"""

from __future__ import annotations

import argparse
import time
from collections import defaultdict
from collections.abc import Callable
from importlib.util import find_spec
from typing import Any

from common import REWRITE_CODE, keep, prompts

import sooner
from sooner.bench.ratio import ratio

Run = Callable[[list[int], int], list[int]]
BASE = "generate"


class Clock:
    """Seconds and passes spent inside the model, so that the rest of a step is known."""

    def __init__(self, target: Any) -> None:
        self.inside = 0.0
        self.passes = 0
        port = target.runner.port
        forward = port.forward

        def timed(*given: Any) -> Any:
            self.passes += 1
            begin = time.perf_counter()
            try:
                return forward(*given)
            finally:
                self.inside += time.perf_counter() - begin

        port.forward = timed


def contestants(engine: sooner.Engine) -> dict[str, Run]:
    """transformers plain, with prompt lookup and drafting in its `generate`, on a model of its own; ours without and
    with drafts."""
    import torch
    from transformers import AutoModelForCausalLM

    from sooner.integrations.transformers import speed_up
    from sooner.store import resolve_folder

    model = AutoModelForCausalLM.from_pretrained(resolve_folder().folder, dtype=torch.float32).eval()
    fast = speed_up(model)
    ends = sorted(engine.codec.eos_ids)

    def theirs(ids: list[int], most: int, generate: Any = model.generate, **options: Any) -> list[int]:
        given = torch.tensor([ids])
        with torch.inference_mode():
            out = generate(
                given,
                attention_mask=torch.ones_like(given),
                max_new_tokens=most,
                do_sample=False,
                eos_token_id=ends,
                pad_token_id=ends[0],
                **options,
            )
        return list(out[0, len(ids) :].tolist())

    def ours(ids: list[int], most: int, **options: Any) -> list[int]:
        return list(engine.generate(ids, temperature=0.0, max_tokens=most, **options).token_ids)

    return {
        BASE: theirs,
        "prompt lookup": lambda ids, most: theirs(ids, most, prompt_lookup_num_tokens=10),
        "speed_up": lambda ids, most: theirs(ids, most, fast.generate),
        "sooner plain": lambda ids, most: ours(ids, most, drafting=False),
        "sooner": ours,
    }


def measure(given: dict[str, list[str]], most: int) -> dict[str, Any]:
    engine = sooner.load(backend="torch", device="cpu", max_running=1)
    clock = Clock(engine.target)
    runs = contestants(engine)
    seconds: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    same: dict[str, list[bool]] = defaultdict(list)
    own_ms, passes = 0.0, 0
    for run in runs.values():
        run(list(engine.request("Hello!").prompt), 8)
    for category, texts in given.items():
        for text in texts:
            ids = list(engine.request(text).prompt)
            results = {}
            for name, run in runs.items():
                clock.inside, clock.passes, begin = 0.0, 0, time.perf_counter()
                results[name] = run(ids, most)
                spent = time.perf_counter() - begin
                seconds[category][name].append(spent / max(len(results[name]), 1))
                if name == "sooner":
                    own_ms += (spent - clock.inside) * 1e3
                    passes += clock.passes
            for name, ids_ in results.items():
                same[name].append(ids_ == results[BASE])
            print(category, {n: f"{s[-1] * 1e3:.1f} ms" for n, s in seconds[category].items()}, flush=True)
    return {
        "categories": {c: figures(times) for c, times in seconds.items()},
        "all": figures({n: [t for times in seconds.values() for t in times[n]] for n in runs}),
        "same_text_as_generate": {name: f"{sum(found)} of {len(found)}" for name, found in same.items()},
        "own_ms_per_step": own_ms / max(passes, 1),
        "fingerprint": dict(engine.fingerprint),
        "max_tokens": most,
    }


def figures(times: dict[str, list[float]]) -> dict[str, Any]:
    """Tokens per second, and how many times as fast as `generate` and as prompt lookup, with intervals."""
    found: dict[str, Any] = {}
    for name, spent in times.items():
        record: dict[str, Any] = {"tokens_per_second": len(spent) / sum(spent)}
        for base in (BASE, "prompt lookup"):
            if name != base:
                r = ratio(times[base], spent)
                record[f"over {base}"] = [r.value, r.low, r.high]
        found[name] = record
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--per-category", type=int, default=2)
    parser.add_argument("--max-tokens", type=int, default=48)
    parser.add_argument("--categories", nargs="*", help="all of Spec-Bench's unless you say otherwise")
    options = parser.parse_args()
    if find_spec("torch") is None or find_spec("transformers") is None:
        print('torch_cpu.py needs pip install "sooner[torch]"; passed over')
        return
    found = prompts(options.per_category)
    given = {name: found[name] for name in options.categories or found if name in found} or {"code": [REWRITE_CODE]}
    result = measure(given, options.max_tokens)
    for name, record in result["all"].items():
        over = {base: f"{v[0]:.2f}x [{v[1]:.2f}, {v[2]:.2f}]" for base, v in record.items() if base.startswith("over")}
        print(f"{name:15} {record['tokens_per_second']:6.1f} tokens/s  {over}")
    print(result["same_text_as_generate"], f"own {result['own_ms_per_step']:.2f} ms a step")
    print(keep("torch_cpu", result))


if __name__ == "__main__":
    main()
