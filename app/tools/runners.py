"""Runs one call of each kind of tool. A failure is an outcome, too: the model reads it, and the turn continues."""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import msgspec
from msgspec import Struct

from antiphon.app.tools.code.code_runner import CodeRunner
from antiphon.app.tools.mcp.results import convert_error
from antiphon.app.tools.outcome import ResultImage, ToolOutcome
from antiphon.app.tools.search.citations import SourceList
from antiphon.app.tools.search.file_search import FileSearch, FileSearchError, results_as_text
from antiphon.events.hosted import McpExecutionError, McpProtocolError
from antiphon.harmony.prompt.hosted_items import FAILURE_PREFIX
from antiphon.state.segments import (
    Call,
    CallResult,
    CodeResult,
    FileSearchResult,
    HostedToolKind,
    McpResult,
    WebSearchResult,
)

INVALID_PARAMS = -32602
"""Code of JSON-RPC for arguments that a method does not take."""
NO_OBJECT = "The arguments are not a JSON object, so the tool was not called."
NO_USE_LEFT = f"{FAILURE_PREFIX}no more web searches are allowed. Answer with what you have."
LOST_VARIABLES = "[The server was restarted: the variables of earlier code are gone.]\n"
OPEN_PAGE = "open_page"
"""Name of the tool that reads a page. Its calls are items of a web search."""


class ShortenOutput(Protocol):
    """Shortens the output of a call to the room that is left for it."""

    async def __call__(self, text: str, images: Sequence[ResultImage] = ()) -> str:
        """Returns the output. Placeholders of `images` that the model does not see tell why."""


class CallTool(Protocol):
    """Calls the tool of an MCP server."""

    async def __call__(self, label: str, name: str, arguments: dict[str, Any]) -> ToolOutcome:
        """Returns the outcome, also of a failed call."""


class CallOutcome(Struct, frozen=True):
    """The end of a call: what its item gets, the output that the model reads, and the pages that it has found."""

    result: CallResult
    output: str
    sources: SourceList = SourceList()


class ToolRunner(Protocol):
    """Runs calls of one kind."""

    async def run_call(self, call: Call, arguments: str, shorten_output: ShortenOutput) -> CallOutcome:
        """Returns the outcome, also of a failed call. `arguments` is what the model wrote."""


Runners = Mapping[HostedToolKind, ToolRunner]


