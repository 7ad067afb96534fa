"""llama.cpp's server on a GGUF file, in whatever environment has xllamacpp: ``server_llamacpp.py FILE PLACES CONTEXT``.

Prints its address and serves until its standard input ends.
"""

from __future__ import annotations

import sys


def main() -> None:
    import xllamacpp

    path, places, context = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    params = xllamacpp.CommonParams()
    params.model.path = path
    params.n_parallel, params.n_ctx = places, places * context
    params.cache_prompt = False  # each round is to read its prompts, as with the others
    server = xllamacpp.Server(params)
    print(server.listening_address, flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    main()
