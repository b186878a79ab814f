"""Shapes of messages: what a chat template takes where templates differ, and the conversion of messages to it."""

import hashlib
import json
import re
from collections.abc import Sequence
from typing import Any, Literal

from msgspec import Struct

ChatMessage = dict[str, Any]
PARAGRAPH_BREAK = "\n\n"
REASONING = "reasoning_content"
"""Member of a message that has its reasoning, until a shape moves it."""
SHORT_ID_CHARS = 9
"""Length of the call ids that Mistral's templates require, which are alphanumeric."""
_SHORT_ID = re.compile(f"[A-Za-z0-9]{{{SHORT_ID_CHARS}}}")


class MessageShape(Struct, frozen=True, kw_only=True):
    """Form in which a template takes messages and tools. The defaults are what most templates take."""

    tools_in: Literal["tools", "system", "xml_tools", "words"] = "tools"
    """Where tools go: the variable `tools`, `tools` of the system message, the variable `xml_tools`, or the text of the
    system message, if the template shows no tools."""
    omits_missing_tools: bool = False
    """Leaves out the variable `tools` where there are none; otherwise it is None."""
    content_parts: bool = False
    """Gives a message's text as a list of parts."""
    system_in_user: bool = False
    """Puts the system text in front of the first user message."""
    short_ids: bool = False
    """Replaces call ids by nine alphanumeric characters."""
    text_arguments: bool = False
    """Gives a call's arguments as JSON text, not as an object."""
    null_content: bool = False
    """Gives None as the text of a message that has only calls."""
    separate_calls: bool = False
    """Puts a message's text and its calls into two messages."""
    single_call: bool = False
    """Puts each call into a message of its own, followed by its output."""
    written_calls: bool = False
    """Writes calls into the assistant's text, in the model's own syntax."""
    reasoning_in: Literal["reasoning_content", "reasoning", "thinking", "thought", "part", "text"] = "reasoning_content"
    """Where the reasoning of a message goes: a member of it, a part of its content, or its text, in the model's own
    syntax. `text`: only that of the current turn."""
    user_outputs: Literal["none", "freeform", "all"] = "none"
    """Which outputs of tools are given as user messages. `freeform`: those of custom tools whose calls are text."""


def apply_shape(
    messages: Sequence[ChatMessage], shape: MessageShape, think: tuple[str, str] | None = None
) -> list[ChatMessage]:
    """Returns messages in the shape. The messages themselves may be changed. `think`: markers of reasoning."""
    shaped = list(messages)
    if shape.system_in_user:
        shaped = _merge_system(shaped)
    if shape.separate_calls:
        shaped = [part for message in shaped for part in _separate_calls(message)]
    if shape.single_call:
        shaped = _split_calls(shaped)
    last_user = max((index for index, message in enumerate(shaped) if message["role"] == "user"), default=-1)
    for index, message in enumerate(shaped):
        _convert_message(message, shape)
        if shape.reasoning_in != REASONING and REASONING in message:
            _move_reasoning(message, shape.reasoning_in, think if index > last_user else None)
    return shaped


def _convert_message(message: ChatMessage, shape: MessageShape) -> None:
    for call in message.get("tool_calls", ()):
        function = call.get("function", {})
        if shape.text_arguments and "arguments" in function and not isinstance(function["arguments"], str):
            function["arguments"] = json.dumps(function["arguments"], ensure_ascii=False)
        if shape.short_ids:
            call["id"] = _shorten_id(call["id"])
    if shape.short_ids and "tool_call_id" in message:
        message["tool_call_id"] = _shorten_id(message["tool_call_id"])
    if shape.null_content and "tool_calls" in message and not message["content"]:
        message["content"] = None
    elif shape.content_parts and isinstance(message["content"], str) and message["role"] != "tool":
        message["content"] = [{"type": "text", "text": message["content"]}]


def _move_reasoning(message: ChatMessage, place: str, think: tuple[str, str] | None) -> None:
    """Moves the reasoning of a message to its place. As text, it gets markers; without them it is left out."""
    reasoning, content = message.pop(REASONING), message["content"]
    if place == "part":
        parts = [{"type": "text", "text": content}] if isinstance(content, str) and content else content or []
        message["content"] = [{"type": "thinking", "thinking": reasoning}, *parts]
    elif place != "text":
        message[place] = reasoning
    elif think is not None:
        text = f"{think[0]}{reasoning}{think[1]}"
        message["content"] = (
            [{"type": "text", "text": text}, *content] if isinstance(content, list) else text + (content or "")
        )


def _shorten_id(call_id: str) -> str:
    if _SHORT_ID.fullmatch(call_id):
        return call_id
    return hashlib.sha256(call_id.encode("utf-8", "surrogatepass")).hexdigest()[:SHORT_ID_CHARS]


def _merge_system(messages: list[ChatMessage]) -> list[ChatMessage]:
    """Puts the text of a leading system message in front of the first user message, which may be a new one."""
    if not messages or messages[0]["role"] != "system":
        return messages
    system, *others = messages
    first = next((message for message in others if message["role"] == "user"), None)
    if first is None or others[0]["role"] != "user":
        return [{"role": "user", "content": system["content"]}, *others]
    first["content"] = PARAGRAPH_BREAK.join(filter(None, (system["content"], first["content"])))
    return others


def _separate_calls(message: ChatMessage) -> list[ChatMessage]:
    if not message.get("tool_calls") or not message["content"]:
        return [message]
    calls = {"role": message["role"], "content": "", "tool_calls": message.pop("tool_calls")}
    return [message, calls]


def _split_calls(messages: list[ChatMessage]) -> list[ChatMessage]:
    """Gives each call a message of its own, and moves each output behind its call.

    Templates that take one call a message relate an output to the call before it.
    """
    result: list[ChatMessage] = []
    for message in messages:
        if message["role"] == "tool":
            result.insert(_output_index(result, message.get("tool_call_id")), message)
            continue
        first, *others = message.get("tool_calls") or [None]
        result.append({**message, "tool_calls": [first]} if first is not None else message)
        result += ({"role": message["role"], "content": "", "tool_calls": [call]} for call in others)
    return result


def _output_index(messages: Sequence[ChatMessage], call_id: object) -> int:
    """Returns the index at which to insert an output: behind its call in the calls at the end, or the very end."""
    for index in range(len(messages), 0, -1):
        message = messages[index - 1]
        if any(call["id"] == call_id for call in message.get("tool_calls", ())):
            return index
        if message["role"] != "tool" and "tool_calls" not in message:
            break
    return len(messages)
