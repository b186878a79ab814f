"""Records that a response store keeps besides event logs, and the types of its results."""

from collections.abc import Callable
from typing import NamedTuple

from msgspec import Struct

from antiphon.app.store.log_items import StoredTurn
from antiphon.app.turn_types.continuation import Continuation
from antiphon.app.turn_types.reply_form import ChatForm
from antiphon.events.inputs import AnyInput
from antiphon.events.response import OutputItem


class StoreError(OSError):
    """The store cannot be opened or used. The message is one line for the operator."""


class StoredConversation(Struct, frozen=True, kw_only=True):
    """A conversation that turns can continue. Its ordered items are stored separately."""

    id: str
    created_at: int
    metadata: dict[str, str] = {}


class StoredCompletion(Struct, frozen=True, kw_only=True):
    """A chat completion. Each choice is a log of the store; the completion has the id of the first one."""

    id: str
    created_at: int
    model: str
    metadata: dict[str, str]
    choice_ids: tuple[str, ...]
    form: ChatForm


class ClaimedResponse(Struct, frozen=True):
    """A response of a dead process that belongs to this one now. Without a `continuation` it ends as failed."""

    owner: str
    id: str
    continuation: Continuation | None = None


AnyItem = OutputItem | AnyInput
ReadTurn = Callable[[], StoredTurn | None]
FindItem = Callable[[str], AnyItem | None]


class OwnedResponse(NamedTuple):
    """An unfinished response: whether its cancellation was requested, and whether it is read at another server."""

    is_cancelled: bool
    is_wanted: bool
