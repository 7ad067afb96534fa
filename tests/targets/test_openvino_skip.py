"""Sublayers left out of real graphs: found in both kinds of import, nothing else changed, and texts stay to the bit."""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sooner import tree
from sooner.control.fixed import FixedController
from sooner.draft.layerskip import LayerSkipDrafter
from sooner.engine import Engine
from sooner.errors import DraftError, UnsupportedModel
from sooner.store import ModelFiles, resolve
from sooner.targets.openvino import OpenVINOTarget, load
from sooner.targets.openvino.borrow import Borrowed, Borrower
from sooner.targets.openvino.graph import paged_graph
from sooner.targets.openvino.skip import leave_out, residual_branches
from sooner.text import Tokenizer
from sooner.types import Logits, Work

LAYERS = (1.0, 1.0, 0.0, 1.0, 0.03, 1.0)
"""What each layer adds, scaled: layer 2 is an identity, layer 4 nearly one."""

TEXT: list[int] = np.random.default_rng(0).integers(2, 300, 64).tolist()


@dataclass(frozen=True, slots=True)
class Loaded:
    files: ModelFiles
    target: OpenVINOTarget


@pytest.fixture(scope="module", params=["llama", "qwen2"])
def loaded(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Loaded:
    folder = tmp_path_factory.mktemp(request.param)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(Path(__file__).parents[1] / "store"))
        patch.setenv("SOONER_CACHE", str(folder / "cache"))
        write_gguf = importlib.import_module("tiny_gguf").write_gguf
        pre = {"llama": "smollm", "qwen2": "qwen2"}[request.param]
        path = write_gguf(folder / f"{request.param}.gguf", arch=request.param, pre=pre, layers=LAYERS)
        files = resolve(str(path))
        return Loaded(files, load(files))


@pytest.fixture
def target(loaded: Loaded) -> Iterator[OpenVINOTarget]:
    yield loaded.target
    loaded.target.pool.purge()
    assert loaded.target.pool.held == 0


def rows(target: OpenVINOTarget, short: Borrower | None = None, begin: int = 30) -> Logits:
    """The rows of TEXT from ``begin`` on, by the target or by a shortened graph over the target's cache."""
    session = target.open()
    target.score([Work(session, tuple(TEXT[:begin]), logits=False)])
    session.settle(())
    by, one = (target, session) if short is None else (short, short.open(TEXT[:begin]))
    assert len(one.tokens) == begin
    work = Work(one, (TEXT[begin],), tree.chain(TEXT[begin + 1 :], 1.0, "test"))
    found = by.score([work])[0].logits.copy()
    if short is not None:
        short.release()
    session.close()
    return found


def test_every_half_of_every_layer_is_found(target: OpenVINOTarget) -> None:
    assert target.gated().names == tuple(f"{layer}{half}" for layer in range(len(LAYERS)) for half in "am")


@pytest.mark.parametrize("names", [(), ("2a",), ("2m",), ("2a", "2m")])
def test_what_adds_nothing_is_left_out_without_a_trace(target: OpenVINOTarget, names: Sequence[str]) -> None:
    # The identity test: every bit of every row is the target's, so nothing but these sublayers was taken out.
    assert np.array_equal(rows(target), rows(target, target.skipping(names)))


@pytest.mark.parametrize("names", [("1a",), ("3m",), ("0a", "0m", "5a")])
def test_what_adds_something_is_missed(target: OpenVINOTarget, names: Sequence[str]) -> None:
    # The control: the identity test above can fail.
    assert not np.array_equal(rows(target), rows(target, target.skipping(names)))


def test_closed_gates_are_the_same_as_leaving_out(target: OpenVINOTarget) -> None:
    gated = target.gated()
    for names in ((), ("0m", "1a", "3a", "3m")):
        gated.leave_out(names)
        assert np.allclose(rows(target, gated), rows(target, target.skipping(names)), atol=1e-3)


def test_left_out_attention_needs_no_cache_and_the_rest_keeps_its_numbers(loaded: Loaded) -> None:
    import openvino as ov

    graph = paged_graph(ov.Core(), loaded.files.xml)
    leave_out(graph, {"1a", "3a", "3m"})
    caches = {port.any_name for port in graph.inputs if "cache" in port.any_name}
    assert caches == {f"{kind}_cache.{layer}" for kind in ("key", "value") for layer in (0, 2, 4, 5)}


def test_no_cache_of_its_own(target: OpenVINOTarget) -> None:
    short = target.skipping({"1m"})
    held = {name: tensor.data.ctypes.data for name, tensor in target.kv.tensors.items()}
    assert {name: tensor.data.ctypes.data for name, tensor in short.tensors.items()} == held


