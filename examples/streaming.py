"""Text as it becomes certain, drafted tokens in brackets: `python examples/streaming.py`."""

import sooner

engine = sooner.load()
prompt = "Write a poem with a refrain."

for step in engine.stream(prompt, max_tokens=32):
    print(step.text, end="", flush=True)
print()

answer = engine.generate(prompt, max_tokens=32)
print("".join(piece if source == "target" else f"[{piece}]" for piece, source in answer.pieces))
