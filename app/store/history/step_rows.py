"""Steps of responses as rows of the tables `responses`, `events` and `items`."""

from collections.abc import Callable, Iterable, Mapping, Sequence

import msgspec
from msgspec import Struct

from antiphon.app.turn_types.continuation import RecordRow
from antiphon.app.turn_types.event_log import EventLog, LogEntry
from antiphon.app.turn_types.turn_stats import TurnStats
from antiphon.events import stream as ev
from antiphon.events.response import Response

Columns = Mapping[str, str]
"""Names of columns, each with its type in PostgreSQL."""
RESPONSE_COLUMNS: Columns = {
    "id": "text",
    "owner": "text",
    "created": "bigint",
    "base_response": "bytea",
    "input_items": "bytea",
    "writer": "text",
}
EVENT_COLUMNS: Columns = {"response": "text", "number": "int", "data": "bytea", "detail": "bytea", "journal": "bytea"}
ITEM_COLUMNS: Columns = {"owner": "text", "id": "text", "response": "text"}
_detail_encoder = msgspec.msgpack.Encoder()  # JSON has no infinite log-probabilities


class NewStep(Struct, frozen=True):
    """One step of a response, to be stored."""

    owner: str
    response_id: str
    entries: Sequence[LogEntry]
    keep_details: bool = False
    is_continuable: bool = False
    """True if the response has a continuation until its last step."""
    stats: TurnStats | None = None
    """Figures of the turn, for its summary; None: those that the response has."""
    pack_record: Callable[[], RecordRow | None] | None = None
    """Returns the record of the turn, for its last step."""


def encode_response(log: EventLog, writer: str) -> tuple[str, str, int, bytes, bytes, str]:
    """Returns the values of `RESPONSE_COLUMNS` for a new response."""
    base_response, input_items = msgspec.json.encode(log.base_response), msgspec.json.encode(log.input_items)
    return log.id, log.owner, int(log.base_response.created_at), base_response, input_items, writer


def encode_entry(step: NewStep, entry: LogEntry) -> tuple[str, int, bytes, bytes | None, bytes | None]:
    """Returns the values of `EVENT_COLUMNS` for an entry."""
    journal = entry.encode_journal() if step.keep_details or step.is_continuable else b""
    detail = _detail_encoder.encode(entry.detail) if step.keep_details and entry.detail is not None else None
    return step.response_id, entry.event.sequence_number, entry.data, detail, journal or None


def last_response(step: NewStep) -> Response:
    """Returns the response in the terminal event of a step."""
    event = step.entries[-1].event
    assert isinstance(event, ev.LifecycleEvent)
    return event.response


def completed_item_ids(entries: Iterable[LogEntry]) -> list[str]:
    """Returns the ids of the output items that these entries complete."""
    return [entry.event.item.id for entry in entries if isinstance(entry.event, ev.ItemDone)]
