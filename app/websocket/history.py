"""History of the requests of a connection: the latest response of each lane, in addition to what is stored."""

from msgspec import Struct

from antiphon.app.requests.responses.history import History
from antiphon.app.turns.stored_history import after_compaction
from antiphon.events.inputs import AnyInput, CompactionInput, InputReasoning


class LaneResponse(Struct, frozen=True):
    """The latest response of a lane, stored or not, and all items of the conversation up to its end."""

    response_id: str
    stored: bool
    items: tuple[AnyInput, ...]


class LaneHistory:
    """`History` of one request. `latest`: the response of a lane that it continues, or the latest of its own lane."""

    def __init__(self, stored_history: History, latest: LaneResponse | None) -> None:
        self._stored_history, self._latest = stored_history, latest
        self._items: dict[str, AnyInput] | None = None

    def find_item(self, item_id: str) -> Struct | None:
        """Returns an item of the lane, else a stored one."""
        if self._items is None:
            items = self._latest.items if self._latest else ()
            self._items = {item.id: item for item in reversed(items) if item.id}
        return self._items.get(item_id) or self._stored_history.find_item(item_id)

    def items_before_input(self, previous_id: str | None, conversation_id: str | None) -> tuple[AnyInput, ...]:
        """Returns the items up to a response, or of a conversation. Raises `ApiError`."""
        if self._latest is not None and previous_id == self._latest.response_id:
            return after_compaction(self._latest.items)
        return self._stored_history.items_before_input(previous_id, conversation_id)

    def decrypt(self, item: InputReasoning | CompactionInput) -> str | None:
        """Returns the decrypted text; None if this server did not encrypt it for this owner."""
        return self._stored_history.decrypt(item)
