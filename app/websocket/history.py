"""History of the requests of a connection: the latest response of each lane, in addition to what is stored."""

import asyncio

from msgspec import Struct

from antiphon.app.errors import ApiError, clip_text
from antiphon.app.requests.responses.history import History
from antiphon.app.turns.stored_history import MAX_INLINE_ITEMS, after_compaction
from antiphon.app.websocket.held_memory import count_bytes
from antiphon.events.inputs import AnyInput, CompactionInput, InputReasoning

MAX_INLINE_BYTES = 1 << 20
"""Size of a request whose items are counted on the event loop, which takes a millisecond."""


class LaneResponse(Struct, eq=False):
    """The latest response of a lane, stored or not, and all items of the conversation up to its end."""

    response_id: str
    stored: bool
    items: tuple[AnyInput, ...] | None
    """None once they were dropped, since the connections of an owner, or of all, kept too much."""
    num_bytes: int = 0
    """Size of the items as JSON, once it is known."""

    async def count_items(self, previous: "LaneResponse | None", num_earlier: int, request_bytes: int) -> None:
        """Finds the size of the items, the first `num_earlier` of which are those that the request continued.

        If they are all items of `previous`, only the new ones are measured; in a thread if they may be large.
        """
        known = previous is not None and previous.items is not None and len(previous.items) == num_earlier
        added = (self.items or ())[num_earlier if known else 0 :]
        is_large = request_bytes > MAX_INLINE_BYTES or len(added) > MAX_INLINE_ITEMS
        size = await asyncio.to_thread(count_bytes, added) if is_large else count_bytes(added)
        self.num_bytes = size + (previous.num_bytes if known and previous is not None else 0)

    def drop_items(self) -> None:
        """Drops the items: a turn can continue the response only if the store has it."""
        self.items = None


class LaneHistory:
    """`History` of one request. `latest`: the response of a lane that it continues, or the latest of its own lane."""

    def __init__(self, stored_history: History, latest: LaneResponse | None) -> None:
        self._stored_history, self._latest = stored_history, latest
        self._items: dict[str, AnyInput] | None = None

    def find_item(self, item_id: str) -> Struct | None:
        """Returns an item of the lane, else a stored one."""
        if self._items is None:
            items = (self._latest.items if self._latest else None) or ()
            self._items = {item.id: item for item in reversed(items) if item.id}
        return self._items.get(item_id) or self._stored_history.find_item(item_id)

    def items_before_input(self, previous_id: str | None, conversation_id: str | None) -> tuple[AnyInput, ...]:
        """Returns the items up to a response, or of a conversation. Raises `ApiError`."""
        if self._latest is not None and previous_id == self._latest.response_id:
            items = self._latest.items  # read once: the event loop may drop them
            return self._find_dropped(self._latest.response_id) if items is None else after_compaction(items)
        return self._stored_history.items_before_input(previous_id, conversation_id)

    def _find_dropped(self, response_id: str) -> tuple[AnyInput, ...]:
        """Returns the stored items up to a response that the connection keeps no more. Raises `ApiError`."""
        try:
            return self._stored_history.items_before_input(response_id, None)
        except ApiError as error:
            if error.code != "previous_response_not_found":
                raise
            message = (
                f"Previous response with id '{clip_text(response_id)}' not found: its history was dropped, since "
                "WebSocket connections kept too much. Send the whole input again."
            )
            raise ApiError(error.status, error.code, message, error.param) from None

    def decrypt(self, item: InputReasoning | CompactionInput) -> str | None:
        """Returns the decrypted text; None if this server did not encrypt it for this owner."""
        return self._stored_history.decrypt(item)
