"""A real vLLM in a process of its own (it allows one engine in a process): requests in, texts and margins out.

    python vllm_process.py JSON     {"model", "dtype", "speculative", "options", "rounds": [...]} to a line of JSON

A round is {"prompts": [ids, ...], "temperature", "most", "leaving": [numbers of those that are aborted in mid-answer]}.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any

__all__ = ["main"]

_AT_ONCE = 8
_ENVIRONMENT = {
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "HF_HUB_OFFLINE": "1",
}


def main() -> None:
    """One engine, all rounds."""
    pipe = os.dup(1)
    os.dup2(2, 1)  # what libraries print is no answer
    os.environ.update(_ENVIRONMENT)
    from vllm import LLM

    asked = json.loads(sys.argv[1])
    engine = LLM(
        model=asked["model"],
        dtype=asked["dtype"],
        max_model_len=1024,
        max_num_seqs=_AT_ONCE,
        enable_prefix_caching=False,
        enforce_eager=True,
        speculative_config=asked["speculative"],
        additional_config={"sooner": asked["options"]} if asked["options"] else {},
        disable_log_stats=True,
    ).llm_engine
    answers = [_round(engine, one) for one in asked["rounds"]]
    os.write(pipe, json.dumps(answers).encode() + b"\n")


def _round(engine: Any, asked: dict[str, Any]) -> dict[str, Any]:
    """Texts ({"ids", "margins"} by number; those that left have none), passes, and what they were left with."""
    from vllm import SamplingParams

    for number, ids in enumerate(asked["prompts"]):
        sampling = SamplingParams(
            temperature=asked["temperature"], max_tokens=asked["most"], logprobs=2, seed=number, ignore_eos=True
        )
        engine.add_request(str(number), {"prompt_token_ids": ids}, sampling)
    texts: dict[str, Any] = {}
    passes = 0
    leaving = {str(number) for number in asked["leaving"]}
    while engine.has_unfinished_requests():
        passes += 1
        for output in engine.step():
            (text,) = output.outputs
            if output.request_id in leaving and len(text.token_ids) > asked["most"] // 2:
                engine.abort_request([output.request_id])
                leaving.discard(output.request_id)
            elif output.finished:
                margins = [_margin(each) for each in text.logprobs]
                texts[output.request_id] = {"ids": list(text.token_ids), "margins": margins}
    return {"texts": texts, "passes": passes}


def _margin(each: Any) -> float:
    best, second = sorted((one.logprob for one in each.values()), reverse=True)[:2]
    return float(best - second)


if __name__ == "__main__":
    main()
