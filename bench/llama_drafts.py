"""Speed of llama.cpp's draft model (`-md`) at known acceptance: `python -m bench.llama_drafts`.

The counterpart of `bench.drafts`: the same models, in q8_0, on the server of the prebuilt wheel (`bench/llama_server.py`).
llama.cpp accepts each drafted token with a given probability, whatever the model says (`--spec-synth-rates`), so the texts
mean nothing, but the work is that of real drafts. `--acceptance` without numbers accepts what the model says.
Two servers with one thread each, one of them with the draft model, run one greedy stream in turn. Tokens per second of CPU
time are counted from the first token to the last. Printed are medians over rounds.
"""

import argparse
import json
import os
import random
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

import httpx

from bench.drafts import PROMPT_TOKENS
from bench.install import BENCH_DIR, ENVS_DIR, find_script
from bench.random_models import MODELS_DIR, create_model
from bench.server_process import ServerProcess
from bench.stats import format_number, markdown_table, median

PYTHON = ENVS_DIR / "xllamacpp" / "bin" / "python"
MAX_DRAFT_TOKENS = 3
"""llama.cpp's default for the length of a draft."""
TIMEOUT_S = 300.0
CONTEXT_TOKENS = 1024


class LlamaServer(NamedTuple):
    """A running server."""

    process: ServerProcess
    url: str

    def is_healthy(self) -> bool:
        """Tells whether it answers. Fails with the end of its output if it has exited."""
        assert not self.process.has_exited, self.process.tail()
        with suppress(httpx.HTTPError):
            return httpx.get(f"{self.url}/health", timeout=2).status_code == httpx.codes.OK
        return False


@contextmanager
def run_server(model: Path, name: str, **variables: str) -> Iterator[LlamaServer]:
    """Runs a server with one thread on a GGUF file. `variables` are those of `bench/llama_server.py`."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = str(listener.getsockname()[1])
    command = [str(PYTHON), find_script("llama_server"), str(model), port, "1", str(CONTEXT_TOKENS)]
    process = ServerProcess(command, BENCH_DIR / "logs" / f"{name}.log", {"LLAMA_THREADS": "1", **variables})
    server, deadline = LlamaServer(process, f"http://127.0.0.1:{port}"), time.monotonic() + TIMEOUT_S
    try:
        while not server.is_healthy():
            assert time.monotonic() < deadline, "the server did not start"
            time.sleep(0.2)
        yield server
    finally:
        process.terminate()


def run_stream(server: LlamaServer, num_tokens: int) -> tuple[float, dict[str, Any]]:
    """Returns tokens per second of CPU time from the first to the last token, and the server's counts."""
    prompt = random.Random(5).choices(range(1000, 100_000), k=PROMPT_TOKENS)
    body = {"prompt": prompt, "n_predict": num_tokens, "temperature": 0, "ignore_eos": True, "stream": True}
    body |= {"cache_prompt": False, "return_tokens": True}
    started_at_s, early, count, event = 0.0, 0, 0, dict[str, Any]()
    with httpx.stream("POST", f"{server.url}/completion", json=body, timeout=TIMEOUT_S) as reply:
        for line in reply.iter_lines():
            if not line.startswith("data: "):
                continue
            event = json.loads(line.removeprefix("data: "))
            count += 0 if event.get("stop") else len(event.get("tokens", ()))
            if count and not early:
                started_at_s, early = server.process.cpu_seconds(), count
    assert abs(count - num_tokens) <= 1, f"{count} tokens"
    return (count - early) / (server.process.cpu_seconds() - started_at_s), event.get("timings", {})


def measure(model: Path, draft: Path, percent: int | None, options: argparse.Namespace) -> list[str]:
    """Returns a row of the table. `percent` None: the model accepts what it would generate itself."""
    variables = {"LLAMA_DRAFT_MODEL": str(draft)}
    if percent is not None:
        rates = [(percent / 100) ** (place + 1) for place in range(MAX_DRAFT_TOKENS)]
        variables["LLAMA_SYNTH_RATES"] = ",".join(map(str, rates))
    rates_by_round, num_drafted, num_accepted = [], 0, 0
    with run_server(model, "llama-plain") as plain, run_server(model, "llama-drafts", **variables) as drafting:
        for number in range(options.rounds + 1):
            without, _ = run_stream(plain, options.tokens)
            with_drafts, counts = run_stream(drafting, options.tokens)
            if number:  # the first run of a server warms it up
                rates_by_round.append((without, with_drafts))
                num_drafted += counts.get("draft_n", 0)
                num_accepted += counts.get("draft_n_accepted", 0)
    ratios = [with_drafts / without for without, with_drafts in rates_by_round]
    numbers = [
        median([each[0] for each in rates_by_round]),
        median([each[1] for each in rates_by_round]),
        median(ratios),
    ]
    row = ["as generated" if percent is None else f"{percent} %", *map(format_number, numbers)]
    row.append(f"{min(ratios):.2f} to {max(ratios):.2f}")
    print(" | ".join(row), f"| accepted {num_accepted} of {num_drafted}", flush=True)
    return row


def convert_model(name: str) -> Path:
    """Returns a model as a file in q8_0. Writes it if it does not exist."""
    file = MODELS_DIR / f"{name}-q8_0.gguf"
    if not file.exists():
        subprocess.run([PYTHON, find_script("gguf_file"), create_model(name), file, "q8_0"], check=True)
    return file


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="small")
    parser.add_argument("--draft-model", default="tiny")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--acceptance", type=int, nargs="*", default=[0, 50, 90], help="percentages")
    options = parser.parse_args()
    model, draft = convert_model(options.model), convert_model(options.draft_model)
    print(f"{options.model}, {options.draft_model}; load {os.getloadavg()[0]:.1f}", flush=True)
    rows = [measure(model, draft, percent, options) for percent in options.acceptance or [None]]
    print(f"load at the end: {os.getloadavg()[0]:.1f}")
    print(markdown_table(["acceptance", "tokens/s without", "with drafts", "ratio", "range of ratios"], rows))


if __name__ == "__main__":
    main()
