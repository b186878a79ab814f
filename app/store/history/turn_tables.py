"""Reads of earlier turns and items from the database, on a connection that any thread may use.

A row may have tens of megabytes. The decoder keeps all threads waiting, so only what is needed is decoded, item by
item: not the events of a turn, and not the tools that its response repeats.
"""

import msgspec
import structlog
from msgspec import UNSET, Struct, UnsetType

from antiphon.app.store.log_items import StoredTurn
from antiphon.app.store.sql_connection import SqlConnection, UnreadableRowError, decode_row
from antiphon.events.inputs import AnyInput
from antiphon.events.response import ConversationRef, OutputItem

SMALL_ROW_BYTES = 1 << 20
"""Size of a row that is decoded in one call, which takes at most some tens of milliseconds."""
_log = structlog.get_logger(__name__)


class _BaseResponse(Struct, frozen=True):
    """The part of a stored response that tells what it continues."""

    previous_response_id: str | None = None
    conversation: ConversationRef | None | UnsetType = UNSET


class _FinalResponse(Struct, frozen=True):
    output: tuple[OutputItem, ...]


class _FinalEvent(Struct, frozen=True):
    """The part of a last event that is needed."""

    response: _FinalResponse


class _DoneEvent(Struct, frozen=True):
    """The part of an event that is needed while a response runs."""

    type: str
    item: OutputItem | None = None


_base_decoder = msgspec.json.Decoder(_BaseResponse)
_final_decoder = msgspec.json.Decoder(_FinalEvent)
_done_decoder = msgspec.json.Decoder(_DoneEvent)
_item_decoder = msgspec.json.Decoder[AnyInput](AnyInput)
_items_decoder = msgspec.json.Decoder(tuple[AnyInput, ...])
_raw_decoder = msgspec.json.Decoder(list[msgspec.Raw])


def decode_items(data: bytes) -> tuple[AnyInput, ...]:
    """Decodes a column of input items. Raises `UnreadableRowError`."""
    if len(data) <= SMALL_ROW_BYTES:
        return decode_row(_items_decoder.decode, data)
    return tuple(decode_row(_item_decoder.decode, bytes(item)) for item in decode_row(_raw_decoder.decode, data))


class TurnTables:
    """Reads on one connection."""

    def __init__(self, connection: SqlConnection) -> None:
        self._connection = connection

    def load_turn(self, owner: str, response_id: str) -> StoredTurn | None:
        """Returns the turn of the owner's response. Returns None if there is none, or it is unreadable."""
        query = "SELECT base_response, input_items, writer FROM responses WHERE id = ? AND owner = ?"
        row = self._connection.execute(query, (response_id, owner)).fetchone()
        if row is None:
            return None
        try:
            base = decode_row(_base_decoder.decode, row[0])
            output = self._load_output(response_id, is_finished=row[2] is None)
            items = decode_items(row[1])
        except UnreadableRowError as error:
            _log.error("stored response is unreadable", response=response_id, error=str(error))
            return None
        return StoredTurn(
            input_items=items,
            output=output,
            is_finished=row[2] is None,
            previous_response_id=base.previous_response_id,
            conversation_id=base.conversation.id if isinstance(base.conversation, ConversationRef) else "",
            num_bytes=len(row[1]),
        )

    def _load_output(self, response_id: str, *, is_finished: bool) -> tuple[OutputItem, ...]:
        if is_finished:
            query = "SELECT data FROM events WHERE response = ? ORDER BY number DESC LIMIT 1"
            row = self._connection.execute(query, (response_id,)).fetchone()
            return decode_row(_final_decoder.decode, row[0] if row else b"").response.output
        query = "SELECT data FROM events WHERE response = ? ORDER BY number"
        rows = self._connection.execute(query, (response_id,))
        done = (decode_row(_done_decoder.decode, data) for (data,) in rows if b'"response.output_item.done"' in data)
        return tuple(event.item for event in done if event.item is not None)

    def find_holders(self, owner: str, item_id: str) -> list[str]:
        """Returns the ids of the owner's responses that contain an item."""
        query = "SELECT response FROM items WHERE owner = ? AND id = ?"
        return [row[0] for row in self._connection.execute(query, (owner, item_id)).fetchall()]

    def load_creation_time(self, response_id: str) -> int:
        """Returns when a response was created, in seconds since 1970. Returns 0 if there is no such response.

        SQLite reads all large rows that it meets on its way to a row, so a query for each of many items takes long.
        """
        row = self._connection.execute("SELECT created FROM responses WHERE id = ?", (response_id,)).fetchone()
        return row[0] if row else 0
