"""llama.cpp's own HTTP server from the prebuilt wheel, for machines where `llama-server` could not be compiled.

.bench/envs/llama/bin/python bench/llama_server.py FILE.gguf PORT STREAMS CONTEXT [MMPROJ.gguf]

Variables of the environment: `LLAMA_THREADS`, the number of threads, of which one is fastest on busy cores, since several
wait for each other at every step; `LLAMA_DRAFT_MODEL`, the file of a draft model (`-md`); `LLAMA_SYNTH_RATES`, the
probabilities with which the first, the second, … token of a draft is accepted (`--spec-synth-rates`).
"""

import argparse
import os
import signal
from typing import Any

import xllamacpp


def serve_model(file: str, port: int, streams: int, context: int, projector: str) -> None:
    """Serves until SIGTERM or SIGINT."""
    params: Any = xllamacpp.CommonParams()
    params.model.path = file
    params.hostnames, params.port = ["127.0.0.1"], port
    params.n_parallel, params.n_ctx = streams, context
    params.sampling.top_k, params.sampling.top_p, params.sampling.min_p = 0, 1.0, 0.0
    params.use_jinja = True
    if threads := os.environ.get("LLAMA_THREADS"):
        params.cpuparams.n_threads = params.cpuparams_batch.n_threads = int(threads)
    if draft := os.environ.get("LLAMA_DRAFT_MODEL"):
        params.speculative.types = [xllamacpp.common_speculative_type.COMMON_SPECULATIVE_TYPE_DRAFT_SIMPLE]
        params.speculative.draft.mparams.path = draft
        params.speculative.draft.cpuparams.n_threads = params.cpuparams.n_threads
        params.speculative.draft.cpuparams_batch.n_threads = params.cpuparams.n_threads
        rates = os.environ.get("LLAMA_SYNTH_RATES", "")
        params.speculative.synth_rates = [float(rate) for rate in rates.split(",") if rate]
    if projector:
        params.mmproj.path, params.mmproj_use_gpu = projector, False
    server = xllamacpp.Server(params)
    print("listening on", server.listening_address, flush=True)
    signal.sigwait({signal.SIGTERM, signal.SIGINT})


def main() -> None:
    """Serves what the command line names."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file")
    for name in ("port", "streams", "context"):
        parser.add_argument(name, type=int)
    parser.add_argument("projector", nargs="?", default="")
    serve_model(**vars(parser.parse_args()))


if __name__ == "__main__":
    main()
