"""Two and three replicas on this machine: one text whoever answers, conversations stay, a death loses nothing."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from ray_toy import open_toy
from sooner.errors import TargetError

pytestmark = [
    pytest.mark.ray,
    pytest.mark.filterwarnings("default"),  # Ray's own
    pytest.mark.timeout(900),
]
pytest.importorskip("ray.serve", exc_type=ImportError)

from ray_deployment import Deployment, answer, body, deployed, events  # noqa: E402  # Ray first


@pytest.fixture(scope="module")
def quick() -> Iterator[Deployment]:
    with deployed(2) as deployment:
        yield deployment


def broken() -> Any:
    raise TargetError("there are no weights here: bring some")


def test_the_paths_of_a_single_server(quick: Deployment) -> None:
    with quick.client() as client:
        assert client.get("/health").json() == {"status": "ok"}
        assert client.get("/v1/models").json()["data"][0]["id"] == "toy"
        assert client.get("/nowhere").status_code == 404
        refused = quick.chat(client, "abc", temperature=-1)
        assert (refused.status_code, refused.json()["error"]["param"]) == (400, "temperature")
        assert client.post("/v1/chat/completions", content=b"{").status_code == 400


def test_the_same_seed_is_the_same_text_whichever_replica_answers(quick: Deployment) -> None:
    texts: dict[str, set[str]] = {}
    with quick.client() as client:
        for user in range(12):  # each may have another replica
            response = quick.chat(client, "abcab", max_tokens=40, user=f"caller {user}")
            texts.setdefault(response.headers["x-sooner-replica"], set()).add(answer(response))
    assert len(texts) == 2
    engine = open_toy()
    from sooner.types import Sampling

    sampling = Sampling(max_tokens=40, seed=1, temperature=1, ignore_eos=True)
    alone = engine.generate([{"role": "user", "content": "abcab"}], sampling)
    assert set.union(*texts.values()) == {alone.text}


def test_a_stream_says_what_the_whole_answer_says(quick: Deployment) -> None:
    with quick.client() as client:
        whole = answer(quick.chat(client, "abc", max_tokens=30))
        with client.stream("POST", "/v1/chat/completions", json=body("abc", max_tokens=30, stream=True)) as response:
            found = list(events(response.iter_lines()))
    assert found[-1] == ("data", "[DONE]")
    assert "".join(value["choices"][0]["delta"].get("content", "") for _, value in found[:-1]) == whole


def test_follow_up_turns_go_where_their_conversation_is(quick: Deployment) -> None:
    def talk(number: int) -> list[str]:
        said = [{"role": "user", "content": "abcdefgh"[number % 8 :] + "ab" * (number // 8)}]
        homes = []
        with quick.client() as client:
            for _ in range(4):
                response = quick.chat(client, said, max_tokens=12)
                homes.append(response.headers["x-sooner-replica"])
                said += [{"role": "assistant", "content": answer(response)}, {"role": "user", "content": "ab"}]
        return homes

    with ThreadPoolExecutor(8) as pool:  # half of what two replicas decode side by side
        talks = list(pool.map(talk, range(24)))
    stayed = sum(home == homes[0] for homes in talks for home in homes[1:])
    assert stayed >= 0.9 * 3 * len(talks)
    assert len({homes[0] for homes in talks}) == 2


def test_metrics_of_all_replicas_under_their_usual_names(quick: Deployment) -> None:
    with quick.client() as client:
        for user in range(8):
            answer(quick.chat(client, "abc", user=str(user)))
        page = client.get("/metrics").text
    for name in ("generation_tokens_total", "spec_decode_num_drafts_total", "num_requests_running"):
        lines = [line for line in page.splitlines() if line.startswith(f"sooner:{name}{{")]
        assert len({line.split('replica="')[1].split('"')[0] for line in lines}) == 2, name


def test_a_replica_that_cannot_start_says_why() -> None:
    from sooner.integrations.ray import app
    from sooner.integrations.ray_cluster import connect
    from sooner.integrations.ray_host import deploy

    connect(2)
    with pytest.raises(TargetError, match="there are no weights here: bring some"):
        deploy(lambda: app(None, broken, cpus=0.1), "127.0.0.1", 0)


@pytest.fixture
def slow() -> Iterator[Deployment]:
    with deployed(3, slow=True) as deployment:
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
    asked = body("abc", max_tokens=3000, stream=True)

    def running() -> bool:
        page = slow.client().get("/metrics").text
        return any(
            line.startswith("sooner:num_requests_running") and not line.endswith(" 0.0") for line in page.split("\n")
        )

    with slow.client() as client, client.stream("POST", "/v1/chat/completions", json=asked) as response:
        next(events(response.iter_lines()))
        assert running()
    slow.until(lambda: not running(), 30)


def test_replicas_come_with_load_and_go_without_losing_a_request() -> None:
    with deployed((1, 2), slow=True, busy_s=1.0, idle_s=5.0) as deployment, deployment.client() as client:
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
