"""The spans of a turn and of a request, made once, when they have ended. Imports the SDK of OpenTelemetry.

A span is built as the SDK's record of a span, without its tracer, which takes four times as long.
"""

import time
from collections.abc import Iterator, Mapping, Sequence
from importlib.metadata import version
from typing import Any

from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import Event, ReadableSpan
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import Link, SpanContext, SpanKind, TraceFlags, TraceState
from opentelemetry.trace.status import Status, StatusCode

from antiphon.app.tracing import conventions as names
from antiphon.app.turn_types.access_record import AccessRecord
from antiphon.app.turn_types.tracing.context import SpanIds
from antiphon.app.turn_types.tracing.turn_trace import (
    MAX_TRACED_ITEMS,
    Attributes,
    TracedCall,
    TracedItem,
    TurnDescription,
    TurnTrace,
)
from antiphon.app.turn_types.turn_stats import JobTimes, TurnStats

MAX_VALUE_CHARS = 1024
"""Length of the text of an attribute, besides content."""
OFFSET_INTERVAL_S = 60.0
"""Time between two comparisons of the clocks, of which one is adjusted while the server runs."""
_FAILED = ("failed", "refused")
_SAMPLED, _UNSAMPLED = TraceFlags(TraceFlags.SAMPLED), TraceFlags(TraceFlags.DEFAULT)
_OK = Status(StatusCode.UNSET)
_NO_DESCRIPTION = TurnDescription(turn={}, render={}, job={})


