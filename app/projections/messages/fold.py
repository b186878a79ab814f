"""Fold of one response's events into the events of an Anthropic message. Pure: it uses no log and no socket.

A complete message is the sum of its stream's events, so a streamed reply and a complete one cannot differ.
"""

import json
from collections.abc import Iterator

import msgspec
from msgspec import UNSET, structs

from antiphon.app.base.errors import from_response
from antiphon.app.base.event_log import TokenDetail
from antiphon.app.projections.messages.schema import (
    AnthropicMessage,
    AnyMessageEvent,
    BlockCitation,
    BlockStart,
    BlockStop,
    BlockUpdate,
    CitationsDelta,
    DocumentCitation,
    InputJsonDelta,
    MessageBlock,
    MessageFault,
    MessageStart,
    MessageStop,
    MessageUpdate,
    MessageUsage,
    Ping,
    SignatureDelta,
    StopDetails,
    StopReason,
    TextBlock,
    TextBlockDelta,
    ThinkingBlock,
    ThinkingBlockDelta,
    ToolUseBlock,
    WebCitation,
)
from antiphon.events import stream as ev
from antiphon.events.base import Event
from antiphon.events.items import (
    Annotation,
    CustomToolCall,
    FunctionCall,
    OutputText,
    Reasoning,
    Refusal,
    UrlCitation,
)
from antiphon.events.response import OutputItem, Response

CUSTOM_INPUT_START = '{"input": "'
"""Beginning of the JSON input of a custom tool's call: Messages has no tools that take raw text."""
CUSTOM_INPUT_END = '"}'
NO_DETAIL = TokenDetail()


