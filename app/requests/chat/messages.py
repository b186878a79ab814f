"""Converts the messages of a chat request to input items, the conversation format of both endpoints.

One chat message may become several items: an assistant message becomes its reasoning, its text and refusal, and its
calls, in that order. If the model wrote text after a call, the message does not show it, and that order is lost.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from antiphon.app.errors import ApiError, clip_text, missing_field, unsupported_field
from antiphon.app.requests.fields import decode_value
from antiphon.app.requests.fields.checks import (
    build_check,
    check_choice,
    check_content,
    check_object,
    check_objects,
    check_string,
    require_key,
    require_string,
)
from antiphon.app.requests.fields.common import Label256
from antiphon.events.inputs import (
    AnyInput,
    InputCustomCall,
    InputCustomOutput,
    InputFile,
    InputFunctionCall,
    InputFunctionOutput,
    InputImage,
    InputMessage,
    InputReasoning,
    InputText,
    OutputTextInput,
    RefusalInput,
)
from antiphon.events.items import ReasoningText

CHAT_ROLES = ("developer", "system", "user", "assistant", "tool", "function")
FUNCTION_CALL_ID = "function_call_"
"""Beginning of the id that a call in the deprecated form gets, which has none."""
SentObject = Mapping[str, Any]


class _MessageReader:
    """Items read so far, and calls without an output (`open`): call id to the type of the expected output item."""

    def __init__(self) -> None:
        self.items: list[AnyInput] = []
        self.open: dict[str, type[InputFunctionOutput | InputCustomOutput]] = {}


def read_messages(messages: Sequence[SentObject]) -> tuple[AnyInput, ...]:
    """Converts all messages to items. Raises `ApiError` 400 with the path of the fault."""
    if not messages:
        message = "Invalid 'messages': empty array. Expected an array with minimum length 1."
        raise ApiError(400, "empty_array", message, "messages")
    chat = _MessageReader()
    for index, sent in enumerate(messages):
        path = f"messages[{index}]"
        role = require_key(sent, "role", path)
        check_choice(role, CHAT_ROLES, f"{path}.role")
        build_check(Label256)(sent.get("name") or "", f"{path}.name")
        _ROLE_READERS[role](chat, sent, path)
    if chat.open:
        message = (
            f"No 'tool' message has the tool_call_id '{clip_text(next(iter(chat.open)))}'. Send one for each tool call."
        )
        raise ApiError(400, None, message, "messages")
    return tuple(chat.items)


def _add_name(sent: SentObject, content: str | tuple[Any, ...], text_type: type[InputText | OutputTextInput]) -> Any:
    """Returns the content after the participant's name, if the message has one: no template has a place for it."""
    if not sent.get("name"):
        return content
    prefix = f"{sent['name']}: "
    return f"{prefix}{content}" if isinstance(content, str) else (text_type(text=prefix), *content)


def _read_input_message(chat: _MessageReader, sent: SentObject, path: str) -> None:
    """Reads a user, developer or system message."""
    content = _read_content(sent.get("content"), f"{path}.content", _INPUT_PARTS)
    chat.items.append(InputMessage(role=sent["role"], content=_add_name(sent, content, InputText)))


def _read_assistant_message(chat: _MessageReader, sent: SentObject, path: str) -> None:
    """Reads an assistant message. `content` may be null if there are calls, a refusal or reasoning."""
    if sent.get("audio") is not None:
        raise unsupported_field(f"{path}.audio", "Audio is not supported.")
    reasoning = sent.get("reasoning") or sent.get("reasoning_content")
    if isinstance(reasoning, str):
        chat.items.append(InputReasoning(content=(ReasoningText(text=reasoning),)))
    parts = _read_assistant_parts(sent, path)
    calls = sent.get("tool_calls") or []
    check_objects(calls, f"{path}.tool_calls")
    function_call = sent.get("function_call")
    if parts:
        chat.items.append(InputMessage(role="assistant", content=_add_name(sent, tuple(parts), OutputTextInput)))
    elif not calls and not reasoning and function_call is None:
        if "content" not in sent:
            raise missing_field(f"{path}.content")
        # An empty turn: this server returns it with null content.
        chat.items.append(InputMessage(role="assistant", content=""))
    for index, call in enumerate(calls):
        _read_call(chat, call, f"{path}.tool_calls[{index}]")
    if function_call is not None:
        check_object(function_call, f"{path}.function_call")
        _add_call(chat, "function", function_call, f"{FUNCTION_CALL_ID}{len(chat.items)}", f"{path}.function_call")


