"""The messages of a chat request, as input items: a chat is the same conversation in another spelling.

One chat message may be several items: an assistant's turn becomes its reasoning, its text and refusal, and its
calls, in that order. What came after a call in the original turn cannot be told from the spelling.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from antiphon.app.errors import ApiError, clip_text, missing_field, unsupported_field
from antiphon.app.requests import validators as c
from antiphon.app.requests.json_body import convert_value
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

ROLES = ("developer", "system", "user", "assistant", "tool", "function")
SentObject = Mapping[str, Any]


class _MessageReader:
    """The items so far, and the calls that still lack an answer: call id to the kind of its output."""

    def __init__(self) -> None:
        self.items: list[AnyInput] = []
        self.open: dict[str, type[InputFunctionOutput | InputCustomOutput]] = {}


def read_messages(messages: Sequence[SentObject]) -> tuple[AnyInput, ...]:
    """All messages as items. Raises `ApiError` 400 naming the place."""
    if not messages:
        message = "Invalid 'messages': empty array. Expected an array with minimum length 1."
        raise ApiError(400, "empty_array", message, "messages")
    chat = _MessageReader()
    for index, sent in enumerate(messages):
        path = f"messages[{index}]"
        role = c.require_key(sent, "role", path)
        c.one_of(ROLES)(role, f"{path}.role")
        _check_name(sent, path)
        _ROLE_READERS[role](chat, sent, path)
    if chat.open:
        message = f"No tool message answers the tool call with id '{clip_text(next(iter(chat.open)))}'."
        raise ApiError(400, None, message, "messages")
    return tuple(chat.items)


def _check_name(sent: SentObject, path: str) -> None:
    """A participant's name is let through, and not shown: no template here has a place for it."""
    if sent.get("name") is not None:
        c.string_like(256)(sent["name"], f"{path}.name")


def _read_input_message(chat: _MessageReader, sent: SentObject, path: str) -> None:
    """A message of the user, the developer or the system."""
    content = _read_content(sent.get("content"), f"{path}.content", _INPUT_PARTS)
    chat.items.append(InputMessage(role=sent["role"], content=content))


def _read_assistant_message(chat: _MessageReader, sent: SentObject, path: str) -> None:
    """A message of the assistant; `content` may be null beside calls, a refusal or reasoning."""
    for name in ("function_call", "audio"):
        if sent.get(name) is not None:
            raise unsupported_field(
                f"{path}.{name}", "Use 'tool_calls'." if name == "function_call" else "No audio here."
            )
    thought = sent.get("reasoning") or sent.get("reasoning_content")
    if isinstance(thought, str):
        chat.items.append(InputReasoning(content=(ReasoningText(text=thought),)))
    parts = _read_assistant_parts(sent, path)
    calls = sent.get("tool_calls") or []
    c.array_of(c.is_object)(calls, f"{path}.tool_calls")
    if parts:
        chat.items.append(InputMessage(role="assistant", content=tuple(parts)))
    elif not calls and not thought:
        if "content" not in sent:
            raise missing_field(f"{path}.content")
        chat.items.append(InputMessage(role="assistant", content=""))  # a turn without a word, as it was replied
    for index, call in enumerate(calls):
        _read_call(chat, call, f"{path}.tool_calls[{index}]")


def _read_assistant_parts(sent: SentObject, path: str) -> list[Any]:
    """Text and refusal. Empty text is left out where there are calls: clients send it in the place of null."""
    parts: list[Any] = []
    content = sent.get("content")
    if content is not None and (content != "" or not sent.get("tool_calls")):
        read = _read_content(content, f"{path}.content", _ASSISTANT_PARTS)
        parts += [OutputTextInput(text=read)] if isinstance(read, str) else read
    if sent.get("refusal") is not None:
        c.string_like()(sent["refusal"], f"{path}.refusal")
        parts.append(RefusalInput(refusal=sent["refusal"]))
    return parts


def _read_call(chat: _MessageReader, sent: SentObject, path: str) -> None:
    kind = sent.get("type") or "function"
    c.one_of(("function", "custom"))(kind, f"{path}.type")
    inner = c.require_key(sent, kind, path)
    c.is_object(inner, f"{path}.{kind}")
    tag = "function_call" if kind == "function" else "custom_tool_call"
    fields = {**inner, "type": tag, "call_id": c.require_key(sent, "id", path)}
    wanted: type[InputFunctionCall | InputCustomCall] = InputFunctionCall if kind == "function" else InputCustomCall
    chat.items.append(convert_value(fields, wanted, f"{path}.{kind}"))
    chat.open[sent["id"]] = InputFunctionOutput if kind == "function" else InputCustomOutput


def _read_tool_message(chat: _MessageReader, sent: SentObject, path: str) -> None:
    """What a tool returned, for a call that was made before and is still open."""
    call_id = c.require_key(sent, "tool_call_id", path)
    c.string_like()(call_id, f"{path}.tool_call_id")
    output = chat.open.pop(call_id, None)
    if output is None:
        message = f"Invalid '{path}': no tool call with id '{clip_text(call_id)}' comes before this 'tool' message."
        raise ApiError(400, None, message, "messages")
    content = _read_content(sent.get("content"), f"{path}.content", _INPUT_PARTS)
    chat.items.append(output(call_id=call_id, output=content))


def _refuse_function_role(_chat: _MessageReader, _sent: SentObject, path: str) -> None:
    raise unsupported_field(f"{path}.role", "Use the 'tool' role.")


def _read_content(
    content: Any, path: str, readers: Mapping[str, Callable[[SentObject, str], Any]]
) -> str | tuple[Any, ...]:
    """Content as it stands, or its parts, each by the reader of its type."""
    if content is None:
        raise missing_field(path)
    if isinstance(content, str):
        return content
    c.string_or_array(c.string_like(), c.array_of(c.is_object))(content, path)
    parts = []
    for index, part in enumerate(content):
        place = f"{path}[{index}]"
        kind = c.require_key(part, "type", place)
        if kind == "input_audio":
            raise unsupported_field(place, "No model here hears.")
        c.one_of(tuple(readers))(kind, f"{place}.type")
        parts.append(readers[kind](part, place))
    return tuple(parts)


def _read_image(part: SentObject, path: str) -> InputImage:
    place = f"{path}.image_url"
    inner = c.require_key(part, "image_url", path)
    if isinstance(inner, str):
        inner = {"url": inner}
    c.is_object(inner, place)
    sent = {"type": "input_image", "image_url": c.require_key(inner, "url", place), "detail": inner.get("detail")}
    return convert_value(sent, InputImage, place)


def _read_file(part: SentObject, path: str) -> InputFile:
    inner = c.require_key(part, "file", path)
    c.is_object(inner, f"{path}.file")
    return convert_value({**inner, "type": "input_file"}, InputFile, f"{path}.file")


_INPUT_PARTS: dict[str, Callable[[SentObject, str], Any]] = {
    "text": lambda part, path: convert_value({**part, "type": "input_text"}, InputText, path),
    "image_url": _read_image,
    "file": _read_file,
}
_ASSISTANT_PARTS: dict[str, Callable[[SentObject, str], Any]] = {
    "text": lambda part, path: convert_value({**part, "type": "output_text"}, OutputTextInput, path),
    "refusal": lambda part, path: convert_value(dict(part), RefusalInput, path),
}
_ROLE_READERS: dict[str, Callable[[_MessageReader, SentObject, str], None]] = {
    "developer": _read_input_message,
    "system": _read_input_message,
    "user": _read_input_message,
    "assistant": _read_assistant_message,
    "tool": _read_tool_message,
    "function": _refuse_function_role,
}
