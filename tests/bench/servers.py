"""The servers of one run: started one after the other, kept quiet while another is measured, ended for sure."""

import asyncio
import contextlib
import random
import signal
import socket
import time
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from types import TracebackType
from typing import Self

from tests.bench.install import HOME
from tests.bench.load_client import Sample, Stream, ask, body, load
from tests.bench.models import words
from tests.bench.peers import Peer
from tests.bench.server_process import Process

FRAME = 16
"""Tokens that the chat template adds to a prompt."""
BUSY = 0.02
"""A server that uses more of a core than this while nobody asks it is stopped while others are measured."""
NEEDED = {"small": 6 * 2**30}
"""Bytes of memory that must be free before another server is started."""


class NotStartedError(Exception):
    """A server that could not be started; the message says why."""


@cache
def _words() -> list[str]:
    return words()


def prompt(seed: str, tokens: int) -> str:
    """A text of about so many tokens with the template's, another one for every seed."""
    chance = random.Random(seed)
    return "".join(f" {chance.choice(_words())}" for _ in range(max(tokens - FRAME, 1)))


class Server:
    """One peer, running."""

    def __init__(self, peer: Peer, model: Path) -> None:
        self.peer, self.model = peer, str(model) if peer.by_path else model.name
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port: int = free.getsockname()[1]
        self.words = peer.words(model, self.port)
        self.process = Process(self.words, HOME / "logs" / f"{model.name}-{peer.name}.log", peer.environ)
        self.started = 0.0
        """Seconds from the start of the process to the first token."""
        self.idle = 0.0
        """Cores used while nobody asks."""

    async def ready(self, limit: float) -> None:
        """Wait for the first token. Raises :class:`NotStartedError`."""
        until = self.process.begun + limit
        while time.perf_counter() < until and not self.process.over:
            with contextlib.suppress(OSError, IndexError):  # a TimeoutError is an OSError
                hello = ask(self.port, self.peer.api, body(self.peer.api, self.model, "Hello", 4))
                seen = await asyncio.wait_for(hello, until - time.perf_counter())
                if seen.error is None:
                    self.started = seen.begun + seen.first - self.process.begun
                    return
                if seen.status not in (404, 503):
                    raise NotStartedError(seen.error)
            await asyncio.sleep(0.1)
        why = "it ended" if self.process.over else f"no answer after {limit:.0f} s"
        raise NotStartedError(f"{why}: {self.process.tail(3)}")

    async def warm(self, streams: int) -> None:
        """Requests that are not counted, alone and together; then a look at what it does in silence.

        Most are as long as those that count: memory that a server takes only when it needs it is there then.
        """
        for turn, (count, tokens) in enumerate(((1, 16), (streams, 16), *3 * [(streams, 128)])):
            await self.run([prompt(f"warm {turn} {place}", 128) for place in range(count)], tokens)
        before = self.process.cpu()
        await asyncio.sleep(2)
        self.idle = (self.process.cpu() - before) / 2

    async def run(self, prompts: list[str], tokens: int, limit: float = 600.0) -> Sample:
        """All prompts at once."""
        return await load(self.port, self.peer.api, [self.body(text, tokens) for text in prompts], limit)

    def body(self, text: str, tokens: int) -> dict[str, object]:
        """A request for this server."""
        return body(self.peer.api, self.model, text, tokens)

    async def ask(self, content: dict[str, object], into: Stream | None = None) -> Stream:
        """One request of any content."""
        return await ask(self.port, self.peer.api, content, into)

    @contextlib.contextmanager
    def alone(self) -> Iterator[None]:
        """Awake, and stopped again afterwards if it cannot be quiet."""
        self.process.resume()
        try:
            yield
        finally:
            if self.idle > BUSY:
                self.process.pause()


class Fleet:
    """All servers of a run. Leaving it ends every one of them."""

    def __init__(self, name: str, model: Path) -> None:
        self.name, self.model = name, model
        self.servers: list[Server] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        with _undisturbed():
            for server in self.servers:
                server.process.end()

    async def start(self, peer: Peer, streams: int, limit: float = 600.0) -> Server:
        """Start one and warm it. Raises :class:`NotStartedError`; what was started of it has then ended."""
        if reason := peer.absent(self.name):
            raise NotStartedError(reason)
        free = available()
        if free < NEEDED.get(self.name, 2**30):
            raise NotStartedError(f"only {free / 2**30:.1f} GiB of memory are free")
        server = Server(peer, self.model)
        self.servers.append(server)
        try:
            await server.ready(limit)
            await server.warm(min(streams, peer.most))
        except (NotStartedError, OSError, TimeoutError) as error:
            self.stop(server)
            raise NotStartedError(str(error)) from error
        if server.idle > BUSY:
            server.process.pause()
        return server

    def stop(self, server: Server) -> None:
        """End one."""
        self.servers.remove(server)
        server.process.end()


@contextlib.contextmanager
def _undisturbed() -> Iterator[None]:
    """A second Ctrl-C, or a SIGTERM, while servers are being ended would leave some of them behind."""
    kept = {number: signal.signal(number, signal.SIG_IGN) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in kept.items():
            signal.signal(number, handler)


def available() -> int:
    """Bytes of memory that can still be had."""
    lines = Path("/proc/meminfo").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:"))
