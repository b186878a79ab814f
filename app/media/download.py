"""Downloads a URL: connections to checked addresses, redirects, limits on the body.

This module imports the HTTP client, which takes longer than all others of this folder: `fetch` imports it when needed.
"""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Sequence
from functools import cache
from ssl import SSLContext
from urllib.parse import urljoin

import httpx
from msgspec import Struct

from antiphon.app.media.fetch_rules import FetchFault
from antiphon.app.tools.mcp.address import ClientAddress, parse_ip

MAX_REDIRECTS = 3
REDIRECTS = frozenset({301, 302, 303, 307, 308})
MAX_ADDRESSES = 2
"""Addresses of a host that are tried."""
_HEADERS = {"User-Agent": "antiphon", "Accept": "*/*", "Accept-Encoding": "identity", "Connection": "close"}

Resolve = Callable[[str, int], Awaitable[Sequence[str]]]
"""Returns the IP addresses of a host. Raises OSError."""


class Download(Struct, frozen=True, kw_only=True):
    """One download. `check` returns the parts of a URL that may be fetched, or raises `FetchFault`."""

    url: str
    max_bytes: int
    check: Callable[[str], ClientAddress]
    resolve: Resolve
    may_dial: Callable[[str], bool]
    create_transport: Callable[[], httpx.AsyncBaseTransport]
    total_timeout_s: float
    """Time for all redirects and the whole body."""
    first_byte_timeout_s: float
    """Time from the lookup of a host until its headers have come."""

    async def run(self) -> bytes:
        """Returns the body. Raises `FetchFault`."""
        try:
            async with asyncio.timeout(self.total_timeout_s):
                return await self._follow()
        except (TimeoutError, httpx.TimeoutException):
            raise FetchFault("timeout", self.url) from None
        except (httpx.HTTPError, httpx.InvalidURL, OSError, UnicodeError):
            raise FetchFault("failed", self.url) from None

    async def _follow(self) -> bytes:
        """Returns the body behind at most `MAX_REDIRECTS`. Each URL is checked like the first one."""
        current = self.url
        for _ in range(MAX_REDIRECTS + 1):
            address = self.check(current)
            async with contextlib.aclosing(self.create_transport()) as transport:
                response = await self._request(transport, address)
                try:
                    if response.status_code not in REDIRECTS:
                        return await _read_body(response, self.url, self.max_bytes)
                    current = _join_url(address.url, response.headers.get("location", ""))
                finally:
                    await response.aclose()
        raise FetchFault("failed", self.url)

    async def _request(self, transport: httpx.AsyncBaseTransport, address: ClientAddress) -> httpx.Response:
        async with asyncio.timeout(self.first_byte_timeout_s):
            ips = [address.host] if parse_ip(address.host) else await self.resolve(address.host, address.port)
            if not ips or not all(self.may_dial(ip) for ip in ips):
                raise FetchFault("refused", self.url, host=address.host)
            tried = list(dict.fromkeys(ips))[:MAX_ADDRESSES]
            for ip in tried[:-1]:
                with contextlib.suppress(httpx.ConnectError):
                    return await transport.handle_async_request(_pin(address, ip))
            return await transport.handle_async_request(_pin(address, tried[-1]))


def _join_url(base: str, location: str) -> str:
    """Returns the URL of a redirect. A location that is no URL stays as it is, and is refused."""
    try:
        return urljoin(base, location)
    except ValueError:
        return location


def _pin(address: ClientAddress, ip: str) -> httpx.Request:
    """Returns a request to an address that was checked. The Host header and TLS have the name."""
    url = httpx.URL(address.url)
    headers = {"Host": url.netloc.decode("ascii"), **_HEADERS}
    return httpx.Request("GET", url.copy_with(host=ip), headers=headers, extensions={"sni_hostname": address.host})


async def _read_body(response: httpx.Response, url: str, max_bytes: int) -> bytes:
    if response.status_code != 200:
        raise FetchFault("status", url, status=response.status_code)
    if response.headers.get("content-encoding", "identity").strip().lower() not in {"", "identity"}:
        raise FetchFault("failed", url)
    stated = response.headers.get("content-length", "")
    if stated.isdecimal() and int(stated) > max_bytes:
        raise FetchFault("too_large", url, found=int(stated), allowed=max_bytes)
    body = bytearray()
    assert isinstance(response.stream, httpx.AsyncByteStream)
    async for part in response.stream:
        body += part
        if len(body) > max_bytes:
            raise FetchFault("too_large", url, found=len(body), allowed=max_bytes)
    return bytes(body)


def create_pinned_transport() -> httpx.AsyncBaseTransport:
    """Returns a transport that reads no proxy from the environment and tries nothing again."""
    return httpx.AsyncHTTPTransport(verify=_create_ssl_context(), trust_env=False, retries=0)


@cache
def _create_ssl_context() -> SSLContext:
    """Reads the certificates of authorities once, which takes longer than a small download."""
    return httpx.create_ssl_context(trust_env=False)
