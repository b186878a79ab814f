"""A reverse proxy that passes every byte on as it comes, and shows it to an observer."""

import asyncio
import ipaddress
import signal
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING

import httpx2

from antiphon.kit.proxy.call_guard import CallGuard, ExchangeObserver
from antiphon.kit.proxy.exchange import ServerExchange
from antiphon.kit.proxy.messages import ExchangeEnding, IncomingRequest, drop_hop_by_hop, find_header
from antiphon.kit.proxy.server import Handler, make_error, run_server
from antiphon.kit.proxy.tunnel import tunnel_websocket
from antiphon.kit.proxy.upstream import UpstreamServer
from antiphon.kit.terminal_output import print_line

if TYPE_CHECKING:
    from antiphon.kit.proxy.websocket_check import WebSocketChecker


CreateObserver = Callable[[IncomingRequest], ExchangeObserver]
CreateTap = Callable[[IncomingRequest], "WebSocketChecker"]


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
        observer = self._create_observer(request)
        guard = CallGuard("the observer of an exchange", observer.on_failure)
        ending: ExchangeEnding = "client_left"
        try:
            ending = await self._forward_http(exchange, observer, guard)
        finally:
            guard.call(observer.on_end, ending)

    async def _forward_http(
        self, exchange: ServerExchange, observer: ExchangeObserver, guard: CallGuard
    ) -> ExchangeEnding:
        sent: list[bytes] = []
        try:
            reply = await self._upstream.send_request(exchange.request, _read_parts(exchange, sent))
        except httpx2.TransportError as error:
            guard.call(observer.on_request, b"".join(sent))
            reason = str(error) or type(error).__name__
            await exchange.send_json(502, make_error(f"the server did not answer: {reason}", "upstream_unreachable"))
            return "unreachable"
        try:
            exchange.start_reply(
                reply.status_code, drop_hop_by_hop(reply.headers.raw), reply.extensions.get("reason_phrase", b"")
            )
            guard.call(observer.on_request, b"".join(sent))
            guard.call(observer.on_reply, reply.status_code, reply.headers.raw)
            return await self._forward_body(exchange, reply, partial(guard.call, observer.on_data))
        finally:
            # Cancelled in the middle, httpx2 would forget to close the connection.
            await asyncio.shield(asyncio.ensure_future(reply.aclose()))

    async def _forward_body(
        self, exchange: ServerExchange, reply: httpx2.Response, observe: Callable[[bytes], None]
    ) -> ExchangeEnding:
        assert isinstance(reply.stream, httpx2.AsyncByteStream)
        try:
            async for data in reply.stream:
                exchange.write_data(data)
                observe(data)
                await exchange.drain()
        except httpx2.RemoteProtocolError:
            exchange.cut_connection()
            return "cut"
        except httpx2.TransportError:
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


def run_until_signal(server: AbstractAsyncContextManager[str], task: str) -> None:
    """Runs a server until SIGINT or SIGTERM. Prints what it does, `task`, and the base URL for clients."""

    async def run() -> None:
        async with server as url:
            print_line(f"{task}: give your client the base URL {url}; Ctrl-C ends")
            loop, received = asyncio.get_running_loop(), asyncio.Event()
            for number in (signal.SIGINT, signal.SIGTERM):
                loop.add_signal_handler(number, received.set)
            await received.wait()

    asyncio.run(run())
