"""A response on its way out: h11 writes its head and its end; chunks in between may be written past h11.

h11 checks every piece of a body, which costs more than writing the piece. Between the head and the end, a chunk leaves
no trace in h11's state.
"""

from uvicorn.protocols.http.h11_impl import RequestResponseCycle

from antiphon.app.http.asgi import AsgiMessage, AsgiScope, AsgiSend


class ChunkedResponse:
    """An answer on its way out, which h11 writes; and a pipe: where it comes in chunks, they may be written past h11.

    Between the head and the end, a chunk leaves no trace in h11's state.
    """

    def __init__(self, scope: AsgiScope, cycle: RequestResponseCycle, send: AsgiSend) -> None:
        self._cycle, self._send = cycle, send
        self._may_be_chunked = scope["http_version"] == "1.1" and scope["method"] in {"GET", "POST"}
        self.can_write = False
        """Whether `write` may be used: the head has been sent, and the answer comes in chunks."""

    async def send(self, message: AsgiMessage) -> None:
        """Pass a message of ASGI's on to h11."""
        if message["type"] == "http.response.start":
            self.can_write = self._may_be_chunked and _is_chunked(message)
        await self._send(message)

    @property
    def write_paused(self) -> bool:
        """Whether the client is slower than the answer. One that has left is not waited for."""
        return self._cycle.flow.write_paused and not self._cycle.disconnected

    async def drain(self) -> None:
        """Wait until it is no more."""
        if self.write_paused:
            await self._cycle.flow.drain()

    def write_chunk(self, piece: bytes) -> None:
        """One chunk, at once. To a client that has left, nothing is written."""
        if piece and not self._cycle.disconnected:  # an empty chunk would be the end
            self._cycle.transport.write(b"%x\r\n%b\r\n" % (len(piece), piece))


def _is_chunked(start: AsgiMessage) -> bool:
    """Whether h11 will send the body of such an answer in chunks: it may have one, and its length is not known."""
    return start["status"] == 200 and all(name.lower() != b"content-length" for name, _ in start["headers"])
