"""``sooner train --kind head`` and ``--kind draft``: the steps by which a drafter is fitted, told on the terminal.

Knows options and lines. Does not know how a drafter is made.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from sooner.cli.engine import engine_options, open_engine
from sooner.cli.failures import INTERRUPTED
from sooner.cli.output import say
from sooner.cli.progress import bar, progress

if TYPE_CHECKING:
    from sooner.prompt import Prompt
    from sooner.store import ModelFiles
    from sooner.train.workshop import Workshop

__all__ = ["train_steps"]


def train_steps(
    context: typer.Context, asked: list[tuple[Prompt, str]] | None, name: str, steps: Sequence[str], hours: float
) -> None:
    """Do ``steps`` of making a drafter by the options in ``context``; ``name`` is what its recipe calls the prompts."""
    from sooner.store import resolve
    from sooner.train.workshop import torch_or_say

    given = context.params
    if "fit" in steps or "export" in steps:
        torch_or_say(given["kind"])
    with progress("looking for the model", verbose=given["verbose"]) as messages:
        files = resolve(given["model"], offline=given["offline"], progress=messages)
    shop = _workshop(given, files)
    try:
        if "collect" in steps:
            _collect(context, shop, asked, name)
        if "fit" in steps:
            _fit(shop, hours)
    except KeyboardInterrupt:
        say(f"what was done stays in {shop.folder}: the same command goes on there")
        raise typer.Exit(INTERRUPTED) from None
    if "export" in steps:
        size = shop.export()
        found = shop.kind == "head" and given["out"] is None
        drafter = {"head": "head", "draft": "model"}[shop.kind]
        use = "drafting uses it from now on" if found else f"use it with --draft kind={drafter},path={shop.out}"
        print(f"{shop.out}: {size / 1e6:.1f} MB; {use}", flush=True)
    if "eval" in steps:
        _judge(context, shop)


def _workshop(given: dict[str, Any], files: ModelFiles) -> Workshop:
    from sooner.train.draft_make import DraftWorkshop
    from sooner.train.head_make import HeadWorkshop
    from sooner.train.workshop import cached_out

    out = cached_out(f"{given['kind']}s", files.sha256) if given["out"] is None else Path(given["out"])
    if given["kind"] == "draft":
        return DraftWorkshop(out, files, layers=given["layers"], seed=given["seed"])
    return HeadWorkshop(out, files, seed=given["seed"])


def _collect(context: typer.Context, shop: Workshop, asked: list[tuple[Prompt, str]] | None, name: str) -> None:
    import sooner
    from sooner.train.make import Recipe

    given = context.params
    engine = open_engine(context, engine_options(given), max_running=given["batch"], taps=shop.taps)
    recipe = Recipe(
        prompts=name,
        tokens=given["tokens"],
        max_tokens=given["max_tokens"],
        temperature=given["temperature"],
        seed=given["seed"],
        model=shop.files.sha256,
        sooner=sooner.__version__,
    )
    with bar("collecting", 200) as advance:
        shown = 0

        def tell(what: str, done: int, of: int) -> None:
            nonlocal shown
            reached = min(100, 100 * done // max(of, 1)) + (100 if what == "rows" else 0)
            while shown < reached:
                shown += 1
                advance(f"{done:,} {what}")

        rows = shop.collect(engine, asked, recipe, batch=given["batch"], progress=tell)
    say(f"{rows:,} rows to train on in {shop.folder}")


def _fit(shop: Workshop, hours: float) -> None:
    with bar("fitting", 100) as advance:
        shown = 0

        def tell(fit: Any, judged: Any, share: float) -> None:
            nonlocal shown
            say(f"{fit.seen:,} positions seen, epoch {fit.epoch}: held-out {judged}")
            while shown < min(100, int(100 * share)):
                shown += 1
                advance(f"top-1 {judged.top1[0]:.3f}")

        shop.fit(hours=hours, progress=tell)


def _judge(context: typer.Context, shop: Workshop) -> None:
    given = context.params
    engine = open_engine(context, engine_options(given), max_running=1, taps=shop.taps)
    found = shop.judge(engine, threads=given["threads"])
    print(f"held-out places: {found.places:,}")
    for position, (one, three) in enumerate(zip(found.top1, found.top3, strict=True), 1):
        print(f"position {position}: top-1 {one:.3f}, top-3 {three:.3f}")
    share = found.guess_ms / found.plain_ms
    print(f"a guess takes {found.guess_ms:.2f} ms, {share:.0%} of a plain step ({found.plain_ms:.2f} ms)")
    if found.depth:
        print(f"alone it should be worth {found.speedup:.2f}x at temperature 0, {found.depth} guesses a step")
    else:
        print("alone it should not pay on this machine; beside other drafters it may")