class SpanBuilder:
    """Builds spans of one server. `content_event`: content goes into an event of the span, not into its attributes."""

    def __init__(self, *, content_event: bool = False) -> None:
        default = {"service.name": names.SCOPE_NAME, "service.version": version("antiphon")}
        resource = Resource.create({"service.version": default["service.version"]})
        if str(resource.attributes.get("service.name", "")).startswith("unknown_service"):
            resource = resource.merge(Resource(default))
        self.resource = resource
        self._scope = InstrumentationScope(names.SCOPE_NAME, default["service.version"], names.SCHEMA_URL)
        self._content_event = content_event
        self._offset_ns, self._next_offset = 0, 0.0

    def build_turn(self, stats: TurnStats, trace: TurnTrace) -> list[ReadableSpan]:
        """Returns the spans of a turn that has ended, its own first."""
        offset_ns = self._find_offset_ns()
        description = _NO_DESCRIPTION if trace.describe is None else trace.describe()
        times, parent = stats.times, _to_context(trace.ids)
        children = list(self._list_children(stats, trace, description))
        start = times.arrived if times.parsed is None else times.parsed
        end = times.ended or time.monotonic()
        end = max((end, times.durable or end, *(child[3] for child in children)))
        start = end if start is None else start
        is_failed = stats.status in _FAILED
        attributes = {**_describe_turn(stats, trace), **description.turn}
        content = {} if self._content_event else dict(description.content)
        events = (
            [Event(names.CONTENT_EVENT, dict(description.content), int(end * 1e9) + offset_ns)]
            if self._content_event and description.content
            else ()
        )
        operation = names.OPERATIONS[stats.api]
        own = self._build(
            f"{operation} {stats.model}",
            parent,
            None if trace.parent is None else _to_context(trace.parent),
            (int(start * 1e9) + offset_ns, int(end * 1e9) + offset_ns),
            {**_cut_texts(attributes), **content},
            status=_error_status(stats) if is_failed else _OK,
            links=() if trace.link is None else [Link(_to_context(trace.link))],
            events=events,
        )
        return [
            own,
            *(
                self._build(
                    name,
                    _to_context(trace.ids.create_child() if ids is None else ids),
                    parent,
                    (int(begin * 1e9) + offset_ns, int(finish * 1e9) + offset_ns),
                    _cut_texts(found),
                    status=Status(StatusCode.ERROR) if names.ERROR_TYPE in found else _OK,
                )
                for name, ids, begin, finish, found in children
            ),
        ]

    def build_encoding(
        self, request: SpanIds, operation: str, model: str, started: float, num_tokens: int
    ) -> ReadableSpan:
        """Returns the span of a job of an embedding or reranking model, which ends now."""
        offset_ns = self._find_offset_ns()
        attributes: dict[str, Any] = {
            names.OPERATION: operation,
            names.PROVIDER_NAME: names.PROVIDER,
            names.REQUEST_MODEL: model,
            names.RESPONSE_MODEL: model,
            names.INPUT_TOKENS: num_tokens,
        }
        return self._build(
            f"{operation} {model}",
            _to_context(request.create_child()),
            _to_context(request),
            (int(started * 1e9) + offset_ns, time.monotonic_ns() + offset_ns),
            attributes,
        )

    def build_request(self, record: AccessRecord) -> ReadableSpan:
        """Returns the span of a request that has been answered just now."""
        assert record.trace is not None
        end_ns = int(record.ended * 1e9) + self._find_offset_ns()
        route = record.route or ""
        attributes: dict[str, Any] = {names.REQUEST_ID: record.request_id}
        if record.rpc_method:
            name = record.rpc_method
            attributes |= {names.RPC_SYSTEM: "grpc", names.RPC_METHOD: name, names.RPC_STATUS: record.rpc_status}
        else:
            method = record.method if record.method in _METHODS else "_OTHER"
            name = f"{'HTTP' if method == '_OTHER' else method} {route}".rstrip()
            attributes |= {names.HTTP_METHOD: method, names.HTTP_STATUS: record.status, names.URL_PATH: record.path}
            attributes |= {names.URL_SCHEME: record.scheme}
            attributes |= {names.HTTP_ROUTE: route} if route else {}
        is_failed = record.status >= 500
        if record.status >= 400:
            attributes[names.ERROR_TYPE] = record.error_code or str(record.status)
        parent = record.trace.parent
        return self._build(
            name,
            _to_context(record.trace.ids),
            None if parent is None else _to_context(parent, is_remote=True),
            (end_ns - int(record.seconds * 1e9), end_ns),
            _cut_texts(attributes),
            kind=SpanKind.SERVER,
            status=Status(StatusCode.ERROR) if is_failed else _OK,
        )

    def _find_offset_ns(self) -> int:
        """Returns the difference of the two clocks: the same for a while, so that spans lie within their parents."""
        if (now := time.monotonic()) >= self._next_offset:
            self._next_offset = now + OFFSET_INTERVAL_S
            self._offset_ns = measure_offset_ns()
        return self._offset_ns

    def _build(  # noqa: PLR0913  # parts of a span
        self,
        name: str,
        context: SpanContext,
        parent: SpanContext | None,
        times_ns: tuple[int, int],
        attributes: Mapping[str, Any],
        *,
        kind: SpanKind = SpanKind.INTERNAL,
        status: Status = _OK,
        links: Sequence[Link] = (),
        events: Sequence[Event] = (),
    ) -> ReadableSpan:
        return ReadableSpan(
            name=name[:MAX_VALUE_CHARS],
            context=context,
            parent=parent,
            resource=self.resource,
            attributes=attributes,
            events=events,
            links=links,
            kind=kind,
            status=status,
            start_time=times_ns[0],
            end_time=max(times_ns),
            instrumentation_scope=self._scope,
        )

    def _list_children(self, stats: TurnStats, trace: TurnTrace, description: TurnDescription) -> "Iterator[_Child]":
        """Yields the spans of the parts of a turn: name, ids, start, end and attributes."""
        times, end = stats.times, stats.times.ended or time.monotonic()
        if times.parsed is not None and times.rendered is not None:
            yield names.RENDER_SPAN, None, times.parsed, times.rendered, description.render
        for number, job in enumerate(stats.jobs):
            yield from _list_job(job, {**description.job, names.ROUND: number}, end)
        for item in trace.items:
            yield _describe_item(item, end)
        for call in trace.calls:
            yield _describe_call(call)
        if times.durable is not None and times.ended is not None and times.durable > times.ended:
            yield names.COMMIT_SPAN, None, times.ended, times.durable, {}


_Child = tuple[str, SpanIds | None, float, float, Attributes]
_METHODS = frozenset({"GET", "POST", "PUT", "PATCH", "DELETE", "HEAD", "OPTIONS", "CONNECT", "TRACE"})
"""Methods that the conventions know; all others are "_OTHER"."""


def measure_offset_ns() -> int:
    """Returns what to add to the monotonic clock for the time since 1970, in nanoseconds.

    The thread may lose its core between two readings: the closest pair counts.
    """
    pairs = [(time.monotonic_ns(), time.time_ns(), time.monotonic_ns()) for _ in range(5)]
    before, since_1970, _ = min(pairs, key=lambda pair: pair[2] - pair[0])
    return since_1970 - before


def _to_context(ids: SpanIds, *, is_remote: bool = False) -> SpanContext:
    state = TraceState.from_header([ids.state]) if ids.state else None
    return SpanContext(ids.trace_id, ids.span_id, is_remote, _SAMPLED if ids.is_sampled else _UNSAMPLED, state)


def _error_status(stats: TurnStats) -> Status:
    return Status(StatusCode.ERROR, None if stats.ending is None else stats.ending.cause)


