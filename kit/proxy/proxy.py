"""A reverse proxy that passes every byte on as it comes, and shows it to an observer."""

import asyncio
import ipaddress
import logging
import signal
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Protocol

import httpx

from antiphon.kit.proxy.call_guard import CallGuard
from antiphon.kit.proxy.exchange import ServerExchange
from antiphon.kit.proxy.messages import ExchangeEnding, HeaderList, IncomingRequest, drop_hop_by_hop, find_header
from antiphon.kit.proxy.server import Handler, make_error, run_server
from antiphon.kit.proxy.tunnel import WebSocketTap, tunnel_websocket
from antiphon.kit.proxy.upstream import UpstreamServer

_log = logging.getLogger("antiphon.kit.proxy")


class ExchangeObserver(Protocol):
    """Sees one exchange. Its methods are called after the bytes have been passed on."""

    def on_request(self, body: bytes) -> None:
        """The request has been sent."""

    def on_reply(self, status: int, headers: HeaderList) -> None:
        """The head of the reply."""

    def on_data(self, data: bytes) -> None:
        """A part of the reply's body."""

    def on_end(self, ending: ExchangeEnding) -> None:
        """The end of the exchange. It comes once, whatever happened before."""

    def on_failure(self) -> None:
        """One of the methods above raised. No further one is called."""


CreateObserver = Callable[[IncomingRequest], ExchangeObserver]
CreateTap = Callable[[IncomingRequest], WebSocketTap]


class ReverseProxy:
    """Passes requests on to one server. Without `create_tap`, it answers 426 to WebSockets."""

    def __init__(
        self, upstream: UpstreamServer, create_observer: CreateObserver, create_tap: CreateTap | None = None
    ) -> None:
        self._upstream, self._create_observer, self._create_tap = upstream, create_observer, create_tap

    async def forward_exchange(self, exchange: ServerExchange) -> None:
        """Answers a request with the server's reply."""
        request = exchange.request
        if request.is_websocket:
            await self._forward_websocket(exchange)
            return
        observer = _ObserverGuard(self._create_observer(request))
        ending: ExchangeEnding = "client_left"
        try:
            ending = await self._forward_http(exchange, observer)
        finally:
            observer.on_end(ending)

    async def _forward_http(self, exchange: ServerExchange, observer: "_ObserverGuard") -> ExchangeEnding:
        sent: list[bytes] = []
        try:
            reply = await self._upstream.send_request(exchange.request, _read_parts(exchange, sent))
        except httpx.TransportError as error:
            observer.on_request(b"".join(sent))
            reason = str(error) or type(error).__name__
            await exchange.send_json(502, make_error(f"the server did not answer: {reason}", "upstream_unreachable"))
            return "unreachable"
        try:
            exchange.start_reply(
                reply.status_code, drop_hop_by_hop(reply.headers.raw), reply.extensions.get("reason_phrase", b"")
            )
            observer.on_request(b"".join(sent))
            observer.on_reply(reply.status_code, reply.headers.raw)
            return await self._forward_body(exchange, reply, observer)
        finally:
            # Cancelled in the middle, httpx would forget to close the connection.
            await asyncio.shield(asyncio.ensure_future(reply.aclose()))

    async def _forward_body(
        self, exchange: ServerExchange, reply: httpx.Response, observer: "_ObserverGuard"
    ) -> ExchangeEnding:
        assert isinstance(reply.stream, httpx.AsyncByteStream)
        try:
            async for data in reply.stream:
                exchange.write_data(data)
                observer.on_data(data)
                await exchange.drain()
        except httpx.RemoteProtocolError:
            exchange.cut_connection()
            return "cut"
        except httpx.TransportError:
            exchange.reset_connection()
            return "reset"
        exchange.end_reply()
        await exchange.drain()
        return "complete"

    async def _forward_websocket(self, exchange: ServerExchange) -> None:
        if self._create_tap is None:
            await exchange.send_json(426, make_error("this server takes no WebSockets; use POST", "upgrade_required"))
            return
        await tunnel_websocket(exchange, self._upstream, self._create_tap(exchange.request))


class _ObserverGuard:
    """Keeps an observer's errors from the traffic: they are logged, and the observer sees nothing more."""

    def __init__(self, observer: ExchangeObserver) -> None:
        self._observer = observer
        self._guard = CallGuard("the observer of an exchange", observer.on_failure)

    def on_request(self, body: bytes) -> None:
        self._guard.call(self._observer.on_request, body)

    def on_reply(self, status: int, headers: HeaderList) -> None:
        self._guard.call(self._observer.on_reply, status, headers)

    def on_data(self, data: bytes) -> None:
        self._guard.call(self._observer.on_data, data)

    def on_end(self, ending: ExchangeEnding) -> None:
        self._guard.call(self._observer.on_end, ending)


async def _read_parts(exchange: ServerExchange, sent: list[bytes]) -> AsyncIterator[bytes]:
    """Yields the parts of a request's body, and keeps them in `sent`."""
    while part := await exchange.read_part():
        sent.append(part)
        yield part


def refuse_foreign_hosts(handler: Handler) -> Handler:
    """Returns a handler that answers 403 to a Host that is no address and not localhost.

    A web page can give its own domain this machine's address; its requests would otherwise reach the server behind.
    """

    async def handle_local(exchange: ServerExchange) -> None:
        host = find_header(exchange.request.headers, "host")
        if is_local_name(host):
            await handler(exchange)
        else:
            await exchange.send_json(403, make_error(f"the host {host!r} is not allowed; use 127.0.0.1", "host"))

    return handle_local


def is_local_name(host: str) -> bool:
    """Returns whether a Host header names localhost or an address."""
    name = host.rsplit(":", 1)[0] if not host.endswith("]") else host
    name = name.strip("[]").lower()
    if not name or name == "localhost" or name.endswith(".localhost"):
        return True
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


@asynccontextmanager
async def open_proxy(
    upstream_url: str,
    host: str,
    port: int,
    create_observer: CreateObserver,
    create_tap: CreateTap | None = None,
    *,
    api_key: str | None = None,
) -> AsyncIterator[str]:
    """Runs a proxy until the block ends. Yields the base URL for clients. `api_key` takes the place of the client's.

    Raises `UpstreamUrlError` and `WireServerError`.
    """
    upstream = UpstreamServer(upstream_url, api_key=api_key)
    proxy = ReverseProxy(upstream, create_observer, create_tap)
    try:
        async with run_server(guard_handler(proxy.forward_exchange, host), host, port) as bound_port:
            yield make_base_url(host, bound_port)
    finally:
        await upstream.close()


def guard_handler(handler: Handler, host: str) -> Handler:
    """Returns the handler, with `refuse_foreign_hosts` if only this machine can reach the address."""
    is_loopback = host == "localhost" or (is_local_name(host) and ipaddress.ip_address(host).is_loopback)
    return refuse_foreign_hosts(handler) if is_loopback else handler


def make_base_url(host: str, port: int) -> str:
    """Returns the base URL of a server on this address."""
    return f"http://{f'[{host}]' if ':' in host else host}:{port}/v1"


async def wait_for_signal() -> None:
    """Waits for SIGINT or SIGTERM."""
    loop, received = asyncio.get_running_loop(), asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, received.set)
    await received.wait()