def parse_arguments(text: str) -> dict[str, Any] | None:
    """Returns the arguments of a call; None if they are no JSON object."""
    try:
        value: Any = msgspec.json.decode(text or "{}")
    except (msgspec.DecodeError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def fail_invented_call(call: Call) -> CallOutcome:
    """Returns the outcome of a call of a tool that was not offered. Its server, which may have it, is not asked."""
    message = (
        f"'{call.server_label}' has no tool '{call.name}' that can be called now. Call only tools that are listed."
    )
    error = McpProtocolError(code=INVALID_PARAMS, message=message)
    return CallOutcome(McpResult(error=error), convert_error(error).text)


def fail_call(call: Call, arguments: str, message: str) -> CallOutcome:
    """Returns the outcome of a call that has failed for this reason, without a result of its tool."""
    if call.kind == "mcp":
        error = McpExecutionError(content=[{"type": "text", "text": message}])
        return CallOutcome(McpResult(error=error), convert_error(error).text)
    output = f"{FAILURE_PREFIX}{message}"
    if call.kind == "code_interpreter":
        return CallOutcome(CodeResult(output, is_failed=True), output)
    parsed = parse_arguments(arguments) or {}
    if call.kind == "file_search":
        return CallOutcome(FileSearchResult(_list_queries(parsed), is_failed=True), output)
    return CallOutcome(WebSearchResult(_describe_action(call, parsed), is_failed=True), output)


class UnavailableRunner:
    """Fails the calls of a tool that cannot be used any more."""

    def __init__(self, reason: str) -> None:
        self._reason = reason

    async def run_call(self, call: Call, arguments: str, shorten_output: ShortenOutput) -> CallOutcome:  # noqa: ARG002  # no tool runs
        """Returns the failure."""
        return fail_call(call, arguments, self._reason)


class McpRunner:
    """Runs calls of tools of MCP servers."""

    def __init__(self, call_tool: CallTool) -> None:
        self._call_tool = call_tool

    async def run_call(self, call: Call, arguments: str, shorten_output: ShortenOutput) -> CallOutcome:
        """Returns the outcome, also of a failed call."""
        parsed = parse_arguments(arguments)
        if parsed is None:
            outcome = convert_error(McpProtocolError(code=INVALID_PARAMS, message=NO_OBJECT))
        else:
            outcome = await self._call_tool(call.server_label, call.name, parsed)
        error = outcome.error
        if error is None:
            output = await shorten_output(outcome.marked_text or outcome.text, outcome.images)
            return CallOutcome(McpResult(output=output), output)
        output = await shorten_output(outcome.text)
        if isinstance(error, McpExecutionError) and output != outcome.text:
            # Later turns show the error in the same words: their prompts have this output again.
            error = McpExecutionError(content=[{"type": "text", "text": output.removeprefix(FAILURE_PREFIX)}])
        return CallOutcome(McpResult(error=error), output)


class MappedTool(Struct, frozen=True):
    """The tool of an MCP server that runs the calls of a hosted one, and its argument for the query, page or code."""

    label: str
    name: str
    argument: str


class WebSearchRunner:
    """Runs web searches by the tools `search` and `open_page`.

    `max_uses` is the number of calls that are run; None: all.
    """

    def __init__(
        self,
        call_tool: CallTool,
        search: MappedTool,
        open_page: MappedTool | None,
        max_uses: int | None = None,
    ) -> None:
        self._call_tool, self._search, self._open_page = call_tool, search, open_page
        self._max_uses, self._num_uses = max_uses, 0

    def resume(self, num_calls: int) -> None:
        """Counts calls that another process has run."""
        self._num_uses += num_calls

    async def run_call(self, call: Call, arguments: str, shorten_output: ShortenOutput) -> CallOutcome:
        """Returns the outcome, also of a failed call."""
        parsed, is_page = parse_arguments(arguments) or {}, call.name == OPEN_PAGE
        target = self._open_page if is_page and self._open_page is not None else self._search
        action = _describe_action(call, parsed)
        subject = str(action["url" if is_page else "query"])
        if not subject:
            return CallOutcome(WebSearchResult(action, is_failed=True), f"{FAILURE_PREFIX}it names no query or page.")
        if self._num_uses == self._max_uses:
            return CallOutcome(WebSearchResult(action, is_failed=True), NO_USE_LEFT)
        self._num_uses += 1
        outcome = await self._call_tool(target.label, target.name, {target.argument: subject})
        if outcome.error is not None:
            return CallOutcome(WebSearchResult(action, is_failed=True), await shorten_output(outcome.text))
        if is_page:
            opened = SourceList.from_outcome("", None, (subject,))
            return CallOutcome(WebSearchResult(action), await shorten_output(outcome.text), opened)
        found = SourceList.from_outcome(outcome.text, outcome.structured, outcome.links)
        action |= {"queries": [subject], "sources": [{"type": "url", "url": each.url} for each in found.sources]}
        listed = found.as_text()
        output = await shorten_output(f"{outcome.text}\n\nSources:\n{listed}" if listed else outcome.text)
        return CallOutcome(WebSearchResult(action), output, found)


class SandboxedCodeRunner:
    """Runs code in this server's sandbox. `may_create`: the container is new."""

    def __init__(self, runner: CodeRunner, owner: str, *, may_create: bool) -> None:
        self._runner, self._owner, self._may_create = runner, owner, may_create
        self._note = ""

    def resume(self, *, has_run: bool) -> None:
        """Tells in the next output that the variables of another process are gone, in which code has run."""
        self._note = LOST_VARIABLES if has_run else ""

    async def run_call(self, call: Call, arguments: str, shorten_output: ShortenOutput) -> CallOutcome:
        """Returns what the code printed. `arguments` is the code."""
        outcome = await self._runner.run(self._owner, call.container_id, arguments, may_create=self._may_create)
        output, self._note = await shorten_output(self._note + outcome.as_text()), ""
        return CallOutcome(CodeResult(output, is_failed=outcome.error is not None), output)


class MappedCodeRunner:
    """Runs code by the tool of an MCP server."""

    def __init__(self, call_tool: CallTool, target: MappedTool) -> None:
        self._call_tool, self._target = call_tool, target

    async def run_call(self, call: Call, arguments: str, shorten_output: ShortenOutput) -> CallOutcome:  # noqa: ARG002  # its code is all
        """Returns what the tool returned. `arguments` is the code."""
        outcome = await self._call_tool(self._target.label, self._target.name, {self._target.argument: arguments})
        output = await shorten_output(outcome.text)
        return CallOutcome(CodeResult(output, is_failed=outcome.error is not None), output)


class FileSearchRunner:
    """Searches in the vector stores that a request names."""

    def __init__(
        self,
        search: FileSearch,
        store_ids: Sequence[str],
        *,
        max_num_results: int,
        filters: Any,
        score_threshold: float,
    ) -> None:
        self._search, self._store_ids = search, store_ids
        self._max_num_results, self._filters, self._score_threshold = max_num_results, filters, score_threshold

    async def run_call(self, call: Call, arguments: str, shorten_output: ShortenOutput) -> CallOutcome:  # noqa: ARG002  # its arguments are all
        """Returns the passages that were found."""
        parsed = parse_arguments(arguments) or {}
        queries = _list_queries(parsed)
        if not queries:
            return CallOutcome(FileSearchResult((), is_failed=True), f"{FAILURE_PREFIX}it has no query.")
        try:
            found = await self._search.search(
                self._store_ids, queries, self._max_num_results, self._filters, self._score_threshold
            )
        except FileSearchError as error:
            return CallOutcome(FileSearchResult(queries, is_failed=True), f"{FAILURE_PREFIX}{error}")
        results = tuple(msgspec.to_builtins(each) for each in found)
        return CallOutcome(FileSearchResult(queries, results), await shorten_output(results_as_text(found)))


def _describe_action(call: Call, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Returns what a web search does: a search, or a page that it opens."""
    is_page = call.name == OPEN_PAGE
    subject = arguments.get("url" if is_page else "query")
    subject = subject if isinstance(subject, str) else ""
    return {"type": "open_page", "url": subject} if is_page else {"type": "search", "query": subject}


def _list_queries(arguments: Mapping[str, Any]) -> tuple[str, ...]:
    """Returns the queries of a search in files."""
    sent = arguments.get("queries") or arguments.get("query")
    listed = sent if isinstance(sent, list) else [sent]
    return tuple(query for query in listed if isinstance(query, str) and query)
