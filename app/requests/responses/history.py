"""Conversation history that a request may refer to: items by id, items before its input, and encrypted content.

The request parsers use only the `History` protocol; `app.turns.stored_history` implements it with the store.
`NO_HISTORY` is an empty history.
"""

from collections.abc import Callable
from typing import Protocol

from msgspec import Struct

from antiphon.app.errors import ApiError, clip_text
from antiphon.events.inputs import AnyInput, CompactionInput, InputReasoning

FindItem = Callable[[str], Struct | None]
"""Returns the input or output item of this owner with the given id; None if there is none."""


class History(Protocol):
    """Conversation history of one owner."""

    def find_item(self, item_id: str) -> Struct | None:
        """Returns the input or output item with this id; None if there is none."""

    def items_before_input(self, previous_id: str | None, conversation_id: str | None) -> tuple[AnyInput, ...]:
        """Returns the items that precede the input of a request: those up to a response, or of a conversation.

        Raises `ApiError`.
        """
        ...

    def decrypt(self, item: InputReasoning | CompactionInput) -> str | None:
        """Returns the decrypted text; None if this server did not encrypt it for this owner."""


class _EmptyHistory:
    """History without items."""

    def find_item(self, item_id: str) -> Struct | None:  # noqa: ARG002
        return None

    def items_before_input(
        self,
        previous_id: str | None,
        conversation_id: str | None,  # noqa: ARG002
    ) -> tuple[AnyInput, ...]:
        if previous_id is not None:
            message = f"Previous response with id '{clip_text(previous_id)}' not found."
            raise ApiError(400, "previous_response_not_found", message, "previous_response_id")
        return ()

    def decrypt(self, item: InputReasoning | CompactionInput) -> str | None:  # noqa: ARG002
        return None


NO_HISTORY: History = _EmptyHistory()
