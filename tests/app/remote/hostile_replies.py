"""Replies of an engine that attacks the server in front of it, as data: name, reply, and what the client is told.

A reply is repeated parts: (bytes, times). `python -m tests.app.remote.hostile_replies` serves them on a free port and
prints the port. The seed of a job chooses the reply.
"""

import asyncio
import contextlib
import json
import sys
from typing import NamedTuple

from tests.engine.remote.fake_server import FakeServer, Reply, play_vllm, sse, vllm_tokens, vllm_usage
from tests.engine.remote.remote_helpers import EOS, encode, follow_grammars
from tests.engine.remote.transport.raw_server import CHUNKED, END_CHUNK, chunk, ok

ENGINE_KEY = "sk-engine-0123456789"
FAILED = 0
"""Status of a reply whose stream fails."""
ENDLESS = 1 << 30
KEY_ERROR = json.dumps({"error": {"message": f"bad header: Bearer {ENGINE_KEY}"}}).encode()
TOKEN = sse(vllm_tokens(50), end=False)[0]


class HostileReply(NamedTuple):
    """Parts with their numbers of repetitions, and the status of the client's reply."""

    parts: tuple[tuple[bytes, int], ...]
    status: int


def blocks(data: bytes, size: int = 60_000) -> bytes:
    """Returns a chunk of about `size` bytes that repeats the data."""
    return chunk(data * (size // len(data)))


REPLIES: dict[str, HostileReply] = {
    "one header of 64 MB": HostileReply(((b"HTTP/1.1 200 OK\r\nX: ", 1), (b"x" * 65_536, 1000)), 503),
    "endless headers": HostileReply(((b"HTTP/1.1 200 OK\r\n", 1), (b"X: y\r\n" * 10_000, ENDLESS)), 503),
    "endless interim replies": HostileReply(((b"HTTP/1.1 103 Early Hints\r\n\r\n" * 1000, ENDLESS),), 503),
    "endless extension of a chunk": HostileReply(((CHUNKED + b"5;x=", 1), (b"x" * 60_000, ENDLESS)), 503),
    "endless comments": HostileReply(((CHUNKED, 1), (blocks(b": comment\n\n"), ENDLESS)), 503),
    "endless short comments": HostileReply(((CHUNKED, 1), (blocks(b":\n\n"), ENDLESS)), 503),
    "endless empty events": HostileReply(((CHUNKED, 1), (blocks(b"data: {}\n\n"), ENDLESS)), 503),
    "endless blank lines": HostileReply(((CHUNKED, 1), (blocks(b"\n\n"), ENDLESS)), 503),
    "endless end markers": HostileReply(((CHUNKED, 1), (blocks(b"data: [DONE]\n\n"), ENDLESS)), 503),
    "endless comments after a token": HostileReply(
        ((CHUNKED + chunk(TOKEN), 1), (blocks(b": x\n\n"), ENDLESS)), FAILED
    ),
    "one endless event": HostileReply(((CHUNKED + chunk(b"data: "), 1), (blocks(b"x"), ENDLESS)), 503),
    "endless tokens": HostileReply(
        ((CHUNKED, 1), (blocks(b'data: {"choices":[{"token_ids":[50]}]}\n\n'), ENDLESS)), 200
    ),
    "one event of many tokens": HostileReply(
        ((CHUNKED + chunk(b'data: {"choices":[{"token_ids":[' + b"50," * 100_000 + b"50]}]}\n\n"), 1),), 200
    ),
    "nested JSON": HostileReply(((CHUNKED + chunk(b'data: {"x":' + b"[" * 100_000 + b"\n\n") + END_CHUNK, 1),), 503),
    "nested JSON in an error": HostileReply(
        ((b"HTTP/1.1 400 Bad\r\n\r\n" + b'{"error":' * 100_000, 1), (b"x" * 65_536, 1000)), 400
    ),
    "endless error": HostileReply(((b"HTTP/1.1 400 Bad\r\n\r\n", 1), (b"x" * 65_536, ENDLESS)), 400),
    "error with the engine's key": HostileReply(((ok(KEY_ERROR, status=b"400 Bad Request"), 1),), 400),
    "count of cached tokens": HostileReply(
        (
            (
                CHUNKED
                + b"".join(map(chunk, sse(vllm_tokens(50, EOS, finish="stop"), vllm_usage(10**30))))
                + END_CHUNK,
                1,
            ),
        ),
        200,
    ),
}


class HostileServer(FakeServer):
    """Shakes hands like a working engine, and attacks with its replies to jobs."""

    async def _write_reply(self, reply: Reply, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        request = self.requests[-1]
        if "x-request-id" not in request.headers:
            await super()._write_reply(reply, reader, writer)
            return
        attack = list(REPLIES.values())[request.body["seed"]]
        for part, times in attack.parts:
            for _ in range(times):
                writer.write(part)
                await writer.drain()
        writer.close()
        raise ConnectionResetError


async def main() -> None:
    """Serves until the standard input ends."""
    server = HostileServer(encode, play_vllm(50, EOS), follow_grammars)
    await server.start()
    print(server.port, flush=True)
    with contextlib.suppress(asyncio.CancelledError):
        await asyncio.to_thread(sys.stdin.read)
    await server.kill()


if __name__ == "__main__":
    asyncio.run(main())