class MessagesFold:
    """Fold of one response. `terminal` is the response once it has ended.

    `show_thinking` false leaves the text of reasoning out of its blocks; their signatures remain.
    """

    def __init__(self, *, show_thinking: bool = True) -> None:
        self.terminal: Response | None = None
        self._show_thinking = show_thinking
        self._started = False
        self._num_blocks = 0
        self._open: type[MessageBlock] | None = None
        self._text: list[str] = []
        self._has_calls = self._has_refusal = False
        self._reasoning_kind: tuple[str, type[Event]] | None = None

    def feed_event(self, event: Event, detail: TokenDetail | None = None) -> Iterator[AnyMessageEvent]:
        """Yields the events of the message that one event of the response becomes.

        Events that have no case repeat, as a whole, text that was streamed before.
        """
        match event:
            case ev.InProgress(response=response):
                yield self._start_message(response, detail or NO_DETAIL)
            case ev.ItemAdded(item=FunctionCall() | CustomToolCall() as call):
                yield from self._start_call(call)
            case ev.ItemDone(item=item):
                yield from self._end_item(item)
            case ev.PartAdded(part=OutputText() | Refusal() as part):  # reasoning starts its block with the first text
                self._has_refusal = self._has_refusal or isinstance(part, Refusal)
                yield self._start_block(TextBlock())
            case ev.PartDone(part=OutputText() | Refusal()):
                yield self._stop_block()
            case ev.ReasoningDelta() | ev.SummaryDelta():
                yield from self._add_reasoning(event)
            case ev.Completed() | ev.Incomplete() | ev.Failed():
                yield from self._end_message(event.response, detail or NO_DETAIL)
            case _:
                yield from self._add_delta(event)

    def _add_delta(self, event: Event) -> Iterator[AnyMessageEvent]:
        match event:
            case ev.TextDelta(delta=text) | ev.RefusalDelta(delta=text):
                self._text.append(text)
                yield self._update(TextBlockDelta(text=text))
            case ev.ArgumentsDelta(delta=text):
                yield self._update(InputJsonDelta(partial_json=text))
            case ev.CustomInputDelta(delta=text):  # raw text becomes part of a JSON string
                yield self._update(InputJsonDelta(partial_json=json.dumps(text, ensure_ascii=False)[1:-1]))
            case ev.AnnotationAdded(annotation=annotation):
                yield self._update(CitationsDelta(citation=_convert_citation(annotation, "".join(self._text))))

    def _start_message(self, response: Response, detail: TokenDetail) -> AnyMessageEvent:
        """Starts the message at the first event of its kind. The event is repeated to keep a silent stream open."""
        if self._started:
            return Ping()
        self._started = True
        usage = message_usage(detail.input_tokens, detail.cached_tokens, 0)
        return MessageStart(message=AnthropicMessage(id=message_id(response), model=response.model, usage=usage))

    def _start_block(self, block: MessageBlock) -> AnyMessageEvent:
        self._open, self._text = type(block), []
        return BlockStart(index=self._num_blocks, content_block=block)

    def _update(
        self, delta: TextBlockDelta | ThinkingBlockDelta | SignatureDelta | InputJsonDelta | CitationsDelta
    ) -> AnyMessageEvent:
        return BlockUpdate(index=self._num_blocks, delta=delta)

    def _stop_block(self) -> AnyMessageEvent:
        self._open = None
        self._num_blocks += 1
        return BlockStop(index=self._num_blocks - 1)

    def _add_reasoning(self, event: ev.ReasoningDelta | ev.SummaryDelta) -> Iterator[AnyMessageEvent]:
        """Yields the text of reasoning. If an item has it raw and as a summary, the later kind is left out."""
        if self._reasoning_kind is None or self._reasoning_kind[0] != event.item_id:
            self._reasoning_kind = event.item_id, type(event)
            if self._show_thinking:
                yield self._start_block(ThinkingBlock())
        if self._show_thinking and self._reasoning_kind[1] is type(event):
            yield self._update(ThinkingBlockDelta(thinking=event.delta))

    def _start_call(self, call: FunctionCall | CustomToolCall) -> Iterator[AnyMessageEvent]:
        self._has_calls = True
        yield self._start_block(ToolUseBlock(id=call.call_id, name=call.name, input={}))
        if isinstance(call, CustomToolCall):
            yield self._update(InputJsonDelta(partial_json=CUSTOM_INPUT_START))

    def _end_item(self, item: OutputItem) -> Iterator[AnyMessageEvent]:
        if isinstance(item, CustomToolCall):
            yield self._update(InputJsonDelta(partial_json=CUSTOM_INPUT_END))
        if isinstance(item, FunctionCall | CustomToolCall):
            yield self._stop_block()
        elif isinstance(item, Reasoning):
            yield from self._end_reasoning(item)

    def _end_reasoning(self, item: Reasoning) -> Iterator[AnyMessageEvent]:
        """Ends the block of a reasoning item with its signature. Without the text, a block has nothing else."""
        sealed = item.encrypted_content if isinstance(item.encrypted_content, str) else ""
        if not sealed and self._open is None:
            return
        if self._open is None:
            yield self._start_block(ThinkingBlock())
        if sealed:
            yield self._update(SignatureDelta(signature=sealed))
        yield self._stop_block()

    def _end_message(self, response: Response, detail: TokenDetail) -> Iterator[AnyMessageEvent]:
        self.terminal = response
        if (failure := from_response(response)) is not None:
            yield MessageFault(error={"type": "api_error", "message": failure.message})
            return
        if self._open in (TextBlock, ThinkingBlock):  # frozen by a cancellation
            yield self._stop_block()
        usage = response.usage
        totals = (usage.input_tokens, usage.input_tokens_details.cached_tokens, usage.output_tokens) if usage else None
        reason = self._stop_reason(response, detail)
        sequence = detail.stop_string if reason == "stop_sequence" else None
        yield MessageUpdate(
            delta=StopDetails(stop_reason=reason, stop_sequence=sequence), usage=message_usage(*(totals or (0, 0, 0)))
        )
        yield MessageStop()

    def _stop_reason(self, response: Response, detail: TokenDetail) -> StopReason:
        if self._has_refusal:
            return "refusal"
        if response.incomplete_details and response.incomplete_details.reason == "content_filter":
            return "refusal"
        if response.status != "completed":
            return "max_tokens"  # the only reason that means truncated: no client may run a partial call
        if self._has_calls:
            return "tool_use"
        return "stop_sequence" if detail.stop_string is not None else "end_turn"


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
        case ToolUseBlock():
            return structs.replace(block, input=_parse_input(text))


def _parse_input(text: str) -> msgspec.Raw | dict[str, str]:
    """Returns a call's input as the model wrote it. Text that is not a JSON object becomes the value of one key."""
    try:
        if isinstance(msgspec.json.decode(text), dict):
            return msgspec.Raw(text.encode())
    except msgspec.DecodeError:
        pass
    return {"arguments": text}


def _convert_citation(annotation: Annotation, text: str) -> BlockCitation:
    """Converts an annotation of a part's text to a citation of its block."""
    if isinstance(annotation, UrlCitation):
        cited_text = text[annotation.start_index : annotation.end_index]
        return WebCitation(cited_text=cited_text, url=annotation.url, title=annotation.title or None)
    return DocumentCitation(source=annotation.file_id, title=getattr(annotation, "filename", "") or None)


def message_usage(input_tokens: int, cached_tokens: int, output_tokens: int) -> MessageUsage:
    """Returns the usage. `input_tokens` is the whole prompt, of which `cached_tokens` were cached."""
    return MessageUsage(
        input_tokens=input_tokens - cached_tokens, cache_read_input_tokens=cached_tokens, output_tokens=output_tokens
    )


def message_id(response: Response) -> str:
    """Returns the message's id, which has the same suffix as the response's."""
    return "msg_" + response.id.partition("_")[2]
