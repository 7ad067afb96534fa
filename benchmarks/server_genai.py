"""OpenVINO GenAI's continuous batching on a model folder, its default scheduler: ``server_genai.py FOLDER``.

Reads a round of work a line, ``{"prompts": [[ids]], "tokens": n, "at_once": n}``, and answers with a line.
"""

from __future__ import annotations

import json
import sys
import time
from typing import Any


def main() -> None:
    import numpy as np
    import openvino
    import openvino_genai

    pipeline = openvino_genai.ContinuousBatchingPipeline(sys.argv[1], openvino_genai.SchedulerConfig(), "CPU")
    print("ready", flush=True)
    for line in sys.stdin:
        work = json.loads(line)
        config = openvino_genai.GenerationConfig()
        config.max_new_tokens, config.ignore_eos, config.do_sample = work["tokens"], True, False
        waiting = [(i, openvino.Tensor(np.array([ids], np.int64))) for i, ids in enumerate(work["prompts"])]
        running: dict[int, Any] = {}
        answers: dict[int, list[int]] = {}
        begin = time.perf_counter()
        while waiting or running:
            while waiting and len(running) < work["at_once"]:
                i, ids = waiting.pop(0)
                running[i] = pipeline.add_request(i, ids, config)
            pipeline.step()
            for i, handle in list(running.items()):
                if handle.get_status() == openvino_genai.GenerationStatus.FINISHED:
                    answers[i] = list(handle.read_all()[0].generated_ids)
                    del running[i]
        seconds = time.perf_counter() - begin
        print(json.dumps({"seconds": seconds, "texts": [answers[i] for i in range(len(answers))]}), flush=True)


if __name__ == "__main__":
    main()
