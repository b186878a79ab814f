"""Batches beside single requests: tokens per second of a batch, and the time to the first token beside one.

    python -m bench.batches --lines 1000 --rounds 3

The server runs the embedded model. In each round, the same requests are sent by the load client, as many at once as the
engine has slots, and then as a batch. After that, a client sends one streaming request after the other, alone and
beside a batch. The requests are stored in neither case.
"""

import argparse
import asyncio
import json
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import httpx

from bench.load_client import request_body, send_request
from bench.server_process import ServerProcess
from bench.stats import format_number, markdown_table, median, quantile
from tests.app.server_helpers import free_port

MODEL = "antiphon"
OUTPUT_TOKENS = 32
POLL_INTERVAL_S = 0.05
START_TIMEOUT_S = 120.0
STREAM_COUNTS = (1, 16, 64)
"""Numbers of clients whose time to the first token is measured."""
REQUESTS_PER_ROUND = 128
PLACES = ("alone", "beside a batch")
ENDED_STATUSES = ("completed", "failed", "cancelled", "expired")


def make_body(number: int, name: str) -> dict[str, Any]:
    """Returns the body of a request whose prompt no other has, and that ends at the limit only."""
    prompt = f"{name} {number}: tell me about the number {number}, in a few words."
    return {"model": MODEL, "input": prompt, "max_output_tokens": OUTPUT_TOKENS, "store": False, "seed": number}


class BatchServer:
    """A server process on a free port."""

    def __init__(self, folder: Path, slots: int) -> None:
        self.port, self.slots = free_port(), slots
        command = [sys.executable, "-m", "antiphon", "serve", "--port", str(self.port)]
        command += ["--store", str(folder / "r.db"), "--max-num-seqs", str(slots)]
        self.process = ServerProcess(command, folder / "server.log", {})
        self.http = httpx.Client(base_url=f"http://127.0.0.1:{self.port}", timeout=START_TIMEOUT_S)

    def wait_ready(self) -> None:
        """Waits until the model is loaded."""
        deadline = time.monotonic() + START_TIMEOUT_S
        while time.monotonic() < deadline:
            try:
                if self.http.get("/ready").status_code == 200:
                    return
            except httpx.HTTPError:
                pass
            time.sleep(0.2)
        raise TimeoutError(self.process.tail())

    def start_batch(self, bodies: Sequence[dict[str, Any]]) -> str:
        """Uploads a file and creates a batch of it. Returns its id."""
        lines = [
            {"custom_id": str(number), "method": "POST", "url": "/v1/responses", "body": body}
            for number, body in enumerate(bodies)
        ]
        content = "\n".join(map(json.dumps, lines)).encode()
        file = self.http.post("/v1/files", files={"file": ("in.jsonl", content)}, data={"purpose": "batch"}).json()
        body = {"input_file_id": file["id"], "endpoint": "/v1/responses", "completion_window": "24h"}
        found: str = self.http.post("/v1/batches", json=body).json()["id"]
        return found

    def find_batch(self, batch_id: str) -> dict[str, Any]:
        """Returns a batch as it is now."""
        found: dict[str, Any] = self.http.get(f"/v1/batches/{batch_id}").json()
        return found

    def close(self) -> None:
        """Ends the server."""
        self.http.close()
        self.process.terminate()


async def run_single(server: BatchServer, bodies: Sequence[dict[str, Any]]) -> float:
    """Sends the requests, as many at once as there are slots. Returns the output tokens per second."""
    free = asyncio.Semaphore(server.slots)

    async def send(body: dict[str, Any]) -> int:
        async with free:
            stream = await send_request(server.port, "responses", {**body, "stream": True})
        assert stream.error is None, stream.error
        return stream.output_tokens

    started = time.perf_counter()
    tokens = sum(await asyncio.gather(*map(send, bodies)))
    return tokens / (time.perf_counter() - started)


