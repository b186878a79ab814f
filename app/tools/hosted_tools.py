"""Offers the tools that clients name by type: web searches, code, searches in files.

A type that the options do not map is not offered: clients send some of them with every request.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from msgspec import Struct

from antiphon.app.errors import ApiError, clip_text, invalid_value, unsupported_field
from antiphon.app.requests.fields import decode_value
from antiphon.app.requests.hosted_bodies import AutoContainer, CodeInterpreterBody, FileSearchBody, WebSearchBody
from antiphon.app.requests.hosted_tools import HostedToolRequest
from antiphon.app.tools.code.code_runner import NOT_FOUND, CodeRunner
from antiphon.app.tools.hosted_options import HostedOptions, ToolTarget
from antiphon.app.tools.mcp.faults import ToolListError
from antiphon.app.tools.mcp.tool_servers import ToolServers
from antiphon.app.tools.measured_calls import MeasuredCalls, ReportCall, ignore_call
from antiphon.app.tools.runners import (
    OPEN_PAGE,
    FileSearchRunner,
    MappedCodeRunner,
    MappedTool,
    SandboxedCodeRunner,
    ToolRunner,
    WebSearchRunner,
)
from antiphon.app.tools.search.citations import SourceList, WebSource
from antiphon.app.tools.search.file_filters import parse_filter
from antiphon.app.tools.search.file_search import FileSearch
from antiphon.events.hosted_inputs import InputCodeCall, InputWebSearchCall
from antiphon.events.inputs import AnyInput
from antiphon.events.tools import WEB_SEARCH_TYPES
from antiphon.harmony.tools import HostedTool

WEB_SEARCH_DESCRIPTION = (
    "Searches the web and returns pages with their URLs. Cite each page that you use with a markdown link, "
    "[title](url), right after what you say."
)
PAGE_DESCRIPTION = "Returns the text of a web page."
CODE_DESCRIPTION = (
    "Runs Python code and returns what it prints and the value of its last line. Variables last from one call to the "
    "next."
)
SANDBOX_DESCRIPTION = (
    f"{CODE_DESCRIPTION} It is a subset of Python: no files, no network, no input, no packages such as numpy, no "
    "inheritance, no generators. Modules such as math, json, re and datetime are there."
)
FILES_DESCRIPTION = "Searches the user's files and returns passages that contain the words of the query."
MAX_FILE_RESULTS = 10
"""Number of results of a search in files, if the request does not say so."""


class HostedOffer(Struct, frozen=True):
    """Tools of one kind that a request names, its path, what runs their calls, and pages that earlier ones found."""

    path: str
    tools: tuple[HostedTool, ...]
    runner: ToolRunner
    sources: SourceList = SourceList()


class HostedTools:
    """Offers what `options` map. `code` and `files` are None if the options have none."""

    def __init__(
        self,
        options: HostedOptions,
        servers: ToolServers,
        new_id: Callable[[str], str],
        code: CodeRunner | None,
        report: ReportCall = ignore_call,
    ) -> None:
        self._options, self._servers, self._new_id, self._code = options, servers, new_id, code
        self._call_operator = MeasuredCalls(servers, servers.servers, report)
        self._files = FileSearch(options.vector_stores) if options.vector_stores else None

    async def close(self) -> None:
        """Ends the processes of the sandbox and the indexes."""
        if self._code is not None:
            await self._code.close()
        if self._files is not None:
            await self._files.close()

    async def offer_tools(
        self, requests: Sequence[HostedToolRequest], items: Sequence[AnyInput], owner: str
    ) -> list[HostedOffer]:
        """Returns what a request gets, one of each kind. `items` is its conversation. Raises `ApiError` 400."""
        offered: dict[str, HostedOffer] = {}
        for request in requests:
            found = await self._offer_one(request, items, owner)
            if found is not None:
                offered.setdefault(found.tools[0].kind, found)
        return list(offered.values())

    async def _offer_one(self, request: HostedToolRequest, items: Sequence[AnyInput], owner: str) -> HostedOffer | None:
        options = self._options
        if request.kind in WEB_SEARCH_TYPES and options.web_search is not None:
            return await self._offer_search(request, options.web_search, items)
        if request.kind == "code_interpreter" and (options.has_sandbox or options.code_interpreter is not None):
            return await self._offer_code(request, items, owner)
        if request.kind == "file_search" and self._files is not None:
            return self._offer_files(request, self._files)
        return None

    async def _offer_search(
        self, request: HostedToolRequest, target: ToolTarget, items: Sequence[AnyInput]
    ) -> HostedOffer | None:
        body: WebSearchBody = decode_value(request.tool, WebSearchBody, request.path)
        if body.external_web_access is False and not self._options.is_search_offline:
            return None
        if body.filters is not None and (body.filters.allowed_domains or body.filters.blocked_domains):
            raise unsupported_field(f"{request.path}.filters", "This server's web search has no filters.")
        description, place = WEB_SEARCH_DESCRIPTION, body.user_location
        names = [name for name in (place.city, place.region, place.country) if name] if place else []
        if names:
            description += f" The user is in {', '.join(names)}."
        tools = [HostedTool(kind="web_search", name="web_search", **_describe(description, "query"))]
        page = self._options.open_page
        if page is not None:
            tools.append(HostedTool(kind="web_search", name=OPEN_PAGE, **_describe(PAGE_DESCRIPTION, "url")))
        runner = WebSearchRunner(
            self._call_operator,
            await self._map_tool(target, "query"),
            None if page is None else await self._map_tool(page, "url"),
            body.max_uses,
        )
        return HostedOffer(request.path, tuple(tools), runner, _known_sources(items))

    async def _offer_code(self, request: HostedToolRequest, items: Sequence[AnyInput], owner: str) -> HostedOffer:
        body: CodeInterpreterBody = decode_value(request.tool, CodeInterpreterBody, request.path)
        container, target = body.container, self._options.code_interpreter
        path = f"{request.path}.container"
        if isinstance(container, AutoContainer):
            if container.file_ids:
                raise unsupported_field(f"{path}.file_ids", "This server's containers have no files.")
            if container.memory_limit not in (None, "1g"):
                raise unsupported_field(f"{path}.memory_limit", "The operator sets the memory of containers.")
        container_id, is_new = self._choose_container(container, items, owner, path)
        tool = HostedTool(
            kind="code_interpreter",
            name="code_interpreter",
            container_id=container_id,
            **_describe(SANDBOX_DESCRIPTION if target is None else CODE_DESCRIPTION, "code"),
        )
        runner: ToolRunner
        if target is not None:
            runner = MappedCodeRunner(self._call_operator, await self._map_tool(target, "code"))
        else:
            assert self._code is not None
            runner = SandboxedCodeRunner(self._code, owner, may_create=is_new)
        return HostedOffer(request.path, (tool,), runner)

    def _choose_container(self, sent: object, items: Sequence[AnyInput], owner: str, path: str) -> tuple[str, bool]:
        """Returns the id of the container for the code, and whether it is new. Raises `ApiError` 400.

        The containers of a mapped tool are its own affair: it is given the code alone.
        """
        named = sent if isinstance(sent, str) else _last_container(items)
        code = self._code if self._options.code_interpreter is None else None
        if named is not None and (code is None or code.has_container(owner, named)):
            return named, False
        if isinstance(sent, str):
            raise ApiError(400, None, f"{NOT_FOUND.format(id=clip_text(sent))} It may have expired.", path)
        return self._new_id("cntr"), True

    def _offer_files(self, request: HostedToolRequest, files: FileSearch) -> HostedOffer:
        body: FileSearchBody = decode_value(request.tool, FileSearchBody, request.path)
        path = f"{request.path}.vector_store_ids"
        if not body.vector_store_ids:
            raise invalid_value(path, f"Invalid '{path}': name at least one vector store.")
        try:
            files.check_stores(body.vector_store_ids)
        except ValueError as error:
            raise invalid_value(path, str(error)) from None
        try:
            parse_filter(body.filters)
        except ValueError as error:
            path = f"{request.path}.filters"
            raise invalid_value(path, f"Invalid '{path}': {error}") from None
        ranking = body.ranking_options
        if ranking is not None and ranking.hybrid_search is not None:
            path = f"{request.path}.ranking_options.hybrid_search"
            raise unsupported_field(path, "This server searches by words only.")
        runner = FileSearchRunner(
            files,
            body.vector_store_ids,
            max_num_results=body.max_num_results or MAX_FILE_RESULTS,
            filters=body.filters,
            score_threshold=(ranking.score_threshold if ranking else None) or 0.0,
        )
        tool = HostedTool(kind="file_search", name="file_search", **_describe(FILES_DESCRIPTION, "query"))
        return HostedOffer(request.path, (tool,), runner)

    async def _map_tool(self, target: ToolTarget, default: str) -> MappedTool:
        """Returns the mapped tool with the name of its argument.

        It is that of the options, else the only string that its schema requires. A server that cannot be reached now is
        asked again by the call, which then fails.
        """
        if target.argument:
            return MappedTool(target.label, target.name, target.argument)
        try:
            listed = await self._servers.list_tools(self._servers.servers[target.label], "")
        except ToolListError:
            return MappedTool(target.label, target.name, default)
        schema = next((tool.input_schema for tool in listed.tools if tool.name == target.name), {})
        return MappedTool(target.label, target.name, _find_text_argument(schema) or default)


def _find_text_argument(schema: Mapping[str, Any]) -> str | None:
    """Returns the name of the only string that a schema requires; None if it requires none, or several."""
    properties, required = schema.get("properties"), schema.get("required")
    if not isinstance(properties, dict) or not isinstance(required, list):
        return None
    types = {name: rule.get("type") for name, rule in properties.items() if isinstance(rule, dict)}
    texts = [name for name in required if isinstance(name, str) and types.get(name) == "string"]
    return texts[0] if len(texts) == 1 else None


def _describe(description: str, argument: str) -> dict[str, Any]:
    """Returns the fields of a tool that takes one text."""
    schema = {
        "type": "object",
        "properties": {argument: {"type": "string"}},
        "required": [argument],
        "additionalProperties": False,
    }
    return {"description": description, "parameters": schema}


def _last_container(items: Sequence[AnyInput]) -> str | None:
    """Returns the container of the latest code in the conversation."""
    found = (item.container_id for item in reversed(items) if isinstance(item, InputCodeCall) and item.container_id)
    return next(found, None)


def _known_sources(items: Sequence[AnyInput]) -> SourceList:
    """Returns the pages that earlier web searches of the conversation have found."""
    urls = [
        source["url"]
        for item in items
        if isinstance(item, InputWebSearchCall) and item.action is not None
        for source in item.action.sources or ()
        if isinstance(source.get("url"), str)
    ]
    return SourceList().join(SourceList(tuple(WebSource(url=url) for url in urls)))
