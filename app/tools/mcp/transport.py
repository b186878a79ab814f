"""The HTTP transport below the `mcp` SDK: it limits, checks and records what the SDK would let through.

The SDK reads JSON bodies whole, replaces HTTP statuses by one JSON-RPC error, and follows redirects within an origin.
This transport counts bytes, keeps the status, follows no redirect, and dials only addresses that it has checked.
A fault is raised and also kept in the `WireRecord`, because the SDK catches some exceptions and wraps others.
"""

import asyncio
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from functools import cache
from socket import SOCK_STREAM

import httpx2

from antiphon.app.base.tracing.context import build_outgoing_headers
from antiphon.app.tools.mcp.address import is_public_address, parse_ip, parse_url
from antiphon.app.tools.mcp.answer_check import AnswerCheck, read_request_id
from antiphon.app.tools.mcp.faults import BAD_ANSWER, NO_ANSWER, ToolServerError, WireRecord, describe_status
from antiphon.app.tools.mcp.tool_server import ToolLimits, ToolServer

Resolve = Callable[[str, int], Awaitable[Sequence[str]]]
"""Returns the IP addresses of a host."""

FOREIGN_ANSWER = "The server sent the answer to another request."
MAX_ATTEMPTS = 2
"""How often a connection is tried. Only a connection that failed is tried again: no byte of the request was sent."""
FINAL_STATUSES = frozenset({401, 403, 407, 429, *range(300, 400)})
"""Statuses that end the session at once. The SDK would send the same credentials again, to try the older protocol."""


async def resolve_host(host: str, port: int) -> Sequence[str]:
    """Returns the addresses of a host, from the system."""
    found = await asyncio.get_running_loop().getaddrinfo(host, port, type=SOCK_STREAM)
    return [str(address[0]) for *_, address in found]


def create_http_client(
    server: ToolServer, limits: ToolLimits, record: WireRecord, resolve: Resolve
) -> httpx2.AsyncClient:
    """Creates the client that the SDK sends its requests with. It reads no proxies or passwords of the environment."""
    return httpx2.AsyncClient(
        transport=BoundedTransport(server, limits, record, resolve),
        headers={
            "User-Agent": "antiphon",
            **build_outgoing_headers(),
            **dict(server.headers),
            "Accept-Encoding": "identity",
        },
        timeout=httpx2.Timeout(limits.call_timeout_s, connect=limits.connect_timeout_s),
        follow_redirects=False,
        trust_env=False,
    )


