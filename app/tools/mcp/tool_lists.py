"""Lists of tools: how a server's answer is checked, and the cache of what was listed."""

import asyncio
import time
from collections import Counter, OrderedDict
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from msgspec import Struct, json

from antiphon.app.tools.mcp.faults import BAD_ANSWER, ToolServerError
from antiphon.app.tools.mcp.tool_server import ToolLimits
from antiphon.harmony.prompt.call_arguments import measure_depth

HEADER_ANNOTATION = "x-mcp-header"
ReadTool = Callable[[Any], Mapping[str, Any]]
"""Returns a tool, with its names on the wire. Raises ValueError with the reason why it is none."""


class ListedTool(Struct, frozen=True, kw_only=True):
    """A tool that a server lists. Its texts are strangers' words, and so is `read_only`."""

    name: str
    description: str = ""
    input_schema: dict[str, Any]
    read_only: bool | None = None
    """The server's hint. None: it says nothing."""

    @property
    def has_header_arguments(self) -> bool:
        """Tells whether arguments are also sent as headers."""
        return HEADER_ANNOTATION.encode() in json.encode(self.input_schema)


class LeftOutTool(Struct, frozen=True):
    """A tool that a server lists and that cannot be offered. `name` may be shortened, or a number in the list."""

    name: str
    reason: str
    sent_name: str = ""
    """The whole name that the server lists; empty if it is none."""
    read_only: bool = False
    """The server's hint."""


class ToolList(Struct, frozen=True):
    """A whole list."""

    tools: tuple[ListedTool, ...]
    ttl_s: float
    """How long it may be kept."""
    left_out: tuple[LeftOutTool, ...] = ()


class ListBuilder:
    """Collects the pages of a list and checks the limits while they come.

    A tool that cannot be offered is left out, so that it does not cost the others: one that `read_tool` refuses with a
    ValueError, one with an unusable name, one whose schema is too deep, and one whose name an earlier tool has. The
    first of a name wins: no later one replaces it.
    """

    def __init__(self, limits: ToolLimits, read_tool: ReadTool = dict) -> None:
        self._limits, self._read_tool = limits, read_tool
        self._left_out: list[LeftOutTool] = []
        self._tools: dict[str, ListedTool] = {}
        self._count = 0
        self._bytes = 0
        self._pages = 0
        self._cursors: set[str] = set()
        self._ttl_s = limits.list_ttl_s

    def add_page(self, tools: list[Any], next_cursor: str | None, ttl_ms: int | None) -> None:
        """Adds a page: tools with their names on the wire. Raises ToolServerError beyond a limit."""
        self._pages += 1
        self._count += len(tools)
        self._bytes += len(json.encode(tools))
        if self._count > self._limits.max_listed_tools:
            raise _refuse(f"The server lists more than {self._limits.max_listed_tools} tools.")
        if self._bytes > self._limits.max_list_bytes:
            raise _refuse(f"The server's list is larger than {self._limits.max_list_bytes // 1024} KiB.")
        if next_cursor:
            self._check_cursor(next_cursor)
        if ttl_ms is not None:
            self._ttl_s = min(self._ttl_s if self._pages > 1 else self._limits.max_list_ttl_s, ttl_ms / 1000)
        for number, tool in enumerate(tools, self._count - len(tools) + 1):
            try:
                self._add_tool(self._read_tool(tool))
            except ValueError as error:
                self._left_out.append(self._describe_left_out(tool, number, str(error)))

    def build(self) -> ToolList:
        """Returns the list."""
        return ToolList(tuple(self._tools.values()), self._ttl_s, tuple(self._left_out))

    def _describe_left_out(self, tool: Any, number: int, reason: str) -> LeftOutTool:
        fields = tool if isinstance(tool, dict) else {}
        sent, annotations = fields.get("name"), fields.get("annotations")
        sent = sent if isinstance(sent, str) else ""
        return LeftOutTool(
            _clean_text(sent)[: self._limits.max_name_chars] or f"tool {number}",
            reason,
            sent,
            isinstance(annotations, dict) and annotations.get("readOnlyHint") is True,
        )

    def _check_cursor(self, cursor: str) -> None:
        if cursor in self._cursors:
            raise _refuse("The pages of the server's list go in a circle.")
        if self._pages >= self._limits.max_list_pages:
            raise _refuse(f"The server's list has more than {self._limits.max_list_pages} pages.")
        self._cursors.add(cursor)

    def _add_tool(self, tool: Mapping[str, Any]) -> None:
        """Adds a tool. Raises ValueError with the reason why it cannot be offered."""
        name, schema = tool["name"], tool.get("inputSchema", {})
        if not 0 < len(name) <= self._limits.max_name_chars:
            raise ValueError(f"its name is empty or longer than {self._limits.max_name_chars} characters")
        if not name.isprintable() or " " in name:
            raise ValueError("its name has white space or characters that cannot be printed")
        if name in self._tools:
            raise ValueError("an earlier tool has the same name")
        required = schema.get("required", [])
        if not isinstance(schema.get("properties", {}), dict):
            raise ValueError("its inputSchema.properties is no object")  # noqa: TRY004  a server's value
        if not (isinstance(required, list) and all(isinstance(each, str) for each in required)):
            raise ValueError("its inputSchema.required is no list of names")
        if measure_depth(schema) > self._limits.max_schema_depth:
            raise ValueError(f"its inputSchema is nested deeper than {self._limits.max_schema_depth} levels")
        read_only = (tool.get("annotations") or {}).get("readOnlyHint")
        self._tools[name] = ListedTool(
            name=name,
            description=_clean_text(tool.get("description") or ""),
            input_schema=schema,
            read_only=read_only if isinstance(read_only, bool) else None,
        )


