"""The HTTP transport below the `mcp` SDK: it limits, checks and records what the SDK would let through.

The SDK reads JSON bodies whole, replaces HTTP statuses by one JSON-RPC error, and follows redirects within an origin.
This transport keeps the status, counts lines, and lets the SDK follow no redirect. Addresses, sizes and encodings are
those of the policy, in the transport below it. A fault is raised and also kept in the `WireRecord`, because the SDK
catches some exceptions and wraps others.
"""

from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager

import httpx2

from antiphon.app.outbound.faults import OutboundCode, OutboundError
from antiphon.app.outbound.policy import OutboundPolicy, Reach
from antiphon.app.outbound.resolver import Resolve
from antiphon.app.outbound.transport import BoundedBody, PinnedTransport
from antiphon.app.tools.mcp.answer_check import AnswerCheck, read_request_id
from antiphon.app.tools.mcp.faults import BAD_ANSWER, NO_ANSWER, ToolServerError, WireRecord, describe_status
from antiphon.app.tools.mcp.tool_server import ToolLimits, ToolServer
from antiphon.app.turn_types.tracing.context import build_outgoing_headers

FOREIGN_ANSWER = "The server sent the answer to another request."
TOO_MUCH = "The answer of the server is too large."
_FAULT_MESSAGES: dict[OutboundCode, str] = {
    "refused": "The address of the server is not public.",
    "unresolved": "The name of the server could not be resolved.",
    "encoded": "The server sent compressed content, which was not asked for.",
    "too_large": TOO_MUCH,
}
FINAL_STATUSES = frozenset({401, 403, 407, 429, *range(300, 400)})
"""Statuses that end the session at once. The SDK would send the same credentials again, to try the older protocol."""


def create_http_client(
    server: ToolServer,
    limits: ToolLimits,
    record: WireRecord,
    resolve: Resolve,
    network: httpx2.AsyncBaseTransport | None = None,
) -> httpx2.AsyncClient:
    """Creates the client that the SDK sends its requests with. `network`: see `PinnedTransport`."""
    reach: Reach = "any" if server.is_operator else "loopback" if server.is_loopback else "public"
    policy = OutboundPolicy(
        reach=reach, lookup_timeout_s=limits.connect_timeout_s, max_body_bytes=limits.max_body_bytes
    )
    pinned = PinnedTransport(policy, resolve=resolve, get_deadline=lambda: record.deadline_s, network=network)
    return httpx2.AsyncClient(
        transport=BoundedTransport(pinned, limits, record),
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


@contextmanager
def _record_faults(record: WireRecord) -> Iterator[None]:
    """Records faults of the transport below. Raises ToolServerError, or the error of the connection."""
    try:
        yield
    except OutboundError as error:
        raise record.fail(BAD_ANSWER, _FAULT_MESSAGES[error.code]) from None
    except httpx2.TimeoutException:
        record.fail(NO_ANSWER, "The server did not answer in time.")
        raise
    except httpx2.ConnectError:
        record.fail(BAD_ANSWER, "The server could not be reached.")
        raise
    except httpx2.TransportError:
        record.fail(BAD_ANSWER, "The connection to the server broke.")
        raise


class BoundedTransport(httpx2.AsyncBaseTransport):
    """Sends the requests of one session to one tool server."""

    def __init__(self, pinned: PinnedTransport, limits: ToolLimits, record: WireRecord) -> None:
        self._pinned = pinned
        self._limits = limits
        self._record = record
        self._resumptions = 0
        self._request_id: int | str | None = None

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        """Sends a request. Raises ToolServerError, or the error of the connection after recording it."""
        if request.method == "GET" and not self._may_resume(request):
            return httpx2.Response(405)
        if request.method == "POST" and (request_id := read_request_id(request.content)) is not None:
            self._request_id = request_id
        with _record_faults(self._record):
            response = await self._pinned.handle_async_request(request)
        try:
            self._check_response(request, response)
        except ToolServerError:
            await response.aclose()
            raise
        return response

    async def aclose(self) -> None:
        """Closes all connections."""
        await self._pinned.aclose()

    def _may_resume(self, request: httpx2.Request) -> bool:
        """Tells whether a GET may be sent: it resumes the answer to a call. Messages of the server are not awaited."""
        self._resumptions += "last-event-id" in request.headers
        return "last-event-id" in request.headers and self._resumptions <= self._limits.max_resumptions

    def _check_response(self, request: httpx2.Request, response: httpx2.Response) -> None:
        """Records the status, and prepares the body for a reader that trusts it."""
        status = response.status_code
        if request.method == "POST":
            self._record.status = status
        if status in FINAL_STATUSES:
            raise self._record.fail(status, describe_status(status))
        assert isinstance(response.stream, BoundedBody)
        with _record_faults(self._record):
            response.stream.check()
        if (kind := response.headers.get("content-type")) is not None:
            # The charset selects a codec of Python, and some codecs decompress. MCP is UTF-8.
            response.headers["content-type"] = kind.partition(";")[0].strip()
        response.stream = _RecordedBody(response.stream, self._limits, self._record)
        is_stream = response.headers.get("content-type", "").lower() == "text/event-stream"
        response.stream.counts_lines = is_stream
        if self._request_id is not None and status < 300:
            limit = self._limits.max_sse_event_bytes
            response.stream.check = AnswerCheck(self._request_id, limit, is_stream=is_stream)


class _RecordedBody(httpx2.AsyncByteStream):
    """A body whose lines are counted, and whose faults are recorded."""

    def __init__(self, stream: BoundedBody, limits: ToolLimits, record: WireRecord) -> None:
        self.counts_lines = False
        self.check: AnswerCheck | None = None
        self._stream = stream
        self._left_lines = limits.max_sse_lines
        self._record = record

    async def __aiter__(self) -> AsyncIterator[bytes]:
        """Yields the chunks. Raises ToolServerError if there are too many bytes, or the connection's error."""
        chunks = aiter(self._stream)
        while True:
            with _record_faults(self._record):
                chunk = await anext(chunks, None)
            if chunk is None:
                break
            self._record.num_bytes += len(chunk)
            if self.counts_lines:
                self._left_lines -= max(chunk.count(b"\n"), chunk.count(b"\r"))
            if self._left_lines < 0:
                raise self._record.fail(BAD_ANSWER, TOO_MUCH)
            if self.check is not None and not self.check.accepts(chunk):
                raise self._record.fail(BAD_ANSWER, FOREIGN_ANSWER)
            yield chunk
        if self.check is not None and not self.check.accepts_end():
            raise self._record.fail(BAD_ANSWER, FOREIGN_ANSWER)

    async def aclose(self) -> None:
        """Closes the connection, unless the body was read to its end."""
        await self._stream.aclose()
