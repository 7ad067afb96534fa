"""Drafts for a transformers model you already hold: `python examples/huggingface/transformers_generate.py FOLDER`.

Needs `pip install "sooner[torch]"`. The cells below can be pasted into a notebook as they are.
"""

# %% A model and its tokenizer, as ever
import sys
import time
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, TextStreamer

from sooner.integrations.transformers import speed_up

name = sys.argv[1] if len(sys.argv) > 1 else "HuggingFaceTB/SmolLM2-135M-Instruct"
tokenizer = AutoTokenizer.from_pretrained(name)
model = AutoModelForCausalLM.from_pretrained(name).eval()

# %% One line
fast = speed_up(model, tokenizer)

# %% The same arguments, the same text
question = "Repeat this list and add one more line to it: one apple, two pears, three plums, four figs."
if tokenizer.chat_template:
    inputs = tokenizer.apply_chat_template(
        [{"role": "user", "content": question}], add_generation_prompt=True, return_tensors="pt", return_dict=True
    )
else:
    inputs = tokenizer(question, return_tensors="pt")
inputs = inputs.to(model.device)
options: dict[str, Any] = {"max_new_tokens": 96, "repetition_penalty": 1.05}
answer = fast.generate(**inputs, **options, streamer=TextStreamer(tokenizer, skip_prompt=True))
print(f"\n{fast.last.acceptance_length:.2f} tokens per pass of the model")

# %% As without drafts
times = []
for generate in (model.generate, fast.generate):
    begin = time.perf_counter()
    text = generate(**inputs, **options)
    times.append(time.perf_counter() - begin)
    assert torch.equal(text, answer)
print(f"{times[0] / times[1]:.2f} times as fast")

# %% Sampling: the same seed, the same text
for generate in (model.generate, fast.generate):
    torch.manual_seed(7)
    text = generate(**inputs, **options, do_sample=True, temperature=0.7)
    print(tokenizer.decode(text[0, inputs["input_ids"].shape[1] :], skip_special_tokens=True)[:60])

# %% Code that calls model.generate itself, such as a pipeline
model.generate = fast.generate
