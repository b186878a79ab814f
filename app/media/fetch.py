"""Fetches pictures and files from hosts that the operator allows, and from nowhere else.

A host is resolved once, every address must be public, and the connection goes to an address that was checked: a name
that changes its addresses between two lookups gains nothing. Redirects are followed by the same rules. No cookie, no
proxy, no compression; the content type is not believed, since the content decides.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Sequence
from functools import cache
from socket import SOCK_STREAM
from ssl import SSLContext
from typing import Literal
from urllib.parse import urljoin

import httpx
from msgspec import Struct

from antiphon.app.tools.mcp.address import ANY_HOST, ClientAddress, is_public_address, parse_ip, parse_url

MAX_REDIRECTS = 3
REDIRECTS = frozenset({301, 302, 303, 307, 308})
FIRST_BYTE_TIMEOUT_S = 5.0
"""Time from the lookup of a host until its headers have come."""
TOTAL_TIMEOUT_S = 20.0
"""Time for all redirects and the whole body."""
MAX_FETCHES_OF_OWNER = 4
MAX_ADDRESSES = 2
"""Addresses of a host that are tried."""
_DEFAULT_PORTS = {"http": 80, "https": 443}
_HEADERS = {"User-Agent": "antiphon", "Accept": "*/*", "Accept-Encoding": "identity", "Connection": "close"}

Resolve = Callable[[str, int], Awaitable[Sequence[str]]]
"""Returns the IP addresses of a host. Raises OSError."""
FetchCode = Literal["refused", "status", "timeout", "failed", "too_large"]


class FetchFault(Exception):  # noqa: N818  it is a property of the URL
    """A URL cannot be fetched. `detail` is for the client."""

    def __init__(
        self, code: FetchCode, url: str, *, host: str = "", status: int = 0, found: int = 0, allowed: int = 0
    ) -> None:
        self.code = code
        """`refused`: by the operator's rules; nothing was sent."""
        self.url = url
        self.host = host
        self.status = status
        self.found = found
        self.allowed = allowed
        self.detail = self._describe()
        super().__init__(f"{code}: {self.detail}")

    def _describe(self) -> str:
        match self.code:
            case "refused":
                return f"this server fetches no URLs from {self.host!r}."
            case "status":
                return f"Error while downloading {self.url}. Upstream status code: {self.status}."
            case "timeout":
                return f"Timeout while downloading {self.url}."
            case "too_large":
                return f"Error while downloading {self.url}. It has more than {self.allowed} bytes."
            case "failed":
                return f"Error while downloading {self.url}."


class AllowedHost(Struct, frozen=True):
    """A host from which pictures are fetched."""

    scheme: str
    host: str
    """`ANY_HOST`: every public address."""
    port: int

    def allows(self, address: ClientAddress) -> bool:
        """Tells whether a URL may be fetched."""
        return self.host in (ANY_HOST, address.host) and self.scheme == address.scheme and self.port == address.port


def parse_allowed_host(text: str, *, may_be_any: bool = False) -> AllowedHost:
    """Parses HOST, HOST:PORT or http://HOST. Raises ValueError with the reason."""
    if text.endswith(ANY_HOST):
        if text not in (ANY_HOST, f"http://{ANY_HOST}", f"https://{ANY_HOST}") or not may_be_any:
            raise ValueError("Every host is allowed only with --allow-any-image-host. Name the hosts instead.")
        scheme = "http" if text.startswith("http:") else "https"
        return AllowedHost(scheme, ANY_HOST, _DEFAULT_PORTS[scheme])
    address = parse_url(text if "://" in text else f"https://{text}")
    if address.path != "/":
        raise ValueError("Name a host without a path.")
    return AllowedHost(address.scheme, address.host, address.port)


async def resolve_public_host(host: str, port: int) -> Sequence[str]:
    """Returns the addresses of a host, from the system."""
    found = await asyncio.get_running_loop().getaddrinfo(host, port, type=SOCK_STREAM)
    return [str(address[0]) for *_, address in found]


