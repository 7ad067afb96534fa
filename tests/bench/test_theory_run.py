"""What is measured on a target whose passes take a known time: predictions that must hold, and one that must not."""

from __future__ import annotations

import json
from collections.abc import Sequence

import numpy as np
import pytest
from ticking import TickingTarget, items

from commandline import Joined
from sooner import tree
from sooner.bench.theory_counts import BIGRAM, UNIGRAM
from sooner.bench.theory_record import Acceptance, Length, acceptance, best, lengths
from sooner.bench.theory_run import Lab
from sooner.control.fixed import FixedController
from sooner.draft.one_by_one import OneByOne
from sooner.draft.oracle import OracleDrafter
from sooner.engine import Engine
from sooner.errors import DraftError
from sooner.protocols import Context, Drafter
from sooner.sampling import Processor
from sooner.types import Draft, Sampling, Work
from toy import ToyCodec

LENGTHS = (1, 3, 8)
LEARNED = ["suffix", "ngram", UNIGRAM, BIGRAM]


class Moody(OneByOne):
    """Right for twenty positions, wrong for twenty: the same alpha as a coin, and nothing like it."""

    name = "moody"

    def __init__(self, right: OracleDrafter, wrong: OracleDrafter) -> None:
        self._of = (right, wrong)

    def _propose(self, context: Context) -> Draft:
        position = len(context.tokens) - context.prompt_length
        drafts = [one.propose([context])[0].tokens for one in self._of]
        mixed = [drafts[(position + i) // 20 % 2][i] for i in range(len(drafts[0]))]
        return tree.chain(mixed, 0.5, self.name)


class Known(Lab):
    """A lab with drafters of known chances besides the usual ones."""

    def drafter(self, name: str, length: int) -> Drafter:
        if name in LEARNED:
            return super().drafter(name, length)
        truth = {}
        for item in items(6):
            self._install(None, 0)
            found = [token for _, step in self._decode(item, self.sampling, "truth") for token in step.tokens]
            truth[self.engine.request(item.prompt, self.sampling).prompt] = found
        if name == "coin":
            return OracleDrafter(truth, max=length, rate=0.5, seed=5)
        return Moody(OracleDrafter(truth, max=length), OracleDrafter(truth, max=length, rate=1.0))


def lab(row: float = 0.05, temperature: float = 0.0) -> Known:
    target = TickingTarget(row=row, seed=2)
    engine = Engine(target, ToyCodec(), template=Joined(), controller=FixedController(8), name="toy")
    sampling = Sampling(max_tokens=80, ignore_eos=True, temperature=temperature, seed=4)
    return Known(engine, sampling, items(12)[6:], clock=lambda: target.now)


def measured(names: Sequence[str], **options: float) -> tuple[dict[str, Acceptance], list[Length]]:
    one = lab(**options)
    temperature = one.sampling.temperature
    trails = one.watch(names, items(6), temperature, max(LENGTHS))
    accepted = {name: acceptance(name, temperature, found, LENGTHS) for name, found in trails.items()}
    return accepted, lengths(list(one.sweep(names, LENGTHS, items(6), temperature)), accepted)


@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_a_shadow_foretells_every_step(temperature: float) -> None:
    """What a text bears out of drafts that were never scored is what is kept when they are."""
    _, found = measured(LEARNED, temperature=temperature)
    for one in found:
        assert one.tokens["positions"] == pytest.approx(one.tokens["measured"], rel=1e-9), (one.drafter, one.length)
        assert one.holds("positions"), (one.drafter, one.length, one.speed)


def test_independent_guesses_follow_the_papers_law_and_others_do_not() -> None:
    accepted, found = measured(["coin", "moody"])
    assert accepted["coin"].alpha == pytest.approx(0.5, abs=0.05)
    assert accepted["moody"].alpha == pytest.approx(0.5, abs=0.05)
    assert accepted["coin"].repeats == pytest.approx(1.0, abs=0.25)
    assert accepted["moody"].repeats is not None
    assert accepted["moody"].repeats > 5
    assert all(one.holds("priced") for one in found if one.drafter == "coin")
    assert all(one.holds("positions") for one in found)
    assert not all(one.holds("priced") for one in found if one.drafter == "moody"), "the negative control"


def test_the_price_of_rows_decides_the_length() -> None:
    for row, longest in ((0.0, 8), (0.45, 1)):
        _, found = measured(["coin"], row=row)
        (one,) = best(found)
        assert one.length["measured"] == one.length["priced"] == longest
        assert one.length["paper"] == 8, "which takes rows to be free"
        assert all(length.v == pytest.approx(1 + row * length.length, rel=0.1) for length in found)
    _, found = measured(["coin"], row=0.9)
    assert best(found)[0].length["measured"] == 0
    assert best(found)[0].measured["measured"] == 1.0


def test_alpha_is_the_overlap_of_both_laws() -> None:
    one = lab(temperature=0.8)
    sampling, (item,) = one.sampling, items(1)
    (trail,) = one.watch([UNIGRAM], [item], 0.8, 1)[UNIGRAM]
    assert (len(trail.tokens), len(trail.chances)) == (80, 78)
    ids, counted = one.counts.law(UNIGRAM, 0)
    q = counted ** (1 / 0.8) / (counted ** (1 / 0.8)).sum()
    prompt = one.engine.request(item.prompt, sampling).prompt
    processor = Processor(sampling, vocab_size=one.engine.target.vocab_size, seed=4)
    for at in (1, 7, 40):
        (rows,) = one.engine.target.score([Work(one.engine.target.open(), (*prompt, *trail.tokens[:at]))])
        p = processor.law(rows.logits[0]).p
        assert trail.chances[at - 1] == pytest.approx(float(np.minimum(p[list(ids)], q).sum()))


def test_counting_needs_texts() -> None:
    one = lab()
    one._training = ()
    with pytest.raises(DraftError, match="at least two prompts"):
        one.watch([BIGRAM], items(1), 0.0, 1)


def test_records_are_json() -> None:
    accepted, found = measured(["suffix"])
    record = json.loads(json.dumps([accepted["suffix"].to_dict(), found[0].to_dict(), best(found)[0].to_dict()]))
    assert record[0]["positions"] == 6 * 78
    assert record[1]["holds"]["positions"] is True
    assert len(accepted["suffix"].kept) == 8
    assert list(accepted["suffix"].kept) == sorted(accepted["suffix"].kept, reverse=True)
