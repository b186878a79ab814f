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
import os
import random
import re
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

import httpx
from msgspec import Struct

from bench.soak_requests import SCRIPT, SoakRequests
from tests.serving import read_until_ready

TRAFFIC_S = 27.0
"""Seconds of traffic between two readings."""
PAUSE_S = 3.0
"""Seconds without traffic before a reading, and between two attempts while requests still run."""
IDLE_TIMEOUT_S = 90.0


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
        self.outcomes: Counter[str] = Counter()
        self.client = httpx.AsyncClient(timeout=30, verify=False, limits=httpx.Limits(max_connections=None))
        self.requests = SoakRequests(url, self.client, random.Random(seed))
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
        while True:
            await self.traffic_enabled.wait()
            action = self.requests.choose()
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