class MediaFetcher:
    """Fetches URLs. One for each server; it belongs to one event loop."""

    def __init__(
        self,
        allowed: Collection[AllowedHost],
        *,
        resolve: Resolve = resolve_public_host,
        may_dial: Callable[[str], bool] = is_public_address,
        create_transport: Callable[[], httpx.AsyncBaseTransport] | None = None,
        total_timeout_s: float = TOTAL_TIMEOUT_S,
        first_byte_timeout_s: float = FIRST_BYTE_TIMEOUT_S,
    ) -> None:
        self._allowed = tuple(allowed)
        self._resolve, self._may_dial = resolve, may_dial
        self._create_transport = create_transport or _create_transport
        self._total_timeout_s, self._first_byte_timeout_s = total_timeout_s, first_byte_timeout_s
        self._places: dict[str, tuple[asyncio.Semaphore, list[None]]] = {}

    def check(self, url: str) -> ClientAddress:
        """Returns the parts of a URL that may be fetched. Raises `FetchFault` "refused"."""
        try:
            address = parse_url(url)
        except ValueError:
            raise FetchFault("refused", url, host=_guess_host(url)) from None
        is_private = parse_ip(address.host) is not None and not self._may_dial(address.host)
        if is_private or not any(entry.allows(address) for entry in self._allowed):
            raise FetchFault("refused", url, host=address.host)
        return address

    async def fetch(self, owner: str, url: str, max_bytes: int) -> bytes:
        """Returns the body. Raises `FetchFault`."""
        self.check(url)
        async with self._take_place(owner):
            try:
                async with asyncio.timeout(self._total_timeout_s):
                    return await self._follow(url, max_bytes)
            except (TimeoutError, httpx.TimeoutException):
                raise FetchFault("timeout", url) from None
            except (httpx.HTTPError, httpx.InvalidURL, OSError, UnicodeError):
                raise FetchFault("failed", url) from None

    @contextlib.asynccontextmanager
    async def _take_place(self, owner: str) -> AsyncIterator[None]:
        """Waits until the owner has fewer than `MAX_FETCHES_OF_OWNER` downloads."""
        semaphore, users = self._places.setdefault(owner, (asyncio.Semaphore(MAX_FETCHES_OF_OWNER), []))
        users.append(None)
        try:
            async with semaphore:
                yield
        finally:
            users.pop()
            if not users:
                del self._places[owner]

    async def _follow(self, url: str, max_bytes: int) -> bytes:
        """Returns the body behind at most `MAX_REDIRECTS`. Each URL is checked like the first one."""
        current = url
        for _ in range(MAX_REDIRECTS + 1):
            address = self.check(current)
            async with contextlib.aclosing(self._create_transport()) as transport:
                response = await self._request(transport, address, url)
                try:
                    if response.status_code not in REDIRECTS:
                        return await _read_body(response, url, max_bytes)
                    current = _join_url(address.url, response.headers.get("location", ""))
                finally:
                    await response.aclose()
        raise FetchFault("failed", url)

    async def _request(self, transport: httpx.AsyncBaseTransport, address: ClientAddress, url: str) -> httpx.Response:
        async with asyncio.timeout(self._first_byte_timeout_s):
            ips = [address.host] if parse_ip(address.host) else await self._resolve(address.host, address.port)
            if not ips or not all(self._may_dial(ip) for ip in ips):
                raise FetchFault("refused", url, host=address.host)
            tried = list(dict.fromkeys(ips))[:MAX_ADDRESSES]
            for ip in tried[:-1]:
                with contextlib.suppress(httpx.ConnectError):
                    return await transport.handle_async_request(_pin(address, ip))
            return await transport.handle_async_request(_pin(address, tried[-1]))


def _join_url(base: str, location: str) -> str:
    """Returns the URL of a redirect; a location that is none as it is, so that it is refused."""
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


def _guess_host(url: str) -> str:
    """Returns what stands for the host in a URL that is not valid, to name it in the answer."""
    scheme, separator, rest = url.partition("://")
    authority = rest if separator else scheme
    return authority.partition("/")[0].rpartition("@")[2][:100]


def _create_transport() -> httpx.AsyncBaseTransport:
    return httpx.AsyncHTTPTransport(verify=_create_ssl_context(), trust_env=False, retries=0)


@cache
def _create_ssl_context() -> SSLContext:
    """Reads the certificates of authorities once, which takes longer than a small download."""
    return httpx.create_ssl_context(trust_env=False)
