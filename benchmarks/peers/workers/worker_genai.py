"""OpenVINO GenAI's pipeline on the same imported model: plain, and its prompt lookup as its sample sets it."""

from __future__ import annotations

from typing import Any

from worker_pipe import Clock, Generate, serve


def load(variant: str, settings: dict[str, Any]) -> Generate:
    """A pipeline of its own for each variant: prompt lookup is chosen when it is made."""
    import numpy as np
    import openvino as ov
    import openvino_genai as genai

    class Ticker(genai.StreamerBase):  # type: ignore[misc]  # the package is untyped
        def __init__(self, clock: Clock) -> None:
            super().__init__()
            self.clock = clock
            self.ids: list[int] = []

        def write(self, token: int | list[int]) -> Any:
            self.ids += token if isinstance(token, list) else [token]
            self.clock.tick(len(self.ids))
            return genai.StreamingStatus.RUNNING

        def end(self) -> None:
            pass

    lookup = variant == "prompt lookup"
    scheduler = genai.SchedulerConfig()
    scheduler.enable_prefix_caching = False
    scheduler.cache_size = 1
    chosen = {"prompt_lookup": True} if lookup else {}
    pipe = genai.LLMPipeline(settings["ir"], "CPU", scheduler_config=scheduler, **chosen)

    def generate(prompt: list[int], most: int, clock: Clock) -> dict[str, Any]:
        config = pipe.get_generation_config()
        config.max_new_tokens, config.do_sample = most, False
        if lookup:
            config.num_assistant_tokens, config.max_ngram_size = 5, 3
        ticker = Ticker(clock)
        result = pipe.generate(ov.Tensor(np.array([prompt], dtype=np.int64)), config, ticker)
        return {"ids": [int(token) for token in result.tokens[0]]}

    return generate


if __name__ == "__main__":
    serve(load, ["openvino", "openvino-genai"])
