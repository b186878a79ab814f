"""Drafts of calls that the server runs, and of requests to approve one.

The item of such a call stays open while the tool works. It is done with its output or its error.
"""

from collections.abc import Callable
from typing import Any

import msgspec

from antiphon.events import hosted_events as hev
from antiphon.events import stream as ev
from antiphon.events.base import ItemEvent
from antiphon.events.hosted import (
    CodeInterpreterCall,
    FileSearchCall,
    McpApprovalRequest,
    McpCall,
    McpListTools,
    ToolSearchOutput,
    WebSearchCall,
)
from antiphon.events.items import Status
from antiphon.events.response import OutputItem
from antiphon.state.drafts import ItemDraft, RunningDraft
from antiphon.state.emitter import EventEmitter, ItemPosition
from antiphon.state.segments import Call, CodeResult, FileSearchResult, McpResult, Segment, WebSearchResult

CreateApprovalId = Callable[[str, str, str], str]
"""Returns the id of a request to approve a call, for the server's label, the tool's name and the arguments."""
UNKNOWN_SEARCH: dict[str, Any] = {"type": "search", "query": ""}
"""Action of a web search that has not ended: no event has told it yet, and clients need one."""


def create_server_draft(call: Call, position: ItemPosition, emitter: EventEmitter) -> "ServerCallDraft":
    """Returns the draft of a call that the server runs."""
    match call.kind:
        case "web_search":
            return WebSearchDraft(call, position, emitter)
        case "code_interpreter":
            return CodeDraft(call, position, emitter)
        case "file_search":
            return FileSearchDraft(call, position, emitter)
        case _:
            return McpDraft(call, position, emitter)


def emit_list(item: McpListTools, position: ItemPosition, emitter: EventEmitter) -> McpListTools:
    """Emits the list of a server's tools, in the stages in which clients expect it. Returns the item."""
    emitter.emit(
        ev.ItemAdded,
        output_index=position.output_index,
        item=McpListTools(id=item.id, server_label=item.server_label, tools=()),
    )
    emitter.emit_at(position, hev.McpListToolsInProgressEvent)
    emitter.emit_at(position, hev.McpListToolsCompletedEvent)
    emitter.emit(ev.ItemDone, output_index=position.output_index, item=item)
    return item


def emit_found_tools(item: ToolSearchOutput, position: ItemPosition, emitter: EventEmitter) -> ToolSearchOutput:
    """Emits what a search of the server has found. Returns the item."""
    added = msgspec.structs.replace(item, status="in_progress")
    emitter.emit(ev.ItemAdded, output_index=position.output_index, item=added)
    emitter.emit(ev.ItemDone, output_index=position.output_index, item=item)
    return item


class ServerCallDraft(RunningDraft):
    """Base of the drafts of calls that the server runs."""

    _stage: type[ItemEvent]
    """Event that is repeated while the tool works."""

    def __init__(self, call: Call, position: ItemPosition, emitter: EventEmitter) -> None:
        super().__init__(position, emitter)
        self._call = call

    def open(self) -> None:
        """Emits the call, which is in progress."""
        self._emit_item(ev.ItemAdded, self._build_item("in_progress"))
        self._emit_start()

    def grow(self, text: str) -> None:
        """Keeps a delta of the arguments."""
        self._text.append(text)

    def run(self) -> None:
        """Emits the end of the arguments, and that the tool begins to work."""
        self.emit_stage()

    def emit_stage(self) -> None:
        """Emits that the tool works."""
        self._emitter.emit_at(self._position, self._stage)

    def close(self, status: Status) -> OutputItem:
        """Raises `TypeError`: the table settles these drafts."""
        raise TypeError(status)

    def freeze(self) -> OutputItem:
        """Returns the call with the text emitted so far and no output."""
        return self._build_item("incomplete")

    def _emit_start(self) -> None:
        raise NotImplementedError

    def _build_item(self, status: str) -> OutputItem:
        raise NotImplementedError


class McpDraft(ServerCallDraft):
    """A call of an MCP server's tool."""

    _stage = hev.McpCallInProgressEvent

    def _emit_start(self) -> None:
        self.emit_stage()

    def grow(self, text: str) -> None:
        """Emits a delta of the arguments."""
        self._text.append(text)
        self._emitter.emit_at(self._position, hev.McpCallArgumentsDeltaEvent, delta=text)

    def run(self) -> None:
        """Emits the whole arguments, `{}` if there are none. An approved call tells again that it is in progress."""
        if not "".join(self._text).strip():
            self.grow("{}")
        if self._call.approval_request_id is not None:
            self.emit_stage()
        self._emitter.emit_at(self._position, hev.McpCallArgumentsDoneEvent, arguments="".join(self._text))

    def settle(self, result: Segment) -> McpCall:
        """Finishes the item with the output or the error."""
        if not isinstance(result, McpResult):
            raise TypeError(result)
        is_failed = result.error is not None
        self._emitter.emit_at(self._position, hev.McpCallFailedEvent if is_failed else hev.McpCallCompletedEvent)
        item = self._build_item("failed" if is_failed else "completed", result)
        self._emit_item(ev.ItemDone, item)
        return item

    def _build_item(self, status: str, result: McpResult = McpResult()) -> McpCall:  # noqa: B008  # it is frozen
        return McpCall(
            id=self._position.item_id,
            approval_request_id=self._call.approval_request_id,
            arguments="".join(self._text),
            error=result.error,
            name=self._call.name,
            output=result.output,
            server_label=self._call.server_label,
            status=status,
        )


