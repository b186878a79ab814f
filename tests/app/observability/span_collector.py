"""A collector of spans for tests: OTLP over plain HTTP, with spans that are easy to read."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from msgspec import Struct
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from tests.progress import wait_with_progress

KINDS = ("unspecified", "internal", "server", "client", "producer", "consumer")


class ReceivedSpan(Struct, kw_only=True):
    """A span as it was sent. Times are in nanoseconds since 1970."""

    name: str
    trace_id: str
    span_id: str
    parent_id: str
    kind: str
    start: int
    end: int
    attributes: dict[str, Any]
    is_error: bool
    links: list[tuple[str, str]]
    events: list[tuple[str, dict[str, Any]]]
    state: str
    scope: tuple[str, str]
    resource: dict[str, Any]

    @property
    def seconds(self) -> float:
        return (self.end - self.start) / 1e9


def _read_value(value: Any) -> Any:
    kind = value.WhichOneof("value")
    if kind == "array_value":
        return [_read_value(each) for each in value.array_value.values]
    return getattr(value, kind)


def _read_attributes(pairs: Any) -> dict[str, Any]:
    return {pair.key: _read_value(pair.value) for pair in pairs}


def read_spans(body: bytes) -> Iterator[ReceivedSpan]:
    request = ExportTraceServiceRequest.FromString(body)
    for group in request.resource_spans:
        resource = _read_attributes(group.resource.attributes)
        for scope in group.scope_spans:
            for span in scope.spans:
                yield ReceivedSpan(
                    name=span.name,
                    trace_id=span.trace_id.hex(),
                    span_id=span.span_id.hex(),
                    parent_id=span.parent_span_id.hex(),
                    kind=KINDS[span.kind],
                    start=span.start_time_unix_nano,
                    end=span.end_time_unix_nano,
                    attributes=_read_attributes(span.attributes),
                    is_error=span.status.code == 2,
                    links=[(link.trace_id.hex(), link.span_id.hex()) for link in span.links],
                    events=[(event.name, _read_attributes(event.attributes)) for event in span.events],
                    state=span.trace_state,
                    scope=(scope.scope.name, scope.schema_url),
                    resource=resource,
                )


class SpanCollector:
    """What a running collector has received. `answer` is its status for each request; it may wait."""

    def __init__(self) -> None:
        self.url = ""
        self.spans: list[ReceivedSpan] = []
        self.num_requests = 0
        self.headers: list[dict[str, str]] = []
        self.answer: Callable[[], int] = lambda: 200
        self.released = threading.Event()
        """Set at the end: an answer that waits, waits for it."""

    def hang(self) -> int:
        """Answers when the test is over."""
        self.released.wait()
        return 200

    def find(self, name: str, **attributes: Any) -> list[ReceivedSpan]:
        """Returns the spans with a name that begins so, in order of their start."""
        found = [span for span in self.spans if span.name.startswith(name)]
        return sorted(found, key=lambda span: (span.start, span.end))

    def wait_for(self, name: str, count: int = 1) -> list[ReceivedSpan]:
        """Returns the spans with this name, once there are so many."""
        wait_with_progress(lambda: len(self.find(name)) >= count, f"the collector has {count} spans {name!r}")
        found = self.find(name)
        assert len(found) == count, [span.name for span in found]
        return found

    def children(self, parent: ReceivedSpan) -> list[ReceivedSpan]:
        found = [span for span in self.spans if span.parent_id == parent.span_id]
        return sorted(found, key=lambda span: (span.start, span.end))


@contextmanager
def run_collector() -> Iterator[SpanCollector]:
    collector = SpanCollector()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            collector.num_requests += 1
            collector.headers.append({name.lower(): value for name, value in self.headers.items()})
            status = collector.answer()
            if status == 200 and self.path == "/v1/traces":
                collector.spans += read_spans(body)
            try:
                self.send_response(status)
                self.send_header("content-length", "0")
                self.end_headers()
            except OSError:
                pass  # the server has gone

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    collector.url = f"http://127.0.0.1:{server.server_address[1]}"
    try:
        yield collector
    finally:
        collector.released.set()
        server.shutdown()
        server.server_close()
        thread.join()
