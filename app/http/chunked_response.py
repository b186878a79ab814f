"""Streaming responses whose chunks bypass h11; h11 writes the head and the end.

h11 checks every piece of a body, which costs more than writing the piece. Between the head and the end, a chunk does
not change h11's state, so it can be written directly to the transport.
"""

import contextlib
import os
import socket
import struct
from asyncio import Transport

from uvicorn.protocols.http.h11_impl import RequestResponseCycle

from antiphon.app.http.asgi import AsgiMessage, AsgiScope, AsgiSend


class ChunkedResponse:
    """Sends one response through h11. With chunked transfer encoding it is also a `ChunkSink` that bypasses h11."""

    def __init__(self, scope: AsgiScope, cycle: RequestResponseCycle, send: AsgiSend) -> None:
        self._cycle, self._send = cycle, send
        self._may_be_chunked = scope["http_version"] == "1.1" and scope["method"] in {"GET", "POST"}
        self.can_write = False
        """True if `write_chunk` may be called: the head is sent, and the body uses chunked transfer encoding."""

    async def send(self, message: AsgiMessage) -> None:
        """Passes an ASGI message to h11."""
        if message["type"] == "http.response.start":
            self.can_write = self._may_be_chunked and _is_chunked(message)
        await self._send(message)

    @property
    def write_paused(self) -> bool:
        """True while the write buffer is full and the client is connected."""
        return self._cycle.flow.write_paused and not self._cycle.disconnected

    async def drain(self) -> None:
        """Waits until writing may continue."""
        if self.write_paused:
            await self._cycle.flow.drain()

    def write_chunk(self, chunk: bytes) -> None:
        """Writes one chunk immediately; writes nothing after the client has disconnected."""
        if chunk and not self._cycle.disconnected:  # an empty chunk would end the body
            self._cycle.transport.write(b"%x\r\n%b\r\n" % (len(chunk), chunk))

    def close_connection(self) -> None:
        """Closes the connection, once all that was written is sent."""
        self._cycle.transport.close()

    def reset_connection(self) -> None:
        """Resets the connection (TCP RST). What has not been sent yet is lost."""
        transport = self._cycle.transport
        with contextlib.suppress(OSError), socket.socket(fileno=_copy_descriptor(transport)) as twin:
            twin.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        transport.abort()


def _copy_descriptor(transport: Transport) -> int:
    """Returns a copy of the descriptor: the event loop's own socket object cannot set options."""
    return os.dup(transport.get_extra_info("socket").fileno())


def _is_chunked(start: AsgiMessage) -> bool:
    """Tells whether h11 will send the body chunked: the status allows a body, and there is no Content-Length."""
    return start["status"] == 200 and all(name.lower() != b"content-length" for name, _ in start["headers"])
