"""Conversation history that a request may refer to: items by id, items before its input, and encrypted content.

The request parsers use only the `History` protocol; `app.turns.stored_history` implements it with the store.
`NO_HISTORY` is an empty history.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Protocol

from msgspec import Struct, structs

from antiphon.app.base.errors import ApiError, clip_text
from antiphon.events.inputs import AnyInput, CompactionInput, InputMessage, InputReasoning
from antiphon.events.items import ReasoningText

FindItem = Callable[[str], Struct | None]
"""Returns the input or output item of this owner with the given id; None if there is none."""
Decrypt = Callable[[InputReasoning | CompactionInput], str | None]
"""Returns the decrypted text of an item; None if this server did not encrypt it for this owner."""

SUMMARY_INTRODUCTION = "What was said before this point was left out. A summary of it, written to go on from:\n\n{}"


class History(Protocol):
    """Conversation history of one owner."""

    def find_item(self, item_id: str) -> Struct | None:
        """Returns the input or output item with this id; None if there is none."""

    def items_before_input(self, body: Mapping[str, Any]) -> tuple[AnyInput, ...]:
        """Returns the items that precede the input of a request. Raises `ApiError`."""
        ...

    def decrypt(self, item: InputReasoning | CompactionInput) -> str | None:
        """Returns the decrypted text; None if this server did not encrypt it for this owner."""


class _EmptyHistory:
    """History without items."""

    def find_item(self, item_id: str) -> Struct | None:  # noqa: ARG002
        return None

    def items_before_input(self, body: Mapping[str, Any]) -> tuple[AnyInput, ...]:
        if (previous := body.get("previous_response_id")) is not None:
            message = f"Previous response with id '{clip_text(previous)}' not found."
            raise ApiError(400, "previous_response_not_found", message, "previous_response_id")
        return ()

    def decrypt(self, item: InputReasoning | CompactionInput) -> str | None:  # noqa: ARG002
        return None


NO_HISTORY: History = _EmptyHistory()


def decrypt_items(items: Iterable[AnyInput], decrypt: Decrypt, at: str) -> tuple[AnyInput, ...]:
    """Returns the items in the form that the model reads: reasoning decrypted, a compaction replaced by its summary.

    Decrypted text replaces an item's open text, because a client cannot have changed it. `at` is the path of the items
    in the request, such as `input`. Raises `ApiError` 400 for content that this server did not encrypt.
    """
    return tuple(_decrypt_item(item, decrypt, f"{at}[{index}]") for index, item in enumerate(items))


def _decrypt_item(item: AnyInput, opened: Decrypt, path: str) -> AnyInput:
    if isinstance(item, CompactionInput):
        return InputMessage(role="user", content=SUMMARY_INTRODUCTION.format(_decrypted_text(item, opened, path)))
    if isinstance(item, InputReasoning) and item.encrypted_content is not None:
        return structs.replace(item, content=(ReasoningText(text=_decrypted_text(item, opened, path)),))
    return item


def _decrypted_text(item: InputReasoning | CompactionInput, opened: Decrypt, path: str) -> str:
    text = opened(item)
    if text is None:
        item_label = f" of item '{clip_text(item.id)}'" if item.id else ""
        message = (
            f"The encrypted content{item_label} could not be verified. This server did not encrypt it for this API key."
        )
        raise ApiError(400, "invalid_encrypted_content", message, f"{path}.encrypted_content")
    return text
