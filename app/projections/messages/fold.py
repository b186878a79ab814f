"""Fold of one response's events into the events of an Anthropic message. Pure: it uses no log and no socket.

A complete message is the sum of its stream's events, so a streamed reply and a complete one cannot differ.
"""

import json
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from msgspec import UNSET, structs

from antiphon.app.errors import from_response
from antiphon.app.projections.messages.hosted_blocks import add_to_counts, build_result, build_search_call, start_call
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
    ServerToolCounts,
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
from antiphon.app.turn_types.step_detail import TokenDetail
from antiphon.events import hosted_events as hev
from antiphon.events import stream as ev
from antiphon.events.base import Event
from antiphon.events.hosted import CodeInterpreterCall, McpCall, McpListTools, WebSearchCall
from antiphon.events.items import (
    Annotation,
    CustomToolCall,
    FunctionCall,
    OutputText,
    Reasoning,
    Refusal,
    UrlCitation,
)
from antiphon.events.response import Response

CUSTOM_INPUT_START = '{"input": "'
"""Beginning of the JSON input of a custom tool's call: Messages has no tools that take raw text."""
CODE_INPUT_START = '{"code": "'
RAW_INPUT_END = '"}'
NO_DETAIL = TokenDetail()


class MessagesFold:
    """Fold of one response. `terminal` is the response once it has ended.

    `show_thinking` false leaves the text of reasoning out of its blocks; their signatures remain.
    """

    def __init__(self, *, show_thinking: bool = True) -> None:
        self.terminal: Response | None = None
        self._show_thinking = show_thinking
        self._started = False
        self._starting: Response | None = None
        """The response whose start is told with the next event that is not part of a list of tools."""
        self._num_blocks = 0
        self._open: type[MessageBlock] | None = None
        self._text: list[str] = []
        self._has_calls = self._has_refusal = False
        self._counts: ServerToolCounts | None = None
        self._reasoning_kind: tuple[str, type[Event]] | None = None

    def feed_event(self, event: Event, detail: TokenDetail | None = None) -> Iterable[AnyMessageEvent]:
        """Returns the events of the message that one event of the response becomes."""
        starting = self._starting
        if starting is not None and detail is None and _belongs_to_list(event):
            return ()
        handle = _HANDLERS.get(type(event))
        events = () if handle is None else handle(self, event, detail or NO_DETAIL)
        if starting is None:
            return events
        self._starting = None
        return (_start_message(starting, detail or NO_DETAIL), *events)

    def _on_text(self, event: ev.TextDelta | ev.RefusalDelta, _: TokenDetail) -> Iterable[AnyMessageEvent]:
        self._text.append(event.delta)
        return (self._update(TextBlockDelta(text=event.delta)),)

    def _on_arguments(
        self, event: ev.ArgumentsDelta | hev.McpCallArgumentsDeltaEvent, _: TokenDetail
    ) -> Iterable[AnyMessageEvent]:
        return (self._update(InputJsonDelta(partial_json=event.delta)),)

    def _on_call_end(self, event: hev.McpCallArgumentsDoneEvent, _: TokenDetail) -> Iterable[AnyMessageEvent]:  # noqa: ARG002  # its deltas were sent
        """Ends the block of an MCP call: the tool runs now."""
        return (self._stop_block(),)

    def _on_code_end(self, event: hev.CodeInterpreterCallCodeDoneEvent, _: TokenDetail) -> Iterable[AnyMessageEvent]:  # noqa: ARG002  # its deltas were sent
        """Ends the block of code: it runs now."""
        return self._update(InputJsonDelta(partial_json=RAW_INPUT_END)), self._stop_block()

    def _on_stage(self, event: Event, _: TokenDetail) -> Iterable[AnyMessageEvent]:  # noqa: ARG002  # its type is all
        """Keeps the stream open while a tool works. The event also begins calls, whose blocks are open."""
        return (Ping(),) if self._open is None else ()

    def _on_raw_input(
        self, event: ev.CustomInputDelta | hev.CodeInterpreterCallCodeDeltaEvent, _: TokenDetail
    ) -> Iterable[AnyMessageEvent]:
        """Writes raw text as part of a JSON string."""
        return (self._update(InputJsonDelta(partial_json=json.dumps(event.delta, ensure_ascii=False)[1:-1])),)

    def _on_part_done(self, event: ev.PartDone, _: TokenDetail) -> Iterable[AnyMessageEvent]:
        return (self._stop_block(),) if isinstance(event.part, OutputText | Refusal) else ()

    def _on_annotation(self, event: ev.AnnotationAdded, _: TokenDetail) -> Iterable[AnyMessageEvent]:
        return (self._update(CitationsDelta(citation=_convert_citation(event.annotation, "".join(self._text)))),)

    def _on_progress(self, event: ev.InProgress, detail: TokenDetail) -> Iterable[AnyMessageEvent]:
        """Starts the message. The event is repeated to keep a silent stream open.

        Lists of tools may follow in the same step. Its last event has the counts of tokens with which a message starts.
        """
        if self._started:
            return (Ping(),)
        self._started = True
        if detail is NO_DETAIL:
            self._starting = event.response
            return ()
        return (_start_message(event.response, detail),)

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

    def _on_part(self, event: ev.PartAdded, _: TokenDetail) -> Iterator[AnyMessageEvent]:
        """Starts a text block for a part of a message. Reasoning starts its block with the first text."""
        if isinstance(event.part, OutputText | Refusal):
            self._has_refusal = self._has_refusal or isinstance(event.part, Refusal)
            yield self._start_block(TextBlock())

    def _on_reasoning(self, event: ev.ReasoningDelta | ev.SummaryDelta, _: TokenDetail) -> Iterator[AnyMessageEvent]:
        """Yields the text of reasoning. If an item has it raw and as a summary, the later kind is left out."""
        if self._reasoning_kind is None or self._reasoning_kind[0] != event.item_id:
            self._reasoning_kind = event.item_id, type(event)
            if self._show_thinking:
                yield self._start_block(ThinkingBlock())
        if self._show_thinking and self._reasoning_kind[1] is type(event):
            yield self._update(ThinkingBlockDelta(thinking=event.delta))

    def _on_item_added(self, event: ev.ItemAdded, _: TokenDetail) -> Iterator[AnyMessageEvent]:
        """Starts the block of a call. Other items start theirs with their first part or text."""
        call = event.item
        if isinstance(call, FunctionCall | CustomToolCall):
            self._has_calls = True
            yield self._start_block(ToolUseBlock(id=call.call_id, name=call.name, input={}))
        elif (block := start_call(call)) is not None:
            yield self._start_block(block)
        if isinstance(call, CustomToolCall):
            yield self._update(InputJsonDelta(partial_json=CUSTOM_INPUT_START))
        elif isinstance(call, CodeInterpreterCall):
            yield self._update(InputJsonDelta(partial_json=CODE_INPUT_START))

    def _on_item_done(self, event: ev.ItemDone, _: TokenDetail) -> Iterator[AnyMessageEvent]:
        match event.item:
            case FunctionCall():
                yield self._stop_block()
            case CustomToolCall():
                yield self._update(InputJsonDelta(partial_json=RAW_INPUT_END))
                yield self._stop_block()
            case Reasoning() as item:
                yield from self._end_reasoning(item)
            case WebSearchCall() as item:
                self._counts = add_to_counts(self._counts or ServerToolCounts(), item)
                block, sent = build_search_call(item)
                yield self._start_block(block)
                yield self._update(InputJsonDelta(partial_json=json.dumps(sent, ensure_ascii=False)))
                yield self._stop_block()
                yield from self._send_block(build_result(item))
            case McpCall() | CodeInterpreterCall() as item:
                yield from self._send_block(build_result(item))

    def _send_block(self, block: MessageBlock) -> Iterator[AnyMessageEvent]:
        """Yields a block that is complete from its start."""
        yield self._start_block(block)
        yield self._stop_block()

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

    def _on_terminal(
        self, event: ev.Completed | ev.Incomplete | ev.Failed, detail: TokenDetail
    ) -> Iterator[AnyMessageEvent]:
        response = self.terminal = event.response
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
            delta=StopDetails(stop_reason=reason, stop_sequence=sequence),
            usage=structs.replace(message_usage(*(totals or (0, 0, 0))), server_tool_use=self._counts or UNSET),
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


