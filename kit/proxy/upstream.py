"""The server behind a proxy: requests through httpx2, and bare connections for WebSockets."""

import asyncio
import ssl
from collections.abc import AsyncIterator
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

import httpx2

from antiphon.kit.proxy.messages import IncomingRequest, drop_hop_by_hop

UPSTREAM_CONNECT_TIMEOUT_S = 30.0
KEEP_ALIVE_S = 4.0
"""Time for which an idle connection is kept. Servers close theirs after five seconds, which must not hit a request."""
API_ROOT = "/v1"


class UpstreamUrlError(ValueError):
    """Raised for a URL that is no base URL of a server. The message gives the reason."""


class UpstreamServer:
    """A server by its base URL: http://HOST:PORT, https://HOST or unix:/PATH, with or without /v1 at its end.

    Clients of the proxy use the same paths: what they ask for at /v1/responses is asked for at BASE/v1/responses.
    `api_key` is sent in place of theirs.
    """

    def __init__(self, url: str, *, api_key: str | None = None) -> None:
        self._api_key = api_key
        parts = urlsplit(url)
        self.socket_path = parts.path if parts.scheme == "unix" else None
        if parts.scheme not in ("http", "https", "unix") or not (parts.hostname or self.socket_path):
            raise UpstreamUrlError(f"{url!r} is no base URL; write http://HOST:PORT, https://HOST or unix:/PATH")
        if parts.username is not None or parts.query or parts.fragment:
            raise UpstreamUrlError(f"the base URL of {parts.hostname} must have no user, query or fragment")
        try:
            port = parts.port
        except ValueError as error:
            raise UpstreamUrlError(f"{url!r}: {error}") from None
        self.host = parts.hostname or "localhost"
        self.is_tls = parts.scheme == "https"
        self.port = port or (443 if self.is_tls else 80)
        host = f"[{self.host}]" if ":" in self.host else self.host
        self.host_header = host if port is None else f"{host}:{port}"
        self._origin = f"{'https' if self.is_tls else 'http'}://{self.host_header}"
        self._prefix = "" if self.socket_path else parts.path.rstrip("/").removesuffix(API_ROOT)
        self._transport = httpx2.AsyncHTTPTransport(
            uds=self.socket_path,
            proxy=None if self.socket_path else self._find_proxy(),
            limits=httpx2.Limits(max_connections=None, keepalive_expiry=KEEP_ALIVE_S),
        )

    async def send_request(self, request: IncomingRequest, body: AsyncIterator[bytes]) -> httpx2.Response:
        """Returns the reply as soon as its head is there. Raises `httpx2.TransportError`."""
        headers = self.make_headers(request)
        if b"transfer-encoding" in (name.lower() for name, _ in request.headers):
            headers.append((b"Transfer-Encoding", b"chunked"))
        timeout = {"connect": UPSTREAM_CONNECT_TIMEOUT_S, "read": None, "write": None, "pool": None}
        sent = httpx2.Request(
            request.method,
            self._origin,
            headers=headers,
            stream=_BodyStream(body) if request.has_body else httpx2.ByteStream(b""),
            extensions={"timeout": timeout, "target": self.make_target(request).encode("latin-1")},
        )
        return await self._transport.handle_async_request(sent)

    async def open_connection(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Opens a connection. Raises `OSError`."""
        async with asyncio.timeout(UPSTREAM_CONNECT_TIMEOUT_S):
            if self.socket_path:
                return await asyncio.open_unix_connection(self.socket_path)
            context = ssl.create_default_context() if self.is_tls else None
            return await asyncio.open_connection(self.host, self.port, ssl=context)

    def make_target(self, request: IncomingRequest) -> str:
        """Returns path and query of the request at this server."""
        return self._prefix + request.target

    def make_headers(self, request: IncomingRequest) -> list[tuple[bytes, bytes]]:
        """Returns the headers of the request for this server: with its own Host, without those about a connection."""
        rest = drop_hop_by_hop(request.headers, also=(b"host", b"expect"))
        if self._api_key is not None:
            rest = [(name, value) for name, value in rest if name.lower() != b"authorization"]
            rest.append((b"Authorization", f"Bearer {self._api_key}".encode()))
        return [(b"Host", self.host_header.encode()), *rest]

    async def close(self) -> None:
        """Closes idle connections."""
        await self._transport.aclose()

    def _find_proxy(self) -> str | None:
        """Returns the proxy that the environment names for this server, as curl and SDKs do."""
        if self.host in ("localhost", "127.0.0.1", "::1") or proxy_bypass(self.host):
            return None
        return getproxies().get("https" if self.is_tls else "http")


class _BodyStream(httpx2.AsyncByteStream):
    """The body of a request, sent as it comes."""

    def __init__(self, parts: AsyncIterator[bytes]) -> None:
        self._parts = parts

    def __aiter__(self) -> AsyncIterator[bytes]:
        return self._parts
