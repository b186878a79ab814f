"""Two servers with one database: the time until a client sees that a server was killed, and a rolling restart under load.

    python -m bench.failover --kills 10 --rounds 3

A kill: a background response runs at a server, and a client follows it at another one; the first is killed. The time
ends with the client's last event. A server sees at once that a process of its own machine is gone. So the killed one
runs in a namespace of process ids, as in a container (`unshare`, Linux, as root), and its lease has to end.

A restart follows the steps of docs/cluster.md: no client is sent to the server, it gets SIGTERM and exits when nothing
runs, it starts, and clients are sent to it when `/ready` answers 200. Each reply takes longer than the default
`--shutdown-timeout`.
"""

import argparse
import asyncio
import json
import random
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
from msgspec import Struct

from tests.postgres_server import run_postgres
from tests.serving import read_until_ready

SCRIPT = """
[[reply]]
name = "stall"
when = ["Forever"]
output = ["On and on", { stall = true }]
[[reply]]
name = "slow"
output = ["One.", { pause = 2.0 }, " Two.", { pause = 2.0 }, " Three.", { pause = 2.0 }, " Four."]
"""
NUM_CLIENTS = 16
SHUTDOWN_TIMEOUT_S = 120
EXIT_TIMEOUT_S = SHUTDOWN_TIMEOUT_S + 30.0
REPLY_TIMEOUT_S = 60.0
ISOLATION = ("unshare", "--pid", "--fork", "--kill-child")
"""Launcher of a server whose process ids mean nothing to the other one."""


class Server:
    """A scripted server. It keeps its port over restarts. `launcher` is put before its command."""

    def __init__(self, database: str, script: Path, *launcher: str) -> None:
        self._launcher = launcher
        self._options = ["--engine", "scripted", "--script", str(script), "--store", database, "--log-format", "json"]
        self._options += ["--encryption-key-file", str(script.with_name("key"))]
        self._options += ["--shutdown-timeout", str(SHUTDOWN_TIMEOUT_S)]
        self._port = 0
        self.url = ""
        self.start()

    def start(self) -> None:
        """Starts the process and waits until it is ready."""
        command = [sys.executable, "-m", "antiphon", "serve", "--port", str(self._port), *self._options]
        self.process = subprocess.Popen([*self._launcher, *command], stderr=subprocess.PIPE, text=True)
        assert self.process.stderr is not None
        self.url = read_until_ready(self.process.stderr)["base_urls"][0]
        self._port = httpx.URL(self.url).port or 0
        threading.Thread(target=self.process.stderr.read, daemon=True).start()

    def kill(self) -> None:
        """Kills the process at once."""
        self.process.kill()
        self.process.wait()

    def stop(self) -> None:
        """Sends SIGTERM and waits for the exit."""
        self.process.terminate()
        self.process.wait(EXIT_TIMEOUT_S)


@contextmanager
def run_servers(*launchers: tuple[str, ...]) -> Iterator[list[Server]]:
    """Runs a server by each launcher, and a PostgreSQL server for them."""
    with run_postgres() as postgres, tempfile.TemporaryDirectory() as folder:
        script = Path(folder) / "script.toml"
        script.write_text(SCRIPT, encoding="utf-8")
        database = postgres.create_database()
        servers = [Server(database, script, *launcher) for launcher in launchers]
        try:
            yield servers
        finally:
            for server in servers:
                server.kill()


def measure_failover(killed: Server, other: Server, rng: random.Random) -> float:
    """Returns the seconds between the kill of a server and the last event at a client of the other one. Restarts it."""
    body = {"model": "scripted", "input": "Forever", "background": True, "store": True}
    created = httpx.post(f"{killed.url}/responses", json=body, timeout=REPLY_TIMEOUT_S).raise_for_status().json()
    with httpx.stream(
        "GET", f"{other.url}/responses/{created['id']}", params={"stream": "true"}, timeout=REPLY_TIMEOUT_S
    ) as stream:
        lines = stream.iter_lines()
        next(line for line in lines if "output_text.delta" in line)
        time.sleep(rng.random())  # heartbeats come once per second
        killed.kill()
        start_s = time.perf_counter()
        last = [json.loads(line.removeprefix("data: ")) for line in lines if line.startswith("data: {")][-1]
        assert last["type"] == "response.failed", last
        duration_s = time.perf_counter() - start_s
    killed.start()
    return duration_s


class RollingRestart(Struct):
    """Clients of several servers, each of which restarts in turn."""

    servers: list[Server]
    targets: list[str]
    """The servers that clients are sent to, as the `upstream` block of a proxy lists them."""
    outcomes: Counter[str]
    ended: bool = False

    async def run(self, rounds: int) -> None:
        """Restarts every server `rounds` times while the clients send requests."""
        async with httpx.AsyncClient(timeout=REPLY_TIMEOUT_S) as client:
            tasks = [asyncio.create_task(self._send_requests(client, number)) for number in range(NUM_CLIENTS)]
            for _ in range(rounds):
                for server in self.servers:
                    self.targets.remove(server.url)
                    await asyncio.to_thread(server.stop)
                    await asyncio.to_thread(server.start)
                    self.targets.append(server.url)
                    await asyncio.sleep(1)
            self.ended = True
            await asyncio.gather(*tasks)

    async def _send_requests(self, client: httpx.AsyncClient, number: int) -> None:
        while not self.ended:
            url = self.targets[number % len(self.targets)]
            self.outcomes[await self._request_reply(client, url)] += 1

    async def _request_reply(self, client: httpx.AsyncClient, url: str) -> str:
        body = {"model": "scripted", "input": "Count.", "stream": True}
        try:
            async with client.stream("POST", f"{url}/responses", json=body) as stream:
                if stream.status_code != httpx.codes.OK:
                    return str(stream.status_code)
                events = [line async for line in stream.aiter_lines() if line.startswith("event: ")]
        except httpx.HTTPError as error:
            return type(error).__name__
        return events[-1].removeprefix("event: ")


def main() -> None:
    """Measures both and prints the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=10, help="number of kills, default 10")
    parser.add_argument("--rounds", type=int, default=3, help="restarts of each server under load, default 3")
    args = parser.parse_args()
    rng = random.Random(7)
    if args.kills:
        with run_servers(ISOLATION, ()) as (killed, other):
            times = [measure_failover(killed, other, rng) for _ in range(args.kills)]
        print(f"failover: median {statistics.median(times):.1f} s, {min(times):.1f} to {max(times):.1f}")
    if args.rounds:
        with run_servers((), ()) as servers:
            restart = RollingRestart(servers, [server.url for server in servers], Counter())
            asyncio.run(restart.run(args.rounds))
        print(f"{len(servers) * args.rounds} restarts: {dict(restart.outcomes)}")


if __name__ == "__main__":
    main()
