"""Checks one exchange that passes through the proxy: streams, responses in one piece, error bodies."""

import time
from collections.abc import Callable, Mapping
from typing import Any, Literal

import msgspec

from antiphon.kit.chat.stream import ChatStreamChecker
from antiphon.kit.checker.hosted import is_same_reading
from antiphon.kit.checker.sse import SseReader
from antiphon.kit.checker.stream import ENDED_RESPONSE_STATUSES, StreamChecker, check_whole_response
from antiphon.kit.checker.terminal import compare_responses
from antiphon.kit.conformance.client import LiveReply
from antiphon.kit.conformance.exchanges import check_error_body, decode_event
from antiphon.kit.findings import Finding, FindingList, quote, quote_start
from antiphon.kit.json_values import Json
from antiphon.kit.proxy.call_guard import ExchangeObserver
from antiphon.kit.proxy.decoding import BodyDecoder, UnknownEncodingError, create_decoder, decode_body
from antiphon.kit.proxy.messages import ExchangeEnding, HeaderList, IncomingRequest, find_header, media_type

ExchangeKind = Literal["stream", "chat stream", "response", "error", "websocket turn", "not checked"]
CHECKED_PATHS = ("/responses", "/chat/completions", "/conversations", "/models")
"""Paths below /v1 whose errors have the form of OpenAI's API."""
MAX_KNOWN_STREAMS = 64
"""Streams whose events are kept, so that replays can be compared."""


class ExchangeReport(msgspec.Struct, frozen=True, kw_only=True):
    """Findings about one exchange, or about one turn of a WebSocket."""

    number: int
    method: str
    path: str
    status: int
    """HTTP status of the reply; 0 if none came."""
    kind: ExchangeKind
    ending: ExchangeEnding
    num_events: int = 0
    seconds: float
    findings: tuple[Finding, ...] = ()
    remark: str = ""
    """Why the exchange was not checked, or only in part."""

    @property
    def has_error(self) -> bool:
        """True if one of the findings is an error."""
        return any(finding.level == "error" for finding in self.findings)


class KnownStreams:
    """The events of the last streams, by response id. GET and replays must say the same."""

    def __init__(self) -> None:
        self._streams: dict[str, list[Json]] = {}

    def add_stream(self, events: list[Json]) -> None:
        """Keeps the events of a whole stream, and forgets the oldest stream."""
        response_id = _find_response_id(events)
        if response_id is None:
            return
        self._streams[response_id] = events
        while len(self._streams) > MAX_KNOWN_STREAMS:
            del self._streams[next(iter(self._streams))]

    def find_stream(self, response_id: str) -> list[Json] | None:
        """Returns the events of a stream, or None if it was not seen."""
        return self._streams.get(response_id)


