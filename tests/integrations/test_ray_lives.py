"""Replicas that die, come, go, or never start: no request that had not begun is lost, and readers are told."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import pytest

from ray_toy import open_toy
from sooner.engine import Engine
from sooner.errors import TargetError

pytestmark = [
    pytest.mark.ray,
    pytest.mark.filterwarnings("default"),  # Ray's own
    pytest.mark.timeout(900),
]
pytest.importorskip("ray.serve", exc_type=ImportError)  # the plain suite collects this file, too

from ray_deployment import Deployment, answer, body, deployed, events  # noqa: E402  # Ray first

slow_toy = partial(open_toy, slow=True)


@pytest.fixture
def slow() -> Iterator[Deployment]:
    with deployed(3, slow_toy) as deployment:
        yield deployment


def test_a_replica_killed_in_mid_stream(slow: Deployment) -> None:
    """Its readers get an error event and the end; those whose answer had not begun get it from another replica."""
    streams: dict[int, list[tuple[str, Any]]] = {}
    homes: dict[int, str] = {}
    started = threading.Barrier(7)

    def follow(number: int) -> None:
        asked = body("abcdefgh"[number:], max_tokens=300, stream=True)
        with slow.client() as client, client.stream("POST", "/v1/chat/completions", json=asked) as response:
            homes[number] = response.headers["x-sooner-replica"]
            found = events(response.iter_lines())
            streams[number] = [next(found)]
            started.wait(120)
            streams[number] += list(found)

    def wait_for(number: int) -> str:
        with slow.client() as client:
            return answer(slow.chat(client, "abcdefgh"[number:], max_tokens=200))

    with ThreadPoolExecutor(14) as pool:
        followers = [pool.submit(follow, number) for number in range(6)]
        waiters = [pool.submit(wait_for, number) for number in range(6)]
        started.wait(120)
        killed = homes[0]
        slow.kill(killed)
        for follower in followers:
            follower.result(300)
        for waiter in waiters:
            waiter.result(300)
        again = [wait_for(number) for number in range(6)]
    assert [waiter.result() for waiter in waiters] == again
    for number, found in streams.items():
        assert found[-1] == ("data", "[DONE]")
        errors = [value for kind, value in found if kind == "error"]
        assert [one["error"]["code"] for one in errors] == ["replica_lost"] * (homes[number] == killed)
    slow.until(lambda: len(slow.replicas()) == 3)


def test_a_caller_who_leaves_frees_the_replica(slow: Deployment) -> None:
    asked = body("abc", max_tokens=30_000, stream=True)
    with slow.client() as client, client.stream("POST", "/v1/chat/completions", json=asked) as response:
        held = events(response.iter_lines())  # let go of, it would close the connection
        next(held)
        slow.until(slow.running)
    slow.until(lambda: not slow.running())


def test_replicas_come_with_load_and_go_without_losing_a_request() -> None:
    with deployed((1, 2), slow_toy, busy_s=1.0, idle_s=5.0) as deployment, deployment.client() as client:
        answers: list[str] = []
        ending = threading.Event()

        def keep_asking(number: int) -> None:
            while not ending.is_set():
                answers.append(answer(deployment.chat(client, "abcdefgh"[number % 8 :], max_tokens=60)))

        with ThreadPoolExecutor(12) as pool:
            busy: list[Callable[[], object]] = [pool.submit(keep_asking, number).result for number in range(12)]
            try:
                deployment.until(lambda: len(deployment.replicas()) == 2)
            finally:
                ending.set()
            for done in busy:
                done()
        deployment.until(lambda: len(deployment.replicas()) == 1)
        assert answer(deployment.chat(client, "abc"))
    assert len(answers) > 12


def broken() -> Engine:
    raise TargetError("there are no weights here: bring some")


def test_a_replica_that_cannot_start_says_why() -> None:
    with pytest.raises(TargetError, match="there are no weights here: bring some"), deployed(1, broken):
        pass
