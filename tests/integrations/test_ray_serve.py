"""Two replicas on this machine: one text whoever answers, conversations that stay, all figures on one page."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from ray_toy import open_toy

pytestmark = [
    pytest.mark.ray,
    pytest.mark.filterwarnings("default"),  # Ray's own
    pytest.mark.timeout(900),
]
pytest.importorskip("ray.serve", exc_type=ImportError)  # the plain suite collects this file, too

from ray_deployment import Deployment, answer, body, deployed, events  # noqa: E402  # Ray first


@pytest.fixture(scope="module")
def quick() -> Iterator[Deployment]:
    with deployed(2) as deployment:
        yield deployment


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
            assert len(response.headers.get_list("x-request-id")) == 1
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
    page = quick.metrics()
    for name in ("generation_tokens_total", "spec_decode_num_drafts_total", "num_requests_running"):
        lines = [line for line in page if line.startswith(f"sooner:{name}{{")]
        assert len({line.split('replica="')[1].split('"')[0] for line in lines}) == 2, name
