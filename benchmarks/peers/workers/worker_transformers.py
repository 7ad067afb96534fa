"""Hugging Face transformers on the same weights, expanded to float32: plain, prompt lookup, and assisted generation
with the model's own first layers as the assistant (no smaller model of this vocabulary is at hand)."""

from __future__ import annotations

from typing import Any

from worker_pipe import Clock, Generate, serve

_MODELS: list[Any] = []

_OPTIONS: dict[str, dict[str, Any]] = {
    "plain": {},
    "prompt lookup": {"prompt_lookup_num_tokens": 10, "max_matching_ngram_size": 2},
    "assisted, early exit": {"num_assistant_tokens": 5},
}


def load(variant: str, settings: dict[str, Any]) -> Generate:
    """One model for all variants; float32 is the quickest of its types on processors without matrix units."""
    import torch
    from transformers import AutoModelForCausalLM
    from transformers.generation import BaseStreamer

    class Ticker(BaseStreamer):  # type: ignore[misc]  # not in the environment that is checked
        def __init__(self, clock: Clock) -> None:
            self.clock = clock
            self.count: int | None = None

        def put(self, value: Any) -> None:
            if self.count is None:  # the prompt comes first
                self.count = 0
                return
            self.count += value.numel()
            self.clock.tick(self.count)

        def end(self) -> None:
            pass

    if not _MODELS:
        torch.set_num_threads(settings["threads"])
        _MODELS.append(AutoModelForCausalLM.from_pretrained(settings["folder"], dtype=torch.float32).eval())
    model = _MODELS[0]
    options = dict(_OPTIONS[variant])
    if variant.startswith("assisted"):
        options["assistant_early_exit"] = model.config.num_hidden_layers // 2

    def generate(prompt: list[int], most: int, clock: Clock) -> dict[str, Any]:
        ids = torch.tensor([prompt])
        with torch.inference_mode():
            given = {"attention_mask": torch.ones_like(ids), "max_new_tokens": most, "do_sample": False, **options}
            out = model.generate(ids, streamer=Ticker(clock), **given)
        return {"ids": out[0, len(prompt) :].tolist()}

    return generate


if __name__ == "__main__":
    serve(load, ["transformers", "torch"])
