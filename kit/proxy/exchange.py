"""One request and its reply on a connection of the server.

A handler decides which bytes leave, and when: each call of `write_data` is one chunk of the reply and one write to the
socket. It can end a reply properly, cut it, or reset the connection.
"""

import asyncio
import contextlib
import json
import socket
import struct
from typing import Any

import h11

from antiphon.kit.proxy.messages import HeaderList, IncomingRequest

WIRE_READ_BYTES = 1 << 16
MAX_PIPELINED_BYTES = 1 << 16
"""Bytes of further requests that are read while a reply runs."""
LINGER_NOT = struct.pack("ii", 1, 0)
"""SO_LINGER with a time of 0: closing the socket sends a TCP reset."""


class ClientLeftError(Exception):
    """Raised when the client closed the connection in the middle of its request."""


class ServerExchange:
    """A request with its reply."""

    def __init__(
        self,
        request: IncomingRequest,
        connection: h11.Connection,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
    ) -> None:
        self.request = request
        self.is_reply_started = self.is_reply_ended = False
        self.has_switched = False
        self._connection, self._reader, self._writer = connection, reader, writer
        self._body_end = asyncio.Event()
        self._unread = b""

    async def read_part(self) -> bytes:
        """Returns the next part of the request's body; nothing at its end. Raises `ClientLeftError`."""
        if self._unread:
            part, self._unread = self._unread, b""
            return part
        while not self._body_end.is_set():
            event = self._connection.next_event()
            if event is h11.NEED_DATA:
                await self._receive_data()
            elif isinstance(event, h11.Data):
                return bytes(event.data)
            elif isinstance(event, h11.EndOfMessage):
                self._body_end.set()
        return b""

    async def read_body(self) -> bytes:
        """Returns the rest of the request's body."""
        parts = []
        while part := await self.read_part():
            parts.append(part)
        return b"".join(parts)

    def unread_body(self, body: bytes) -> None:
        """Gives the body back, so that it is read again."""
        self._unread = body

    def start_reply(self, status: int, headers: HeaderList, reason: bytes = b"") -> None:
        """Writes the head of the reply. Without a length, the body is sent in chunks."""
        self.is_reply_started = True
        self._write(h11.Response(status_code=status, headers=list(headers), reason=reason))

    def write_data(self, data: bytes) -> None:
        """Writes a part of the reply's body: one chunk, unless the reply has a length."""
        if data:
            self._write(h11.Data(data=data))

    def end_reply(self) -> None:
        """Ends the reply's body."""
        self.is_reply_ended = True
        self._write(h11.EndOfMessage())

    async def drain(self) -> None:
        """Waits while the client reads too slowly. Raises `OSError` if it has gone."""
        await self._writer.drain()

    async def send_json(self, status: int, value: Any) -> None:
        """Sends a whole reply."""
        body = json.dumps(value, ensure_ascii=False).encode()
        length = str(len(body)).encode()
        self.start_reply(status, [(b"content-type", b"application/json"), (b"content-length", length)])
        if self.request.method != "HEAD":
            self.write_data(body)
        self.end_reply()
        await self.drain()

    def cut_connection(self) -> None:
        """Closes the connection without the end of the reply."""
        self._writer.close()

    def reset_connection(self) -> None:
        """Closes the connection as the function `reset_connection` does."""
        reset_connection(self._writer)

    def switch_protocol(self, headers: HeaderList) -> tuple[asyncio.StreamReader, asyncio.StreamWriter, bytes]:
        """Answers 101. Returns the streams of the connection, and the bytes that were read after the request."""
        self.is_reply_started = self.has_switched = True
        self._write(h11.InformationalResponse(status_code=101, headers=list(headers), reason=b"Switching Protocols"))
        return self._reader, self._writer, self._connection.trailing_data[0]

    async def watch_client(self) -> None:
        """Returns when the client closes the connection. Keeps what it sends of further requests."""
        await self._body_end.wait()
        num_bytes = 0
        while num_bytes < MAX_PIPELINED_BYTES and not self.request.is_websocket:
            try:
                data = await self._reader.read(WIRE_READ_BYTES)
            except OSError:
                return
            if not data:
                return
            num_bytes += len(data)
            self._connection.receive_data(data)
        await asyncio.get_running_loop().create_future()

    async def _receive_data(self) -> None:
        if self._connection.they_are_waiting_for_100_continue:
            self._write(h11.InformationalResponse(status_code=100, headers=[], reason=b"Continue"))
        try:
            data = await self._reader.read(WIRE_READ_BYTES)
        except OSError as error:
            raise ClientLeftError from error
        if not data:
            raise ClientLeftError
        self._connection.receive_data(data)

    def _write(self, event: h11.Event) -> None:
        data = self._connection.send(event)
        if data:
            self._writer.write(data)


def reset_connection(writer: asyncio.StreamWriter) -> None:
    """Closes a connection with a TCP reset. Bytes that its other end has not read are lost."""
    with contextlib.suppress(OSError):
        writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, LINGER_NOT)
    writer.transport.abort()
