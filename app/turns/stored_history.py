"""Earlier items of a conversation, from the chain of `previous_response_id` or from a stored conversation.

Each response in the chain contributes its input and output items. Instructions are never inherited.
"""

import asyncio
import math
import threading
from collections.abc import Callable
from typing import Any, TypeVar

import msgspec
from msgspec import Struct

from antiphon.app.errors import ApiError, clip_text, not_found
from antiphon.app.requests.turn_spec import TurnSpec
from antiphon.app.store.base import FindItem
from antiphon.app.store.log_items import StoredTurn, output_as_input
from antiphon.app.store.store import ResponseStore
from antiphon.app.turn_types.encryption import DecryptionError, Sealer
from antiphon.app.turn_types.turn_rules import Purpose
from antiphon.events.inputs import (
    AdditionalToolsInput,
    AnyInput,
    CompactionInput,
    HostedInput,
    InputMessage,
    InputReasoning,
)
from antiphon.state.ids import NewId

MAX_INLINE_ITEMS = 500
"""Number of items that get their ids on the event loop, which takes two milliseconds."""
ITEM_ID_PREFIXES = {
    "message": "msg",
    "reasoning": "rs",
    "function_call": "fc",
    "custom_tool_call": "ctc",
    "shell_call": "sh",
    "shell_call_output": "sho",
    "apply_patch_call": "apc",
    "apply_patch_call_output": "apco",
    "local_shell_call": "lsh",
    "local_shell_call_output": "lsho",
    "tool_search_call": "tsc",
    "tool_search_output": "tso",
    "mcp_call": "mcp",
    "mcp_list_tools": "mcpl",
    "mcp_approval_request": "mcpr",
    "mcp_approval_response": "mcprs",
    "web_search_call": "ws",
    "code_interpreter_call": "ci",
    "file_search_call": "fs",
}
"""Id prefix for each item type; `item` for any other type."""
MAX_CHAIN_ITEMS = 100_000
"""Maximum number of items in a chain: every turn processes all of them."""
MAX_CHAIN_BYTES = 256 << 20
"""Maximum size of the items in a chain that are read from a database. All of them are in memory at once."""
MAX_LOOP_WAIT_S = 60.0
"""Time after which a thread no longer waits for the event loop, which may have ended."""
T = TypeVar("T")


class LoopCaller:
    """Calls functions on the event loop for a thread. Create it on the event loop, where it calls them at once."""

    def __init__(self) -> None:
        self._loop, self._thread_id = asyncio.get_running_loop(), threading.get_ident()

    def __call__(self, read: Callable[..., T], *values: Any) -> T:
        """Returns the result of `read`. Raises its errors."""
        if threading.get_ident() == self._thread_id:
            return read(*values)

        async def run() -> T:
            return read(*values)

        return asyncio.run_coroutine_threadsafe(run(), self._loop).result(MAX_LOOP_WAIT_S)


class StoredHistory:
    """Earlier items of one owner, for one request: from the store and from sealed content that the client sends back.

    Create it on the event loop, and use it in any thread.
    """

    def __init__(self, store: ResponseStore, owner: str, sealer: Sealer) -> None:
        self.store, self.owner, self.sealer, self._call = store, owner, sealer, LoopCaller()
        self._find_item: FindItem | None = None

    def find_item(self, item_id: str) -> Struct | None:
        """Returns the input or output item that an `item_reference` refers to."""
        if self._find_item is None:
            self._find_item = self._call(self.store.history.item_finder, self.owner)
        return self._find_item(item_id)

    def items_before_input(self, previous_id: str | None, conversation_id: str | None) -> tuple[AnyInput, ...]:
        """Returns the items up to a response, or of a conversation. Raises `ApiError`."""
        if conversation_id is not None:
            if self._call(self.store.find_conversation, self.owner, conversation_id) is None:
                raise not_found(f"Conversation with id '{clip_text(conversation_id)}' not found.", "conversation")
            check_conversation_room(self.store, self.owner)
            return after_compaction(self._load_conversation(conversation_id))
        return after_compaction(self.response_chain(previous_id)) if previous_id is not None else ()

    def decrypt(self, item: InputReasoning | CompactionInput) -> str | None:
        """Returns the text of sealed content; None if it was not sealed by this server for this owner and purpose."""
        purpose: Purpose = "compaction" if isinstance(item, CompactionInput) else "reasoning"
        try:
            return self.sealer.open(self.owner, purpose, item.encrypted_content or "")
        except DecryptionError:
            return None

    def response_chain(self, response_id: str) -> tuple[AnyInput, ...]:
        """Returns all items up to the end of a response, oldest first. Raises `ApiError` 400."""
        parts: list[tuple[AnyInput, ...]] = []
        num_items = num_bytes = 0
        next_id: str | None = response_id
        while next_id is not None:
            turn = self._find_finished(next_id, response_id)
            parts.append((*turn.input_items, *output_as_input(turn.output)))
            num_items += len(parts[-1])
            num_bytes += turn.num_bytes
            _check_size(num_items, num_bytes, "input")
            next_id = turn.previous_response_id
            if turn.conversation_id:
                parts.append(self._conversation_before(turn))
        return tuple(item for part in reversed(parts) for item in part)

    def _load_conversation(self, conversation_id: str) -> tuple[AnyInput, ...]:
        """Returns the items of a conversation. Raises `ApiError` 400 for more than a turn may have."""
        _check_size(*self.store.history.count_items(self.owner, conversation_id), "conversation")
        return self.store.history.load_conversation(self.owner, conversation_id)

    def _conversation_before(self, turn: StoredTurn) -> tuple[AnyInput, ...]:
        """Returns the items that precede a response in its conversation; none if the response's items were deleted."""
        items = self._load_conversation(turn.conversation_id)
        response_ids = {item.id for item in (*turn.input_items, *turn.output)}
        first = next((index for index, item in enumerate(items) if item.id in response_ids), 0)
        return items[:first]

    def _find_finished(self, response_id: str, sent_id: str) -> StoredTurn:
        """Returns a turn of the chain that ends with the response `sent_id`. Raises `ApiError` 400."""
        turn = self._call(self.store.history.turn_reader, self.owner, response_id)()
        if turn is None:
            message = f"Previous response with id '{clip_text(response_id)}' not found."
            if response_id != sent_id:
                message += f" It was deleted, and response '{clip_text(sent_id)}' cannot be continued without it."
            raise ApiError(400, "previous_response_not_found", message, "previous_response_id")
        if not turn.is_finished:
            message = f"Previous response with id '{clip_text(response_id)}' is still in progress."
            raise ApiError(400, "previous_response_in_progress", message, "previous_response_id")
        return turn


