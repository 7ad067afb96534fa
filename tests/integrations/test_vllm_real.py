"""The proposer inside a real vLLM: the texts it writes without speculation, side by side, leaving early, sampled.

Run where vLLM is installed: pytest -m vllm tests/integrations/test_vllm_real.py. SOONER_VLLM_MODEL is a Hugging Face
folder; without it the default model is written as one.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from sooner.integrations.vllm import METHOD

pytestmark = [
    pytest.mark.vllm,
    pytest.mark.timeout(1200),
    pytest.mark.skipif(find_spec("vllm") is None, reason="vLLM is not installed here"),
]

QUESTIONS = Path(__file__).parents[3] / "shared" / "data" / "spec_bench" / "question.jsonl"
PROMPTS = 24
MOST = 48
NEAR = 1e-3
"""Of log-probabilities in float32, a margin that rounding may turn."""


@pytest.fixture(scope="module")
def model() -> str:
    named = os.environ.get("SOONER_VLLM_MODEL")
    if named:
        return named
    from sooner.store.default import default_gguf
    from sooner.store.hugging_face import exported

    return str(exported(default_gguf(offline=False, say=print), name="default", source="default", say=print).folder)


@pytest.fixture(scope="module")
def prompts(model: str) -> list[list[int]]:
    from tokenizers import Tokenizer

    core = Tokenizer.from_file(str(Path(model) / "tokenizer.json"))
    if QUESTIONS.is_file():
        lines = QUESTIONS.read_text(encoding="utf-8").splitlines()
        step = len(lines) // (2 * PROMPTS)
        texts = [json.loads(line)["turns"][0] for line in lines[::step]]
    else:
        texts = [f"Count from {i} to {i + 20}, then tell a story about the number {i}." for i in range(PROMPTS)]
    found = [core.encode(text, add_special_tokens=False).ids for text in texts]
    return [ids for ids in found if 2 < len(ids) < 700][:PROMPTS]


def rounds(prompts: list[list[int]], temperature: float = 0.0, leaving: tuple[int, ...] = ()) -> dict[str, Any]:
    return {"prompts": prompts, "temperature": temperature, "most": MOST, "leaving": list(leaving)}


def run(model: str, *asked: dict[str, Any], ours: bool, options: Any = None) -> subprocess.CompletedProcess[str]:
    """One vLLM, in a process group that does not outlive the test."""
    speculative = {"method": "custom_class", "model": METHOD, "num_speculative_tokens": 8} if ours else None
    told = {"model": model, "dtype": "float32", "speculative": speculative, "options": options, "rounds": asked}
    process = subprocess.Popen(
        [sys.executable, str(Path(__file__).with_name("vllm_process.py")), json.dumps(told)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        out, err = process.communicate(timeout=900)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
    return subprocess.CompletedProcess(process.args, process.returncode, out, err)


@pytest.fixture(scope="module")
def answered(model: str, prompts: list[list[int]]) -> tuple[list[Any], list[Any]]:
    """Plain vLLM's texts, and ours: all, with some leaving, sampled, all again."""
    some = prompts[:8]
    plain = run(model, rounds(prompts), ours=False)
    assert plain.returncode == 0, plain.stderr[-2000:]
    asked = rounds(prompts), rounds(some, leaving=(1, 4, 7)), rounds(some, 0.8), rounds(prompts)
    ours = run(model, *asked, ours=True)
    assert ours.returncode == 0, ours.stderr[-2000:]
    return json.loads(plain.stdout), json.loads(ours.stdout)


def unexplained(plain: dict[str, Any], ours: dict[str, Any]) -> list[str]:
    """Texts that part where plain vLLM's two likeliest tokens are no near-tie."""
    found = []
    for number, text in ours.items():
        pairs = zip(text["ids"], plain[number]["ids"], strict=True)
        at = next((i for i, (a, b) in enumerate(pairs) if a != b), None)
        if at is not None and plain[number]["margins"][at] > NEAR:
            found.append(f"{number} at {at}: {plain[number]['margins'][at]}")
    return found


def test_greedy_texts_are_those_without_speculation(answered: tuple[list[Any], list[Any]]) -> None:
    (plain,), (all_at_once, leaving, _, again) = answered
    assert len(plain["texts"]) == len(all_at_once["texts"]) == PROMPTS
    for one in (all_at_once, leaving, again):
        assert unexplained(plain["texts"], one["texts"]) == []
    assert again["passes"] < plain["passes"]


def test_the_check_sees_another_text(answered: tuple[list[Any], list[Any]]) -> None:
    """Negative control: one token changed where the model is sure."""
    (plain,), (ours, *_) = answered
    text = json.loads(json.dumps(ours["texts"]))
    sure = max(range(MOST), key=lambda i: plain["texts"]["0"]["margins"][i])
    text["0"]["ids"][sure] += 1
    assert unexplained(plain["texts"], text) != []


def test_who_leaves_is_gone_and_the_sampled_are_whole(answered: tuple[list[Any], list[Any]]) -> None:
    _, (_, leaving, sampled, _) = answered
    assert sorted(leaving["texts"]) == ["0", "2", "3", "5", "6"]
    assert {len(text["ids"]) for text in sampled["texts"].values()} == {MOST}
    assert len(sampled["texts"]) == 8


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"draft": "sufix"}, "unknown drafter 'sufix' (did you mean suffix?)"),
        ({"draft": "kind=model,path=small"}, "drafter model needs a model, and vLLM runs only its own"),
        ({"budget": 9}, "sooner's budget in vLLM must be an integer from 0 to 8, not 9"),
    ],
)
def test_what_is_refused_ends_the_start_with_its_line(options: Any, said: str, model: str) -> None:
    refused = run(model, ours=True, options=options)
    assert refused.returncode != 0
    assert any(said in line for line in refused.stderr.splitlines())