def _belongs_to_list(event: Event) -> bool:
    """Tells whether an event is about the list of an MCP server's tools, which a message does not show."""
    if isinstance(event, ev.ItemAdded | ev.ItemDone):
        return isinstance(event.item, McpListTools)
    return isinstance(event, hev.McpListToolsInProgressEvent | hev.McpListToolsCompletedEvent)


def _start_message(response: Response, detail: TokenDetail) -> MessageStart:
    usage = message_usage(detail.input_tokens, detail.cached_tokens, 0)
    return MessageStart(message=AnthropicMessage(id=message_id(response), model=response.model, usage=usage))


_HANDLERS: dict[type[Event], Callable[[MessagesFold, Any, TokenDetail], Iterable[AnyMessageEvent]]] = {
    ev.InProgress: MessagesFold._on_progress,
    ev.ItemAdded: MessagesFold._on_item_added,
    ev.ItemDone: MessagesFold._on_item_done,
    ev.PartAdded: MessagesFold._on_part,
    ev.PartDone: MessagesFold._on_part_done,
    ev.TextDelta: MessagesFold._on_text,
    ev.RefusalDelta: MessagesFold._on_text,
    ev.ReasoningDelta: MessagesFold._on_reasoning,
    ev.SummaryDelta: MessagesFold._on_reasoning,
    ev.ArgumentsDelta: MessagesFold._on_arguments,
    ev.CustomInputDelta: MessagesFold._on_raw_input,
    hev.McpCallArgumentsDeltaEvent: MessagesFold._on_arguments,
    hev.McpCallArgumentsDoneEvent: MessagesFold._on_call_end,
    hev.CodeInterpreterCallCodeDeltaEvent: MessagesFold._on_raw_input,
    hev.CodeInterpreterCallCodeDoneEvent: MessagesFold._on_code_end,
    hev.McpCallInProgressEvent: MessagesFold._on_stage,
    hev.CodeInterpreterCallInterpretingEvent: MessagesFold._on_stage,
    hev.WebSearchCallSearchingEvent: MessagesFold._on_stage,
    ev.AnnotationAdded: MessagesFold._on_annotation,
    ev.Completed: MessagesFold._on_terminal,
    ev.Incomplete: MessagesFold._on_terminal,
    ev.Failed: MessagesFold._on_terminal,
}
"""Events that a message shows. The other events repeat, as a whole, text that was streamed before."""


def _convert_citation(annotation: Annotation, text: str) -> BlockCitation:
    """Converts an annotation of a part's text to a citation of its block."""
    if isinstance(annotation, UrlCitation):
        cited_text = text[annotation.start_index : annotation.end_index]
        return WebCitation(cited_text=cited_text, url=annotation.url, title=annotation.title or None)
    return DocumentCitation(source=annotation.file_id, title=getattr(annotation, "filename", "") or None)


def message_usage(input_tokens: int, cached_tokens: int, output_tokens: int) -> MessageUsage:
    """Returns the usage. `input_tokens` is the whole prompt, of which `cached_tokens` were cached."""
    cached_tokens = min(cached_tokens, input_tokens)  # older servers have stored larger ones
    return MessageUsage(
        input_tokens=input_tokens - cached_tokens, cache_read_input_tokens=cached_tokens, output_tokens=output_tokens
    )


def message_id(response: Response) -> str:
    """Returns the message's id, which has the same suffix as the response's."""
    return "msg_" + response.id.partition("_")[2]
