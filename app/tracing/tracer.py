"""The tracer of a server: decides which requests are traced, and hands over their spans when they have ended.

While a turn runs, only the ids of its spans exist, with the times that are kept of every turn.
"""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

import structlog

from antiphon.app.options.settings import Settings
from antiphon.app.tracing.export import Exporter, SpanQueue
from antiphon.app.tracing.options import TraceOptions, read_trace_options
from antiphon.app.turn_types.access_record import AccessRecord
from antiphon.app.turn_types.tracing.context import (
    RequestTrace,
    SpanIds,
    create_root,
    new_trace_id,
    parse_context,
)
from antiphon.app.turn_types.tracing.turn_trace import TurnTrace, begin_turn_trace
from antiphon.app.turn_types.turn_stats import TurnStats

if TYPE_CHECKING:
    from antiphon.app.tracing.spans import SpanBuilder

SWITCHED_PROTOCOLS = 101
"""Status of a WebSocket, whose requests have spans of their own."""
CONTENT_WARNING = (
    "Traces contain prompts and outputs (--otlp-content): everybody who can read them at the collector reads these."
)
_log = structlog.get_logger(__name__)


class Tracer:
    """Makes the spans of requests and turns."""

    def __init__(self, options: TraceOptions, builder: "SpanBuilder", queue: SpanQueue) -> None:
        self._options, self._builder, self._queue = options, builder, queue

    def begin_request(self, headers: Mapping[str, str]) -> RequestTrace:
        """Returns the trace of a request with these headers: the client's, or a new one."""
        parent = None
        if "traceparent" in headers:
            parent = parse_context(headers["traceparent"], headers.get("tracestate", ""))
        return self.begin_span(parent)

    def begin_span(self, parent: SpanIds | None) -> RequestTrace:
        """Returns the trace of a request that belongs to a span of its client, or to none."""
        if parent is None:
            trace_id = new_trace_id()
            return RequestTrace(create_root(trace_id=trace_id, is_sampled=self._options.sampler(None, trace_id)))
        is_sampled = self._options.sampler(parent, parent.trace_id)
        return RequestTrace(parent.create_child(is_sampled=is_sampled), parent)

    def begin_turn(self, request: RequestTrace | None, *, background: bool = False) -> TurnTrace:
        """Returns the trace of a turn that a request has started; of one without a request, a new one."""
        if request is not None:
            return begin_turn_trace(request, background=background)
        return TurnTrace(ids=self.begin_span(None).ids)

    def exports_content(self, owner: str) -> bool:
        """Tells whether the content of this owner's turns is exported."""
        return self._options.content != "off" and self._options.content_owner == owner

    def end_turn(self, stats: TurnStats) -> None:
        """Hands over the spans of a turn that has ended."""
        if stats.trace is None or not stats.trace.ids.is_sampled:
            return
        try:
            self._queue.add(self._builder.build_turn(stats, stats.trace))
        except Exception:  # noqa: BLE001  # a turn must end, whatever is wrong with its spans
            _log.exception("the spans of a turn could not be made", response=stats.response_id)

    def end_encoding(self, request: RequestTrace, operation: str, model: str, started: float, num_tokens: int) -> None:
        """Hands over the span of a request to an embedding or reranking model, which ends now."""
        if request.ids.is_sampled:
            self._queue.add([self._builder.build_encoding(request.ids, operation, model, started, num_tokens)])

    def end_request(self, record: AccessRecord) -> None:
        """Hands over the span of a request that has been answered."""
        trace = record.trace
        if trace is not None and trace.ids.is_sampled and record.status != SWITCHED_PROTOCOLS:
            self._queue.add([self._builder.build_request(record)])

    def close(self) -> None:
        """Sends the last spans, for which it waits two seconds at most. Call it outside the event loop."""
        self._queue.close()


def open_tracer(settings: Settings, on_dropped: Callable[[int], None]) -> Tracer | None:
    """Returns the tracer that the settings and the variables ask for; None if nothing is traced.

    Raises `TraceOptionError`.
    """
    options = read_trace_options(settings)
    if options is None:
        return None
    from antiphon.app.tracing.exporter import create_exporter  # noqa: PLC0415  # an optional dependency
    from antiphon.app.tracing.spans import SpanBuilder  # noqa: PLC0415  # likewise

    exporter: Exporter = create_exporter(options)
    if options.content != "off":
        _log.warning(CONTENT_WARNING)
    queue = SpanQueue(
        exporter,
        max_spans=options.max_queue,
        max_batch=options.max_batch,
        delay_s=options.delay_s,
        on_dropped=on_dropped,
    )
    return Tracer(options, SpanBuilder(content_event=options.content == "event"), queue)