class WebSearchDraft(ServerCallDraft):
    """A web search. Its action is emitted with the finished item."""

    _stage = hev.WebSearchCallSearchingEvent

    def open(self) -> None:
        """Emits the call without an action."""
        self._emit_item(ev.ItemAdded, WebSearchCall(id=self._position.item_id, status="in_progress"))
        self._emitter.emit_at(self._position, hev.WebSearchCallInProgressEvent)

    def settle(self, result: Segment) -> WebSearchCall:
        """Finishes the item with what was done."""
        if not isinstance(result, WebSearchResult):
            raise TypeError(result)
        if not result.is_failed:
            self._emitter.emit_at(self._position, hev.WebSearchCallCompletedEvent)
        status = "failed" if result.is_failed else "completed"
        item = WebSearchCall(id=self._position.item_id, status=status, action=result.action)
        self._emit_item(ev.ItemDone, item)
        return item

    def _build_item(self, status: str) -> WebSearchCall:
        return WebSearchCall(id=self._position.item_id, status=status, action=UNKNOWN_SEARCH)


class CodeDraft(ServerCallDraft):
    """Code that the server runs."""

    _stage = hev.CodeInterpreterCallInterpretingEvent

    def _emit_start(self) -> None:
        self._emitter.emit_at(self._position, hev.CodeInterpreterCallInProgressEvent)

    def grow(self, text: str) -> None:
        """Emits a delta of the code."""
        self._text.append(text)
        self._emitter.emit_at(self._position, hev.CodeInterpreterCallCodeDeltaEvent, delta=text)

    def run(self) -> None:
        """Emits the whole code, and that it is interpreted."""
        self._emitter.emit_at(self._position, hev.CodeInterpreterCallCodeDoneEvent, code="".join(self._text))
        self.emit_stage()

    def settle(self, result: Segment) -> CodeInterpreterCall:
        """Finishes the item with what the code printed."""
        if not isinstance(result, CodeResult):
            raise TypeError(result)
        if not result.is_failed:
            self._emitter.emit_at(self._position, hev.CodeInterpreterCallCompletedEvent)
        outputs = ({"type": "logs", "logs": result.logs},) if result.logs else ()
        item = self._build_item("failed" if result.is_failed else "completed", outputs)
        self._emit_item(ev.ItemDone, item)
        return item

    def _build_item(self, status: str, outputs: tuple[dict[str, Any], ...] | None = None) -> CodeInterpreterCall:
        return CodeInterpreterCall(
            id=self._position.item_id,
            code="".join(self._text),
            container_id=self._call.container_id,
            outputs=outputs,
            status=status,
        )


class FileSearchDraft(ServerCallDraft):
    """A search in files. Its queries and results are emitted with the finished item."""

    _stage = hev.FileSearchCallSearchingEvent

    def _emit_start(self) -> None:
        self._emitter.emit_at(self._position, hev.FileSearchCallInProgressEvent)

    def settle(self, result: Segment) -> FileSearchCall:
        """Finishes the item with the queries and the results."""
        if not isinstance(result, FileSearchResult):
            raise TypeError(result)
        if not result.is_failed:
            self._emitter.emit_at(self._position, hev.FileSearchCallCompletedEvent)
        item = self._build_item("failed" if result.is_failed else "completed", result.queries, result.results)
        self._emit_item(ev.ItemDone, item)
        return item

    def _build_item(
        self, status: str, queries: tuple[str, ...] = (), results: tuple[dict[str, Any], ...] | None = None
    ) -> FileSearchCall:
        return FileSearchCall(id=self._position.item_id, queries=queries, results=results, status=status)


class ApprovalDraft(ItemDraft):
    """A request to approve a call. It is emitted at the end of its arguments, because its id depends on them."""

    def __init__(self, position: ItemPosition, emitter: EventEmitter, call: Call, create_id: CreateApprovalId) -> None:
        super().__init__(position, emitter)
        self._call, self._create_id = call, create_id

    def open(self) -> None:
        """Emits nothing."""

    def grow(self, text: str) -> None:
        """Keeps a delta of the arguments."""
        self._text.append(text)

    def close(self, status: Status) -> McpApprovalRequest:  # noqa: ARG002  # it has none
        """Emits the request, which is done at once."""
        label, name = self._call.server_label, self._call.name
        arguments = text if (text := "".join(self._text)).strip() else "{}"
        item = McpApprovalRequest(
            id=self._create_id(label, name, arguments), server_label=label, name=name, arguments=arguments
        )
        self._emit_item(ev.ItemAdded, item)
        self._emit_item(ev.ItemDone, item)
        return item

    def freeze(self) -> None:
        """Returns None: nothing was emitted."""
