"""Reads the conversation that a Responses request continues: earlier items, then the items of its input."""

from collections.abc import Callable, Iterable, Sequence

from msgspec import Struct, structs

from antiphon.app.errors import ApiError, clip_text, invalid_value, missing_field
from antiphon.app.requests.responses.body import ConversationReference, ResponsesBody
from antiphon.app.requests.responses.compaction import expand_compacted
from antiphon.app.requests.responses.duplicates import check_resent
from antiphon.app.requests.responses.history import History
from antiphon.app.requests.responses.input_items import RequestInput, additional_tools, read_input
from antiphon.app.requests.tools import RequestTools
from antiphon.events.hosted_inputs import InputHostedItem
from antiphon.events.inputs import (
    AnyInput,
    CompactionInput,
    ConfigurationUpdate,
    InputCall,
    InputOutput,
    InputReasoning,
)
from antiphon.events.items import ReasoningText
from antiphon.harmony.prompt.async_calls import is_asynchronous, is_server_search

Decrypt = Callable[[InputReasoning | CompactionInput], str | None]
"""Returns the decrypted text of an item; None if this server did not encrypt it for this owner."""


class Conversation(Struct, frozen=True):
    """The items of a conversation."""

    items: tuple[AnyInput, ...]
    """All items in the form that the model reads: reasoning and summaries decrypted."""
    earlier_items: tuple[AnyInput, ...]
    """Stored items before the input, as the history returned them."""
    sent_items: tuple[AnyInput, ...]
    """Items of the input."""
    tools: RequestTools
    """Tools that the items add to those of the request."""
    id: str | None
    """Id of the stored conversation; None if there is none."""
    compact: bool
    """True if the reply is a summary of the conversation."""
    has_updates: bool
    """True if an item updates the settings."""


def read_conversation(body: ResponsesBody, history: History) -> Conversation:
    """Returns the conversation of a request. Raises `ApiError`: 400 with the path of the fault, 404 for a lost item."""
    sent = _read_input(body, history)
    conversation_id = (
        body.conversation.id if isinstance(body.conversation, ConversationReference) else body.conversation
    )
    earlier_items = history.items_before_input(body.previous_response_id, conversation_id)
    if sent.compact and not (earlier_items or sent.items):
        raise invalid_value("input", "There is nothing to compact: the conversation has no items.")
    items = decrypt_items(earlier_items, sent.items, history.decrypt)
    if any(isinstance(item, InputHostedItem) for item in sent.items):
        check_resent(sent.items, items)
    check_calls(items)
    has_compaction = any(isinstance(item, CompactionInput) for item in sent.items)
    return Conversation(
        items=items,
        earlier_items=earlier_items,
        sent_items=sent.items,
        tools=additional_tools(items) if earlier_items or has_compaction else sent.tools,
        id=conversation_id,
        compact=sent.compact,
        has_updates=any(isinstance(item, ConfigurationUpdate) for item in items),
    )


def _read_input(body: ResponsesBody, history: History) -> RequestInput:
    """Reads `input`. It may be missing if there is earlier history, or `prompt`, which is refused by name later."""
    has_history = body.previous_response_id is not None or body.conversation is not None
    if body.input is not None and not (body.input == [] and has_history):  # empty input is valid after earlier history
        return read_input(body.input, history.find_item)
    if has_history or body.prompt is not None:
        return RequestInput(())
    raise missing_field("input")


def check_calls(items: Iterable[AnyInput], param: str = "input") -> None:
    """Checks that each output follows its call, and each call that the client answers at once has an output.

    Raises `ApiError` 400, as OpenAI does.
    """
    answered_calls: dict[tuple[str, str], bool] = {}
    for item in items:
        if isinstance(item, InputCall):
            answered_calls[item.label, item.call_id] = is_asynchronous(item) or is_server_search(item)
        elif isinstance(item, InputOutput):
            key = item.label, item.call_id
            if key not in answered_calls:
                message = f"No tool call found for {item.label} output with call_id {clip_text(item.call_id)}."
                raise ApiError(400, None, message, param)
            answered_calls[key] = True
    for (label, call_id), is_answered in answered_calls.items():
        if not is_answered:
            raise ApiError(400, None, f"No tool output found for {label} {clip_text(call_id)}.", param)


def decrypt_items(earlier: Iterable[AnyInput], sent: Iterable[AnyInput], decrypt: Decrypt) -> tuple[AnyInput, ...]:
    """Returns all items in the form that the model reads: reasoning decrypted, a compaction replaced by its content.

    Decrypted text replaces an item's open text, because a client cannot have changed it. Raises `ApiError` 400 for
    content that this server did not encrypt.
    """
    items: list[AnyInput] = []
    for path, part in (("previous_response_id", earlier), ("input", sent)):
        for index, item in enumerate(part):
            if isinstance(item, CompactionInput):
                items[:] = _expand_compaction(item, items, decrypt, f"{path}[{index}]")
            else:
                items.append(_decrypt_reasoning(item, decrypt, f"{path}[{index}]"))
    return tuple(items)


def _expand_compaction(
    item: CompactionInput, before: Sequence[AnyInput], opened: Decrypt, path: str
) -> Sequence[AnyInput]:
    if not item.encrypted_content:  # it was cut before it had content
        return before
    try:
        return expand_compacted(_decrypted_text(item, opened, path), before)
    except ValueError:
        raise _unverified(item, path) from None


def _decrypt_reasoning(item: AnyInput, opened: Decrypt, path: str) -> AnyInput:
    if isinstance(item, InputReasoning) and item.encrypted_content is not None:
        return structs.replace(item, content=(ReasoningText(text=_decrypted_text(item, opened, path)),))
    return item


def _decrypted_text(item: InputReasoning | CompactionInput, opened: Decrypt, path: str) -> str:
    text = opened(item)
    if text is None:
        raise _unverified(item, path)
    return text


def _unverified(item: InputReasoning | CompactionInput, path: str) -> ApiError:
    item_label = f" of item '{clip_text(item.id)}'" if item.id else ""
    message = (
        f"The encrypted content{item_label} could not be verified. This server did not encrypt it for this API key."
    )
    return ApiError(400, "invalid_encrypted_content", message, f"{path}.encrypted_content")
