"""One level of a draft model's candidates on real rows: the K smallest E/q under the coupled draw against K draws
from q without replacement under recursive rejection, at equal rows of both models.

    python benchmarks/draft_pairs.py DRAFT [--model TARGET] [--temperature 0.8] [--keep NAME]
"""

from __future__ import annotations

import argparse
from typing import Any

import numpy as np
from common import keep, prompts

import sooner
from sooner.loading import open_model
from sooner.protocols import Target
from sooner.types import Draft, Work

WIDTHS = (1, 2, 4, 8)


def rows(target: Target, tokens: tuple[int, ...], start: int, temperature: float) -> Any:
    """``[n, V]``: the laws after ``tokens[: start + 1]``, ... at ``temperature``."""
    rest = tokens[start + 1 :]
    n = len(rest)
    session = target.open()
    draft = Draft(rest, tuple(range(-1, n - 1)), (1.0,) * n, ("text",) * n)
    (found,) = target.score([Work(session, tokens[: start + 1], draft)])
    logits = found.logits.astype(np.float64) / temperature
    session.close()
    weights = np.exp(logits - logits.max(axis=1, keepdims=True))
    return weights / weights.sum(axis=1, keepdims=True)


def coupled(p: Any, q: Any, rng: np.random.Generator) -> list[bool]:
    """Whether the target's draw is among the K candidates that the same noise gives, for each K."""
    noise = rng.exponential(size=len(p))
    with np.errstate(divide="ignore"):
        drawn = int((noise / p).argmin())
        order = np.argpartition(noise / q, max(WIDTHS))[: max(WIDTHS)]
        order = order[np.argsort((noise / q)[order])].tolist()
    return [drawn in order[:k] for k in WIDTHS]


def recursive(p: Any, q: Any, rng: np.random.Generator) -> list[float]:
    """The chance that recursive rejection without replacement accepts one of K draws (Jeon et al. 2402.14160)."""
    left, chance, q, p = 1.0, [], q.copy(), p.copy()
    for k in range(1, max(WIDTHS) + 1):
        token = int(rng.choice(len(q), p=q / q.sum()))
        accept = min(1.0, p[token] / q[token])
        left *= 1.0 - accept
        if k in WIDTHS:
            chance.append(1.0 - left)
        if left <= 0.0:
            return [*chance, *[1.0] * (len(WIDTHS) - len(chance))]
        p = np.maximum(p - q, 0.0)
        p /= p.sum() or 1.0
        q[token] = 0.0
        q /= q.sum()
    return chance


def measure(model: str | None, draft: str, temperature: float, tokens: int, draws: int) -> dict[str, Any]:
    engine = sooner.load(model, draft=None, pool_tokens=8192)
    other, _ = open_model(draft)
    rng = np.random.default_rng(0)
    seen: dict[str, list[Any]] = {"coupled": [], "recursive": [], "overlap": []}
    for prompt in [prompt for kept in prompts(1).values() for prompt in kept]:
        request = engine.request(prompt, temperature=temperature, seed=1, max_tokens=tokens)
        answer = engine.generate(list(request.prompt), temperature=temperature, seed=1, max_tokens=tokens)
        text, start = (*request.prompt, *answer.token_ids), len(request.prompt) - 1
        for p, q in zip(
            rows(engine.target, text, start, temperature), rows(other, text, start, temperature), strict=True
        ):
            seen["coupled"].append(np.mean([coupled(p, q, rng) for _ in range(draws)], axis=0))
            seen["recursive"].append(np.mean([recursive(p, q, rng) for _ in range(draws)], axis=0))
            seen["overlap"].append(np.minimum(p, q).sum())
    return {
        "draft": draft.rpartition("/")[2],
        "temperature": temperature,
        "positions": len(seen["overlap"]),
        "draws": draws,
        "overlap": round(float(np.mean(seen["overlap"])), 3),
        **{
            rule: {str(k): round(float(v), 3) for k, v in zip(WIDTHS, np.mean(seen[rule], axis=0), strict=True)}
            for rule in ("coupled", "recursive")
        },
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("draft")
    parser.add_argument("--model")
    parser.add_argument("--temperature", type=float, default=0.8)
    parser.add_argument("--tokens", type=int, default=32)
    parser.add_argument("--draws", type=int, default=8)
    parser.add_argument("--keep")
    options = parser.parse_args()
    result = measure(options.model, options.draft, options.temperature, options.tokens, options.draws)
    print(result)
    if options.keep:
        keep(options.keep, result)


if __name__ == "__main__":
    main()
