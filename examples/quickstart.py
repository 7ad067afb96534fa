"""The same text with and without drafting: `python examples/quickstart.py ["your question"]`."""

import sys

import sooner

question = sys.argv[1] if len(sys.argv) > 1 else "List the numbers from one to twenty."

engine = sooner.load()
drafted = engine.generate(question, max_tokens=48)
plain = engine.generate(question, max_tokens=48, drafting=False)

print(drafted.text)
print(f"{drafted.speculation.acceptance_length:.2f} tokens per pass, seed {drafted.seed}")
assert drafted.token_ids == plain.token_ids
