"""Pairs of a target and a draft model: candidates at equal rows, and the wall-time factor that theory promises.

    python benchmarks/draft_pairs.py DRAFT [--model TARGET] [--temperature 0.8 1.0] [--keep NAME]
    python benchmarks/draft_pairs.py DRAFT --chains 1 2 4 [--model TARGET] [--temperature 0 0.8] [--keep NAME]

The first compares one level of candidates: the K smallest E/q under the coupled draw against K draws from q without
replacement under recursive rejection. The second decodes with chains of g drafts, interleaved with plain decoding, and
compares the factor with (1 - a^(g+1)) / ((1 - a) (g c + v)), theorem 3.8 of 2211.17192, where that v is 1: a is how
often the draft foresees the target's token, at every place of the target's own texts; c is a pass of the draft and v
one of the target over g + 1 rows, in plain passes of the target, measured in turns, between the texts, without the
rest of decoding.

DRAFT is a model, or `without:20,24`: the default model's GGUF file without those layers.
"""

from __future__ import annotations

import argparse
import re
import statistics
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import gguf
import numpy as np
from common import keep, prompts

import sooner
from sooner.bench.ratio import ratio
from sooner.control.fixed import FixedController
from sooner.draft.model import ModelDrafter
from sooner.loading import open_model
from sooner.protocols import Target
from sooner.store.default import default_gguf
from sooner.targets.openvino.target import OpenVINOTarget
from sooner.text import TextCodec
from sooner.types import EMPTY_DRAFT, Draft, Work

WIDTHS = (1, 2, 4, 8)

BEGIN = 3
"""Passes of a text that are not counted: in the first ones both models read the prompt."""

SHORTER = 8
"""The last tokens of a text, which are not counted either."""

ROUNDS = 8
"""Turns in which the cost of passes is measured after a text."""


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


def acceptance(engine: sooner.Engine, other: Target, texts: Sequence[Text], *, temperature: float, draws: int) -> float:
    """How often the draft's first candidate is the target's token, over all places of the target's texts."""
    rng, seen = np.random.default_rng(0), []
    for prompt, answer in texts:
        tokens, start = (*prompt, *answer), len(prompt) - 1
        laws = [rows(model, tokens, start, temperature or 1.0) for model in (engine.target, other)]
        for p, q in zip(*laws, strict=True):
            if temperature:
                seen += [coupled(p, q, rng)[0] for _ in range(draws)]
            else:
                seen.append(p.argmax() == q.argmax())
    return float(np.mean(seen))


Text = tuple[tuple[int, ...], tuple[int, ...]]
"""Prompt and answer."""


def pass_costs(target: Target, draft: Target, known: Sequence[int], g: int) -> tuple[float, float]:
    """Mean ms of a pass of the draft over one token and of the target over it and ``g`` drafts, after ``known``, in
    turns as in decoding: g of the one, then one of the other. With g = 0 the second is a plain step's."""
    tokens, last = tuple(known[:-1]), tuple(known[-1:])
    sessions = {model: model.open(salt=str(g)) for model in (draft, target)}
    for model, session in sessions.items():
        model.score([Work(session, tokens, logits=False)])
    guess = Draft(tuple(known[-1 - i] for i in range(g)), tuple(range(-1, g - 1)), (0.5,) * g, ("cost",) * g)
    times: dict[Target, list[float]] = {draft: [], target: []}
    for round in range(ROUNDS):
        for model, nodes in [(draft, EMPTY_DRAFT)] * g + [(target, guess)]:
            begun = time.perf_counter()
            model.score([Work(sessions[model], last, nodes)])
            if round >= ROUNDS // 4:  # the first ones change shapes and fill caches
                times[model].append(1e3 * (time.perf_counter() - begun))
            sessions[model].settle(())
            sessions[model].sync(tokens)
    for session in sessions.values():
        session.close()
    return statistics.fmean(times[draft] or [0.0]), statistics.fmean(times[target])


class Timed(NamedTuple):
    """A text, and seconds, tokens and passes of its middle: behind the first `BEGIN` passes, before drafts get shorter
    because the text is about to end."""

    text: tuple[int, ...]
    seconds: float = 0.0
    counted: int = 0
    passes: int = 0
    draft_ms: float = 0.0
    score_ms: float = 0.0


def timed(engine: sooner.Engine, prompt: Sequence[int], end: int, **sampling: Any) -> Timed:
    tokens: list[int] = []
    passes: list[tuple[float, int, float, float]] = []
    for step in engine.stream(list(prompt), max_tokens=end, **sampling):
        tokens += step.tokens
        passes.append((time.perf_counter(), len(tokens), step.draft_ms, step.score_ms))
    middle = [entry for entry in passes[BEGIN - 1 : -1] if entry[1] < end - SHORTER]
    if len(middle) < 2:
        return Timed(tuple(tokens))
    seconds, counted = middle[-1][0] - middle[0][0], middle[-1][1] - middle[0][1]
    draft_ms, score_ms = (sum(entry[i] for entry in middle[1:]) for i in (2, 3))
    return Timed(tuple(tokens), seconds, counted, len(middle) - 1, draft_ms, score_ms)


