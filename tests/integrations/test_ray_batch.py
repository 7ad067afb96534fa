"""``sooner batch --ray``: the file that one process writes, in its order, also if an actor dies of a line."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from commandline import Toy, invoke
from ray_toy import open_toy
from sooner.completion import Completion
from sooner.engine import Engine
from sooner.errors import TargetError
from sooner.jobs import Answered, Dead, Job
from sooner.types import Sampling

pytestmark = [
    pytest.mark.ray,
    pytest.mark.filterwarnings("default"),  # Ray's own
    pytest.mark.timeout(900),
]
pytest.importorskip("ray.data", exc_type=ImportError)  # the plain suite collects this file, too

from sooner.jobs.ray import Plan, answer_on_ray  # noqa: E402  # Ray first

SAMPLING = Sampling(max_tokens=6, seed=1, temperature=1, ignore_eos=True)
POISON = "hgfedcba"


@pytest.fixture(scope="module", autouse=True)
def cluster() -> Iterator[None]:
    import ray

    from sooner.integrations.ray_cluster import connect

    connect(2)
    yield
    ray.shutdown()


def text(outcome: Answered) -> str:
    """What is sent back; the process dies of one prompt."""
    if outcome.job.prompt == POISON:
        os._exit(1)
    return outcome.completion.text


def same(engine: Engine) -> str:
    return engine.name


def other_each_time(engine: Engine) -> str:
    return str(os.getpid())


def jobs(prompts: list[str]) -> list[Job | Dead]:
    return [Job(number + 1, "", prompt) for number, prompt in enumerate(prompts)]


def alone(prompt: str) -> Completion:
    return open_toy().generate(prompt, SAMPLING)


def test_the_file_of_one_process(tmp_path: Path) -> None:
    prompts = tmp_path / "in.jsonl"
    lines: list[Any] = [{"prompt": "abcdefgh"[i % 8 :] + "ab", "id": f"p{i}"} for i in range(12)]
    prompts.write_text("{broken\n" + "\n".join(map(json.dumps, lines)))
    options = ("--max-tokens", "8", "-t", "0.9", "--seed", "3", "--ignore-eos", "--draft", "suffix")
    found = []
    for name, more in (("here", ()), ("ray", ("--ray", "--replicas", "2"))):
        out = tmp_path / f"{name}.jsonl"
        result = invoke("batch", str(prompts), "-o", str(out), *options, *more, load=Toy())
        assert result.code == 1, result.err
        records = [json.loads(line) for line in out.read_text().splitlines()]
        names = ("line", "id", "text", "finish_reason", "seed", "input", "run")
        found.append([[record[name] for name in names] for record in records])
        dead = out.with_name(f"{name}.errors.jsonl").read_text().splitlines()
        assert [json.loads(line)["line"] for line in dead] == [1]
    assert found[0] == found[1]
    out = tmp_path / "ray.jsonl"
    whole = out.read_text()
    out.write_text("".join(whole.splitlines(keepends=True)[:5]) + '{"line":7,"i')
    again = ("batch", str(prompts), "-o", str(out), *options, "--ray", "--resume")
    assert invoke(*again, load=Toy()).code == 1
    assert [json.loads(line)["text"] for line in out.read_text().splitlines()] == [one[2] for one in found[0]]
    whole = out.read_text()
    assert invoke(*again, load=Toy()).code == 1  # nothing is left to do
    refused = invoke(*again, "--top-k", "3", load=Toy())
    assert (refused.code, "under other options" in refused.err) == (2, True), refused.err
    assert out.read_text() == whole


def test_a_line_that_kills_whoever_answers_it_is_dead_and_its_neighbours_are_not() -> None:
    asked = jobs(["abc", "bcd", POISON, "cde", "def"])
    plan = Plan(open_toy, same, text, SAMPLING)
    outcomes = list(answer_on_ray(plan, asked, replicas=2, cpus=0.5))
    assert [outcome.job for outcome in outcomes] == asked
    dead = [outcome.value for outcome in outcomes if isinstance(outcome.value, Dead)]
    assert [one.line for one in dead] == [3]
    assert "died" in dead[0].reason
    assert [outcome.value for outcome in outcomes if outcome.value not in dead] == [
        alone(prompt).text for prompt in ("abc", "bcd", "cde", "def")
    ]


def test_engines_that_would_not_write_the_same_are_refused() -> None:
    plan = Plan(partial(open_toy, slow=True), other_each_time, text, SAMPLING, ahead=1)
    with pytest.raises(TargetError, match="machines of one kind"):
        list(answer_on_ray(plan, jobs(["abc", "bcd"] * 6), replicas=2, cpus=0.5))


def broken() -> Engine:
    raise TargetError("there are no weights here: bring some")


def test_an_engine_that_cannot_start_says_why() -> None:
    with pytest.raises(TargetError, match="there are no weights here: bring some"):
        list(answer_on_ray(Plan(broken, same, text, SAMPLING), jobs(["abc"]), replicas=1))
