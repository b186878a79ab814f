"""What a request may lean on: items by id, what stands before its input, and what the client keeps sealed.

The readers of requests ask for it in these words; `app.turns.stored_history` answers from the store. `NOTHING` has no
past at all.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Protocol

from msgspec import Struct, structs

from antiphon.app.errors import ApiError, clip
from antiphon.events.inputs import AnyInput, CompactionInput, InputMessage, InputReasoning
from antiphon.events.items import ReasoningText

Lookup = Callable[[str], Struct | None]
"""Finds an item of this owner, input or output, by id."""
Opened = Callable[[InputReasoning | CompactionInput], str | None]
"""The text inside what came sealed; None: it was not sealed here, for this owner."""

RESUMED = "What was said before this point was left out. A summary of it, written to go on from:\n\n{}"


class Behind(Protocol):
    """One owner's past."""

    def item(self, item_id: str) -> Struct | None:
        """The item, put in or put out, that an `item_reference` means."""

    def earlier(self, body: Mapping[str, Any]) -> tuple[AnyInput, ...]:
        """What stands before the input of a request. Raises `ApiError`."""
        ...

    def opened(self, item: InputReasoning | CompactionInput) -> str | None:
        """The text inside what came sealed; None: it was not sealed here, for this owner."""


class _Nothing:
    """A past in which nothing was said."""

    def item(self, item_id: str) -> Struct | None:  # noqa: ARG002
        return None

    def earlier(self, body: Mapping[str, Any]) -> tuple[AnyInput, ...]:
        if (previous := body.get("previous_response_id")) is not None:
            message = f"Previous response with id '{clip(previous)}' not found."
            raise ApiError(400, "previous_response_not_found", message, "previous_response_id")
        return ()

    def opened(self, item: InputReasoning | CompactionInput) -> str | None:  # noqa: ARG002
        return None


NOTHING: Behind = _Nothing()


def legible(items: Iterable[AnyInput], opened: Opened, at: str) -> tuple[AnyInput, ...]:
    """The items as the model is to read them: sealed reasoning in the open, a compaction as the summary in it.

    What is in a seal wins over what stands beside it, since nobody can have changed it. `at` is where the items came
    in, as `input`. Raises `ApiError` 400 for a seal that is not ours.
    """
    return tuple(_legible(item, opened, f"{at}[{place}]") for place, item in enumerate(items))


def _legible(item: AnyInput, opened: Opened, path: str) -> AnyInput:
    if isinstance(item, CompactionInput):
        return InputMessage(role="user", content=RESUMED.format(_text(item, opened, path)))
    if isinstance(item, InputReasoning) and item.encrypted_content is not None:
        return structs.replace(item, content=(ReasoningText(text=_text(item, opened, path)),))
    return item


def _text(item: InputReasoning | CompactionInput, opened: Opened, path: str) -> str:
    text = opened(item)
    if text is None:
        named = f" of item '{clip(item.id)}'" if item.id else ""
        message = f"The encrypted content{named} could not be verified: this server did not seal it for you."
        raise ApiError(400, "invalid_encrypted_content", message, f"{path}.encrypted_content")
    return text
