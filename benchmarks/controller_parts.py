"""The parts of the controller's benchmark: what is compared, and what is printed and kept of it.

Knows configurations and results. Does not know the command line.
"""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from common import keep
from controller_figures import NEVER_SLOWER, as_record, between, grouped, interval, judge, limits, regroup, table
from controller_limit import DEPTHS, Clairvoyant, availability
from controller_own import PARTS, quantiles, timed_steps
from controller_runs import Deaf, Truth, Variant, batches, collect, default_drafter, load, texts, turns

from sooner.bench.configuration import PLAIN, Configuration, parse_configuration
from sooner.bench.report import as_json
from sooner.bench.runner import Group, Runner, Sample, group_items
from sooner.bench.summary import Figures
from sooner.draft.cascade import CascadeDrafter
from sooner.draft.oracle import OracleDrafter
from sooner.draft.random import RandomDrafter
from sooner.engine import Engine
from sooner.loading import DEFAULT_DRAFT
from sooner.protocols import Drafter
from sooner.types import Sampling

DEFAULT = parse_configuration(DEFAULT_DRAFT)
FIXED = [f"{DEFAULT_DRAFT}@{n}" for n in (1, 2, 3, 4, 6, 8, 12)] + [f"suffix@{n}" for n in (2, 4, 8, 12)]
"""The fixed configurations that the controller is compared with."""

REGRET, HOSTILE, CONTROLLER_MS = 0.07, 0.03, 0.3

__all__ = ["FIXED", "batch", "default", "hostile", "limit", "noise", "own", "sweep"]

Arguments = argparse.Namespace


def run(
    arguments: Arguments,
    name: str,
    configurations: Sequence[Configuration],
    *,
    engine: Engine | None = None,
    batch: int = 1,
    truth: Truth | None = None,
    groups: Sequence[Group] | None = None,
) -> list[Sample]:
    """Everything in turns, written as it becomes known. Ctrl-C ends it early: ``arguments.interrupted`` says so."""
    engine = engine or load(warm=not arguments.cold)
    runner = Runner(engine, configurations, sampling(arguments))
    if groups is None:
        groups = group_items(texts(arguments.per_category, arguments.category), batch)
    load_average = os.getloadavg()

    def save(samples: Sequence[Sample], interrupted: bool) -> None:
        found = grouped(samples)
        flat = [one for by_name in found.values() for one in by_name.values()]
        result = as_json(
            flat, samples, fingerprint=engine.fingerprint, options=_options(arguments), interrupted=interrupted
        )
        verdicts = _verdicts(found, arguments.temperature, batch)
        loose = [one.name for one in configurations if isinstance(one, Variant) and one.one_row]
        same = not any(one.differing for one in flat if one.configuration not in loose)
        more = {"identical": same, "batch": batch, "load_average": load_average, "limits": verdicts}
        keep(name, {**result, **more}, Path(arguments.results))

    rows = turns(runner, groups, arguments.rounds, truth)
    samples, arguments.interrupted = collect(rows, arguments.rounds * len(groups), save)
    if not samples:
        raise SystemExit("nothing was measured yet")
    return samples


def sampling(arguments: Arguments) -> Sampling:
    return Sampling(
        temperature=arguments.temperature,
        top_p=arguments.top_p,
        max_tokens=arguments.max_tokens,
        seed=arguments.seed,
        ignore_eos=arguments.ignore_eos,
    )


def tag(part: str, arguments: Arguments, batch: int = 1) -> str:
    """The result's name: what differs between runs that are kept side by side."""
    nucleus = f"-p{arguments.top_p:g}" if arguments.top_p < 1.0 else ""
    return f"controller-{part}-t{arguments.temperature:g}{nucleus}" + (f"-batch{batch}" if batch > 1 else "")


def _verdicts(found: Mapping[str, Mapping[str, Figures]], temperature: float, batch: int) -> list[dict[str, Any]]:
    of_default = {group: by_name[DEFAULT.name] for group, by_name in found.items() if DEFAULT.name in by_name}
    return [verdict.to_dict() for verdict in judge(of_default, limits(temperature, batch))]


