"""Measures a loaded torch target on its device: the shared checks, and ways of scoring that it never uses.

Knows how to score rows against the target's own rule. Does not know requests, drafters or text.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from sooner.targets import probe
from sooner.targets.probe import Comparison, PassCost, Probe, RowVerdict, opened
from sooner.targets.torch.fixed import FixedRunner
from sooner.targets.torch.layout import RowRule
from sooner.targets.torch.runner import Runner
from sooner.targets.torch.target import TorchTarget
from sooner.types import Work

__all__ = ["check_rows", "pass_costs"]


def check_rows(target: TorchTarget, length: int = 600, seed: int = 0) -> RowVerdict:
    """Score ``length`` random tokens in one pass, then the same rows in other ways: some seconds for a small model."""
    probed = Probe(target, min(length, target.context - 16), seed)
    return RowVerdict(probed.lawful(), (_lone_rows(target, probed), _odd_lengths(target, probed)))


def pass_costs(
    target: TorchTarget,
    rows: Sequence[int] = (1, 2, 4, 8, 16),
    sequences: Sequence[int] = (1, 2, 4),
    contexts: Sequence[int] = (256,),
    repeats: int = 4,
) -> list[PassCost]:
    """Median times of passes, interleaved."""
    most = len([*target.slots.live]) + target.slots.free
    return probe.pass_costs(target, rows, [n for n in sequences if n <= most], contexts, repeats)


def _lone_rows(target: TorchTarget, probed: Probe, count: int = 8) -> Comparison:
    """Unlawful: passes over one row, not padded."""
    result = Comparison("passes over 1, not padded")
    with _free(target, RowRule()):
        for place in probed.places(count, 1):
            _one(target, probed, place, result)
    return result


def _odd_lengths(target: TorchTarget, probed: Probe, count: int = 8) -> Comparison:
    """Unlawful: attention over as many positions as there are tokens, not over whole blocks."""
    result = Comparison("attention over odd lengths")
    block = target.kv.block
    with _free(target, target.rule):
        target.kv.block = 1
        try:
            for place in probed.places(count, 1):
                _one(target, probed, place, result)
        finally:
            target.kv.block = block
    return result


@contextmanager
def _free(target: TorchTarget, rule: RowRule) -> Iterator[None]:
    """Passes of ``rule``'s row counts, also where the target's have fixed shapes."""
    own = target.runner
    free = Runner(own.port, own.kv, own.device, rule, own.taps) if isinstance(own, FixedRunner) else own
    before, free.rule, target.runner = own.rule, rule, free
    try:
        yield
    finally:
        own.rule, target.runner = before, own


def _one(target: TorchTarget, probed: Probe, place: int, result: Comparison) -> None:
    with opened(target) as (session,):
        target.score([Work(session, probed.tokens[:place], logits=False)])
        rows = target.score([Work(session, probed.tokens[place : place + 1])])[0].logits
        result.add(rows, probed.reference[place : place + 1])
