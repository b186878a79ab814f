"""What a request may lean on: items by id, what stands before its input, and what the client keeps sealed.

The readers of requests ask for it in these words; `app.turns.stored_history` answers from the store. `NOTHING` has no
past at all.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Protocol

from msgspec import Struct, structs

from antiphon.app.errors import ApiError, clip_text
from antiphon.events.inputs import AnyInput, CompactionInput, InputMessage, InputReasoning
from antiphon.events.items import ReasoningText

FindItem = Callable[[str], Struct | None]
"""Finds an item of this owner, input or output, by id."""
Decrypt = Callable[[InputReasoning | CompactionInput], str | None]
"""The text inside what came sealed; None: it was not sealed here, for this owner."""

SUMMARY_INTRODUCTION = "What was said before this point was left out. A summary of it, written to go on from:\n\n{}"


class History(Protocol):
    """One owner's past."""

    def find_item(self, item_id: str) -> Struct | None:
        """The item, put in or put out, that an `item_reference` means."""

    def items_before_input(self, body: Mapping[str, Any]) -> tuple[AnyInput, ...]:
        """What stands before the input of a request. Raises `ApiError`."""
        ...

    def decrypt(self, item: InputReasoning | CompactionInput) -> str | None:
        """The text inside what came sealed; None: it was not sealed here, for this owner."""


class _EmptyHistory:
    """A past in which nothing was said."""

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
    """The items as the model is to read them: sealed reasoning in the open, a compaction as the summary in it.

    What is in a seal wins over what stands beside it, since nobody can have changed it. `at` is where the items came
    in, as `input`. Raises `ApiError` 400 for a seal that is not ours.
    """
    return tuple(_decrypt_item(item, decrypt, f"{at}[{place}]") for place, item in enumerate(items))


def _decrypt_item(item: AnyInput, opened: Decrypt, path: str) -> AnyInput:
    if isinstance(item, CompactionInput):
        return InputMessage(role="user", content=SUMMARY_INTRODUCTION.format(_decrypted_text(item, opened, path)))
    if isinstance(item, InputReasoning) and item.encrypted_content is not None:
        return structs.replace(item, content=(ReasoningText(text=_decrypted_text(item, opened, path)),))
    return item


def _decrypted_text(item: InputReasoning | CompactionInput, opened: Decrypt, path: str) -> str:
    text = opened(item)
    if text is None:
        named = f" of item '{clip_text(item.id)}'" if item.id else ""
        message = f"The encrypted content{named} could not be verified: this server did not seal it for you."
        raise ApiError(400, "invalid_encrypted_content", message, f"{path}.encrypted_content")
    return text
