"""What a token costs between the engine and the socket, stage by stage: `make bench`.

Every stage is measured in the same run, in rounds that alternate, and told as the median over the rounds, in
microseconds of CPU time per token. The last row is the whole way: a scripted server in a process of its own, read over
loopback by 16 streams; the CPU time is that process's. Figures are for comparing stages and versions on one machine.
"""

import argparse
import asyncio
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx
import msgspec

from app.log import Log
from app.requests import responses as request
from app.scribe import Scribe
from engine.protocol import Chunk
from events import sse
from tests.serving import scripted
from tests.state.words import Counted

WORDS = "The quick brown fox jumps over the lazy dog. "
STREAMS = 16


class Bench:
    """One answer of `length` tokens in one dialect, and what each stage makes of it."""

    def __init__(self, dialect: str, length: int) -> None:
        catalogue = scripted([{"name": "x", "speak": ["x"]}], dialect=dialect)
        asked = request.read({"model": "scripted", "input": "Hi"}, catalogue, lambda _: None)
        self.form, self.spec = asked.model.format, asked.spec
        self.prompt = self.form.render(self.spec.conversation, now=datetime(2026, 1, 1, tzinfo=UTC))
        head = "<|channel|>final<|message|>" if dialect == "gpt-oss" else ""
        tokens = self.form.encode(head + WORDS * length)[:length]
        self.chunks = [Chunk(tokens=(token,)) for token in tokens]
        self.segments = self._segments()
        self.steps = self._steps()

    def _segments(self) -> list[Any]:
        reader = self.form.reader(self.prompt, self.spec.conversation)
        return [segment for chunk in self.chunks for segment in reader.feed(chunk.tokens)]

    def _scribe(self) -> Scribe:
        scribe = Scribe(self.spec, self.prompt, self.form, ids=Counted(), clock=lambda: 0)
        scribe.begin(Chunk())
        return scribe

    def _steps(self) -> list[list[Any]]:
        scribe = self._scribe()
        steps = [scribe.collect()]
        for chunk in self.chunks:
            scribe.take(chunk)
            steps.append(scribe.collect())
        return steps

    def read(self) -> None:
        """Token ids to segments."""
        reader = self.form.reader(self.prompt, self.spec.conversation)
        for chunk in self.chunks:
            reader.feed(chunk.tokens)

    def order(self) -> None:
        """Segments to events."""
        machine = self._scribe().machine
        for segment in self.segments:
            machine.feed(segment)

    def write(self) -> None:
        """Events to the log, encoded."""
        log = Log(self.spec.head, "")
        for step in self.steps:
            log.append(step)

    def frame(self) -> None:
        """Log to framed bytes."""
        log = self._log
        b"".join([sse.frame(frame.event, frame.data) for frame in log.frames])

    def prepare(self) -> None:
        """The log that `frame` reads."""
        self._log = Log(self.spec.head, "")
        for step in self.steps:
            self._log.append(step)


def median_cost(work: Callable[[], None], tokens: int, rounds: int) -> float:
    """Median CPU microseconds per token."""
    costs = []
    for _ in range(rounds):
        begun = time.process_time()
        work()
        costs.append((time.process_time() - begun) / tokens * 1e6)
    return statistics.median(costs)


async def _drain(client: httpx.AsyncClient, url: str) -> int:
    events = 0
    async with client.stream("POST", url, json={"model": "scripted", "input": "Hi", "stream": True}) as reply:
        async for line in reply.aiter_lines():
            events += line.startswith("event: response.output_text.delta")
    return events


async def _load(url: str) -> int:
    async with httpx.AsyncClient(timeout=120, limits=httpx.Limits(max_connections=STREAMS)) as client:
        return sum(await asyncio.gather(*(_drain(client, url) for _ in range(STREAMS))))


def over_http(length: int, step: int, rounds: int) -> float:
    """Median CPU microseconds of the server process per token, `step` tokens a write."""
    with tempfile.TemporaryDirectory() as folder:
        script = Path(folder) / "script.toml"
        reply = {"name": "x", "speak": [WORDS * (length // len(WORDS) + 1)], "step": step}
        script.write_text("[[reply]]\n" + "".join(f"{key} = {json.dumps(value)}\n" for key, value in reply.items()))
        words = [
            sys.executable,
            "-m",
            "app.cli",
            "serve",
            "--engine",
            "scripted",
            "--script",
            str(script),
            "--port",
            "0",
        ]
        server = subprocess.Popen(words, stderr=subprocess.PIPE, text=True, env=os.environ | {"NO_COLOR": "1"})
        try:
            assert server.stderr
            base = next(word for line in server.stderr for word in line.split() if word.startswith("http://"))
            asyncio.run(_load(f"{base}/responses"))
            tokens = (length // len(WORDS) + 1) * len(WORDS) * STREAMS
            costs = []
            for _ in range(rounds):
                before = _cpu(server.pid)
                asyncio.run(_load(f"{base}/responses"))
                costs.append((_cpu(server.pid) - before) / tokens * 1e6)
            return statistics.median(costs)
        finally:
            server.terminate()
            server.wait(30)


def _cpu(pid: int) -> float:
    """CPU seconds of a process so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def main() -> None:
    """Print the table."""
    words = argparse.ArgumentParser(description=__doc__)
    words.add_argument("--tokens", type=int, default=2000)
    words.add_argument("--rounds", type=int, default=5)
    words.add_argument("--no-http", action="store_true", help="leave out the rows that start a server")
    asked = words.parse_args()
    print(f"CPU µs per token, medians of {asked.rounds} rounds; msgspec {msgspec.__version__}\n")
    print("| stage | hermes | qwen3-coder | gpt-oss | hermes, 8 times as long |\n|---|---|---|---|---|")
    benches = [Bench(name, asked.tokens) for name in ("hermes", "qwen3-coder", "gpt-oss")]
    benches.append(Bench("hermes", asked.tokens * 8))
    for stage in ("read", "order", "write", "frame"):
        row = []
        for bench in benches:
            bench.prepare()
            row.append(f"{median_cost(getattr(bench, stage), len(bench.chunks), asked.rounds):.2f}")
        print(f"| {getattr(Bench, stage).__doc__} | {' | '.join(row)} |", flush=True)
    if not asked.no_http:
        for step in (1, 4):
            cost = over_http(asked.tokens, step, asked.rounds)
            print(f"| the whole way over HTTP, {STREAMS} streams, {step} a write | {cost:.2f} | | | |", flush=True)
    print(f"\npeak memory of this process {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024} MiB")


if __name__ == "__main__":
    main()
