"""The HTTP transport below every request that the server sends for a client.

A host is looked up once, every address must be allowed, and the connection goes to an address that was checked: a name
that changes its addresses between two lookups gains nothing. The Host header and TLS keep the name. Nothing is read
from the environment but `SSL_CERT_FILE` and `SSL_CERT_DIR`: no proxy, no password.

This module imports the HTTP client, which takes longer than all others of this folder: import it when it is needed.
"""

import asyncio
import logging
import ssl
from collections.abc import AsyncIterator, Callable, Sequence
from functools import cache

import httpx2

from antiphon.app.outbound.faults import OutboundError
from antiphon.app.outbound.policy import OutboundPolicy
from antiphon.app.outbound.resolver import Resolve, find_addresses, resolve_host

MAX_CONNECT_ATTEMPTS = 2
"""How often a connection is tried. Only a connection that failed is tried again: no byte of the request was sent."""
HTTP_LOGGERS = ("httpx2", "httpcore2")
"""Their lines hold URLs and headers, which may hold a key. This server reports every fault itself."""

for _name in HTTP_LOGGERS:
    logging.getLogger(_name).setLevel(logging.CRITICAL + 1)


class PinnedTransport(httpx2.AsyncBaseTransport):
    """Sends requests by a policy, and follows no redirect. A host keeps its addresses as long as the transport lives.

    `get_deadline` returns the time of the event loop at which all traffic ends, or None. `network` takes the place of
    connections.
    """

    def __init__(
        self,
        policy: OutboundPolicy,
        *,
        resolve: Resolve = resolve_host,
        get_deadline: Callable[[], float | None] = lambda: None,
        network: httpx2.AsyncBaseTransport | None = None,
    ) -> None:
        self._policy, self._resolve, self._get_deadline = policy, resolve, get_deadline
        self._network = network or httpx2.AsyncHTTPTransport(verify=_create_ssl_context(), trust_env=False, retries=0)
        self._pinned: dict[tuple[str, int], Sequence[str]] = {}

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        """Returns the reply once its headers have come; the stream of its body is a `BoundedBody`.

        Raises `OutboundError`, TimeoutError or the error of the connection.
        """
        async with asyncio.timeout_at(self._get_deadline()), asyncio.timeout(self._policy.head_timeout_s):
            response = await self._send(await self._pin(request))
        response.stream = BoundedBody(response, self._policy.max_body_bytes, self._get_deadline)
        return response

    async def aclose(self) -> None:
        """Closes all connections."""
        await self._network.aclose()

    async def _send(self, attempts: Sequence[httpx2.Request]) -> httpx2.Response:
        for attempt in attempts[:-1]:
            try:
                return await self._network.handle_async_request(attempt)
            except httpx2.ConnectError:
                continue
        return await self._network.handle_async_request(attempts[-1])

    async def _pin(self, request: httpx2.Request) -> Sequence[httpx2.Request]:
        """Returns the request for each attempt, to addresses that were checked."""
        if self._policy.reach == "any":
            return [request] * MAX_CONNECT_ATTEMPTS
        address = self._policy.check_url(str(request.url))
        ips = self._pinned.get((address.host, address.port))
        if ips is None:
            ips = await find_addresses(address, self._policy, self._resolve)
            self._pinned[address.host, address.port] = ips
        extensions = {**request.extensions, "sni_hostname": address.host}
        return [
            httpx2.Request(
                request.method,
                request.url.copy_with(host=ip),
                headers=request.headers,
                stream=request.stream,
                extensions=extensions,
            )
            for ip in (*ips, *ips)[:MAX_CONNECT_ATTEMPTS]
        ]


class BoundedBody(httpx2.AsyncByteStream):
    """The body of a reply, counted. It is read only if it is not encoded and not too large by its own headers."""

    def __init__(self, response: httpx2.Response, max_bytes: int, get_deadline: Callable[[], float | None]) -> None:
        assert isinstance(response.stream, httpx2.AsyncByteStream)
        self._stream, self._headers = response.stream, response.headers
        self._max_bytes, self._get_deadline = max_bytes, get_deadline

    def check(self) -> None:
        """Checks the headers. Raises `OutboundError`."""
        if self._headers.get("content-encoding", "identity").strip().lower() not in {"", "identity"}:
            raise OutboundError("encoded")
        stated = self._headers.get("content-length", "")
        if stated.isdecimal() and int(stated) > self._max_bytes:
            raise OutboundError("too_large")

    async def __aiter__(self) -> AsyncIterator[bytes]:
        """Yields the chunks. Raises `OutboundError`, TimeoutError at the deadline, or the error of the connection."""
        self.check()
        chunks, num_bytes = aiter(self._stream), 0
        while True:
            async with asyncio.timeout_at(self._get_deadline()):
                chunk = await anext(chunks, None)
            if chunk is None:
                return
            num_bytes += len(chunk)
            if num_bytes > self._max_bytes:
                raise OutboundError("too_large")
            yield chunk

    async def aclose(self) -> None:
        """Closes the connection, unless the body was read to its end."""
        await self._stream.aclose()


@cache
def _create_ssl_context() -> ssl.SSLContext:
    """Reads the certificates of authorities once: it takes longer than a call. `SSL_CERT_FILE` may name them."""
    return httpx2.create_ssl_context()
