"""Soak test: mixed traffic with abusive requests for a while, to find leaks of memory, file descriptors and tasks.

    python -m bench.soak --minutes 10

The traffic is streams, complete replies, background responses that are resumed and cancelled, chat completions,
conversations, batches, WebSockets, and their lanes with steers. One request in twenty is abusive: invalid JSON, a client
that disconnects, also in a compaction, a compression bomb, an incomplete header, a binary frame, a connection with lanes
that breaks off, an upload that breaks off. Every 30 seconds the traffic pauses, and memory, open files and tasks are read
while no request runs. The readings of the warm-up do not count, since the caches of recent responses grow to their
limits first. `--warm` sets its duration.
"""

import argparse
import asyncio
import gzip
import json
import os
import random
import re
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path

import httpx
from msgspec import Struct
from websockets.asyncio.client import ClientConnection, connect

from tests.serving import read_until_ready

SCRIPT = """
[[reply]]
name = "steered"
when = ["Enough"]
output = ["As you say."]
[[reply]]
name = "silent"
when = ["Be silent"]
output = [{ stall = true }]
[[reply]]
name = "stall"
when = ["Forever"]
output = ["On and on", { stall = true }]
[[reply]]
name = "any"
output = ["<think>\\nA thought.\\n</think>\\n\\n", "Word by word, this is what is said to everybody. "]
tokens_per_chunk = 2
"""
ABUSE_SHARE = 0.05
TRAFFIC_S = 27.0
"""Seconds of traffic between two readings."""
PAUSE_S = 3.0
"""Seconds without traffic before a reading, and between two attempts while requests still run."""
IDLE_TIMEOUT_S = 90.0
BOMB_BYTES = 40 * 2**20


class Reading(Struct, frozen=True):
    """Resources of the server while no request runs."""

    at_s: float
    """Seconds since the start of the test."""
    rss_mib: float
    open_files: int
    tasks: int
    requests: int
    """Requests completed since the start of the test."""


