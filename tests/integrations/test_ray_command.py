"""``sooner serve --replicas`` as a process: it answers, and ends in order when it is told to."""

from __future__ import annotations

import re
import signal
import subprocess
import sys

import pytest

pytestmark = [pytest.mark.ray, pytest.mark.timeout(900)]
pytest.importorskip("ray.serve", exc_type=ImportError)  # the plain suite collects this file, too

import httpx2  # noqa: E402  # Ray first
from ray_deployment import body, events  # noqa: E402

PROGRAM = """
import sys
from ray_toy import load_slow
from sooner.cli import main
sys.exit(main(["serve", "--replicas", "2", "--port", "0", "--threads", "1", "--drain", "60"], load=load_slow))
"""


def test_a_running_answer_ends_before_the_process_does() -> None:
    process = subprocess.Popen([sys.executable, "-c", PROGRAM], stderr=subprocess.PIPE, text=True, cwd="tests")
    try:
        assert process.stderr is not None
        said = []
        for line in process.stderr:
            said.append(line)
            if " ready, on Ray" in line:
                break
        found = re.search(r"starting on (http://\S+),", "".join(said))
        assert found, said
        asked = body("abc", max_tokens=150, stream=True)
        with (
            httpx2.Client(base_url=found[1], timeout=120) as client,
            client.stream("POST", "/v1/chat/completions", json=asked) as response,
        ):
            answer = events(response.iter_lines())
            first = next(answer)
            process.send_signal(signal.SIGTERM)
            rest = list(answer)
        assert first[0] == "data"
        assert rest[-1] == ("data", "[DONE]")
        assert rest[-2][1]["choices"][0]["finish_reason"] == "length"
        assert process.wait(200) == 0
    finally:
        process.kill()
        process.communicate()
