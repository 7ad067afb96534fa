"""One level of a draft model's candidates on real rows: the K smallest E/q under the coupled draw against K draws
from q without replacement under recursive rejection, at equal rows of both models.

    python benchmarks/draft_pairs.py DRAFT [--model TARGET] [--temperature 0.8 1.0] [--keep NAME]

DRAFT is a model, or `without:20,24`: the default model's GGUF file without those layers.
"""

from __future__ import annotations

import argparse
import re
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from common import keep, prompts

import sooner
from sooner.loading import open_model
from sooner.protocols import Target
from sooner.store.default import default_gguf
from sooner.types import Draft, Work

WIDTHS = (1, 2, 4, 8)


def without(layers: Sequence[int], path: Path) -> Path:
    """The default model without some of its layers, its weights as they are."""
    reader = gguf.GGUFReader(str(default_gguf(offline=False, say=print)))
    count = int(reader.fields["llama.block_count"].contents())
    place = {old: new for new, old in enumerate(i for i in range(count) if i not in layers)}
    writer = gguf.GGUFWriter(str(path), "llama")
    for field in reader.fields.values():
        if field.name.startswith("GGUF.") or field.name == "general.architecture":
            continue
        value: Any = len(place) if field.name == "llama.block_count" else field.contents()
        if field.types[0] == gguf.GGUFValueType.ARRAY:
            writer.add_array(field.name, value)
        else:
            writer.add_key_value(field.name, value, field.types[0])
    for tensor in reader.tensors:
        layer = re.match(r"blk\.(\d+)\.(.*)", tensor.name)
        if layer is None or int(layer[1]) in place:
            name = tensor.name if layer is None else f"blk.{place[int(layer[1])]}.{layer[2]}"
            writer.add_tensor(name, np.ascontiguousarray(tensor.data), raw_dtype=tensor.tensor_type)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


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


def measure(engine: sooner.Engine, other: Target, *, temperature: float, tokens: int, draws: int) -> dict[str, Any]:
    rng = np.random.default_rng(0)
    seen: dict[str, list[Any]] = {"coupled": [], "recursive": [], "overlap": []}
    for prompt in [prompt for kept in prompts(1).values() for prompt in kept]:
        request = engine.request(prompt, temperature=temperature, seed=1, max_tokens=tokens)
        answer = engine.generate(list(request.prompt), temperature=temperature, seed=1, max_tokens=tokens)
        text, start = (*request.prompt, *answer.token_ids), len(request.prompt) - 1
        laws = (rows(model, text, start, temperature) for model in (engine.target, other))
        for p, q in zip(*laws, strict=True):
            seen["coupled"].append(np.mean([coupled(p, q, rng) for _ in range(draws)], axis=0))
            seen["recursive"].append(np.mean([recursive(p, q, rng) for _ in range(draws)], axis=0))
            seen["overlap"].append(np.minimum(p, q).sum())
    means = {rule: np.mean(seen[rule], axis=0) for rule in ("coupled", "recursive")}
    return {
        "temperature": temperature,
        "positions": len(seen["overlap"]),
        "draws": draws,
        "overlap": round(float(np.mean(seen["overlap"])), 3),
        **{
            rule: {str(k): round(float(v), 3) for k, v in zip(WIDTHS, mean, strict=True)}
            for rule, mean in means.items()
        },
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("draft")
    parser.add_argument("--model")
    parser.add_argument("--temperature", type=float, nargs="+", default=[0.8])
    parser.add_argument("--tokens", type=int, default=24)
    parser.add_argument("--draws", type=int, default=16)
    parser.add_argument("--keep")
    options = parser.parse_args()
    engine = sooner.load(options.model, draft=None, pool_tokens=8192)
    with tempfile.TemporaryDirectory() as folder:
        draft = options.draft
        if draft.startswith("without:"):
            layers = [int(layer) for layer in draft.removeprefix("without:").split(",")]
            draft = str(without(layers, Path(folder) / "pruned.gguf"))
        other, _ = open_model(draft)
        runs = []
        for t in options.temperature:
            runs.append(measure(engine, other, temperature=t, tokens=options.tokens, draws=options.draws))
            print(runs[-1], flush=True)
    if options.keep:
        keep(options.keep, {"draft": options.draft, "runs": runs})


if __name__ == "__main__":
    main()