class SoakTest:
    """The clients, and the counts of their outcomes."""

    def __init__(self, url: str, pid: int, num_clients: int, seed: int) -> None:
        self.url, self.pid, self.num_clients = url, pid, num_clients
        self.rng = random.Random(seed)
        self.outcomes: Counter[str] = Counter()
        self.client = httpx.AsyncClient(timeout=30, verify=False, limits=httpx.Limits(max_connections=None))
        self.started_at = time.monotonic()
        self.traffic_enabled = asyncio.Event()

    async def run(self, warmup_s: float, duration_s: float) -> list[Reading]:
        """Runs the warm-up and the test. Returns the readings after the warm-up, at least one."""
        clients = [asyncio.create_task(self._run_client()) for _ in range(self.num_clients)]
        readings: list[Reading] = []
        while not readings or time.monotonic() - self.started_at < warmup_s + duration_s:
            self.traffic_enabled.set()
            await asyncio.sleep(TRAFFIC_S)
            self.traffic_enabled.clear()
            reading = await self._read_resources()
            is_warm = reading.at_s >= warmup_s
            readings += [reading] if is_warm else []
            print(reading, "" if is_warm else "(warm-up)", flush=True)
        for client in clients:
            client.cancel()
        await asyncio.gather(*clients, return_exceptions=True)
        await self.client.aclose()
        return readings

    async def _run_client(self) -> None:
        """Makes random requests while the traffic is enabled."""
        valid: list[Callable[[], Awaitable[str]]] = [
            self.create_response, self.stream_response, self.stream_response, self.stream_chat, self.resume_background,
            self.cancel_background, self.use_conversation, self.use_websocket, self.steer_lanes, self.run_batch,
        ]  # fmt: skip
        abusive = [
            self.send_invalid_json, self.disconnect, self.send_bomb, self.send_incomplete_header, self.send_binary,
            self.break_lanes, self.break_upload, self.leave_compaction,
        ]  # fmt: skip
        while True:
            await self.traffic_enabled.wait()
            action = self.rng.choice(abusive if self.rng.random() < ABUSE_SHARE else valid)
            try:
                self.outcomes[await action()] += 1
            except Exception as error:  # noqa: BLE001 - a client goes on, and the summary names the error
                self.outcomes[f"{action.__name__}: {type(error).__name__}"] += 1

    async def _read_resources(self) -> Reading:
        deadline = time.monotonic() + IDLE_TIMEOUT_S
        running = 1.0
        while running:
            assert time.monotonic() < deadline, f"{running:g} requests still run although no client waits for them"
            await asyncio.sleep(PAUSE_S)
            metrics = (await self.client.get(f"{self.url.removesuffix('/v1')}/metrics")).text
            running = _read_metric(metrics, "num_requests_running")
        at_s = round(time.monotonic() - self.started_at, 1)
        tasks = int(_read_metric(metrics, "event_loop_tasks"))
        return Reading(at_s, *_memory_and_files(self.pid), tasks, self.outcomes.total())

    async def _post(self, path: str, **body: object) -> httpx.Response:
        return await self.client.post(self.url + path, json={"model": "scripted", **body})

    # Valid requests. Each returns its outcome.

    async def create_response(self) -> str:
        return f"response {(await self._post('/responses', input='Hi')).status_code}"

    async def stream_response(self) -> str:
        reply = await self._post("/responses", input="Hi " * self.rng.randint(1, 400), stream=True)
        return (
            f"stream {reply.status_code} {'complete' if reply.text.endswith('[DONE]' + chr(10) * 2) else 'TRUNCATED'}"
        )

    async def stream_chat(self) -> str:
        messages = [{"role": "user", "content": "Hi"}]
        return f"chat {(await self._post('/chat/completions', messages=messages, stream=True)).status_code}"

    async def resume_background(self) -> str:
        """Reads a background response twice: from the start, and from a random event. Then deletes it."""
        response = (await self._post("/responses", input="Hi", background=True)).json()
        url = f"{self.url}/responses/{response['id']}"
        events = (await self.client.get(f"{url}?stream=true")).text.split("\n\n")
        number = self.rng.randrange(len(events) - 2)
        resumed = (await self.client.get(f"{url}?stream=true&starting_after={number}")).text.split("\n\n")
        await self.client.delete(url)
        return "background same" if resumed == events[number + 1 :] else "background DIFFERENT"

    async def cancel_background(self) -> str:
        response = (await self._post("/responses", input="Forever", background=True)).json()
        reply = await self.client.post(f"{self.url}/responses/{response['id']}/cancel")
        return f"cancel {reply.json()['status']}"

    async def use_conversation(self) -> str:
        conversation = (await self.client.post(f"{self.url}/conversations", json={})).json()["id"]
        for _ in range(3):
            reply = await self._post("/responses", input="Go on", conversation=conversation)
        await self.client.delete(f"{self.url}/conversations/{conversation}")
        return f"conversation {reply.status_code}"

    async def use_websocket(self) -> str:
        async with connect(self.url.replace("http", "ws") + "/responses") as websocket:
            for _ in range(3):
                await websocket.send(json.dumps({"type": "response.create", "model": "scripted", "input": "Hi"}))
                while (event_type := json.loads(await websocket.recv())["type"]) != "response.completed":
                    assert event_type != "error"
        return "websocket 200"

    async def steer_lanes(self) -> str:
        """Steers responses that say nothing, each in a lane, and reads their successors."""
        async with connect(self.url.replace("http", "ws") + "/responses") as websocket:
            for number in range(8):
                await _create_in_lane(websocket, number, "Be silent")
            num_completed = 0
            while num_completed < 8:
                event = json.loads(await websocket.recv())
                num_completed += event["type"] == "response.completed"
                if event["type"] == "response.in_progress" and event["response"]["previous_response_id"] is None:
                    target = event["response"]["id"]
                    steer = {"type": "response.steer", "previous_response_id": target, "input": "Enough"}
                    await websocket.send(json.dumps(steer))
                assert event["type"] not in ("error", "response.failed", "response.steer.failed")
        return "steered lanes 8"

    async def run_batch(self) -> str:
        """Runs a batch of five lines, reads its output, and deletes its files."""
        line = {"method": "POST", "url": "/v1/responses", "body": {"model": "scripted", "input": "Hi"}}
        content = "\n".join(json.dumps({**line, "custom_id": str(number)}) for number in range(5))
        upload = await self.client.post(
            f"{self.url}/files", files={"file": ("in.jsonl", content.encode())}, data={"purpose": "batch"}
        )
        if upload.status_code != 200:
            return f"upload {upload.status_code} {upload.text}"
        body = {"input_file_id": upload.json()["id"], "endpoint": "/v1/responses", "completion_window": "24h"}
        batch = (await self.client.post(f"{self.url}/batches", json=body)).json()
        while batch.get("status") != "completed":
            if "error" in batch:
                return f"batch {batch}"
            await asyncio.sleep(0.1)
            batch = (await self.client.get(f"{self.url}/batches/{batch['id']}")).json()
        output = (await self.client.get(f"{self.url}/files/{batch['output_file_id']}/content")).text
        for file_id in (upload.json()["id"], batch["output_file_id"]):
            await self.client.delete(f"{self.url}/files/{file_id}")
        return f"batch {len(output.splitlines())}"

    # Abusive requests

    async def break_upload(self) -> str:
        """Breaks a connection off in the middle of an upload."""
        _, writer = await asyncio.open_connection("127.0.0.1", httpx.URL(self.url).port)
        head = f"POST /v1/files HTTP/1.1\r\nHost: localhost\r\nContent-Length: {100 << 20}\r\n"
        form = '--x\r\nContent-Disposition: form-data; name="file"; filename="a"\r\n\r\n'
        writer.write(f"{head}Content-Type: multipart/form-data; boundary=x\r\n\r\n{form}".encode())
        writer.write(bytes(self.rng.randrange(3 << 20)))
        await writer.drain()
        writer.transport.abort()
        return "broken upload"

    async def leave_compaction(self) -> str:
        """Disconnects from a response while it is compacted: the summary never ends."""
        compaction = [{"type": "compaction", "compact_threshold": 1000}]
        body = {"model": "scripted", "input": "Forever " * 500, "stream": True, "context_management": compaction}
        async with self.client.stream("POST", f"{self.url}/responses", json=body) as reply:
            async for piece in reply.aiter_bytes():
                if b"compaction" in piece:
                    return "left compaction"
        return f"compaction ended {reply.status_code}"

    async def break_lanes(self) -> str:
        """Breaks a connection off while its lanes stall or wait, and a steer is on its way."""
        websocket = await connect(self.url.replace("http", "ws") + "/responses")
        for number in range(self.rng.randint(1, 40)):
            await _create_in_lane(websocket, number % 20, "Forever")
        event = json.loads(await websocket.recv())
        steer = {"type": "response.steer", "previous_response_id": event["response"]["id"], "input": "Forever"}
        await websocket.send(json.dumps(steer))
        websocket.transport.abort()
        return "broken lanes"

    async def send_invalid_json(self) -> str:
        reply = await self.client.post(
            f"{self.url}/responses", content=b"{", headers={"content-type": "application/json"}
        )
        return f"invalid JSON {reply.status_code}"

    async def disconnect(self) -> str:
        body = {"model": "scripted", "input": "Forever", "stream": True}
        async with self.client.stream("POST", f"{self.url}/responses", json=body) as reply:
            async for _ in reply.aiter_bytes():
                break
        return "disconnected"

    async def send_bomb(self) -> str:
        headers = {"content-type": "application/json", "content-encoding": "gzip"}
        reply = await self.client.post(
            f"{self.url}/responses", content=gzip.compress(bytes(BOMB_BYTES)), headers=headers
        )
        return f"bomb {reply.status_code}"

    async def send_incomplete_header(self) -> str:
        _, writer = await asyncio.open_connection("127.0.0.1", httpx.URL(self.url).port)
        writer.write(b"POST /v1/responses HTTP/1.1\r\nHost: localhost\r\nX: ")
        await asyncio.sleep(0.5)
        writer.close()
        with suppress(OSError):
            await writer.wait_closed()
        return "incomplete header"

    async def send_binary(self) -> str:
        async with connect(self.url.replace("http", "ws") + "/responses") as websocket:
            await websocket.send(b"\x00")
            return f"binary frame {json.loads(await websocket.recv())['status']}"