def _refuse(reason: str) -> ToolServerError:
    return ToolServerError(BAD_ANSWER, reason)


def _clean_text(text: str) -> str:
    """Removes control characters other than line feeds and tabs."""
    return "".join(character for character in text if character.isprintable() or character in "\n\t")


class ListCache:
    """Keeps lists for as long as their servers say. Requests for the same list at the same time share one fetch."""

    def __init__(self, limits: ToolLimits, clock: Callable[[], float] = time.monotonic) -> None:
        self._limits = limits
        self._clock = clock
        self._kept: OrderedDict[tuple[str, str], tuple[float, ToolList]] = OrderedDict()
        self._fetches: dict[tuple[str, str], asyncio.Task[ToolList]] = {}
        self._changes: Counter[str] = Counter()
        """Number of changes of each server that is being asked."""

    def forget_server(self, identity: str) -> None:
        """Forgets the lists of a server for all owners. What is being fetched may be older, so it is not kept."""
        for key in [key for key in self._kept if key[1] == identity]:
            del self._kept[key]
        if any(key[1] == identity for key in self._fetches):
            self._changes[identity] += 1

    async def get(self, key: tuple[str, str], fetch: Callable[[], Awaitable[ToolList]]) -> ToolList:
        """Returns the list of a key: an owner and a server's identity. Raises what `fetch` raises; that is not kept."""
        if (entry := self._kept.get(key)) is not None:
            if self._clock() < entry[0]:
                self._kept.move_to_end(key)
                return entry[1]
            del self._kept[key]
        task = self._fetches.get(key)
        if task is None:
            task = asyncio.create_task(self._fetch(key, fetch))
            self._fetches[key] = task
            task.add_done_callback(lambda done: self._forget(key, done))
        await asyncio.wait({task})
        if task.cancelled():
            raise _refuse("This server stops.")
        return task.result()

    async def close(self) -> None:
        """Ends the fetches in progress."""
        tasks = list(self._fetches.values())
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    async def _fetch(self, key: tuple[str, str], fetch: Callable[[], Awaitable[ToolList]]) -> ToolList:
        num_changes = self._changes[key[1]]
        found = await fetch()
        if found.ttl_s > 0 and self._changes[key[1]] == num_changes:
            self._kept[key] = (self._clock() + found.ttl_s, found)
            if len(self._kept) > self._limits.max_kept_lists:
                self._kept.popitem(last=False)
        return found

    def _forget(self, key: tuple[str, str], task: asyncio.Task[ToolList]) -> None:
        if self._fetches.get(key) is task:
            del self._fetches[key]
        if not any(other[1] == key[1] for other in self._fetches):
            del self._changes[key[1]]
        if not task.cancelled():
            task.exception()
