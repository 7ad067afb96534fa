"""OpenAI's own client against `sooner serve`: `python examples/openai_client.py [http://127.0.0.1:8000/v1 [KEY]]`.

Without an address it starts a server for itself. `pip install openai` brings the client.
"""

import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from urllib.error import URLError
from urllib.request import urlopen

from openai import OpenAI
from openai.types.chat import ChatCompletionUserMessageParam


@contextmanager
def address() -> Iterator[str]:
    """The server named on the command line, or one on a free port of this machine."""
    if len(sys.argv) > 1:
        yield sys.argv[1]
        return
    command = [sys.executable, "-m", "sooner", "serve", "--port", "0"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as server:
        assert server.stderr is not None
        try:
            base = server.stderr.readline().split()[-1]  # ... listening on http://127.0.0.1:43210
            while not ready(base):
                time.sleep(0.1)
            yield f"{base}/v1"
        finally:
            server.terminate()


def ready(base: str) -> bool:
    """Whether the model is there."""
    try:
        with urlopen(f"{base}/health", timeout=5) as reply:
            return bool(reply.status == 200)
    except URLError:
        return False


with address() as url:
    client = OpenAI(base_url=url, api_key=sys.argv[2] if len(sys.argv) > 2 else "none")
    model = client.models.list().data[0].id
    question: ChatCompletionUserMessageParam = {"role": "user", "content": "List the numbers from one to twelve."}

    # as it is written; the last chunk has the figures
    stream = client.chat.completions.create(
        model=model,
        messages=[question],
        temperature=0,
        max_tokens=48,
        stream=True,
        stream_options={"include_usage": True},
    )
    text = ""
    for chunk in stream:
        if chunk.choices:
            text += chunk.choices[0].delta.content or ""
            print(chunk.choices[0].delta.content or "", end="", flush=True)
        elif chunk.model_extra:
            figures = chunk.model_extra["metrics"]["speculative_decoding"]
            print(f"\n{figures['mean_acceptance_length']:.2f} tokens per drafting pass")

    # the same without drafting: one more parameter, and the same text
    plain = client.chat.completions.create(
        model=model, messages=[question], temperature=0, max_tokens=48, extra_body={"draft": "none"}
    )
    assert plain.choices[0].message.content == text