async def _create_in_lane(websocket: ClientConnection, number: int, text: str) -> None:
    create = {"type": "response.create", "model": "scripted", "stream_id": f"lane-{number}", "input": text}
    await websocket.send(json.dumps(create))


def _read_metric(metrics: str, name: str) -> float:
    match = re.search(rf"^antiphon:{name}(?:{{.*}})? (\S+)$", metrics, re.MULTILINE)
    assert match, f"/metrics has no {name}"
    return float(match[1])


def _memory_and_files(pid: int) -> tuple[float, int]:
    """Returns the resident memory in MiB and the number of open files."""
    match = re.search(r"VmRSS:\s+(\d+)", Path(f"/proc/{pid}/status").read_text(encoding="ascii"))
    assert match, "the server has exited"
    return round(int(match[1]) / 1024, 1), len(list(Path(f"/proc/{pid}/fd").iterdir()))


def memory_slope(readings: list[Reading]) -> float:
    """Returns the growth of memory in MiB per minute, by least squares."""
    xs, ys = [reading.at_s / 60 for reading in readings], [reading.rss_mib for reading in readings]
    mean_x, mean_y = sum(xs) / len(xs), sum(ys) / len(ys)
    variance = sum((x - mean_x) ** 2 for x in xs)
    return sum((x - mean_x) * (y - mean_y) for x, y in zip(xs, ys, strict=True)) / variance if variance else 0.0


