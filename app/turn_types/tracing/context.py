"""Trace contexts as W3C's Trace Context has them: ids of a trace and of a span, and whether the trace is sampled.

The headers `traceparent` and `tracestate` carry them from one program to the next.
"""

import random
import re
import secrets
from contextvars import ContextVar

from msgspec import Struct

MAX_STATE_CHARS = 512
"""Length of a `tracestate` that is passed on: what the specification asks for. A longer one ends the trace here."""
_PARENT = re.compile(r"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?")
_STATE_MEMBER = re.compile(
    r"[a-z0-9][a-z0-9_\-*/@]{0,255}=[\x20-\x2b\x2d-\x3c\x3e-\x7e]{0,255}[\x21-\x2b\x2d-\x3c\x3e-\x7e]"
)
MAX_STATE_MEMBERS = 32
_SAMPLED = 1
_random = random.Random(secrets.randbits(256))  # noqa: S311  # ids are no secrets; the system's source takes ten times as long


class SpanIds(Struct, frozen=True):
    """Ids of a span: the context in which its children are made."""

    trace_id: int
    span_id: int
    is_sampled: bool = True
    state: str = ""
    """Value of `tracestate`; empty without the header."""

    @property
    def trace_hex(self) -> str:
        """The id of the trace, in 32 hexadecimal digits."""
        return f"{self.trace_id:032x}"

    @property
    def span_hex(self) -> str:
        """The id of the span, in 16 hexadecimal digits."""
        return f"{self.span_id:016x}"

    def create_child(self, *, is_sampled: bool | None = None) -> "SpanIds":
        """Returns the ids of a new span of this trace. It is sampled like this one unless `is_sampled` is set."""
        sampled = self.is_sampled if is_sampled is None else is_sampled
        return SpanIds(self.trace_id, _random.getrandbits(64) or 1, sampled, self.state)

    def build_headers(self) -> tuple[tuple[str, str], ...]:
        """Returns the headers that make the receiver's spans children of this one."""
        parent = f"00-{self.trace_hex}-{self.span_hex}-{'01' if self.is_sampled else '00'}"
        return (("traceparent", parent), *((("tracestate", self.state),) if self.state else ()))


def new_trace_id() -> int:
    """Returns a random id of a trace."""
    return _random.getrandbits(128) or 1


def create_root(*, trace_id: int, is_sampled: bool) -> SpanIds:
    """Returns the ids of the first span of a trace."""
    return SpanIds(trace_id, _random.getrandbits(64) or 1, is_sampled)


def parse_context(traceparent: str, tracestate: str = "") -> SpanIds | None:
    """Returns the context in these headers; None if it is missing or malformed, or if its state is too long.

    A malformed `tracestate` alone is left out.
    """
    found = _PARENT.fullmatch(traceparent.strip(" \t"))
    if found is None or len(tracestate) > MAX_STATE_CHARS:
        return None
    version, trace_id, span_id, flags = found[1], int(found[2], 16), int(found[3], 16), int(found[4], 16)
    if version == "ff" or (version == "00" and found[5]) or not trace_id or not span_id:
        return None
    return SpanIds(trace_id, span_id, bool(flags & _SAMPLED), _check_state(tracestate) if tracestate else "")


def _check_state(text: str) -> str:
    """Returns a `tracestate`; an empty text if it is malformed."""
    members = [member.strip(" \t") for member in text.split(",")]
    members = [member for member in members if member]
    names = {member.partition("=")[0] for member in members}
    if len(members) > MAX_STATE_MEMBERS or len(names) < len(members):
        return ""
    return ",".join(members) if all(_STATE_MEMBER.fullmatch(member) for member in members) else ""


class RequestTrace(Struct, frozen=True):
    """The span of a request to this server, and the span of the client that it belongs to."""

    ids: SpanIds
    parent: SpanIds | None = None


outgoing_span: ContextVar[SpanIds | None] = ContextVar("outgoing_span", default=None)
"""Span on whose behalf a task sends requests to other servers."""


def build_outgoing_headers() -> dict[str, str]:
    """Returns the headers for requests that this task sends to other servers."""
    span = outgoing_span.get()
    return {} if span is None else dict(span.build_headers())
