"""Asynchronous calls, as the model reads them: a call without its output is pending, a late output is a message.

Templates want an output right after each call, and a prompt that changes before its end loses the prefix cache. So a
pending call gets a text in the place of its output, which stays there when the output comes.
"""

from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from typing import TypeGuard

from antiphon.events.hosted_inputs import InputApprovalResponse
from antiphon.events.inputs import (
    AdditionalToolsInput,
    AnyInput,
    ConfigurationUpdate,
    InputCustomCall,
    InputCustomOutput,
    InputFunctionCall,
    InputFunctionOutput,
    InputMessage,
    InputOutput,
    InputText,
    InputToolSearchCall,
    InputToolSearchOutput,
)
from antiphon.harmony.tools import ToolTable

PENDING_OUTPUT = "The result will follow."
MAX_ARGUMENT_CHARS = 200
"""Length of the arguments in front of a late output. They tell calls of one tool apart."""

AnyCall = InputFunctionCall | InputCustomCall
AnyOutput = InputFunctionOutput | InputCustomOutput
CallKey = tuple[str, str]
"""Label and id of a call."""


def show_pending_calls(items: Sequence[AnyInput], tools: ToolTable) -> tuple[AnyInput, ...]:
    """Returns the items with an output for each pending call, and late outputs as messages of the user."""
    if any(is_asynchronous(item) for item in items):
        return tuple(_convert_items(items, tools))
    return tuple(items)


def is_asynchronous(item: AnyInput) -> TypeGuard[AnyCall]:
    """Tells whether an item is a call that may be without its output."""
    return isinstance(item, AnyCall) and item.is_async is True


def is_pending(index: int, items: Sequence[AnyInput]) -> bool:
    """Tells whether an item is an asynchronous call whose output is not among the items."""
    call = items[index]
    return is_asynchronous(call) and not any(
        isinstance(item, AnyOutput) and _key_of(item) == _key_of(call) for item in items[index:]
    )


def is_from_client(item: AnyInput) -> bool:
    """Tells whether an item is of the client, and not of the model."""
    if isinstance(item, InputMessage):
        return item.role != "assistant"
    kinds = InputOutput | InputApprovalResponse | AdditionalToolsInput | ConfigurationUpdate
    return isinstance(item, kinds) and not is_server_search(item)


def is_server_search(item: AnyInput) -> bool:
    """Tells whether an item belongs to a search among tools that the server has run: its call, or its output."""
    return isinstance(item, InputToolSearchCall | InputToolSearchOutput) and item.execution == "server"


def _convert_items(items: Sequence[AnyInput], tools: ToolTable) -> Iterator[AnyInput]:
    open_calls: dict[CallKey, AnyCall] = {}  # those of the last response
    pending: dict[CallKey, AnyCall] = {}  # those that the model has read as pending
    for from_client, group in groupby(items, is_from_client):
        run = list(group)
        if not from_client:
            open_calls = {_key_of(item): item for item in run if is_asynchronous(item)}
            yield from run
            continue
        answered = {_key_of(item) for item in run if isinstance(item, AnyOutput)}
        unanswered = {key: call for key, call in open_calls.items() if key not in answered}
        yield from map(_answer_pending, unanswered.values())
        pending |= unanswered
        open_calls = {}
        yield from (_convert_late(item, pending, tools) for item in run)
    yield from map(_answer_pending, open_calls.values())


def _key_of(item: AnyCall | AnyOutput) -> CallKey:
    return item.label, item.call_id


def _answer_pending(call: AnyCall) -> AnyOutput:
    if isinstance(call, InputFunctionCall):
        return InputFunctionOutput(call_id=call.call_id, output=PENDING_OUTPUT)
    return InputCustomOutput(call_id=call.call_id, output=PENDING_OUTPUT)


def _convert_late(item: AnyInput, pending: Mapping[CallKey, AnyCall], tools: ToolTable) -> AnyInput:
    call = pending.get(_key_of(item)) if isinstance(item, AnyOutput) else None
    if call is None or not isinstance(item, AnyOutput):
        return item
    arguments = call.arguments if isinstance(call, InputFunctionCall) else call.input
    introduction = f"The result of {tools.model_name_of(call.name, call.namespace)} {arguments[:MAX_ARGUMENT_CHARS]}:"
    if isinstance(item.output, str):
        return InputMessage(role="user", content=f"{introduction}\n{item.output}")
    return InputMessage(role="user", content=(InputText(text=introduction), *item.output))
