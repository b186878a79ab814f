"""An HTTP client on a bare socket, for tests of the bytes on the wire."""

import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import h11

from tests.progress import HANG_TIMEOUT_S
from tests.serving import RunningServer


@contextmanager
def connect(server: RunningServer, *, receive_buffer: int = 0) -> Iterator[socket.socket]:
    """Connects to the server. `receive_buffer` is the socket's buffer in bytes; 0 keeps the system's default."""
    with socket.socket() as client:
        if receive_buffer:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        client.settimeout(20)
        client.connect(("127.0.0.1", server.port))
        yield client


def read_to_end(client: socket.socket) -> bytes:
    """Reads until the server closes the connection."""
    data = b""
    while piece := client.recv(65536):
        data += piece
    return data


class SocketClient:
    """Sends requests and reads replies with h11, which rejects invalid HTTP."""

    def __init__(self, client: socket.socket) -> None:
        self._socket, self._connection = client, h11.Connection(h11.CLIENT)

    def send_request(self, target: str, *headers: tuple[str, str], body: bytes = b"") -> None:
        pairs = [("host", "localhost"), *headers]
        if body:
            pairs += [("content-type", "application/json"), ("content-length", str(len(body)))]
        connection = self._connection
        head = connection.send(h11.Request(method="POST" if body else "GET", target=target, headers=pairs))
        assert head is not None
        data = (connection.send(h11.Data(data=body)) or b"") + (connection.send(h11.EndOfMessage()) or b"")
        self._socket.sendall(head + data)

    def read_reply(self) -> tuple[int, bytes]:
        """Returns the status and the body of the next reply."""
        status, body, connection = 0, b"", self._connection
        while not isinstance(event := connection.next_event(), h11.EndOfMessage):
            if event is h11.NEED_DATA:
                connection.receive_data(self._socket.recv(65536))
            elif isinstance(event, h11.Response):
                status = event.status_code
            elif isinstance(event, h11.Data):
                body += event.data
        if connection.our_state is h11.DONE and connection.their_state is h11.DONE:
            connection.start_next_cycle()
        return status, body


def exchange_bytes(server: RunningServer, data: bytes, timeout: float = HANG_TIMEOUT_S) -> bytes:
    """Sends the bytes. Returns what the server sends until it closes the connection or `timeout` seconds pass.

    A server that answers before it has read everything resets the connection; on Linux the reply is readable before the reset.
    """
    with socket.create_connection(("127.0.0.1", server.port), timeout=timeout) as client:
        reply = b""
        with suppress(BrokenPipeError, ConnectionResetError):
            client.sendall(data)
        with suppress(TimeoutError, ConnectionResetError):
            while piece := client.recv(65536):
                reply += piece
        return reply
