"""A draft model with its target's encoder: read once for both, found by its weights, and told apart from others."""

from __future__ import annotations

import gc
import json
import weakref
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tiny_pair import END, PAIRS, build_pair, prune_pair, with_tokenizer
from tiny_torch import build, open_target

import sooner
from sooner.control.fixed import FixedController
from sooner.draft.model import ModelDrafter
from sooner.engine import Engine
from sooner.errors import DraftError
from toy import ToyCodec

pytestmark = pytest.mark.convert

SOURCES = [[5, 6, 7, 8], [9] * 20, [10, 11, 12, 13, 14, 10, 11, 12]]


@pytest.fixture(scope="module", params=list(PAIRS))
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A model, and a copy of it with one decoder layer."""
    room = tmp_path_factory.mktemp("pairs")
    folder = build_pair(request.param, room / request.param)
    return folder, prune_pair(folder, room / "pruned")


def reads(target: Any) -> Counter[tuple[int, ...]]:
    """Counts what the target's encoder reads from now on."""
    seen: Counter[tuple[int, ...]] = Counter()
    target._runner.port.encoder.register_forward_pre_hook(
        lambda _, given, how: seen.update([tuple(how["input_ids"][0].tolist())]), with_kwargs=True
    )
    return seen


def drafter(target: Any, draft: Any, say: Callable[[str], None] = lambda line: None) -> ModelDrafter:
    return ModelDrafter(
        "draft",
        open_model=lambda _: (draft, ToyCodec()),
        target=target,
        codec=ToyCodec(),
        thrifty=False,
        width=1,
        say=say,
    )


def written(target: Any, drafter: Any, temperature: float = 0.7) -> list[Any]:
    engine = Engine(target, ToyCodec(), drafter=drafter, controller=FixedController(4), max_running=2)
    prompts = [[*source, END, target._first] for source in SOURCES]
    return engine.generate_many(prompts, max_tokens=12, seed=5, temperature=temperature, ignore_eos=True)


def test_a_pruned_copy_reads_no_source(pair: tuple[Path, Path]) -> None:
    target, draft = map(open_target, pair)
    runner, plan = draft._runner, draft.plan
    gone = weakref.ref(runner.port.encoder)
    said: list[str] = []
    with_draft = drafter(target, draft, said.append)
    gc.collect()
    assert gone() is None, "somebody still holds the draft's encoder"
    assert "its encoder is the target's, which reads every source once for both" in said[1]
    assert plan.weights - draft.plan.weights > 0.2 * plan.weights
    seen = reads(target)
    found = written(target, with_draft)
    assert seen == Counter((*source, END) for source in SOURCES), "each source once, for both"
    assert all(one.speculation.drafted for one in found)
    plain = written(open_target(pair[0]), None)
    assert [one.token_ids for one in found] == [one.token_ids for one in plain]


def test_a_twin_that_reads_by_the_targets_encoder_is_always_right(pair: tuple[Path, Path]) -> None:
    target, twin = open_target(pair[0]), open_target(pair[0])
    took = [one.speculation for one in written(target, drafter(target, twin), temperature=0.0)]
    assert sum(one.accepted for one in took) == sum(one.drafted for one in took) > 0


def test_what_the_draft_guesses_is_what_it_guessed_with_its_own_encoder(pair: tuple[Path, Path]) -> None:
    def figures(share: bool) -> list[Any]:
        target, draft = map(open_target, pair)
        if not share:
            target.share_encoder = lambda draft: None
        found = written(target, drafter(target, draft))
        return [(one.token_ids, one.speculation.drafted, one.speculation.accepted) for one in found]

    assert figures(True) == figures(False)


def other_weights(folder: Path, room: Path) -> Path:
    return build_pair("t5", room / "other", seed=1)


def one_bit(folder: Path, room: Path) -> Path:
    """One weight of the encoder off by one unit in the last place."""
    import torch
    import transformers

    model = transformers.AutoModelForSeq2SeqLM.from_pretrained(folder)
    with torch.no_grad():
        weight = model.get_encoder().block[-1].layer[-1].layer_norm.weight
        weight[3] = torch.nextafter(weight[3], torch.tensor(9.0))
    model.save_pretrained(room / "bit")
    return room / "bit"


def another_rule(folder: Path, room: Path) -> Path:
    """The same weights, read by other arithmetic."""
    copy = prune_pair(folder, room / "rule")
    config = json.loads((copy / "config.json").read_text())
    (copy / "config.json").write_text(json.dumps({**config, "layer_norm_epsilon": 0.3}))
    return copy


def fewer_layers(folder: Path, room: Path) -> Path:
    return build_pair("t5", room / "fewer", num_layers=1, num_decoder_layers=2)


def another_family(folder: Path, room: Path) -> Path:
    return build_pair("bart", room / "bart")


@pytest.mark.parametrize("make", [other_weights, one_bit, another_rule, fewer_layers, another_family])
def test_other_encoders_stay(tmp_path: Path, make: Callable[[Path, Path], Path]) -> None:
    """Negative controls."""
    folder = build_pair("t5", tmp_path / "t5")
    target, draft = open_target(folder), open_target(make(folder, tmp_path))
    said: list[str] = []
    drafter(target, draft, said.append)
    assert said[1].endswith("its encoder is not the target's, so it reads sources by itself")


def test_one_without_an_encoder_reads_the_source_as_text_and_the_other_way_round_is_refused(tmp_path: Path) -> None:
    target, plain = open_target(build_pair("t5", tmp_path / "t5")), open_target(build("llama", tmp_path / "llama"))
    assert target.share_encoder(plain) is None
    found = written(target, drafter(target, plain))
    assert [one.token_ids for one in found] == [one.token_ids for one in written(target, None)]
    with pytest.raises(DraftError, match="has an encoder for source texts and the target takes none"):
        drafter(plain, target)


def test_every_weight_is_compared_not_what_comes_of_them(tmp_path: Path) -> None:
    """A weight that no probe shows, of a token that the probe's source lacks."""
    import torch
    import transformers

    folder = build_pair("bart", tmp_path / "bart")
    model = transformers.AutoModelForSeq2SeqLM.from_pretrained(folder)
    unseen = open_target(folder)
    with torch.no_grad():
        model.get_encoder().embed_positions.weight[-1] += 1.0
    model.save_pretrained(tmp_path / "position")
    other = open_target(tmp_path / "position")
    assert torch.equal(unseen._runner.spare.states, other._runner.spare.states)
    assert unseen.share_encoder(other) is None


def test_it_shares_on_the_road_that_users_take(tmp_path: Path) -> None:
    folder = with_tokenizer(build_pair("t5", tmp_path / "t5"))
    copy = with_tokenizer(prune_pair(folder, tmp_path / "copy"))
    said: list[str] = []
    engine = sooner.load(
        str(folder), backend="torch", device="cpu", draft=f"kind=model,path={copy}", max_running=2, progress=said.append
    )
    assert any("which reads every source once for both" in line for line in said)
    found = engine.generate("w5 w6 w7", max_tokens=8, ignore_eos=True)
    plain = sooner.load(str(folder), backend="torch", device="cpu", draft=None, max_running=2)
    assert plain.generate("w5 w6 w7", max_tokens=8, ignore_eos=True).text == found.text
