"""llama.cpp's own HTTP server from the prebuilt wheel, for machines where `llama-server` could not be compiled.

.bench/envs/llama/bin/python bench/llama_server.py FILE.gguf PORT STREAMS CONTEXT [MMPROJ.gguf]

`LLAMA_THREADS` is the number of threads. On busy cores one is fastest: several wait for each other at every step.
"""

import os
import signal
import sys
from typing import Any

import xllamacpp


def main(file: str, port: str, streams: str, context: str, projector: str = "") -> None:
    """Serves until SIGTERM or SIGINT."""
    params: Any = xllamacpp.CommonParams()
    params.model.path = file
    params.hostnames, params.port = ["127.0.0.1"], int(port)
    params.n_parallel, params.n_ctx = int(streams), int(context)
    params.sampling.top_k, params.sampling.top_p, params.sampling.min_p = 0, 1.0, 0.0
    params.use_jinja = True
    if threads := os.environ.get("LLAMA_THREADS"):
        params.cpuparams.n_threads = params.cpuparams_batch.n_threads = int(threads)
    if projector:
        params.mmproj.path, params.mmproj_use_gpu = projector, False
    server = xllamacpp.Server(params)
    print("listening on", server.listening_address, flush=True)
    signal.sigwait({signal.SIGTERM, signal.SIGINT})


if __name__ == "__main__":
    main(*sys.argv[1:])
