"""Soak test: mixed traffic with abusive requests for a while, to find leaks of memory, file descriptors and tasks.

    python -m bench.soak --minutes 10
    python -m bench.soak --minutes 10 --tools

The traffic is streams, complete replies, background responses that are resumed and cancelled, chat completions,
conversations, batches, WebSockets, and their lanes with steers. One request in twenty is abusive: invalid JSON, a client
that disconnects, also in a compaction, a compression bomb, an incomplete header, a binary frame, a connection with lanes
that breaks off, an upload that breaks off. Every 30 seconds the traffic pauses, and memory, open files and tasks are read
while no request runs. The readings of the warm-up do not count, since the caches of recent responses grow to their
limits first. `--warm` sets its duration. With `--tools`, the traffic is responses whose tools answer, hang, die or flood,
also with clients that leave meanwhile: see `bench.soak_tools`.
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
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import httpx
from msgspec import Struct

from bench.soak_requests import SCRIPT, SoakRequests
from bench.soak_tools import TOOL_SCRIPT, ToolRequests, count_descendants, list_tool_options, run_tool_server
from tests.serving import read_until_ready

TRAFFIC_S = 27.0
"""Seconds of traffic between two readings."""
SERVER = "from antiphon.app.cli.commands import main; main()"
CALL_TIMEOUT_S = 2.0
TOOL_SERVER = f"""
from antiphon.app.tools.mcp.tool_server import ToolLimits
from antiphon.app.tools.mcp.tool_servers import ToolServers
ToolServers.__init__.__kwdefaults__["limits"] = ToolLimits(call_timeout_s={CALL_TIMEOUT_S})
{SERVER}
"""
"""Program of a server that waits less long for its tools."""
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
    processes: int
    """Descendants of the server."""
    requests: int
    """Requests completed since the start of the test."""


class SoakTest:
    """The clients, and the counts of their outcomes."""

    def __init__(
        self, url: str, pid: int, num_clients: int, seed: int, *, uses_tools: bool = False, traffic_s: float = TRAFFIC_S
    ) -> None:
        self.url, self.pid, self.num_clients, self.traffic_s = url, pid, num_clients, traffic_s
        self.outcomes: Counter[str] = Counter()
        self.client = httpx.AsyncClient(timeout=30, verify=False, limits=httpx.Limits(max_connections=None))
        kind = ToolRequests if uses_tools else SoakRequests
        self.requests = kind(url, self.client, random.Random(seed))
        self._num_active = 0
        self.started_at = time.monotonic()
        self.traffic_enabled = asyncio.Event()

    async def run(self, warmup_s: float, duration_s: float) -> list[Reading]:
        """Runs the warm-up and the test. Returns the readings after the warm-up, at least one."""
        clients = [asyncio.create_task(self._run_client()) for _ in range(self.num_clients)]
        readings: list[Reading] = []
        while not readings or time.monotonic() - self.started_at < warmup_s + duration_s:
            self.traffic_enabled.set()
            await asyncio.sleep(self.traffic_s)
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
            self._num_active += 1
            try:
                self.outcomes[await action()] += 1
            except Exception as error:  # noqa: BLE001 - a client continues, and the summary names the error
                self.outcomes[f"{action.__name__}: {type(error).__name__}"] += 1
            finally:
                self._num_active -= 1

    async def _read_resources(self) -> Reading:
        deadline = time.monotonic() + IDLE_TIMEOUT_S
        running = 1.0
        while running:
            assert time.monotonic() < deadline, f"{running:g} requests still run although no client waits for them"
            await asyncio.sleep(PAUSE_S)
            metrics = (await self.client.get(f"{self.url.removesuffix('/v1')}/metrics")).text
            running = _read_metric(metrics, "num_requests_running") + self._num_active
        at_s = round(time.monotonic() - self.started_at, 1)
        tasks = int(_read_metric(metrics, "event_loop_tasks"))
        memory_and_files = _memory_and_files(self.pid)
        return Reading(at_s, *memory_and_files, tasks, count_descendants(self.pid), self.outcomes.total())


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
    print(
        f"files {first.open_files} -> {last.open_files}, tasks {first.tasks} -> {last.tasks}, "
        f"processes {first.processes} -> {last.processes}, exit code {exit_code}"
    )


def main() -> None:
    """Runs the soak test and prints the summary."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=10, help="duration after the warm-up, default 10")
    parser.add_argument("--warm", type=float, default=6, help="minutes of warm-up, default 6")
    parser.add_argument("--clients", type=int, default=12, help="clients at the same time, default 12")
    parser.add_argument("--seed", type=int, default=7, help="seed of the traffic, default 7")
    parser.add_argument("--tools", action="store_true", help="responses whose tools the server runs")
    args = parser.parse_args()
    kind = partial(SoakTest, num_clients=args.clients, seed=args.seed, uses_tools=args.tools)
    print_summary(*run_soak(kind, args.warm * 60, args.minutes * 60, uses_tools=args.tools))


def run_soak(
    create_test: Callable[[str, int], SoakTest], warmup_s: float, duration_s: float, *, uses_tools: bool
) -> tuple[Counter[str], list[Reading], int]:
    """Runs a server and the test that `create_test` returns for its URL and process.

    Returns the outcomes, the readings after the warm-up, and the exit code of the server.
    """
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        script = folder / "soak.toml"
        script.write_text(TOOL_SCRIPT if uses_tools else SCRIPT, encoding="utf-8")
        command = [sys.executable, "-c", TOOL_SERVER if uses_tools else SERVER]
        command += ["serve", "--engine", "scripted", "--script", str(script)]
        command += ["--port", "0", "--log-format", "json", "--store", str(folder / "r.db"), "--store-max-gib", "0.01"]
        if uses_tools:
            command += list_tool_options(stack.enter_context(run_tool_server()))
        server = stack.enter_context(subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=os.environ))
        assert server.stderr is not None
        url = read_until_ready(server.stderr)["base_urls"][0]
        stderr_reader = subprocess.Popen(["cat"], stdin=server.stderr, stdout=subprocess.DEVNULL)
        try:
            soak, readings = asyncio.run(_run_test(create_test, url, server.pid, warmup_s, duration_s))
        finally:
            server.terminate()
        exit_code = server.wait(20)
        stderr_reader.kill()
        stderr_reader.wait()
    return soak.outcomes, readings, exit_code


async def _run_test(
    create_test: Callable[[str, int], SoakTest], url: str, pid: int, warmup_s: float, duration_s: float
) -> tuple[SoakTest, list[Reading]]:
    soak = create_test(url, pid)
    return soak, await soak.run(warmup_s, duration_s)


if __name__ == "__main__":
    main()