def check_conversation_room(store: ResponseStore, owner: str, num_added: int = 0, max_bytes: float = math.inf) -> None:
    """Raises `ApiError` 400 if the conversations of an owner, or of all, would be too large. Call it in a thread.

    `max_bytes` is the limit of this owner, if it has one besides that of all owners.
    """
    owner_limit = min(store.max_owner_bytes, max_bytes)
    limits: tuple[tuple[str | None, str, float], ...] = (
        (owner, "this API key", owner_limit),
        (None, "all API keys", store.max_kept_bytes),
    )
    for index, (name, label, limit) in enumerate(limits):
        if store.history.count_conversation_bytes(name, num_added) > limit:
            for counted, *_ in limits[: index + 1]:
                store.history.count_conversation_bytes(counted, -num_added)
            message = f"The conversations of {label} would take more than {int(limit)} bytes. Delete some, or items."
            raise ApiError(400, "storage_limit_exceeded", message, "conversation")


def _check_size(num_items: int, num_bytes: int, param: str) -> None:
    """Raises `ApiError` 400 if earlier items are too many, or too large."""
    if num_items > MAX_CHAIN_ITEMS or num_bytes > MAX_CHAIN_BYTES:
        message = "The conversation has too many items. Start a new one."
        raise ApiError(400, "context_length_exceeded", message, param)


def after_compaction(items: tuple[AnyInput, ...]) -> tuple[AnyInput, ...]:
    """Removes the items that the last compaction replaces: those before it, except non-assistant messages and tools.

    Example: user 1, assistant, compaction, user 2 becomes user 1, compaction, user 2. A compaction that was cut has no
    content, and replaces nothing.
    """
    found = (index for index, item in enumerate(items) if isinstance(item, CompactionInput) and item.encrypted_content)
    last = max(found, default=0)
    return (*filter(_survives_compaction, items[:last]), *items[last:])


def _survives_compaction(item: AnyInput) -> bool:
    is_client_message = isinstance(item, InputMessage) and item.role != "assistant"
    return is_client_message or isinstance(item, AdditionalToolsInput)


def with_ids(items: tuple[AnyInput, ...], response_id: str) -> tuple[AnyInput, ...]:
    """Returns the items, each with an id: the client's, or one made of the response id and the item's index."""
    suffix = response_id.partition("_")[2]
    identified = []
    for index, item in enumerate(items):
        kind = item.kind if isinstance(item, HostedInput) else str(item.__struct_config__.tag)
        new_id = f"{ITEM_ID_PREFIXES.get(kind, 'item')}_{suffix}{index:04x}"
        identified.append(item if item.id else msgspec.structs.replace(item, id=new_id))
    return tuple(identified)


async def add_ids(items: tuple[AnyInput, ...], response_id: str) -> tuple[AnyInput, ...]:
    """Does the same, in a thread if there are many items."""
    if len(items) <= MAX_INLINE_ITEMS:
        return with_ids(items, response_id)
    return await asyncio.to_thread(with_ids, items, response_id)


async def identify_turn(spec: TurnSpec, new_id: NewId, created_at: int) -> tuple[TurnSpec, tuple[AnyInput, ...]]:
    """Returns the turn with the id of its response, and its input items as they are stored, each with an id."""
    # Ids of responses and of stored chat completions differ, so neither is ever read as the other.
    response_id = new_id("resp" if spec.stored_chat is None else "chatcmpl")
    base_response = msgspec.structs.replace(spec.base_response, id=response_id, created_at=created_at)
    spec, items = msgspec.structs.replace(spec, base_response=base_response), spec.input_items
    if not base_response.store:
        return spec, ()
    return spec, await add_ids(items, response_id)
