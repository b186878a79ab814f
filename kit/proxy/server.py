"""An HTTP/1.1 server over asyncio streams and h11."""

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress

import h11

from antiphon.kit.proxy.exchange import WIRE_READ_BYTES, ClientLeftError, ServerExchange
from antiphon.kit.proxy.messages import IncomingRequest

Handler = Callable[[ServerExchange], Awaitable[None]]
"""Answers one request. It is cancelled when the client closes the connection."""

MAX_HEAD_BYTES = 1 << 18
BACKLOG = 1024
DISCARD_TIMEOUT_S = 5.0
"""Time to read the rest of a body that the handler did not want. Closing the socket before would destroy the reply."""
MAX_DISCARDED_BYTES = 1 << 26

_log = logging.getLogger("antiphon.kit.proxy")


class WireServerError(Exception):
    """Raised when the server cannot start. The message gives the reason."""


@asynccontextmanager
async def run_server(handler: Handler, host: str, port: int) -> AsyncIterator[int]:
    """Serves until the block ends. Yields the port. Port 0: any free one. Raises `WireServerError`."""
    tasks: set[asyncio.Task[None]] = set()

    async def serve_client(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        tasks.add(task)
        try:
            await _ClientConnection(reader, writer, handler).run()
        except (OSError, asyncio.CancelledError):
            pass  # the client has gone, or the server stops
        finally:
            tasks.discard(task)
            writer.close()

    try:
        server = await asyncio.start_server(serve_client, host, port, backlog=BACKLOG)
    except OSError as error:
        raise WireServerError(f"cannot listen on {host}:{port}: {error.strerror or error}") from None
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


class _ClientConnection:
    """A connection from a client, and its requests one after the other."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, handler: Handler) -> None:
        self._reader, self._writer, self._handler = reader, writer, handler
        self._connection = h11.Connection(h11.SERVER, max_incomplete_event_size=MAX_HEAD_BYTES)

    async def run(self) -> None:
        connection = self._connection
        while True:
            try:
                request = await self._read_request()
            except h11.RemoteProtocolError as error:
                await self._refuse(error)
                return
            if request is None:
                return
            exchange = ServerExchange(request, connection, self._reader, self._writer)
            with suppress(ClientLeftError):
                await self._run_exchange(exchange)
                await self._discard_body(exchange)
            if exchange.has_switched or self._writer.is_closing() or connection.our_state is not h11.DONE:
                return
            if connection.their_state is not h11.DONE:
                return
            connection.start_next_cycle()

    async def _read_request(self) -> IncomingRequest | None:
        """Returns the next request, or None when the client has closed the connection."""
        while (event := self._connection.next_event()) is h11.NEED_DATA:
            self._connection.receive_data(await self._reader.read(WIRE_READ_BYTES))
        if not isinstance(event, h11.Request):
            return None
        headers = tuple((bytes(name), bytes(value)) for name, value in event.headers.raw_items())
        return IncomingRequest(event.method.decode(), event.target.decode("latin-1"), headers)

    async def _run_exchange(self, exchange: ServerExchange) -> None:
        """Runs the handler to its end, or until the client leaves."""
        if not exchange.request.has_body:
            await exchange.read_body()  # the client is watched from the end of its request on
        handler = asyncio.ensure_future(self._handle(exchange))
        watcher = asyncio.ensure_future(exchange.watch_client())
        try:
            await asyncio.wait((handler, watcher), return_when=asyncio.FIRST_COMPLETED)
            if exchange.is_reply_ended:
                await handler
            elif not handler.done():
                raise ClientLeftError
        finally:
            handler.cancel()
            watcher.cancel()
            await asyncio.gather(handler, watcher, return_exceptions=True)

    async def _handle(self, exchange: ServerExchange) -> None:
        try:
            await self._handler(exchange)
        except (ClientLeftError, OSError):
            exchange.cut_connection()
        except Exception:  # noqa: BLE001  logged, and answered with 500
            _log.exception("the request %s %s failed", exchange.request.method, exchange.request.path)
            if exchange.is_reply_started:
                exchange.cut_connection()
            else:
                await exchange.send_json(500, make_error("the handler of the request failed; see the log", "internal"))

    async def _discard_body(self, exchange: ServerExchange) -> None:
        num_bytes = 0
        with suppress(TimeoutError, h11.RemoteProtocolError):
            async with asyncio.timeout(DISCARD_TIMEOUT_S):
                while num_bytes < MAX_DISCARDED_BYTES and (part := await exchange.read_part()):
                    num_bytes += len(part)

    async def _refuse(self, error: h11.RemoteProtocolError) -> None:
        """Answers 400 to bytes that are no HTTP."""
        if self._connection.our_state not in (h11.IDLE, h11.SEND_RESPONSE):
            return
        body = f"invalid HTTP: {error}\n".encode()
        headers = [("content-type", "text/plain"), ("content-length", str(len(body))), ("connection", "close")]
        events = (h11.Response(status_code=400, headers=headers), h11.Data(data=body), h11.EndOfMessage())
        self._writer.write(b"".join(self._connection.send(event) or b"" for event in events))
        await self._writer.drain()


def make_error(message: str, code: str) -> dict[str, object]:
    """Returns the body of an error in the form of the API."""
    return {"error": {"message": message, "type": "invalid_request_error", "code": code, "param": None}}
