"""llama.cpp through xllamacpp on the GGUF file itself: plain, and its drafters without a model."""

from __future__ import annotations

from typing import Any

from worker_pipe import Clock, Generate, serve

_TYPES = {
    "ngram-simple": "COMMON_SPECULATIVE_TYPE_NGRAM_SIMPLE",
    "ngram-map-k": "COMMON_SPECULATIVE_TYPE_NGRAM_MAP_K",
    "ngram-mod": "COMMON_SPECULATIVE_TYPE_NGRAM_MOD",
    "ngram-cache": "COMMON_SPECULATIVE_TYPE_NGRAM_CACHE",
}


def load(variant: str, settings: dict[str, Any]) -> Generate:
    """A server of its own (one slot, no prompt cache) for each variant, drafting as its documentation sets it."""
    import xllamacpp

    params = xllamacpp.CommonParams()
    params.model.path = settings["gguf"]
    params.n_ctx, params.n_parallel, params.cache_prompt = settings["context"], 1, False
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = settings["threads"]
    if variant in _TYPES:
        params.speculative.types = [getattr(xllamacpp.common_speculative_type, _TYPES[variant])]
    server = xllamacpp.Server(params)

    def generate(prompt: list[int], most: int, clock: Clock) -> dict[str, Any]:
        pieces: list[str] = []
        last: dict[str, Any] = {}

        def piece(chunk: dict[str, Any]) -> None:
            if "error" in chunk:
                raise RuntimeError(str(chunk["error"])[:200])
            text = chunk["choices"][0]["text"]
            if text:
                pieces.append(text)
                clock.tick(len(pieces))
            last.update(chunk)

        request = {"prompt": prompt, "max_tokens": most, "temperature": 0, "stream": True, "cache_prompt": False}
        server.handle_completions(request, piece)
        timings = last["timings"]
        first, spent = timings["prompt_ms"] / 1e3, timings["predicted_ms"] / 1e3
        total = timings["predicted_n"]
        clock.ticks = [(1, first), (total, first + spent)] if total > 1 else [(1, first)]
        return {"text": "".join(pieces), "count": total}

    return generate


if __name__ == "__main__":
    serve(load, ["xllamacpp"])