def print_figures(samples: Sequence[Sample]) -> None:
    """Every group and configuration."""
    rows = []
    for group, by_name in grouped(samples).items():
        for one in by_name.values():
            cells = [f"{group}, {one.configuration}", str(one.texts), f"{one.tokens_per_second:.1f}"]
            cells += [interval(one.ratio), interval(one.fresh), f"{one.acceptance_length:.2f}"]
            rows.append([*cells, f"{one.acceptance_rate:.0%}", f"{one.draft_share:.0%}"])
    head = ("group", "texts", "tokens/s", "speed-up", "before loops", "length", "accepted", "draft share")
    print(table(head, rows), end="\n\n")


def print_limits(samples: Sequence[Sample], temperature: float, batch: int = 1) -> None:
    """The limits beside what was measured."""
    found = {group: by_name[DEFAULT.name] for group, by_name in grouped(samples).items()}
    rows = [verdict.cells() for verdict in judge(found, limits(temperature, batch))]
    print(table(("group", "figure", "at least", "measured", ""), rows), end="\n\n")


def default(arguments: Arguments) -> None:
    """The default set against plain decoding, with the limits.

    About 5 minutes a round with 10 texts a category (83 texts, 2 configurations, 1 to 2 s each).
    """
    samples = run(arguments, tag("default", arguments, arguments.batch), [PLAIN, DEFAULT], batch=arguments.batch)
    print_figures(samples)
    print_limits(samples, arguments.temperature, arguments.batch)


def hostile(arguments: Arguments) -> None:
    """What drafters that are always wrong cost: random tokens, and an oracle that errs at every node.

    Each once among the drafters that sooner calibrates, and once alone as a user's own object would be.
    About 15 minutes a round with 10 texts a category (5 configurations).
    """
    truth: Truth = {}
    wrong = partial(OracleDrafter, truth, max=8, error_at=0)

    def noise(engine: Engine) -> Drafter:
        return RandomDrafter(vocab_size=engine.target.vocab_size)

    hostiles: dict[str, Callable[[Engine], Drafter]] = {
        "random": lambda engine: CascadeDrafter([noise(engine)]),
        "wrong oracle": lambda engine: CascadeDrafter([wrong()]),
        "random, own object": noise,
        "wrong oracle, own object": lambda engine: wrong(),
    }
    variants = [Variant(name, (DEFAULT_DRAFT,), make=make) for name, make in hostiles.items()]
    samples = run(arguments, tag("hostile", arguments), [PLAIN, *variants], truth=truth)
    rows = []
    record = []
    for group, by_name in grouped(samples).items():
        for one in list(by_name.values())[1:]:
            assert one.ratio is not None, "every configuration has the plain one's texts"
            cost, most = 1 / one.ratio.value - 1, 1 / one.ratio.low - 1
            (lower,) = judge({group: one}, ())
            mark = "reached" if cost < HOSTILE else "NOT reached"
            rows.append([f"{group}, {one.configuration}", f"{cost:+.1%}", mark, f"{most:+.1%}", lower.cells()[-1]])
            record.append({"drafter": one.configuration, "cost": cost, "under 3 %": cost < HOSTILE, **lower.to_dict()})
    head = ("group", "cost", f"under {HOSTILE:.0%}", "at most (95 %)", f"lower end at least {NEVER_SLOWER}")
    print(table(head, rows))
    _add(arguments, tag("hostile", arguments), {"costs": record})


