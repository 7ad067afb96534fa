"""Built-in prompts: varied enough to make a model show how it writes, for users who have no traffic to learn from.

Knows the words in ``templates.json`` and how they become prompts. Does not know any model or benchmark.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from importlib import resources
from typing import Any

__all__ = ["builtin_prompts"]


def builtin_prompts(seed: int = 0) -> Iterator[str]:
    """An endless, reproducible stream of prompts. ``{p}`` in a prompt stands for a passage: the caller fills it with
    a text the model wrote before, or skips the prompt."""
    words: dict[str, Any] = json.loads(resources.files("sooner.train").joinpath("templates.json").read_text("utf-8"))
    rng = random.Random(seed)
    while True:
        kind = rng.random()
        topic, other = rng.sample(words["topics"], 2)
        if kind < 0.45:
            yield rng.choice(words["forms"]).format(t=topic, u=other)
        elif kind < 0.60:
            yield _problem(rng, words)
        elif kind < 0.70:
            task, language = rng.choice(words["code"]), rng.choice(words["languages"])
            yield f"Write a {language} program that {task}."
        elif kind < 0.78:
            yield f"Translate German to English: {' '.join(rng.choice(part) for part in words['german'])}."
        else:
            yield rng.choice(words["over_text"]).replace("{t}", topic)


def _problem(rng: random.Random, words: dict[str, Any]) -> str:
    name, other = rng.sample(words["names"], 2)
    numbers = {"a": rng.randint(2, 60), "b": rng.randint(2, 12), "c": rng.randint(1, 20), "d": rng.randint(60, 900)}
    text: str = rng.choice(words["problems"])
    return text.format(n=name, m=other, x=rng.choice(words["things"]), **numbers)
