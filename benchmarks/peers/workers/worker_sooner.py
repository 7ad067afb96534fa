"""sooner itself, plain and with its default drafters, on the imported model."""

from __future__ import annotations

from itertools import count
from typing import Any

from worker_pipe import Clock, Generate, serve

_ENGINES: list[Any] = []
_SALTS = count()


def load(variant: str, settings: dict[str, Any]) -> Generate:
    """One engine for all variants; every prompt has a salt of its own, so that none finds its prefix cached."""
    import sooner

    if not _ENGINES:  # what long use compiles is compiled before anything is timed, as `sooner bench` does
        model = settings["gguf"] or None
        _ENGINES.append(sooner.load(model, draft="cascade", max_running=1, warm=True, offline=True))
    engine = _ENGINES[0]

    def generate(prompt: list[int], most: int, clock: Clock) -> dict[str, Any]:
        request = engine.request(prompt, max_tokens=most, drafting=variant != "plain", salt=f"peers {next(_SALTS)}")
        handle = engine.submit(request)
        ids: list[int] = []
        while not handle.finished:
            for step in engine.step():
                ids += step.tokens
            clock.tick(len(ids))
        if handle.error is not None:
            raise handle.error
        return {"ids": ids}

    return generate


if __name__ == "__main__":
    serve(load, ["sooner", "openvino"])
