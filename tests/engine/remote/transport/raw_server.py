"""A TCP server that answers each request with the bytes of a test."""

import asyncio
import contextlib
import socket
import struct
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Literal

from antiphon.engine.remote.transport.endpoint import RemoteEndpoint

Part = bytes | Literal["close", "reset", "wait"]
"""Bytes to write, or what happens instead: the server closes or resets the connection, or waits for the client."""


def ok(body: bytes = b"{}", *, headers: bytes = b"", status: bytes = b"200 OK") -> bytes:
    """Returns a whole response."""
    return b"HTTP/1.1 %b\r\n%bContent-Length: %d\r\n\r\n%b" % (status, headers, len(body), body)


def chunk(data: bytes) -> bytes:
    """Returns a chunk of a chunked body."""
    return b"%x\r\n%b\r\n" % (len(data), data)


CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
END_CHUNK = b"0\r\n\r\n"


class RawServer:
    """Takes one reply of `replies` for each request. `requests`: the connection's number for each request."""

    def __init__(self, replies: Sequence[Sequence[Part]]) -> None:
        self.replies = list(replies)
        self.requests: list[int] = []
        self.heads: list[bytes] = []
        self.num_connections = self.num_hung_up = 0
        self._writers: list[asyncio.StreamWriter] = []
        self._server: asyncio.Server | None = None

    async def start(self) -> RemoteEndpoint:
        """Listens on a free port."""
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        return RemoteEndpoint(host="127.0.0.1", port=self._server.sockets[0].getsockname()[1])

    async def close(self) -> None:
        """Ends all connections."""
        assert self._server is not None
        self._server.close()
        for writer in self._writers:
            writer.transport.abort()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.append(writer)
        self.num_connections += 1
        number = self.num_connections
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                self.heads.append(head)
                self.requests.append(number)
                for part in self.replies.pop(0):
                    await self._play(part, reader, writer)
        self.num_hung_up += 1
        writer.transport.abort()

    async def _play(self, part: Part, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if part == "close":
            writer.close()
            raise ConnectionError
        if part == "reset":
            linger = struct.pack("ii", 1, 0)  # closing then sends RST, not FIN
            writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
            writer.transport.abort()
            raise ConnectionError
        if part == "wait":
            await reader.readexactly(1)
        elif isinstance(part, bytes):
            writer.write(part)
            await writer.drain()


@asynccontextmanager
async def raw_server(*replies: Sequence[Part]) -> AsyncIterator[tuple[RawServer, RemoteEndpoint]]:
    """Runs a server with these replies until the end of the block."""
    server = RawServer(replies)
    endpoint = await server.start()
    try:
        yield server, endpoint
    finally:
        await server.close()