def sweep(arguments: Arguments) -> None:
    """Fixed budgets against the controller: the best of each group, and by how much the controller misses it.

    The best of many is flattered by chance: the regret is an upper bound. ``plain`` counts as a budget of 0.
    About 15 minutes a round with 4 texts a category (13 configurations).
    """
    configurations = [PLAIN, DEFAULT, *map(parse_configuration, arguments.config)]
    fixed = [one.name for one in configurations if one is not DEFAULT]
    samples = run(arguments, tag("sweep", arguments), configurations)
    chosen_groups = regroup(samples)

    def regret(group: str, name: str) -> float:
        found = between(chosen_groups[group], DEFAULT.name, name)
        return found.value - 1 if found else 0.0

    widest = list(chosen_groups)[-1]
    one_for_all = max(fixed, key=partial(regret, widest))
    rows = []
    record = {}
    for group in chosen_groups:
        best = max(fixed, key=partial(regret, group))
        found = between(chosen_groups[group], DEFAULT.name, best)
        ours, theirs = (between(chosen_groups[group], PLAIN.name, name) for name in (DEFAULT.name, best))
        record[group] = {"best": best, "regret": regret(group, best), "ratio": as_record(found)}
        mark = "reached" if regret(group, best) <= REGRET else "NOT reached"
        cells = [group, interval(ours), best, interval(theirs), f"{regret(group, best):+.1%}", interval(found)]
        rows.append([*cells, f"{regret(group, one_for_all):+.1%}", mark])
    head = (
        "group",
        "controller",
        "best fixed",
        "its speed-up",
        "regret",
        "as a ratio",
        f"regret of {one_for_all}",
        "7 %",
    )
    print(table(head, rows))
    _add(arguments, tag("sweep", arguments), {"regret": record, "best fixed for all": one_for_all})


def batch(arguments: Arguments) -> None:
    """4 and 8 texts side by side: the default set against plain, and both against plain passes of one row a text.

    The last is quicker and not invariant: the ratio is the price of texts that do not depend on their batch, and
    its texts may differ (counted). "decoding" leaves the prompts' passes out. About 10 minutes a round.
    """
    unguarded = Variant("one row, not invariant", one_row=True)
    engine = load(warm=not arguments.cold)
    controller = engine.controller
    for size in arguments.sizes:
        engine.controller = controller  # a run leaves its last configuration's behind
        groups = batches(texts(arguments.per_category, arguments.category, code=False), size)
        if not groups:
            print(f"no {size} texts of one category: raise --per-category")
            continue
        name = tag("batch", arguments, size)
        samples = run(arguments, name, [PLAIN, DEFAULT, unguarded], engine=engine, batch=size, groups=groups)
        rows = []
        record = {}
        for group, chosen in regroup(samples).items():
            pairs = ((PLAIN, DEFAULT), (unguarded, PLAIN), (unguarded, DEFAULT))
            found = [between(chosen, a.name, b.name, _per_token) for a, b in pairs]
            decoding = between(chosen, PLAIN.name, DEFAULT.name, lambda sample: sample.pass_ms)
            differ = _differing(chosen, unguarded.name)
            rows.append([group, *map(interval, (found[0], decoding, found[1], found[2])), str(differ)])
            ratios = {f"{b.name} over {a.name}": as_record(r) for (a, b), r in zip(pairs, found, strict=True)}
            record[group] = {**ratios, "decoding": as_record(decoding), "texts that differ with one row": differ}
        print(f"{size} texts side by side")
        head = ("group", "default/plain", "decoding", "plain/one row", "default/one row", "texts that differ")
        print(table(head, rows), end="\n\n")
        print_limits(samples, arguments.temperature, size)
        _add(arguments, name, {"ratios": record})
        if arguments.interrupted:
            return


def _per_token(sample: Sample) -> float:
    return sample.seconds / sample.counted


def _differing(samples: Sequence[Sample], name: str) -> int:
    plain = {sample.key: sample.tokens for sample in samples if sample.configuration == PLAIN.name}
    others = [sample for sample in samples if sample.configuration == name]
    return sum(a != b for other in others for a, b in zip(other.tokens, plain[other.key], strict=True))


def noise(arguments: Arguments) -> None:
    """The target's noise known to drafters (ranking by E / q) against ranking by q, at a temperature.

    About 8 minutes a round with 10 texts a category (3 configurations).
    """
    by_q = Variant("ranking by q", (DEFAULT_DRAFT,), make=lambda engine: Deaf(default_drafter(engine)))
    samples = run(arguments, tag("noise", arguments), [PLAIN, DEFAULT, by_q])
    print_figures(samples)
    rows = []
    record = {}
    figures = grouped(samples)
    for group, chosen in regroup(samples).items():
        found = between(chosen, by_q.name, DEFAULT.name)
        lengths = [f"{figures[group][name].acceptance_length:.2f}" for name in (DEFAULT.name, by_q.name)]
        rows.append([group, interval(found), *lengths])
        record[group] = as_record(found)
    print(table(("group", "E/q over q", "length by E/q", "length by q"), rows))
    _add(arguments, tag("noise", arguments), {"E/q over q": record})