def _cut_texts(attributes: Attributes) -> Attributes:
    """Returns attributes whose texts are short: names of tools and models come from requests."""
    if all(not isinstance(value, str) or len(value) <= MAX_VALUE_CHARS for value in attributes.values()):
        return attributes
    return {name: value[:MAX_VALUE_CHARS] if isinstance(value, str) else value for name, value in attributes.items()}


def _describe_turn(stats: TurnStats, trace: TurnTrace) -> dict[str, Any]:
    """Returns the attributes that the figures of a turn give."""
    times = stats.times
    prefill_s, decode_s = sum(job.prefill_s for job in stats.jobs), sum(job.decode_s for job in stats.jobs)
    attributes: dict[str, Any] = {
        names.OPERATION: names.OPERATIONS[stats.api],
        names.PROVIDER_NAME: names.PROVIDER,
        names.REQUEST_MODEL: stats.model,
        names.RESPONSE_MODEL: stats.model,
        names.RESPONSE_ID: stats.response_id,
        names.INPUT_TOKENS: stats.input_tokens,
        names.OUTPUT_TOKENS: stats.output_tokens,
        names.CACHED_TOKENS: stats.cached_tokens,
        names.LATENCY_QUEUE: sum(job.queue_s for job in stats.jobs),
        names.LATENCY_E2E: times.seconds_until(times.ended) or 0.0,
        names.LATENCY_PREFILL: prefill_s,
        names.LATENCY_DECODE: decode_s,
        names.LATENCY_INFERENCE: prefill_s + decode_s,
        names.API: stats.api,
        names.STATUS: stats.status,
        names.ENDING: "" if stats.ending is None else stats.ending.cause,
    }
    first_s = times.seconds_until(times.first_token)
    optional = {
        names.LATENCY_FIRST_TOKEN: first_s,
        names.PREVIOUS_RESPONSE: stats.previous_id or None,
        names.ITEMS_OMITTED: trace.num_items - MAX_TRACED_ITEMS if trace.num_items > MAX_TRACED_ITEMS else None,
        names.CALLS_OMITTED: trace.num_calls - MAX_TRACED_ITEMS if trace.num_calls > MAX_TRACED_ITEMS else None,
    }
    if stats.status in _FAILED:
        cause = "" if stats.ending is None else stats.ending.cause
        optional[names.ERROR_TYPE] = stats.error_code or cause or "_OTHER"
    return attributes | {name: value for name, value in optional.items() if value is not None}


def _list_job(job: JobTimes, attributes: Attributes, turn_end: float) -> Iterator[_Child]:
    """Yields the spans of one job: its wait, its prompt and its tokens, one after the other."""
    end = turn_end if job.ended is None else job.ended
    place: dict[str, Any] = {**attributes}
    if job.replica:
        place |= {names.REPLICA: job.replica, names.ATTEMPT: job.attempt}
    admitted = end if job.admitted is None else job.admitted
    yield names.QUEUE_SPAN, None, job.submitted, admitted, attributes
    if job.admitted is None:
        return
    first = end if job.first_token is None else job.first_token
    yield names.PREFILL_SPAN, None, job.admitted, first, {**place, names.CACHED_TOKENS: job.cached_tokens}
    if job.first_token is None or job.last_token is None:
        return
    figures = {names.STEPS: job.num_steps, names.LONGEST_GAP: job.longest_gap_s}
    yield names.DECODE_SPAN, None, job.first_token, job.last_token, {**place, **figures}


def _describe_item(item: TracedItem, turn_end: float) -> _Child:
    attributes: dict[str, Any] = {
        names.ITEM_ID: item.id,
        names.ITEM_TYPE: item.type,
        names.ITEM_STATUS: item.status or "incomplete",
        names.ITEM_TOKENS: item.tokens,
    }
    name = f"{item.type} {item.name}" if item.name else item.type
    return name, None, item.started, turn_end if item.ended is None else item.ended, attributes


def _describe_call(call: TracedCall) -> _Child:
    attributes: dict[str, Any] = {
        names.OPERATION: names.TOOL_SPAN,
        names.TOOL_NAME: call.name,
        names.TOOL_TYPE: "extension",
    }
    optional = {
        names.TOOL_CALL_ID: call.call_id,
        names.SERVER_LABEL: call.server_label,
        names.MCP_METHOD: "tools/call" if call.kind == "mcp" else "",
        names.ERROR_TYPE: call.error,
    }
    attributes |= {name: value for name, value in optional.items() if value}
    return f"{names.TOOL_SPAN} {call.name}", call.ids, call.started, call.ended, attributes