def factor(
    engine: sooner.Engine,
    other: tuple[Target, TextCodec],
    asked: Sequence[tuple[int, ...]],
    chains: Sequence[int],
    *,
    temperature: float,
    tokens: int,
    draws: int,
    ignore_eos: bool,
) -> dict[str, Any]:
    """Measured against predicted factor for chains of every length in ``chains``; texts asserted equal."""
    sampling = {"temperature": temperature, "seed": 1, "ignore_eos": ignore_eos}
    drafter = ModelDrafter(
        "draft",
        open_model=lambda path: other,
        target=engine.target,
        codec=engine.codec,
        max=max(chains),
        width=1,
        thrifty=False,
    )
    for model in (engine.target, other[0]):
        if isinstance(model, OpenVINOTarget):
            model.lanes.build((2, 4, 8))  # as in long use, and not in the middle of a measurement
    found: dict[int, list[Timed]] = {g: [] for g in (0, *chains)}
    texts: list[Text] = []
    costs: dict[int, list[tuple[float, float]]] = {g: [] for g in found}
    order = list(found)
    for number, prompt in enumerate([asked[0], *asked]):  # the first time to warm up
        runs = {}
        for g in order[number % len(order) :] + order[: number % len(order)]:
            engine.drafter, engine.controller = (drafter if g else None), FixedController(g)
            runs[g] = timed(engine, prompt, tokens, **sampling)
            costs[g].append(pass_costs(engine.target, other[0], (*prompt, *runs[g].text), g))
        assert len({run.text for run in runs.values()}) == 1, "a draft changed a text"
        if number and min(run.counted for run in runs.values()) > SHORTER:
            texts.append((prompt, runs[0].text))
            for g, run in runs.items():
                found[g].append(run)
    engine.drafter = None
    if not texts:
        raise SystemExit("no text is long enough: give more --tokens")
    a = acceptance(engine, other[0], texts, temperature=temperature, draws=draws)
    ms = {g: tuple(statistics.fmean(cost[i] for cost in costs[g][1:]) for i in (0, 1)) for g in found}
    chain = [_compared(g, a, ms, found) for g in chains]
    return {
        "temperature": temperature,
        "texts": len(texts),
        "acceptance": round(a, 3),
        "plain_ms": _step_ms(found[0]),
        "chains": chain,
    }


def _step_ms(runs: Sequence[Timed]) -> dict[str, float]:
    """Milliseconds of a step, and what of it went into drafting and into the target's pass, means."""
    passes = sum(run.passes for run in runs)
    parts = {"step": 1e3 * sum(run.seconds for run in runs), "draft": sum(run.draft_ms for run in runs)}
    parts["score"] = sum(run.score_ms for run in runs)
    return {name: round(ms / passes, 2) for name, ms in parts.items()}


def _compared(g: int, a: float, ms: dict[int, tuple[float, ...]], found: dict[int, list[Timed]]) -> dict[str, Any]:
    c, v = ms[g][0] / ms[0][1], ms[g][1] / ms[0][1]
    expected = sum(a**i for i in range(g + 1))
    predicted = expected / (g * c + v)
    plain = [run.seconds for run in found[0]]
    # Passes end at other tokens with drafts than without: compared is the time for as many tokens.
    drafted = [run.seconds * base.counted / run.counted for run, base in zip(found[g], found[0], strict=True)]
    got = ratio(plain, drafted)
    passes, counted = (sum(getattr(run, name) for run in found[g]) for name in ("passes", "counted"))
    return {
        "drafts": g,
        "c": round(c, 3),
        "v": round(v, 3),
        "pass_ms": {"draft": round(ms[g][0], 2), "target": round(ms[g][1], 2), "plain": round(ms[0][1], 2)},
        "in_use_ms": _step_ms(found[g]),
        "tokens_per_pass": round(counted / passes, 3),
        "expected_tokens_per_pass": round(expected, 3),
        "predicted": round(predicted, 3),
        "measured": [round(value, 3) for value in (got.value, got.low, got.high)],
        "measured_to_predicted": round(got.value / predicted, 3),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("draft")
    parser.add_argument("--model")
    parser.add_argument("--temperature", type=float, nargs="+", default=[0.8])
    parser.add_argument("--tokens", type=int, default=24)
    parser.add_argument("--draws", type=int, default=16)
    parser.add_argument("--chains", type=int, nargs="+")
    parser.add_argument("--texts", type=int, default=12)
    parser.add_argument("--prompts", type=Path, help="one a line (default: Spec-Bench)")
    parser.add_argument("--threads", type=int, help="of both models (default: OpenVINO chooses)")
    parser.add_argument("--ignore-eos", action="store_true")
    parser.add_argument("--keep")
    options = parser.parse_args()
    engine = sooner.load(options.model, draft=None, pool_tokens=8192, threads=options.threads)
    with tempfile.TemporaryDirectory() as folder:
        draft = options.draft
        if draft.startswith("without:"):
            layers = [int(layer) for layer in draft.removeprefix("without:").split(",")]
            draft = str(without(layers, Path(folder) / "pruned.gguf"))
        other = open_model(draft, pool_tokens=8192, threads=options.threads)
        runs = []
        for t in options.temperature:
            if options.chains:
                found = factor(
                    engine,
                    other,
                    asked(engine, options.texts, options.prompts),
                    options.chains,
                    temperature=t,
                    tokens=options.tokens,
                    draws=options.draws,
                    ignore_eos=options.ignore_eos,
                )
            else:
                found = measure(engine, other[0], temperature=t, tokens=options.tokens, draws=options.draws)
            runs.append(found)
            print(found, flush=True)
    if options.keep:
        keep(options.keep, {"model": options.model, "draft": options.draft, "threads": options.threads, "runs": runs})


def asked(engine: sooner.Engine, count: int, file: Path | None) -> list[tuple[int, ...]]:
    """Prompts of at most 200 tokens, without a file by turns from every category."""
    texts = file.read_text(encoding="utf-8").splitlines() if file else [q for kept in prompts(2).values() for q in kept]
    found = [engine.request(prompt).prompt for prompt in texts]
    return [prompt for prompt in found if len(prompt) <= 200][:count]


if __name__ == "__main__":
    main()
