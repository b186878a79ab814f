"""WebSockets through the proxy: the handshake is passed on, then the bytes of both sides as they are."""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING

import h11

from antiphon.kit.proxy.call_guard import CallGuard
from antiphon.kit.proxy.exchange import WIRE_READ_BYTES, ServerExchange
from antiphon.kit.proxy.messages import drop_hop_by_hop
from antiphon.kit.proxy.server import make_error
from antiphon.kit.proxy.upstream import UpstreamServer

if TYPE_CHECKING:
    from antiphon.kit.proxy.websocket_check import WebSocketChecker

Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


async def tunnel_websocket(exchange: ServerExchange, upstream: UpstreamServer, tap: "WebSocketChecker") -> None:
    """Passes on the handshake, and the bytes of both sides until one of them closes. `tap` sees them afterwards."""
    guard = CallGuard("the check of a WebSocket")
    await exchange.read_body()
    try:
        streams = await upstream.open_connection()
    except OSError as error:
        message = f"the server did not answer: {error.strerror or error}"
        await exchange.send_json(502, make_error(message, "upstream_unreachable"))
        return
    try:
        await _run_tunnel(exchange, upstream, streams, tap, guard)
    finally:
        streams[1].close()
        guard.call(tap.on_close)


async def _run_tunnel(
    exchange: ServerExchange, upstream: UpstreamServer, streams: Streams, tap: "WebSocketChecker", guard: CallGuard
) -> None:
    reader, writer = streams
    connection = h11.Connection(h11.CLIENT)
    request = exchange.request
    headers = upstream.make_headers(request)
    headers += [(name, value) for name, value in request.headers if name.lower() in (b"connection", b"upgrade")]
    head = h11.Request(method=request.method, target=upstream.make_target(request), headers=headers)
    writer.write((connection.send(head) or b"") + (connection.send(h11.EndOfMessage()) or b""))
    answer = await _read_answer(connection, reader)
    guard.call(tap.on_handshake, answer.status_code, list(answer.headers))
    if isinstance(answer, h11.Response):
        await _pass_refusal(exchange, connection, reader, answer)
        return
    client_reader, client_writer, early = exchange.switch_protocol(list(answer.headers.raw_items()))
    early_reply = connection.trailing_data[0]
    writer.write(early)
    client_writer.write(early_reply)
    see_client, see_server = partial(guard.call, tap.on_client_data), partial(guard.call, tap.on_server_data)
    see_client(early)
    see_server(early_reply)
    await asyncio.gather(_pass_bytes(client_reader, writer, see_client), _pass_bytes(reader, client_writer, see_server))


async def _read_answer(
    connection: h11.Connection, reader: asyncio.StreamReader
) -> h11.Response | h11.InformationalResponse:
    """Returns the final answer to the handshake: 101 or a refusal. Raises `OSError` if there is none."""
    while True:
        event = connection.next_event()
        if event is h11.NEED_DATA:
            connection.receive_data(await reader.read(WIRE_READ_BYTES))
        elif isinstance(event, h11.Response | h11.InformationalResponse) and event.status_code not in range(102, 200):
            return event
        elif isinstance(event, h11.ConnectionClosed):
            raise ConnectionResetError("the server closed the connection in the handshake")


async def _pass_refusal(
    exchange: ServerExchange, connection: h11.Connection, reader: asyncio.StreamReader, answer: h11.Response
) -> None:
    exchange.start_reply(answer.status_code, drop_hop_by_hop(list(answer.headers.raw_items())), answer.reason)
    while not isinstance(event := connection.next_event(), h11.EndOfMessage):
        if event is h11.NEED_DATA:
            connection.receive_data(await reader.read(WIRE_READ_BYTES))
        elif isinstance(event, h11.Data):
            exchange.write_data(bytes(event.data))
    exchange.end_reply()
    await exchange.drain()


async def _pass_bytes(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, observe: Callable[[bytes], None]
) -> None:
    """Passes bytes on until the sender closes, then closes the other side."""
    with suppress(OSError):
        while data := await reader.read(WIRE_READ_BYTES):
            writer.write(data)
            observe(data)
            await writer.drain()
    writer.close()
