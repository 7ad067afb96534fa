"""OpenAI's own client against `sooner serve`: a streamed answer, a predicted one, and what drafting did.

pip install "sooner[serve]" openai
"""

import subprocess
import sys

from openai import OpenAI

COMMAND = [sys.executable, "-m", "sooner", "serve", "--port", "0"]  # port 0: any that is free


def address_of(server: subprocess.Popen[str]) -> str:
    """Where the server listens, once its model is there: both are lines of its log."""
    address = ""
    for line in server.stderr or ():
        address = line.split()[-1] if "listening on" in line else address
        if "is ready" in line:
            return address
    raise SystemExit("the server did not start")


def ask(client: OpenAI) -> None:
    """Two requests."""
    model = client.models.list().data[0].id
    for chunk in client.chat.completions.create(
        model=model,
        messages=[{"role": "user", "content": "Why is the sky blue? One sentence."}],
        temperature=0,
        max_tokens=40,
        stream=True,
    ):
        print(chunk.choices[0].delta.content or "", end="", flush=True)
    print()

    code = "def mean(values):\n    return sum(values) / len(values)\n"
    answer = client.chat.completions.create(
        model=model,
        messages=[{"role": "user", "content": f"Repeat this code:\n\n{code}"}],
        temperature=0,
        max_tokens=40,
        prediction={"type": "content", "content": code},
    )
    print((answer.model_extra or {})["metrics"]["speculative_decoding"])


with subprocess.Popen(COMMAND, stderr=subprocess.PIPE, text=True, encoding="utf-8") as server:
    try:
        with OpenAI(api_key="none", base_url=f"{address_of(server)}/v1") as client:
            ask(client)
    finally:
        server.terminate()