class BoundedTransport(httpx2.AsyncBaseTransport):
    """Sends the requests of one session to one tool server."""

    def __init__(self, server: ToolServer, limits: ToolLimits, record: WireRecord, resolve: Resolve) -> None:
        self._server = server
        self._address = parse_url(server.url)
        self._limits = limits
        self._record = record
        self._resolve = resolve
        self._checked_ips: list[str] = []
        self._resumptions = 0
        self._request_id: int | str | None = None
        self._inner = httpx2.AsyncHTTPTransport(verify=_create_ssl_context(), trust_env=False, retries=0)

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        """Sends a request. Raises ToolServerError, or the error of the connection after recording it."""
        if request.method == "GET" and not self._may_resume(request):
            return httpx2.Response(405)
        if request.method == "POST" and (request_id := read_request_id(request.content)) is not None:
            self._request_id = request_id
        try:
            async with asyncio.timeout_at(self._record.deadline_s):
                response = await self._send(request)
        except httpx2.TimeoutException:
            self._record.fail(NO_ANSWER, "The server did not answer in time.")
            raise
        except httpx2.ConnectError:
            self._record.fail(BAD_ANSWER, "The server could not be reached.")
            raise
        except httpx2.TransportError:
            self._record.fail(BAD_ANSWER, "The connection to the server broke.")
            raise
        try:
            self._check_response(request, response)
        except ToolServerError:
            await response.aclose()
            raise
        return response

    async def aclose(self) -> None:
        """Closes all connections."""
        await self._inner.aclose()

    def _may_resume(self, request: httpx2.Request) -> bool:
        """Tells whether a GET may be sent: it resumes the answer to a call. Messages of the server are not awaited."""
        self._resumptions += "last-event-id" in request.headers
        return "last-event-id" in request.headers and self._resumptions <= self._limits.max_resumptions

    async def _send(self, request: httpx2.Request) -> httpx2.Response:
        requests = await self._pin(request)
        for attempt in requests[:-1]:
            try:
                return await self._inner.handle_async_request(attempt)
            except httpx2.ConnectError:
                continue
        return await self._inner.handle_async_request(requests[-1])

    async def _pin(self, request: httpx2.Request) -> list[httpx2.Request]:
        """Returns the request for each attempt. Those to a client's server name the address that was checked.

        The Host header and TLS keep the name.
        """
        if self._server.is_operator:
            return [request] * MAX_ATTEMPTS
        if not self._checked_ips:
            self._checked_ips = await self._check_addresses()
        extensions = {**request.extensions, "sni_hostname": self._address.host}
        ips = (self._checked_ips * MAX_ATTEMPTS)[:MAX_ATTEMPTS]
        return [
            httpx2.Request(
                request.method,
                request.url.copy_with(host=ip),
                headers=request.headers,
                stream=request.stream,
                extensions=extensions,
            )
            for ip in ips
        ]

    async def _check_addresses(self) -> list[str]:
        """Resolves the host once. Raises ToolServerError unless every address may be dialled."""
        host, port = self._address.host, self._address.port
        if parse_ip(host):
            ips = [host]
        else:
            try:
                async with asyncio.timeout(self._limits.connect_timeout_s):
                    ips = list(dict.fromkeys(await self._resolve(host, port)))
            except (OSError, TimeoutError, UnicodeError):
                raise self._record.fail(BAD_ANSWER, "The name of the server could not be resolved.") from None
        if not ips or not all(self._may_dial(ip) for ip in ips):
            raise self._record.fail(BAD_ANSWER, "The address of the server is not public.")
        return ips

    def _may_dial(self, ip: str) -> bool:
        if self._server.is_loopback:
            address = parse_ip(ip)
            return address is not None and address.is_loopback
        return is_public_address(ip)

    def _check_response(self, request: httpx2.Request, response: httpx2.Response) -> None:
        """Records the status, and prepares the body for a reader that trusts it."""
        status = response.status_code
        if request.method == "POST":
            self._record.status = status
        if status in FINAL_STATUSES:
            raise self._record.fail(status, describe_status(status))
        if response.headers.get("content-encoding", "identity").strip().lower() not in {"", "identity"}:
            raise self._record.fail(BAD_ANSWER, "The server sent compressed content, which was not asked for.")
        if (kind := response.headers.get("content-type")) is not None:
            # The charset selects a codec of Python, and some codecs decompress. MCP is UTF-8.
            response.headers["content-type"] = kind.partition(";")[0].strip()
        assert isinstance(response.stream, httpx2.AsyncByteStream)
        response.stream = _BoundedStream(response.stream, self._limits, self._record)
        is_stream = response.headers.get("content-type", "").lower() == "text/event-stream"
        response.stream.counts_lines = is_stream
        if self._request_id is not None and status < 300:
            limit = self._limits.max_sse_event_bytes
            response.stream.check = AnswerCheck(self._request_id, limit, is_stream=is_stream)


class _BoundedStream(httpx2.AsyncByteStream):
    """A body, counted."""

    def __init__(self, stream: httpx2.AsyncByteStream, limits: ToolLimits, record: WireRecord) -> None:
        self.counts_lines = False
        self.check: AnswerCheck | None = None
        self._stream = stream
        self._left_bytes = limits.max_body_bytes
        self._left_lines = limits.max_sse_lines
        self._record = record

    async def __aiter__(self) -> AsyncIterator[bytes]:
        """Yields the chunks. Raises ToolServerError if there are too many bytes, or the connection's error."""
        chunks = aiter(self._stream)
        while (chunk := await self._read(chunks)) is not None:
            self._left_bytes -= len(chunk)
            self._record.num_bytes += len(chunk)
            if self.counts_lines:
                self._left_lines -= max(chunk.count(b"\n"), chunk.count(b"\r"))
            if self._left_bytes < 0 or self._left_lines < 0:
                raise self._record.fail(BAD_ANSWER, "The answer of the server is too large.")
            if self.check is not None and not self.check.accepts(chunk):
                raise self._record.fail(BAD_ANSWER, FOREIGN_ANSWER)
            yield chunk
        if self.check is not None and not self.check.accepts_end():
            raise self._record.fail(BAD_ANSWER, FOREIGN_ANSWER)

    async def _read(self, chunks: AsyncIterator[bytes]) -> bytes | None:
        try:
            async with asyncio.timeout_at(self._record.deadline_s):
                return await anext(chunks, None)
        except httpx2.TimeoutException:
            self._record.fail(NO_ANSWER, "The server did not answer in time.")
            raise
        except httpx2.TransportError:
            self._record.fail(BAD_ANSWER, "The connection to the server broke.")
            raise

    async def aclose(self) -> None:
        """Closes the connection, unless the body was read to its end."""
        await self._stream.aclose()


@cache
def _create_ssl_context() -> ssl.SSLContext:
    """Reads the certificates of authorities once: it takes longer than a call. `SSL_CERT_FILE` may name them."""
    return httpx2.create_ssl_context()
