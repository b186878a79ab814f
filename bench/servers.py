"""The running servers of a benchmark run: started one by one, paused while another is measured, terminated at the end."""

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

from bench.install import BENCH_DIR
from bench.load_client import Sample, Stream, request_body, run_load, send_request
from bench.peers import UPSTREAM, Peer
from bench.random_models import single_token_words
from bench.server_process import ServerProcess

TEMPLATE_TOKENS = 16
"""Tokens that the chat template adds to a prompt."""
MAX_IDLE_CORES = 0.02
"""A server that uses more of a core than this without requests is paused while others are measured."""
MIN_FREE_MEMORY = {"small": 6 * 2**30}
"""Bytes of memory that must be free to start another server, by model. Others need 1 GiB, or a fifth more than the file."""
IDLE_PERIOD_S = 2


class NotStartedError(Exception):
    """Raised if a server could not be started; the message is the reason."""


@cache
def _words() -> list[str]:
    return single_token_words()


def make_prompt(seed: str, tokens: int) -> str:
    """Returns random words, different for every seed, that make about `tokens` tokens with the chat template's."""
    rng = random.Random(seed)
    return "".join(f" {rng.choice(_words())}" for _ in range(max(tokens - TEMPLATE_TOKENS, 1)))


class PeerServer:
    """A running peer."""

    def __init__(self, peer: Peer, model: Path, upstream: "PeerServer | None" = None) -> None:
        self.upstream, self.is_upstream = upstream, False
        self.peer, self.model = peer, str(model) if peer.model_by_path else model.name
        with socket.socket() as unused:
            unused.bind(("127.0.0.1", 0))
            self.port: int = unused.getsockname()[1]
        self.command = peer.build_command(model, self.port)
        if upstream is not None:
            upstream.is_upstream = True
            self.command = [part.replace(UPSTREAM, f"http://127.0.0.1:{upstream.port}") for part in self.command]
        log = BENCH_DIR / "logs" / f"{model.name}-{peer.name}.log"
        self.process = ServerProcess(self.command, log, peer.env_vars)
        self.startup_s = 0.0
        """Seconds from the start of the process to the first token."""
        self.startup_memory_bytes = 0
        """Resident memory at the first token: what the start has left."""
        self.idle_cores = 0.0
        """CPU cores used without requests."""

    async def wait_until_ready(self, timeout_s: float) -> None:
        """Waits for the first token. Raises `NotStartedError`."""
        deadline = self.process.started_at + timeout_s
        while time.perf_counter() < deadline and not self.process.has_exited:
            with contextlib.suppress(OSError, IndexError):  # a TimeoutError is an OSError
                request = send_request(self.port, self.peer.api, self.build_body("Hello", 4))
                stream = await asyncio.wait_for(request, deadline - time.perf_counter())
                if stream.error is None:
                    self.startup_s = stream.started_at + stream.ttft_s - self.process.started_at
                    self.startup_memory_bytes = self.process.resident_memory()
                    return
                if stream.status not in (404, 503):
                    raise NotStartedError(stream.error)
            await asyncio.sleep(0.1)
        reason = "the process exited" if self.process.has_exited else f"no reply within {timeout_s:.0f} s"
        raise NotStartedError(f"{reason}: {self.process.tail(3)}")

    async def warm_up(self, streams: int, tokens: int) -> None:
        """Sends requests that are not measured, alone and concurrently. Then measures the CPU use without requests.

        Most of the requests are as long as the measured ones, `tokens` of output, so that memory which a server
        allocates on demand is allocated before the measurement.
        """
        for index, (count, length) in enumerate(((1, 16), (streams, 16), *3 * [(streams, tokens)])):
            await self.run_prompts([make_prompt(f"warm {index} {number}", 128) for number in range(count)], length)
        cpu_before = self.process.cpu_seconds()
        await asyncio.sleep(IDLE_PERIOD_S)
        self.idle_cores = (self.process.cpu_seconds() - cpu_before) / IDLE_PERIOD_S

    async def run_prompts(self, prompts: list[str], max_tokens: int, timeout_s: float = 600.0) -> Sample:
        """Sends all prompts concurrently and returns the measurements."""
        bodies = [self.build_body(prompt, max_tokens) for prompt in prompts]
        return await run_load(self.port, self.peer.api, bodies, timeout_s)

    def build_body(self, prompt: str, max_tokens: int) -> dict[str, object]:
        """Returns the body of a request for this server."""
        return request_body(self.peer.api, self.model, prompt, max_tokens)

    async def send(self, body: dict[str, object], stream: Stream | None = None) -> Stream:
        """Sends one request with any body and reads its reply to the end."""
        return await send_request(self.port, self.peer.api, body, stream)

    @contextlib.contextmanager
    def resumed(self) -> Iterator[None]:
        """Resumes the server for the block. Afterwards pauses it again if it uses the CPU without requests."""
        self.process.resume()
        try:
            yield
        finally:
            self.pause_if_busy()

    def pause_if_busy(self) -> None:
        """Pauses the server if it uses the CPU without requests, and no other one needs it."""
        if self.idle_cores > MAX_IDLE_CORES and not self.is_upstream:
            self.process.pause()


class ServerPool:
    """All servers of a run. Leaving the context terminates every one of them."""

    def __init__(self, model_name: str, model: Path) -> None:
        self.model_name, self.model = model_name, model
        self.servers: list[PeerServer] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        with _ignore_signals():
            for server in self.servers:
                server.process.terminate()

    async def start(self, peer: Peer, streams: int, tokens: int = 128, timeout_s: float = 600.0) -> PeerServer:
        """Starts a server and warms it up. If that fails, terminates it and raises `NotStartedError`."""
        if reason := peer.unavailable_reason(self.model_name):
            raise NotStartedError(reason)
        free = available_memory()
        if free < MIN_FREE_MEMORY.get(self.model_name, max(2**30, self._file_bytes() * 6 // 5)):
            raise NotStartedError(f"only {free / 2**30:.1f} GiB of memory are free")
        upstream = self._find_upstream(peer)
        if upstream is not None:
            upstream.process.resume()
        server = PeerServer(peer, self.model, upstream)
        self.servers.append(server)
        try:
            await server.wait_until_ready(timeout_s)
            await server.warm_up(min(streams, peer.max_streams), tokens)
        except (NotStartedError, OSError, TimeoutError) as error:
            self.stop(server)
            raise NotStartedError(str(error)) from error
        server.pause_if_busy()
        return server

    def _file_bytes(self) -> int:
        return sum(file.stat().st_size for file in self.model.glob("*.safetensors"))

    def _find_upstream(self, peer: Peer) -> PeerServer | None:
        if peer.in_front_of is None:
            return None
        for server in self.servers:
            if server.peer.name == peer.in_front_of:
                return server
        raise NotStartedError(f"it stands in front of {peer.in_front_of}, which does not run")

    def stop(self, server: PeerServer) -> None:
        """Terminates one server."""
        self.servers.remove(server)
        server.process.terminate()


@contextlib.contextmanager
def _ignore_signals() -> Iterator[None]:
    """Ignores SIGINT and SIGTERM for the block. A second Ctrl-C during the shutdown would leave servers running."""
    handlers = {number: signal.signal(number, signal.SIG_IGN) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)


def available_memory() -> int:
    """Returns MemAvailable of /proc/meminfo in bytes."""
    lines = Path("/proc/meminfo").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:"))