class ExchangeChecker(ExchangeObserver):
    """Checks one exchange, and reports at its end."""

    def __init__(
        self,
        head: IncomingRequest,
        number: int,
        known_streams: KnownStreams,
        report: Callable[[ExchangeReport], None],
    ) -> None:
        self._head, self._number, self._known, self._report = head, number, known_streams, report
        self._path = head.path.rstrip("/").removeprefix("/v1")
        self._started_at = time.monotonic()
        self._request: Json | None = None
        self._status = 0
        self._headers: HeaderList = ()
        self._decoder: BodyDecoder | None = None
        self._body: list[bytes] = []
        self._stream: _CheckedStream | None = None
        self._remark = ""

    def on_request(self, body: bytes) -> None:
        """Reads the request, if it is a JSON object."""
        if not body:
            return
        try:
            decoded = decode_body(body, find_header(self._head.headers, "content-encoding"))
            value = msgspec.json.decode(decoded)
        except (UnknownEncodingError, msgspec.DecodeError) as error:
            self._remark = f"the request is unknown: {error}"
            return
        self._request = value if isinstance(value, dict) else None

    def on_reply(self, status: int, headers: HeaderList) -> None:
        """Chooses the checks by the request and the head of the reply."""
        self._status, self._headers = status, headers
        try:
            self._decoder = create_decoder(find_header(headers, "content-encoding"))
        except UnknownEncodingError as error:
            self._remark = str(error)
            return
        if status == 200 and media_type(headers) == "text/event-stream":
            self._stream = self._create_stream()

    def on_data(self, data: bytes) -> None:
        """Checks the events that these bytes complete; keeps the bytes of a reply without events."""
        if self._decoder is None:
            return
        data = self._decoder.decompress(data)
        if self._stream is not None:
            self._stream.feed(data)
        elif self._path.startswith(CHECKED_PATHS):
            self._body.append(data)

    def on_end(self, ending: ExchangeEnding) -> None:
        """Checks the end, and reports."""
        self._send_report(ending, *self._finish(ending))

    def on_failure(self) -> None:
        """Reports that the checker itself failed."""
        self._remark = "the check failed; see the log"
        self._send_report("complete", "not checked", [], 0)

    def _send_report(
        self, ending: ExchangeEnding, kind: ExchangeKind, findings: list[Finding], num_events: int
    ) -> None:
        report = ExchangeReport(
            number=self._number,
            method=self._head.method,
            path=self._head.path,
            status=self._status,
            kind=kind,
            ending=ending,
            num_events=num_events,
            seconds=time.monotonic() - self._started_at,
            findings=tuple(findings),
            remark=self._remark,
        )
        self._report(report)

    def _create_stream(self) -> "_CheckedStream | None":
        if self._path == "/chat/completions":
            return _CheckedStream("chat stream", ChatStreamChecker(self._request))
        if self._path == "/responses" and self._head.method == "POST":
            return _CheckedStream("stream", StreamChecker(self._request), known_streams=self._known)
        if self._path.startswith("/responses/") and self._head.method == "GET":
            return self._create_replay()
        return None

    def _create_replay(self) -> "_CheckedStream | None":
        """Returns the check of a replayed stream, which continues the events before it."""
        after = self._head.query.get("starting_after", "")
        recorded = self._known.find_stream(self._path.split("/")[2])
        if recorded is None and after:
            self._remark = "a replay of a stream that was not seen"
            return None
        checker = StreamChecker()
        start = int(after) if after.isdecimal() else -1
        earlier = [event for event in recorded or () if event.get("sequence_number", 0) <= start]
        for event in earlier:
            checker.check_event(event)
        return _CheckedStream("stream", checker, recorded=recorded, num_earlier=len(earlier))

    def _finish(self, ending: ExchangeEnding) -> tuple[ExchangeKind, list[Finding], int]:
        """Returns what kind of exchange it was, its findings, and the number of its events."""
        findings = FindingList()
        if ending in ("cut", "reset"):
            findings.add("http-disconnect", "the whole reply", f"the end of the connection ({ending})")
        if self._stream is not None:
            findings.extend(self._stream.finish(ending))
            return self._stream.kind, findings.list_findings(), self._stream.num_events
        if self._decoder is None or ending != "complete" or not self._path.startswith(CHECKED_PATHS):
            return "not checked", findings.list_findings(), 0
        headers = {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in self._headers}
        reply = LiveReply(status=self._status, headers=headers, body=b"".join(self._body))
        if self._status >= 400 and self._head.method != "HEAD":
            check_error_body(reply, findings)
            return "error", findings.list_findings(), 0
        if self._status == 200 and self._is_response(reply):
            self._check_response(reply, findings)
            return "response", findings.list_findings(), 0
        return "not checked", [], 0

    def _is_response(self, reply: LiveReply) -> bool:
        """Returns whether the reply should be a Response in one piece."""
        if self._path == "/responses" and self._head.method == "POST":
            return True
        value = reply.read_object() or {}
        return self._path.startswith("/responses/") and value.get("object") == "response"

    def _check_response(self, reply: LiveReply, findings: FindingList) -> None:
        wants_stream = (self._request or {}).get("stream") is True
        expected = "text/event-stream" if wants_stream else "application/json"
        if reply.content_type != expected:
            findings.add("http-content-type", expected, quote(reply.content_type))
        value = reply.read_object()
        if value is None:
            findings.add("http-not-json", "a JSON object", quote_start(reply.body))
            return
        check_whole_response(value, self._request if self._head.method == "POST" else None, findings)
        streamed = _find_final_response(self._known.find_stream(str(value.get("id"))) or [])
        if self._head.method == "GET" and streamed is not None and value.get("status") in ENDED_RESPONSE_STATUSES:
            compare_responses(streamed, value, "get-differs", findings)


class _CheckedStream:
    """The check of one stream of server-sent events."""

    def __init__(
        self,
        kind: ExchangeKind,
        checker: StreamChecker | ChatStreamChecker,
        *,
        known_streams: KnownStreams | None = None,
        recorded: list[Json] | None = None,
        num_earlier: int = 0,
    ) -> None:
        self.kind = kind
        self.num_events = 0
        self._checker = checker
        self._reader = SseReader(checker.findings)
        self._known_streams = known_streams
        self._recorded = recorded
        self._earlier = set(checker.findings.list_findings()) if num_earlier else set()
        self._next = num_earlier
        self._events: list[Json] = []

    def feed(self, data: bytes) -> None:
        """Checks the events that these bytes complete."""
        for frame in self._reader.feed(data):
            self.num_events += 1
            self._checker.check_frame(frame)
            event = decode_event(frame.data)
            if event is not None:
                self._events.append(event)
                self._compare_with_recorded(event)

    def finish(self, ending: ExchangeEnding) -> list[Finding]:
        """Returns the findings. A stream that the client left needs no end."""
        checker = self._checker
        final = checker.final_response if isinstance(checker, StreamChecker) else None
        if ending == "client_left" and final is None:
            findings = checker.findings.list_findings()
        else:
            if ending != "client_left":
                self._reader.finish()
            if isinstance(checker, StreamChecker):
                findings = checker.finish(is_sse=ending == "complete")
            else:
                findings = checker.finish()
        if self._known_streams is not None and final is not None:
            self._known_streams.add_stream(self._events)
        return [finding for finding in findings if finding not in self._earlier]

    def _compare_with_recorded(self, event: Json) -> None:
        """Reports an event of a replay that differs from the event of the first stream."""
        if self._recorded is None:
            return
        expected = self._recorded[self._next] if self._next < len(self._recorded) else None
        self._next += 1
        if not is_same_reading(event, expected):
            self._checker.findings.add("replay-differs", quote(expected), quote(event), str(event.get("type")))


def _find_response_id(events: list[Json]) -> str | None:
    for event in events[:1]:
        response = event.get("response")
        if isinstance(response, dict) and isinstance(response.get("id"), str):
            return str(response["id"])
    return None


def _find_final_response(events: list[Json]) -> Mapping[str, Any] | None:
    response = events[-1].get("response") if events else None
    return response if isinstance(response, dict) and response.get("status") in ENDED_RESPONSE_STATUSES else None