def run_batch(server: BatchServer, bodies: Sequence[dict[str, Any]]) -> float:
    """Runs the requests as a batch. Returns the output tokens per second, from the upload to the output file."""
    started = time.perf_counter()
    batch_id = server.start_batch(bodies)
    while (batch := server.find_batch(batch_id))["status"] not in ENDED_STATUSES:
        time.sleep(POLL_INTERVAL_S)
    assert batch["request_counts"]["completed"] == len(bodies), batch
    return float(batch["usage"]["output_tokens"] / (time.perf_counter() - started))


async def measure_ttft(server: BatchServer, streams: int, name: str) -> list[float]:
    """Sends streaming requests from so many clients, each one after the other.

    Returns the time to the first token of each request, in milliseconds.
    """

    async def run_client(client: int) -> list[float]:
        times = []
        for number in range(max(REQUESTS_PER_ROUND // streams, 2)):
            body = request_body("responses", MODEL, f"{name} {client} {number}: hello", OUTPUT_TOKENS, store=False)
            stream = await send_request(server.port, "responses", body)
            times += [stream.ttft_s * 1e3] if stream.arrivals else []  # the model may end without a text
        return times

    return [ttft for times in await asyncio.gather(*map(run_client, range(streams))) for ttft in times]


def measure_ttft_beside_batch(server: BatchServer, streams: int, name: str) -> list[float]:
    """Does the same while a batch runs, which is cancelled at the end."""
    batch_id = server.start_batch([make_body(number, f"beside {name}") for number in range(20_000)])
    while server.find_batch(batch_id)["request_counts"]["completed"] < server.slots:
        time.sleep(POLL_INTERVAL_S)
    try:
        return asyncio.run(measure_ttft(server, streams, name))
    finally:
        server.http.post(f"/v1/batches/{batch_id}/cancel")
        while server.find_batch(batch_id)["status"] not in ENDED_STATUSES:
            time.sleep(POLL_INTERVAL_S)


def main() -> None:
    """Measures and prints two tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lines", type=int, default=1000, help="requests of a batch, default 1000")
    parser.add_argument("--rounds", type=int, default=3, help="number of rounds, default 3")
    parser.add_argument("--slots", type=int, default=64, help="slots of the engine, default 64")
    args = parser.parse_args()
    single, batch = list[float](), list[float]()
    times: dict[tuple[int, str], list[float]] = {(n, place): [] for n in STREAM_COUNTS for place in PLACES}
    with tempfile.TemporaryDirectory() as folder:
        server = BatchServer(Path(folder), args.slots)
        try:
            server.wait_ready()
            asyncio.run(run_single(server, [make_body(number, "warm") for number in range(args.slots * 4)]))
            for index in range(args.rounds):
                single.append(
                    asyncio.run(run_single(server, [make_body(n, f"single {index}") for n in range(args.lines)]))
                )
                batch.append(run_batch(server, [make_body(n, f"batch {index}") for n in range(args.lines)]))
                for count in STREAM_COUNTS:
                    times[count, PLACES[0]] += asyncio.run(measure_ttft(server, count, f"alone {index}"))
                    times[count, PLACES[1]] += measure_ttft_beside_batch(server, count, f"beside {index}")
        finally:
            server.close()
    ratio = median(batch) / median(single)
    print(f"{args.lines} lines of {OUTPUT_TOKENS} tokens, {args.slots} slots, medians of {args.rounds} rounds\n")
    cells = [format_number(median(single)), format_number(median(batch)), f"{ratio:.2f}"]
    print(markdown_table(["single requests, tokens/s", "batch, tokens/s", "ratio"], [cells]))
    rows = [
        [str(count), place, f"{median(found):.1f}", f"{quantile(found, 0.99):.1f}"]
        for (count, place), found in times.items()
    ]
    print()
    print(markdown_table(["streams", "TTFT, ms", "median", "p99"], rows))


if __name__ == "__main__":
    main()
