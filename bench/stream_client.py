"""Clients that read streamed responses over loopback at the lowest possible cost."""

import json
import select
import socket
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

LAST_CHUNK = b"0\r\n\r\n"
"""Last chunk of a chunked response body."""
POLL_INTERVAL_S = 0.001
KEPT_BYTES = 4096
"""Bytes of the end of a reply that a client keeps."""


class StreamClient:
    """A client of one streaming request. It keeps the end of the reply, or with `keep_all` the whole.

    `arrivals` holds the time of each read with text, `started_at` that of the request.
    """

    def __init__(self, port: int, body: dict[str, Any], *, path: str = "/v1/responses", keep_all: bool = False) -> None:
        self.reply, self._keep_all = b"", keep_all
        self.arrivals: list[float] = []
        self.socket = socket.create_connection(("127.0.0.1", port))
        self.started_at = time.perf_counter()
        self.socket.sendall(_encode_request(path, body))
        self.socket.setblocking(False)

    def read_available(self) -> bool:
        """Reads the available data. Returns True at the end of the reply."""
        with suppress(BlockingIOError):
            while data := self.socket.recv(1 << 18):
                if b"output_text.delta" in data:
                    self.arrivals.append(time.perf_counter())
                self.reply = self.reply + data if self._keep_all else (self.reply + data)[-KEPT_BYTES:]
                if self.reply.endswith(LAST_CHUNK):
                    self.socket.close()
                    return True
            raise ConnectionError(self.reply[-300:])
        return False


class WebSocketClient:
    """A WebSocket with one request in each of several lanes. It keeps the end of what it receives."""

    _LAST_EVENT = b'{"type":"response.completed"'

    def __init__(self, port: int, body: dict[str, Any], num_lanes: int) -> None:
        self.reply, self._num_running, self._tail = b"", num_lanes, b""
        self.socket = socket.create_connection(("127.0.0.1", port))
        head = "GET /v1/responses HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
        self.socket.sendall(f"{head}Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: {'A' * 22}==\r\n\r\n".encode())
        while not self.reply.endswith(b"\r\n\r\n"):
            self.reply += self.socket.recv(1)
        for number in range(num_lanes):
            create = {**body, "type": "response.create", "stream_id": f"lane-{number}"}
            self.socket.sendall(_encode_text_frame(json.dumps(create).encode()))
        self.socket.setblocking(False)

    def read_available(self) -> bool:
        """Reads the available data. Returns True once all responses have ended."""
        with suppress(BlockingIOError):
            while data := self.socket.recv(1 << 18):
                self._num_running -= (self._tail + data).count(self._LAST_EVENT)
                self._tail = data[-len(self._LAST_EVENT) + 1 :]
                self.reply = (self.reply + data)[-KEPT_BYTES:]
                # The last event may be in several pieces. Its lane is at its end, and nowhere else.
                if not self._num_running and b'"stream_id":"lane-' in self.reply[-32:] and self.reply.endswith(b'"}'):
                    self.socket.close()
                    return True
            raise ConnectionError(self.reply[-300:])
        return False


def read_to_end(clients: Sequence[StreamClient | WebSocketClient], *, blocking: bool) -> None:
    """Reads all replies, which arrive concurrently.

    The clients poll every millisecond. If `blocking`, they sleep until data arrives: each write of the server then
    wakes a process on this machine, and the kernel counts that as CPU time of the server.
    """
    running = {client.socket.fileno(): client for client in clients}
    with select.epoll() as poll:
        for fd in running if blocking else ():
            poll.register(fd, select.EPOLLIN)
        while running:
            ready = [fd for fd, _ in poll.poll(None if blocking else POLL_INTERVAL_S)]
            for fd in ready or list(running):
                if running[fd].read_available():
                    del running[fd]


def _encode_text_frame(data: bytes) -> bytes:
    """Returns a frame of a client: 126 to 65 535 bytes, masked with zeros."""
    return b"\x81\xfe" + len(data).to_bytes(2) + bytes(4) + data


def _encode_request(path: str, body: dict[str, Any]) -> bytes:
    content = json.dumps(body).encode()
    head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    return f"{head}Content-Length: {len(content)}\r\n\r\n".encode() + content