def _read_assistant_parts(sent: SentObject, path: str) -> list[Any]:
    """Returns the text and refusal parts. Empty text next to calls is left out: clients send it instead of null."""
    parts: list[Any] = []
    content = sent.get("content")
    has_calls = bool(sent.get("tool_calls")) or sent.get("function_call") is not None
    if content is not None and (content != "" or not has_calls):
        text_or_parts = _read_content(content, f"{path}.content", _ASSISTANT_PARTS)
        parts += [OutputTextInput(text=text_or_parts)] if isinstance(text_or_parts, str) else text_or_parts
    if sent.get("refusal") is not None:
        check_string(sent["refusal"], f"{path}.refusal")
        parts.append(RefusalInput(refusal=sent["refusal"]))
    return parts


def _read_call(chat: _MessageReader, sent: SentObject, path: str) -> None:
    kind = sent.get("type") or "function"
    check_choice(kind, ("function", "custom"), f"{path}.type")
    call = require_key(sent, kind, path)
    check_object(call, f"{path}.{kind}")
    _add_call(chat, kind, call, require_key(sent, "id", path), f"{path}.{kind}")


def _add_call(chat: _MessageReader, kind: str, call: SentObject, call_id: str, path: str) -> None:
    """Adds the call of a tool of this kind. `path` is the path of its name and arguments."""
    tag = "function_call" if kind == "function" else "custom_tool_call"
    item_type: type[InputFunctionCall | InputCustomCall] = InputFunctionCall if kind == "function" else InputCustomCall
    chat.items.append(decode_value({**call, "type": tag, "call_id": call_id}, item_type, path))
    chat.open[call_id] = InputFunctionOutput if kind == "function" else InputCustomOutput


def _read_tool_message(chat: _MessageReader, sent: SentObject, path: str) -> None:
    """Reads a tool's output, which must belong to an earlier call that has no output yet."""
    call_id = require_string(sent, "tool_call_id", path)
    output_type = chat.open.pop(call_id, None)
    if output_type is None:
        message = f"Invalid '{path}': no open tool call with id '{clip_text(call_id)}' precedes this 'tool' message."
        raise ApiError(400, None, message, "messages")
    content = _read_content(sent.get("content"), f"{path}.content", _INPUT_PARTS)
    chat.items.append(output_type(call_id=call_id, output=content))


def _read_function_message(chat: _MessageReader, sent: SentObject, path: str) -> None:
    """Reads the output of the call in the deprecated `function_call` of the message before."""
    name = require_key(sent, "name", path)
    call_id = next((call_id for call_id in chat.open if call_id.startswith(FUNCTION_CALL_ID)), None)
    if call_id is None:
        message = f"Invalid '{path}': no 'function_call' of '{clip_text(name)}' precedes this 'function' message."
        raise ApiError(400, None, message, "messages")
    del chat.open[call_id]
    content = _read_content(sent.get("content"), f"{path}.content", _INPUT_PARTS)
    chat.items.append(InputFunctionOutput(call_id=call_id, output=content))


def _read_content(
    content: Any, path: str, readers: Mapping[str, Callable[[SentObject, str], Any]]
) -> str | tuple[Any, ...]:
    """Returns text content unchanged, or the parts, each converted by the reader of its type."""
    if content is None:
        raise missing_field(path)
    if isinstance(content, str):
        return content
    check_content(content, path)
    parts = []
    for index, part in enumerate(content):
        part_path = f"{path}[{index}]"
        kind = require_key(part, "type", part_path)
        if kind == "input_audio":
            raise unsupported_field(part_path, "Audio input is not supported.")
        check_choice(kind, tuple(readers), f"{part_path}.type")
        parts.append(readers[kind](part, part_path))
    return tuple(parts)


def _read_image(part: SentObject, path: str) -> InputImage:
    image_path = f"{path}.image_url"
    image = require_key(part, "image_url", path)
    if isinstance(image, str):
        image = {"url": image}
    check_object(image, image_path)
    sent = {"type": "input_image", "image_url": require_key(image, "url", image_path), "detail": image.get("detail")}
    return decode_value(sent, InputImage, image_path)


def _read_file(part: SentObject, path: str) -> InputFile:
    file = require_key(part, "file", path)
    check_object(file, f"{path}.file")
    return decode_value({**file, "type": "input_file"}, InputFile, f"{path}.file")


_INPUT_PARTS: dict[str, Callable[[SentObject, str], Any]] = {
    "text": lambda part, path: decode_value({**part, "type": "input_text"}, InputText, path),
    "image_url": _read_image,
    "file": _read_file,
}
_ASSISTANT_PARTS: dict[str, Callable[[SentObject, str], Any]] = {
    "text": lambda part, path: decode_value({**part, "type": "output_text"}, OutputTextInput, path),
    "refusal": lambda part, path: decode_value(dict(part), RefusalInput, path),
}
_ROLE_READERS: dict[str, Callable[[_MessageReader, SentObject, str], None]] = {
    "developer": _read_input_message,
    "system": _read_input_message,
    "user": _read_input_message,
    "assistant": _read_assistant_message,
    "tool": _read_tool_message,
    "function": _read_function_message,
}