def limit(arguments: Arguments) -> None:
    """What could be had: the default candidates under control that never errs, and a drafter that knows the text.

    Then, untimed, how much of each text the default drafters know beforehand, token by token.
    About 12 minutes a round with 10 texts a category (5 configurations).
    """
    truth: Truth = {}
    perfect = Variant(
        "candidates cut to what is right",
        (DEFAULT_DRAFT,),
        make=lambda engine: Clairvoyant(default_drafter(engine), truth),
    )
    oracle = Variant("text known", (DEFAULT_DRAFT,), make=lambda engine: OracleDrafter(truth, max=24, confidence=1.0))
    engine = load(warm=not arguments.cold)
    samples = run(arguments, tag("limit", arguments), [PLAIN, DEFAULT, perfect, oracle], engine=engine, truth=truth)
    print_figures(samples)
    if arguments.interrupted:
        return
    groups = group_items(texts(arguments.per_category, arguments.category), 1)
    known = availability(engine, groups, sampling(arguments))
    rows = []
    for (group, kind, member), one in known.items():
        share = [f"{count / max(one.positions, 1):.0%}" for count in (one.proposed, *one.top, *one.reach)]
        rows.append([f"{group}, {kind}, {member}", str(one.positions), *share, f"{one.tokens_per_pass:.2f}"])
    head = ("group", "tokens", "proposes", "top 1", "top 2", "top 3", *(f">={d}" for d in DEPTHS), "tokens a pass")
    print(table(head, rows))
    records = [{"group": g, "tokens": k, "drafter": m, **one.to_dict()} for (g, k, m), one in known.items()]
    _add(arguments, tag("limit", arguments), {"available": records})


def own(arguments: Arguments) -> None:
    """Milliseconds a step of the controller, the drafters, verifying, the engine's rest and the pass itself.

    About 3 minutes with 2 texts a category (2 temperatures, plain and drafted).
    """
    engine = load(warm=not arguments.cold)
    groups = group_items(texts(arguments.per_category, arguments.category), arguments.batch)
    rows = []
    record: dict[str, dict[str, Any]] = {}
    for temperature in arguments.temperatures:
        arguments.temperature = temperature
        chosen = sampling(arguments)
        timed_steps(engine, groups[:1], chosen, drafting=True)  # warms up
        plain, want = timed_steps(engine, groups, chosen, drafting=False)
        drafted, got = timed_steps(engine, groups, chosen, drafting=True)
        assert got == want, "drafting changed a text"
        for name, found in (("plain", plain), ("default", drafted)):
            figures = {part: quantiles(found[part]) for part in PARTS}
            record[f"temperature {temperature:g}, {name}"] = {"steps": len(found[PARTS[0]]), **figures}
            cells = [f"{figures[part]['median']:.3f} / {figures[part]['p95']:.3f}" for part in PARTS]
            rows.append([f"T={temperature:g}, {name}", str(len(found[PARTS[0]])), *cells])
        median = record[f"temperature {temperature:g}, default"]["controller"]["median"]
        mark = "reached" if median < CONTROLLER_MS else "NOT reached"
        rows.append([f"T={temperature:g}: controller under {CONTROLLER_MS} ms, {mark}", "", *[""] * len(PARTS)])
        result = {"fingerprint": dict(engine.fingerprint), "options": _options(arguments), "ms a step": record}
        keep(f"controller-own-batch{arguments.batch}", result, Path(arguments.results))
    print(table(("median / 95th percentile, ms", "steps", *PARTS), rows))


def _options(arguments: Arguments) -> dict[str, Any]:
    """What was asked, less where it is kept."""
    kept = {key: value for key, value in vars(arguments).items() if isinstance(value, int | float | str | list)}
    return {key: value for key, value in kept.items() if key not in ("results", "interrupted")}


def _add(arguments: Arguments, name: str, more: Mapping[str, Any]) -> None:
    """Put ``more`` into a result that is written."""
    path = Path(arguments.results) / f"{name}.json"
    if path.exists():  # nothing was measured before Ctrl-C
        keep(name, {**json.loads(path.read_text(encoding="utf-8")), **more}, path.parent)
