"""The tools of a turn that is replayed: what they returned, and what the client approved, is in the stored events."""

from collections import defaultdict, deque
from collections.abc import Sequence
from typing import Any

from msgspec import UNSET, structs

from antiphon.app.tools.call_rules import ApprovedCall, CallRules, FoundTools
from antiphon.app.tools.search.citations import SourceList, WebSource
from antiphon.app.turn_types.event_log import LogEntry
from antiphon.app.turns.core.inputs import ResultInput
from antiphon.events import hosted_events as hev
from antiphon.events import stream as ev
from antiphon.events.hosted import (
    CodeInterpreterCall,
    FileSearchCall,
    McpApprovalRequest,
    McpCall,
    McpListTools,
    ServerCallItem,
    ToolSearchCall,
    ToolSearchOutput,
    WebSearchCall,
)
from antiphon.events.items import UrlCitation
from antiphon.state.segments import Call, CallResult, CodeResult, FileSearchResult, McpResult, WebSearchResult


class RecordedTools:
    """Answers what the core asks of the tools with what the events of the log say. It runs nothing."""

    table = None
    """The table of each round is in the record."""

    def __init__(self, entries: Sequence[LogEntry], max_calls: int | None) -> None:
        done = [entry.event.item for entry in entries if isinstance(entry.event, ev.ItemDone)]
        requests = deque(item.id for item in done if isinstance(item, McpApprovalRequest))
        self._found = deque(item for item in done if isinstance(item, ToolSearchOutput) and item.execution == "server")
        self._titles = _list_cited(entries)
        self.rules = CallRules(
            sign=lambda *_: requests.popleft(),
            lists=tuple(item for item in done if isinstance(item, McpListTools)),
            approved=tuple(_list_approved(entries)),
            max_calls=max_calls,
            search=self,
            sources=self._find_earlier_sources(done),
        )

    def load_tools(self, call: ToolSearchCall) -> FoundTools:
        """Returns what the search has found. What the model reads of it is in the next prompt."""
        return FoundTools(structs.replace(self._found.popleft(), call_id=call.call_id), "")

    def take_result(self, item: ServerCallItem) -> ResultInput:
        """Returns the end of a call, from its item as it is done. What the model reads of it is in the next prompt."""
        found = _list_found(item) if isinstance(item, WebSearchCall) else ()
        return ResultInput(_read_result(item), "", sources=self._build_sources(found))

    def _find_earlier_sources(self, done: Sequence[object]) -> SourceList:
        """Returns the pages that earlier turns have found, as far as this one cites them."""
        found = {url for item in done if isinstance(item, WebSearchCall) for url in _list_found(item)}
        return self._build_sources([url for url in self._titles if url not in found])

    def _build_sources(self, urls: Sequence[str]) -> SourceList:
        """Returns pages with their titles. One whose citations differ has none: a citation has the link's label."""
        titles = {url: next(iter(each)) if len(each) == 1 else "" for url, each in self._titles.items()}
        return SourceList(tuple(WebSource(url=url, title=titles.get(url, "")) for url in urls))


def _read_result(item: ServerCallItem) -> CallResult:
    """Returns what the tool returned, from the call's item as it is done."""
    is_failed = item.status == "failed"
    if isinstance(item, McpCall):
        error = item.error if item.error is not UNSET and not isinstance(item.error, str) else None
        return McpResult(item.output if isinstance(item.output, str) else None, error)
    if isinstance(item, CodeInterpreterCall):
        outputs = item.outputs if isinstance(item.outputs, tuple) else ()
        return CodeResult("".join(str(each["logs"]) for each in outputs), is_failed=is_failed)
    if isinstance(item, FileSearchCall):
        results = item.results if isinstance(item.results, tuple) else ()
        return FileSearchResult(item.queries or (), results, is_failed=is_failed)
    return WebSearchResult(item.action, is_failed=is_failed)


def _list_approved(entries: Sequence[LogEntry]) -> list[ApprovedCall]:
    """Returns the calls that the client has approved, with the arguments that were told."""
    calls: dict[str, Call] = {}
    arguments: defaultdict[str, str] = defaultdict(str)
    for entry in entries:
        event = entry.event
        if isinstance(event, ev.ItemAdded) and isinstance(event.item, McpCall) and event.item.approval_request_id:
            item, label = event.item, event.item.server_label
            calls[item.id] = Call(
                item.name, "mcp", None, label, server_label=label, approval_request_id=str(item.approval_request_id)
            )
        elif isinstance(event, hev.McpCallArgumentsDeltaEvent):
            arguments[event.item_id] += event.delta
    return [ApprovedCall(call, arguments[item_id]) for item_id, call in calls.items()]


def _list_cited(entries: Sequence[LogEntry]) -> dict[str, set[str]]:
    """Returns the URLs that the text cites, each with the titles of its citations."""
    cited: defaultdict[str, set[str]] = defaultdict(set)
    for entry in entries:
        annotation = getattr(entry.event, "annotation", None)
        if isinstance(annotation, UrlCitation):
            cited[annotation.url].add(annotation.title)
    return dict(cited)


def _list_found(item: WebSearchCall) -> list[str]:
    """Returns the URLs of the pages that a search has found, or of the one that was opened."""
    action: Any = item.action
    if not isinstance(action, dict) or item.status == "failed":
        return []
    if action.get("type") == "open_page":
        return [str(action.get("url"))]
    return [str(each.get("url")) for each in action.get("sources") or ()]