@pytest.mark.parametrize(
    ("names", "message"),
    [
        ({"6a"}, "no sublayer 6a: its layers are 0 to 5"),
        ({"1a", "17m"}, "made for another model"),
        ({"1b"}, "no sublayer 1b"),
        ({f"{layer}a" for layer in range(6)}, "leave some attention"),
        ({f"{layer}{half}" for layer in range(6) for half in "am"}, "leave some attention"),
    ],
)
def test_bad_skip_sets_are_refused(target: OpenVINOTarget, names: set[str], message: str) -> None:
    with pytest.raises(DraftError, match=message) as caught:
        target.skipping(names)
    assert "\n" not in str(caught.value)


def test_a_graph_without_a_residual_stream_is_refused() -> None:
    import openvino as ov
    from openvino import opset13 as ops

    ids = ops.parameter([-1, 8], np.float32, name="ids")
    model = ov.Model([ops.result(ops.relu(ids))], [ids])
    with pytest.raises(UnsupportedModel, match="could be left out"):
        residual_branches(model)


# -- whole texts ---------------------------------------------------------------------------------------------------

PROMPTS = [TEXT[:20], TEXT[5:38], TEXT[:31], [7, 8, 9], TEXT[20:52]]
CASES: list[dict[str, Any]] = [
    {"skip": "2+4", "batch": 1, "temperature": 0.0},
    {"skip": "0a+3m+5", "batch": 3, "temperature": 0.9, "preempt": 4, "width": 2},
    {"skip": "1-5", "batch": 5, "temperature": 0.0, "preempt": 3, "width": 3},
    {"skip": "4", "batch": 2, "temperature": 0.9, "preempt": 5, "thrifty": True},
]


def answers(loaded: Loaded, drafter: Any, *, pool_check: bool = True, **options: Any) -> list[tuple[Any, ...]]:
    engine = Engine(
        loaded.target,
        Tokenizer.load(loaded.files.folder),
        drafter=drafter,
        controller=FixedController(options.pop("budget", 5)),
        max_running=options.pop("batch", 3),
    )
    preempt = options.pop("preempt", 0)
    options |= {"ignore_eos": True, "logprobs": 0, "seed": 4, "max_tokens": 24}
    handles = [engine.submit(engine.request(prompt, **options)) for prompt in PROMPTS]
    step = 0
    while engine.busy:
        step += 1
        if preempt and step % preempt == 0:
            engine.batch.preempt()
        engine.step()
    assert engine.warning is None
    if pool_check:
        assert loaded.target.pool.held == 0
    return [(c.token_ids, c.logprobs) for c in map(engine.completion, handles)]


def test_texts_are_the_same_to_the_bit_under_every_skip_set(loaded: Loaded) -> None:
    want = {temperature: answers(loaded, None, temperature=temperature) for temperature in (0.0, 0.9)}
    for case in CASES:
        temperature, batch, preempt = case["temperature"], case["batch"], case.get("preempt", 0)
        options: dict[str, Any] = {name: case[name] for name in ("skip", "width", "thrifty") if name in case}
        options = {"max": 4, "thrifty": False} | options
        drafter = LayerSkipDrafter(loaded.target, **options)
        got = answers(loaded, drafter, temperature=temperature, batch=batch, preempt=preempt)
        assert got == want[temperature], f"{case}"


def test_a_borrower_that_writes_over_the_targets_entries_is_caught(
    loaded: Loaded, monkeypatch: pytest.MonkeyPatch
) -> None:
    lawful = Borrowed.sync

    def greedy(session: Borrowed, tokens: Any) -> int:
        kept = lawful(session, tokens)
        del session._tokens[max(kept - 3, 0) :]
        return len(session._tokens)

    want = answers(loaded, None)
    monkeypatch.setattr(Borrowed, "sync", greedy)
    drafter = LayerSkipDrafter(loaded.target, skip="1", max=4, thrifty=False)
    assert answers(loaded, drafter, pool_check=False) != want


def test_identity_layers_cost_no_acceptance(loaded: Loaded) -> None:
    engine = Engine(
        loaded.target,
        Tokenizer.load(loaded.files.folder),
        drafter=LayerSkipDrafter(loaded.target, skip="2", max=4, thrifty=False),
        controller=FixedController(4),
    )
    done = engine.generate(PROMPTS[0], max_tokens=40, ignore_eos=True)
    assert done.speculation.acceptance_rate > 0.95, "one-row passes may differ by a near-tie, no more"


def test_the_more_is_left_out_the_less_memory_is_planned(target: OpenVINOTarget) -> None:
    short, whole = (target.skipping(names).memory for names in ({"1a", "1m", "3m"}, ()))
    assert 0 < short < whole
    assert whole >= target.plan.lane_bytes > 0
