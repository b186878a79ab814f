"""Sums the events of a message's stream, so that a streamed message and a whole one cannot differ."""

import msgspec
from msgspec import UNSET, structs

from antiphon.app.projections.messages.schema import (
    AnthropicMessage,
    AnyMessageEvent,
    BlockStart,
    BlockStop,
    BlockUpdate,
    CitationsDelta,
    InputJsonDelta,
    McpToolUseBlock,
    MessageBlock,
    MessageStart,
    MessageUpdate,
    ServerToolUseBlock,
    SignatureDelta,
    TextBlock,
    TextBlockDelta,
    ThinkingBlock,
    ThinkingBlockDelta,
    ToolUseBlock,
)


class MessageAccumulator:
    """Sum of the events of one message, as the anthropic SDK builds it, but without calls that were cut off."""

    def __init__(self) -> None:
        self._message: AnthropicMessage | None = None
        self._blocks: list[MessageBlock] = []
        self._open: MessageBlock | None = None
        self._parts: list[str] = []

    @property
    def message(self) -> AnthropicMessage | None:
        """Message so far; None before `message_start`."""
        return self._message and structs.replace(self._message, content=tuple(self._blocks))

    def add_event(self, event: AnyMessageEvent) -> None:
        """Adds an event."""
        match event:
            case MessageStart(message=message):
                self._message = message
            case BlockStart(content_block=block):
                self._open, self._parts = block, []
            case BlockUpdate(delta=delta):
                self._add_delta(delta)
            case BlockStop() if self._open is not None:
                self._blocks.append(_complete_block(self._open, "".join(self._parts)))
            case MessageUpdate(delta=stop, usage=usage) if self._message is not None:
                self._message = structs.replace(
                    self._message, stop_reason=stop.stop_reason, stop_sequence=stop.stop_sequence, usage=usage
                )

    def _add_delta(self, delta: object) -> None:
        match delta:
            case TextBlockDelta(text=text) | ThinkingBlockDelta(thinking=text) | InputJsonDelta(partial_json=text):
                self._parts.append(text)
            case SignatureDelta(signature=signature) if isinstance(self._open, ThinkingBlock):
                self._open = structs.replace(self._open, signature=signature)
            case CitationsDelta(citation=citation) if isinstance(self._open, TextBlock):
                earlier = () if self._open.citations is UNSET else self._open.citations
                self._open = structs.replace(self._open, citations=(*earlier, citation))


def _complete_block(block: MessageBlock, text: str) -> MessageBlock:
    """Returns a block with the text of its deltas."""
    match block:
        case TextBlock():
            return structs.replace(block, text=text)
        case ThinkingBlock():
            return structs.replace(block, thinking=text)
        case ToolUseBlock() | McpToolUseBlock() | ServerToolUseBlock():
            return structs.replace(block, input=_parse_input(text))
    return block


def _parse_input(text: str) -> msgspec.Raw | dict[str, str]:
    """Returns a call's input as the model wrote it. Text that is not a JSON object becomes the value of one key."""
    try:
        if isinstance(msgspec.json.decode(text), dict):
            return msgspec.Raw(text.encode())
    except msgspec.DecodeError:
        pass
    return {"arguments": text}
