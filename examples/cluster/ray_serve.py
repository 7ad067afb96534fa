"""Two engines behind one address, on Ray on this machine; on a cluster, set RAY_ADDRESS first.

`pip install "sooner[ray]"`, `python examples/cluster/ray_serve.py`: asks both the same question and compares the texts.
"""

import json
import urllib.request
from functools import partial

from sooner.integrations.ray import app
from sooner.integrations.ray_cluster import connect
from sooner.integrations.ray_host import deploy
from sooner.server import Settings

PORT = 8000


def ask(question: str, user: str) -> tuple[str, str]:
    """(Replica, text) of an answer; each user's requests stay on a replica."""
    body = {"messages": [{"role": "user", "content": question}], "max_tokens": 24, "seed": 7, "user": user}
    request = urllib.request.Request(
        f"http://127.0.0.1:{PORT}/v1/chat/completions", json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request) as response:
        return response.headers["x-sooner-replica"], json.load(response)["choices"][0]["message"]["content"]


def main() -> None:
    """Deploy, ask, compare."""
    connect(cpus=2)
    deploy(partial(app, Settings(), replicas=2, cpus=1), "127.0.0.1", PORT)
    found = dict(ask("Name three colours.", f"user {number}") for number in range(8))
    for replica, text in found.items():
        print(f"{replica}: {text!r}")
    assert len(set(found.values())) == 1


if __name__ == "__main__":
    main()
