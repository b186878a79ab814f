"""Converts the messages of a Messages request to input items, the conversation format of all endpoints.

One message may become several items: an assistant message becomes its reasoning, text and calls, in the order of its
blocks; a user message becomes the outputs of the calls, then its text and media.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from antiphon.app.errors import ApiError, clip_text, invalid_value, missing_field, unsupported_field
from antiphon.app.requests.fields.checks import (
    check_boolean,
    check_choice,
    check_content,
    check_object,
    check_string,
    check_tool_name,
    require_key,
    require_string,
)
from antiphon.app.requests.messages.hosted_blocks import HOSTED_CALL_BLOCK_TYPES, read_hosted_call
from antiphon.events.inputs import (
    AnyInput,
    HostedInput,
    InputFile,
    InputFunctionCall,
    InputFunctionOutput,
    InputImage,
    InputMessage,
    InputReasoning,
    InputText,
    OutputTextInput,
)
from antiphon.events.items import ReasoningText

MESSAGES_ROLES = ("user", "assistant", "system")
USER_BLOCK_TYPES = ("text", "image", "document", "search_result", "tool_result")
ERROR_PREFIX = "Error: "
"""Precedes the output of a tool that failed (`is_error`): no template has a place for the flag."""
HOSTED_BLOCK_TYPES = frozenset(
    """server_tool_use web_search_tool_result web_fetch_tool_result code_execution_tool_result
    bash_code_execution_tool_result text_editor_code_execution_tool_result mcp_tool_use mcp_tool_result
    tool_search_tool_result container_upload""".split()
)
"""Types of blocks of tools that a server ran: this one, or another."""
DROP = "set 'thinking.block_binding.prefix_mismatch_behavior' to 'drop_block'"
ATTRIBUTION_PREFIX = "x-anthropic-billing-header:"
"""Begins a line of Claude Code that is metadata: it differs in every session, and would change every prompt."""
IMAGE_TYPES = ("image/png", "image/jpeg", "image/gif", "image/webp")
Decrypt = Callable[[str], str | None]
"""Returns the text of a signature or of redacted thinking; None if this server did not seal it for this owner."""
SentBlock = Mapping[str, Any]


class ConversationReader:
    """Reads the messages of one request. `items` are those read so far."""

    def __init__(self, decrypt: Decrypt, *, drops_foreign: bool = False) -> None:
        self.items: list[AnyInput] = []
        self.dropped: list[str] = []
        """Paths of blocks of thinking that were left out, since this server did not seal them for this owner."""
        self._drops_foreign = drops_foreign
        self._decrypt = decrypt
        self._open_calls: dict[str, str] = {}

    def read_messages(self, messages: Sequence[SentBlock]) -> tuple[AnyInput, ...]:
        """Converts all messages. Raises `ApiError` 400 with the path of the fault."""
        if not messages:
            raise ApiError(400, "empty_array", "Invalid 'messages': at least one message is required.", "messages")
        for index, sent in enumerate(messages):
            path = f"messages[{index}]"
            role = require_key(sent, "role", path)
            check_choice(role, MESSAGES_ROLES, f"{path}.role")
            blocks = _read_blocks(sent.get("content"), f"{path}.content")
            if role == "assistant":
                self._check_answered()
                self._read_assistant(blocks, f"{path}.content")
            else:
                self._read_user(role, blocks, f"{path}.content")
        self._check_answered()
        last = self.items[-1]
        if messages[-1]["role"] == "assistant" and not isinstance(last, InputMessage):
            message = "the conversation must end with a user message, or with text of the assistant's to continue."
            raise invalid_value("messages", f"Invalid 'messages': {message}")
        return tuple(self.items)

    def _check_answered(self) -> None:
        """Raises `ApiError` 400 if a call has no result: every result is in the message after its call."""
        for call_id, path in self._open_calls.items():
            message = f"the `tool_use` '{clip_text(call_id)}' has no `tool_result` in the next message."
            raise invalid_value(path, f"Invalid '{path}': {message}")

    def _read_user(self, role: str, blocks: Sequence[SentBlock], path: str) -> None:
        parts: list[Any] = []
        for index, block in enumerate(blocks):
            block_path = f"{path}[{index}]"
            if block["type"] == "tool_result" and role == "user":
                self._read_result(block, block_path)
            else:
                check_choice(block["type"], USER_BLOCK_TYPES, f"{block_path}.type")
                parts += _read_part(block, block_path)
        self._check_answered()
        if parts or not blocks:
            item_role: Any = role
            self.items.append(InputMessage(role=item_role, content=tuple(parts)))

    def _read_result(self, block: SentBlock, path: str) -> None:
        call_id = require_string(block, "tool_use_id", path)
        if self._open_calls.pop(call_id, None) is None:
            message = f"the message before has no `tool_use` with the id '{clip_text(call_id)}'."
            raise invalid_value(f"{path}.tool_use_id", f"Invalid '{path}.tool_use_id': {message}")
        sent = block.get("content")
        content = [] if sent is None else _read_blocks(sent, f"{path}.content")
        parts = [
            part
            for index, inner in enumerate(content)
            for part in _read_part(inner, f"{path}.content[{index}]", in_result=True)
        ]
        if block.get("is_error") is not None:
            check_boolean(block["is_error"], f"{path}.is_error")
        if block.get("is_error"):
            first = parts.pop(0).text if parts and isinstance(parts[0], InputText) else ""
            parts.insert(0, InputText(text=ERROR_PREFIX + first))
        self.items.append(InputFunctionOutput(call_id=call_id, output=tuple(parts)))

    def _read_assistant(self, blocks: Sequence[SentBlock], path: str) -> None:
        num_items = len(self.items)
        for index, block in enumerate(blocks):
            block_path, kind = f"{path}[{index}]", block["type"]
            if kind in HOSTED_BLOCK_TYPES:
                later = [(each, f"{path}[{at}]") for at, each in enumerate(blocks[index + 1 :], index + 1)]
                self._read_hosted(block, block_path, later)
                continue
            check_choice(kind, tuple(_ASSISTANT_READERS), f"{block_path}.type")
            _ASSISTANT_READERS[kind](self, block, block_path)
        if len(self.items) == num_items:
            self.items.append(InputMessage(role="assistant", content=""))

    def _read_hosted(self, block: SentBlock, path: str, later: Sequence[tuple[SentBlock, str]]) -> None:
        """Reads a block of a tool that a server ran. The result of a call was read with the call."""
        call = read_hosted_call(block, path, later) if block["type"] in HOSTED_CALL_BLOCK_TYPES else None
        self.items.append(call or HostedInput(kind=block["type"], payload=dict(block)))

    def _read_text(self, block: SentBlock, path: str) -> None:
        self.items.append(InputMessage(role="assistant", content=(OutputTextInput(text=_text_of(block, path)),)))

    def _read_thinking(self, block: SentBlock, path: str) -> None:
        """Reads reasoning that the client kept. The sealed text counts: a client cannot have changed it."""
        key = "signature" if block["type"] == "thinking" else "data"
        text = self._decrypt(require_string(block, key, path))
        if text is None and self._drops_foreign:
            self.dropped.append(path)
            return
        if text is None:
            message = f"this server did not issue it for this API key. Remove the block, or {DROP}."
            raise invalid_value(f"{path}.{key}", f"Invalid '{path}.{key}': {message}")
        self.items.append(InputReasoning(content=(ReasoningText(text=text),)))

    def _read_call(self, block: SentBlock, path: str) -> None:
        call_id, name, sent = (require_key(block, key, path) for key in ("id", "name", "input"))
        check_string(call_id, f"{path}.id")
        check_tool_name(name, f"{path}.name")
        check_object(sent, f"{path}.input")
        if call_id in self._open_calls:
            raise invalid_value(f"{path}.id", f"Invalid '{path}.id': the ids of calls must be unique.")
        self._open_calls[call_id] = path
        arguments = json.dumps(sent, ensure_ascii=False, separators=(", ", ": "))
        self.items.append(InputFunctionCall(call_id=call_id, name=name, arguments=arguments))


_ASSISTANT_READERS: dict[str, Callable[[ConversationReader, SentBlock, str], None]] = {
    "text": ConversationReader._read_text,
    "thinking": ConversationReader._read_thinking,
    "redacted_thinking": ConversationReader._read_thinking,
    "tool_use": ConversationReader._read_call,
}


def read_system(sent: Any) -> str | None:
    """Returns the text of `system`: a string, or text blocks, which become paragraphs. None if it is missing."""
    if sent is None:
        return None
    blocks = _read_blocks(sent, "system")
    blocks = blocks[1:] if has_attribution(sent) else blocks
    for index, block in enumerate(blocks):
        check_choice(block["type"], ("text",), f"system[{index}].type")
    return "\n\n".join(_text_of(block, f"system[{index}]") for index, block in enumerate(blocks)) or None


def has_attribution(sent: Any) -> bool:
    """Tells whether `system` begins with the line of Claude Code that is not part of the prompt, as a whole block."""
    first = sent[0] if isinstance(sent, list) and sent else None
    text = first.get("text") if isinstance(first, dict) and first.get("type") == "text" else None
    return isinstance(text, str) and text.startswith(ATTRIBUTION_PREFIX) and "\n" not in text.rstrip("\n")


def _read_blocks(sent: Any, path: str) -> Sequence[SentBlock]:
    """Returns content as a list of blocks, each with a type. A string is one text block."""
    if sent is None:
        raise missing_field(path)
    if isinstance(sent, str):
        return [{"type": "text", "text": sent}]
    check_content(sent, path)
    for index, block in enumerate(sent):
        require_string(block, "type", f"{path}[{index}]")
    return list(sent)


def _text_of(block: SentBlock, path: str) -> str:
    if "text" not in block:
        raise missing_field(f"{path}.text")
    check_string(block["text"], f"{path}.text")
    return str(block["text"])


def _read_part(block: SentBlock, path: str, *, in_result: bool = False) -> list[Any]:
    """Returns the parts of a block for the model: text, or a placeholder for an image or a file."""
    kind = block["type"]
    if in_result:
        check_choice(kind, ("text", "image", "document", "search_result", "tool_reference"), f"{path}.type")
    match kind:
        case "text":
            return [InputText(text=_text_of(block, path))]
        case "image":
            return [_read_image(block, path)]
        case "document":
            return _read_document(block, path)
        case "search_result":
            return _read_search_result(block, path)
    raise unsupported_field(f"{path}.type", f"Blocks of type '{kind}' are not supported here.")


def _source_of(block: SentBlock, path: str, kinds: tuple[str, ...]) -> tuple[SentBlock, str]:
    source = require_key(block, "source", path)
    check_object(source, f"{path}.source")
    kind = require_key(source, "type", f"{path}.source")
    check_choice(kind, kinds, f"{path}.source.type")
    return source, str(kind)


def _read_image(block: SentBlock, path: str) -> InputImage:
    source, kind = _source_of(block, path, ("base64", "url", "file"))
    if kind == "file":
        return InputImage(file_id=str(require_key(source, "file_id", f"{path}.source")))
    if kind == "url":
        return InputImage(image_url=require_string(source, "url", f"{path}.source"))
    media_type, data = (require_key(source, key, f"{path}.source") for key in ("media_type", "data"))
    check_choice(media_type, IMAGE_TYPES, f"{path}.source.media_type")
    check_string(data, f"{path}.source.data")
    return InputImage(image_url=data)


def _read_document(block: SentBlock, path: str) -> list[Any]:
    """Returns the parts of a document: its title and context, then its text, or a file."""
    source, kind = _source_of(block, path, ("text", "content", "base64", "url", "file"))
    heading = [str(block[key]) for key in ("title", "context") if isinstance(block.get(key), str)]
    parts: list[Any] = [InputText(text="\n".join(heading) + "\n")] if heading else []
    if kind == "text":
        return [*parts, InputText(text=require_string(source, "data", f"{path}.source"))]
    if kind == "content":
        blocks = _read_blocks(source.get("content"), f"{path}.source.content")
        return parts + [
            part
            for index, inner in enumerate(blocks)
            for part in _read_part(inner, f"{path}.source.content[{index}]", in_result=True)
        ]
    key, field = {"base64": ("data", "file_data"), "url": ("url", "file_url"), "file": ("file_id", "file_id")}[kind]
    value: Any = require_string(source, key, f"{path}.source")
    return [*parts, InputFile(**{field: value}, filename=str(block.get("title") or "") or None)]


def _read_search_result(block: SentBlock, path: str) -> list[Any]:
    title, source = (require_key(block, key, path) for key in ("title", "source"))
    content = _read_blocks(require_key(block, "content", path), f"{path}.content")
    texts = [_text_of(inner, f"{path}.content[{index}]") for index, inner in enumerate(content)]
    return [InputText(text="\n".join([f"{title} ({source})", *texts]))]
