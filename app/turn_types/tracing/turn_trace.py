"""The items and the calls of tools of a sampled turn, with their times, collected while it runs.

The spans are made of it when the turn has ended. Times are in seconds of the monotonic clock.
"""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager

from msgspec import Struct

from antiphon.app.turn_types.tracing.context import RequestTrace, SpanIds, create_root, new_trace_id, outgoing_span
from antiphon.events.base import Event
from antiphon.events.stream import ItemAdded, ItemDone

MAX_TRACED_ITEMS = 64
"""Items of a turn that get a span, and calls of its tools. The others are counted."""
AttributeValue = str | int | float | bool | Sequence[str]
Attributes = Mapping[str, AttributeValue]


class TracedItem(Struct, kw_only=True):
    """An item of the output. `ended` is None for an item that was not completed."""

    id: str
    type: str
    name: str
    started: float
    first_token: int
    """Number of tokens that the turn had generated before it."""
    ended: float | None = None
    tokens: int = 0
    status: str = ""


class TracedCall(Struct, kw_only=True):
    """A call of a tool that the server ran."""

    ids: SpanIds
    name: str
    kind: str
    call_id: str
    server_label: str
    started: float
    ended: float = 0.0
    error: str = ""


class TurnDescription(Struct, frozen=True, kw_only=True):
    """Attributes of a turn's spans besides its figures, by their full names."""

    turn: Attributes
    render: Attributes
    job: Attributes
    content: Attributes = {}
    """Empty unless the operator has content exported."""


class TurnTrace(Struct, kw_only=True):
    """The trace of one turn. One that is not sampled has its ids, and nothing is noted."""

    ids: SpanIds
    parent: SpanIds | None = None
    """The span of the request; None for a trace of its own."""
    link: SpanIds | None = None
    """The span of the request that has started a turn in the background."""
    items: list[TracedItem] = []
    num_items: int = 0
    calls: list[TracedCall] = []
    num_calls: int = 0
    describe: Callable[[], TurnDescription] | None = None
    """Describes the turn once it has ended."""

    def note_events(self, events: Sequence[Event], now: float, num_tokens: int) -> None:
        """Notes the items that begin and end with these events. `num_tokens`: tokens generated so far."""
        for event in events:
            if isinstance(event, ItemAdded):
                self.num_items += 1
                if len(self.items) < MAX_TRACED_ITEMS:
                    item = event.item
                    self.items.append(
                        TracedItem(
                            id=item.id,
                            type=str(type(item).__struct_config__.tag),
                            name=getattr(item, "name", None) or "",
                            started=now,
                            first_token=num_tokens,
                        )
                    )
            elif isinstance(event, ItemDone) and event.output_index < len(self.items):
                noted = self.items[event.output_index]
                noted.ended, noted.tokens = now, num_tokens - noted.first_token
                noted.status = getattr(event.item, "status", None) or "completed"

    @contextmanager
    def note_call(self, kind: str, name: str, call_id: str, server_label: str) -> Iterator[TracedCall]:
        """Notes a call of a tool during the block, in which requests to other servers belong to its span."""
        call = TracedCall(
            ids=self.ids.create_child(),
            name=name,
            kind=kind,
            call_id=call_id,
            server_label=server_label,
            started=time.monotonic(),
        )
        token = outgoing_span.set(call.ids)
        try:
            yield call
        except BaseException as error:
            call.error = "cancelled" if not isinstance(error, Exception) else type(error).__name__
            raise
        finally:
            outgoing_span.reset(token)
            call.ended = time.monotonic()
            self.num_calls += 1
            if self.ids.is_sampled and len(self.calls) < MAX_TRACED_ITEMS:
                self.calls.append(call)


def begin_turn_trace(request: RequestTrace, *, background: bool) -> TurnTrace:
    """Returns the trace of a turn that a request has started. In the background it is a trace of its own, with a link.

    Both are sampled or neither, since a client that follows its trace also follows the link.
    """
    if not background:
        return TurnTrace(ids=request.ids.create_child(), parent=request.ids)
    root = create_root(trace_id=new_trace_id(), is_sampled=request.ids.is_sampled)
    return TurnTrace(ids=root, link=request.ids)