def print_summary(outcomes: Counter[str], readings: list[Reading], exit_code: int) -> None:
    """Prints the counts of outcomes and the change of each resource."""
    print("\n".join(f"{count:8d}  {outcome}" for outcome, count in sorted(outcomes.items())))
    first, last = readings[0], readings[-1]
    print(
        f"memory {first.rss_mib} -> {last.rss_mib} MiB, slope {memory_slope(readings):+.3f} MiB per minute, "
        f"second half {memory_slope(readings[len(readings) // 2 :]):+.3f}"
    )
    print(f"files {first.open_files} -> {last.open_files}, tasks {first.tasks} -> {last.tasks}, exit code {exit_code}")


def main() -> None:
    """Runs the soak test and prints the summary."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=10, help="duration after the warm-up, default 10")
    parser.add_argument("--warm", type=float, default=6, help="minutes of warm-up, default 6")
    parser.add_argument("--clients", type=int, default=12, help="clients at the same time, default 12")
    parser.add_argument("--seed", type=int, default=7, help="seed of the traffic, default 7")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        script = Path(folder) / "soak.toml"
        script.write_text(SCRIPT, encoding="utf-8")
        command = [sys.executable, "-m", "antiphon.app.cli", "serve", "--engine", "scripted", "--script", str(script)]
        command += ["--port", "0", "--log-format", "json", "--store", str(Path(folder) / "r.db")]
        command += ["--store-max-gib", "0.01"]
        with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=os.environ) as server:
            assert server.stderr is not None
            url = read_until_ready(server.stderr)["base_urls"][0]
            stderr_reader = subprocess.Popen(["cat"], stdin=server.stderr, stdout=subprocess.DEVNULL)
            try:
                soak, readings = asyncio.run(_run_soak(url, server.pid, args))
            finally:
                server.terminate()
            exit_code = server.wait(20)
            stderr_reader.kill()
    print_summary(soak.outcomes, readings, exit_code)


async def _run_soak(url: str, pid: int, args: argparse.Namespace) -> tuple[SoakTest, list[Reading]]:
    soak = SoakTest(url, pid, args.clients, args.seed)
    return soak, await soak.run(args.warm * 60, args.minutes * 60)


if __name__ == "__main__":
    main()
