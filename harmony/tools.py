"""Tools of a turn, and the names by which a model calls them.

A dialect has one flat list of names. A tool in a namespace gets a flat name of its own. The name that a model writes
is *looked up* here and never split, since a plain tool may be called `a__b`. A model that leaves the namespace out
means the one tool of that name. Showing tools to a model, and the meaning of their arguments, are outside this module.
"""

import hashlib
import re
from collections import Counter
from collections.abc import Container, Iterator, Mapping, Sequence
from typing import Any, Literal

from msgspec import Struct
from msgspec.structs import replace

from antiphon.events.tools import BuiltinTool, CustomTool, FunctionTool, GrammarFormat, NamespaceTool, TextFormat
from antiphon.harmony.builtin_tools import SHELL_SCHEMA, BuiltinKind, builtin_fields, builtin_kind
from antiphon.state.segments import Call, Execution, HostedToolKind

MAX_TOOL_NAME_CHARS = 64
VALID_NAME = re.compile(r"[A-Za-z0-9_-]{1,128}")
"""Names that a tool may have."""
_INVALID_CHARS = re.compile(r"[^A-Za-z0-9_-]")
INPUT = "input"
"""Name of the member that holds a custom tool's text if a model writes JSON for it."""
BUILTIN_PREFIX = "builtin__"
"""Begins the name of a built-in tool if a tool of the request has its usual name."""
ToolKey = tuple[str | None, str]


class HostedTool(Struct, frozen=True, kw_only=True):
    """Tool that the server runs, as it is offered to the model.

    `server_label` names the MCP server that has it, and is empty for tools of other kinds. `needs_approval`: a call
    becomes a request to approve it. `container_id` belongs to `code_interpreter`. `parameters` is a JSON Schema;
    `can_enforce` is False for one that no grammar can hold.
    """

    kind: HostedToolKind
    name: str
    server_label: str = ""
    description: str = ""
    parameters: dict[str, Any] | None = None
    can_enforce: bool = True
    needs_approval: bool = False
    container_id: str = ""
    read_only: bool | None = None
    is_invented: bool = False
    """True if the model calls a tool of an MCP server that it was not offered."""


OfferedTool = FunctionTool | CustomTool | BuiltinTool | HostedTool


class ToolError(ValueError):
    """Raised for an invalid tool. `index` is its position in the request's list of tools."""

    def __init__(self, message: str, index: int) -> None:
        super().__init__(message)
        self.message = message
        self.index = index


class ToolSpec(Struct, frozen=True, kw_only=True):
    """Tool that the model may call. The model uses `model_name`, the client uses `name` in `namespace`.

    `kind` is the form in which the model writes a call. `builtin` is set for a built-in tool, whose calls are items of
    another shape. `local_shell`: the client names the shell's environment. `single_file`: a patch changes one file.
    `execution`: who runs a search among deferred tools.
    """

    model_name: str
    name: str
    namespace: str | None = None
    kind: Literal["function", "custom"] = "function"
    description: str = ""
    parameters: dict[str, Any] | None = None
    strict: bool = False
    format: TextFormat | GrammarFormat | None = None
    builtin: BuiltinKind | None = None
    is_loaded: bool = False
    """True if the prompt shows the tool where it was loaded, in the conversation, and not in the list of tools."""
    is_async: bool = False
    local_shell: bool = False
    single_file: bool = False
    execution: Execution = "client"
    server: HostedTool | None = None
    """The tool, if the server runs it."""

    @property
    def accepted_schema(self) -> dict[str, Any] | None:
        """The JSON Schema of calls that are written as JSON: of what is read, which is more than the model is told."""
        if self.server is not None and not self.server.can_enforce:
            return None
        return SHELL_SCHEMA if self.builtin == "shell" else self.parameters

    def start_call(self, call_id: str | None) -> Call:
        """Returns the start of a call. `call_id` is the model's own; None if it wrote none."""
        if self.server is None:
            kind = self.builtin or self.kind
            return Call(self.name, kind, call_id, self.namespace, self.is_async, execution=self.execution)
        return Call(
            self.name,
            "mcp_approval" if self.server.needs_approval else self.server.kind,
            call_id,
            self.namespace,
            server_label=self.server.server_label,
            container_id=self.server.container_id,
            is_invented=self.server.is_invented,
        )


ToolCall = tuple[ToolSpec, str]
"""Call to be written: its tool, and its arguments as JSON or, for a custom tool, its text."""


class ToolTable:
    """Offered tools in the order of the request, with look-ups by model name and by namespace and name."""

    def __init__(self, tools: Sequence[ToolSpec] = (), hidden: Sequence[ToolSpec] = ()) -> None:
        self.hidden = hidden
        """Tools that cannot be called, or not yet. They tell who answers the call of a tool that does not exist."""
        self._by_model_name: Mapping[str, ToolSpec] = {tool.model_name: tool for tool in tools}
        short_names = [(short_name, tool) for tool in tools for short_name in _short_names(tool)]
        counts = Counter(short_name for short_name, _ in short_names)
        self._by_short_name = {name: tool for name, tool in short_names if counts[name] == 1}
        self._model_names: Mapping[ToolKey, str] = {(tool.namespace, tool.name): tool.model_name for tool in tools}

    @classmethod
    def from_request(
        cls,
        tools: Sequence[OfferedTool | NamespaceTool],
        *,
        num_loaded: int = 0,
        single_call: bool = False,
    ) -> "ToolTable":
        """Reads a request's tools. Raises `ToolError` for an invalid name or a duplicate.

        The last `num_loaded` were loaded in the conversation; one of these replaces another of its name.
        `single_call`: the answer may have one call, so a patch may change one file.
        """
        num_listed, loaded = len(tools) - num_loaded, set[ToolKey]()
        tools_by_key: dict[ToolKey, OfferedTool] = {}
        for index, tool in enumerate(tools):
            for key, leaf in _functions(tool):
                is_loaded = index >= num_listed
                if is_loaded and key in tools_by_key and key not in loaded:
                    continue  # the list of tools shows it already
                if is_loaded:
                    loaded.add(key)
                _check_name(key, index, {} if is_loaded else tools_by_key, is_foreign=isinstance(leaf, HostedTool))
                tools_by_key[key] = leaf
        # Names without a namespace are as the client wrote them, so they take precedence.
        taken_names = {
            name for namespace, name in tools_by_key if namespace is None and len(name) <= MAX_TOOL_NAME_CHARS
        }
        specs = []
        for (namespace, name), leaf in tools_by_key.items():
            if isinstance(leaf, BuiltinTool):
                model_name = BUILTIN_PREFIX + name if name in taken_names else name
                specs.append(
                    ToolSpec(model_name=model_name, name=model_name, **builtin_fields(leaf, single_call=single_call))
                )
                continue
            model_name = _join_name(namespace, name)
            if namespace is not None or model_name != name:
                model_name = _hash_name(namespace, name) if model_name in taken_names else model_name
                taken_names.add(model_name)
            spec = _create_spec(model_name, namespace, leaf)
            specs.append(replace(spec, is_loaded=True) if (namespace, name) in loaded else spec)
        return cls(specs)

    @property
    def listed(self) -> "ToolTable":
        """The tools that the prompt shows in its list."""
        if not any(tool.is_loaded for tool in self):
            return self
        return ToolTable([tool for tool in self if not tool.is_loaded], self.hidden)

    def without(self, hidden: Container[ToolKey]) -> "ToolTable":
        """Returns the table without these tools. All others keep their model names."""
        left_out = [tool for tool in self if (tool.namespace, tool.name) in hidden]
        shown = [tool for tool in self if (tool.namespace, tool.name) not in hidden]
        return ToolTable(shown, [*self.hidden, *left_out])

    def find_tool(self, model_name: str) -> ToolSpec | None:
        """Returns the tool with this model name, else the only one with this short name.

        Returns None if there is none, so that the text is not a call.
        """
        return self._by_model_name.get(model_name) or self._by_short_name.get(model_name)

    def model_name_of(self, name: str, namespace: str | None = None) -> str:
        """Returns the model name of a tool, offered now or earlier, because earlier calls must be shown too."""
        offered_name = self._model_names.get((namespace, name))
        if offered_name is not None:
            return offered_name
        joined_name = _join_name(namespace, name)
        return _hash_name(namespace, name) if joined_name in self._by_model_name else joined_name

    def find_builtin(self, kind: BuiltinKind) -> ToolSpec | None:
        """Returns the built-in tool of this type if it is offered."""
        return next((tool for tool in self if tool.builtin == kind), None)

    def builtin_name_of(self, kind: BuiltinKind) -> str:
        """Returns the model name of a built-in tool, offered now or earlier."""
        tool = self.find_builtin(kind)
        if tool is not None:
            return tool.model_name
        return BUILTIN_PREFIX + kind if kind in self._by_model_name else kind

    def __iter__(self) -> Iterator[ToolSpec]:
        return iter(self._by_model_name.values())

    def __len__(self) -> int:
        return len(self._by_model_name)


class UnofferedCall(Struct, frozen=True, kw_only=True, gc=False, omit_defaults=True):
    """A call of a tool that was not offered."""

    name: str
    became: Literal["text", "call", "nothing"]
    """`text`: the call is part of the text. `call`: it was returned as a call. `nothing`: it was dropped, since other
    calls in the same block are valid."""
    first_token: int
    """Number of generated tokens before the call."""
    end_token: int
    """Number of generated tokens up to the end of its name; of the call, if it is parsed as a whole."""
    offered: tuple[str, ...] = ()
    """Names of tools that may be called, at most 32. Only the first note of an output has them."""
    num_offered: int = 0
    """Number of these tools, in the same note."""
    is_plain: bool = False
    """True if the call is written in a syntax of ordinary answers, so that it may be none."""


def list_keys(tools: Sequence[OfferedTool | NamespaceTool]) -> frozenset[ToolKey]:
    """Returns the namespace and the name of each tool, also of those in namespaces."""
    return frozenset(key for tool in tools for key, _ in _functions(tool))


def _short_names(tool: ToolSpec) -> tuple[str, ...]:
    """Returns other names by which a model may call a tool: without its namespace, and without a hash."""
    if tool.namespace is None:
        return (tool.name,) if tool.name != tool.model_name else ()
    return tool.name, f"{tool.namespace}.{tool.name}", f"{tool.namespace}__{tool.name}"


def _functions(tool: OfferedTool | NamespaceTool) -> Iterator[tuple[ToolKey, OfferedTool]]:
    """Yields the tools in a tool of the request. A built-in one is in the empty namespace, in which no other can be."""
    if isinstance(tool, NamespaceTool):
        yield from (((tool.name, leaf.name), leaf) for leaf in tool.tools)
    elif isinstance(tool, BuiltinTool):
        yield ("", builtin_kind(tool)), tool
    elif isinstance(tool, HostedTool):
        yield (tool.server_label or None, tool.name), tool
    else:
        yield (None, tool.name), tool


def _check_name(key: ToolKey, index: int, found: Mapping[ToolKey, object], *, is_foreign: bool) -> None:
    """Checks a name. `is_foreign`: an MCP server has chosen it, so any will do: its model name has no odd ones."""
    namespace, name = key
    # Names are pasted raw into prompts: a newline in one would let a client forge the prompt's structure.
    if not is_foreign and not VALID_NAME.fullmatch(name):
        raise ToolError(f"Invalid tool name {name[:80]!r}. Use 1 to 128 letters, digits, '_' or '-'.", index)
    if key in found and namespace == "":
        raise ToolError(f"Duplicate tool {name!r}. Send it once.", index)
    if key in found:
        location = f" in namespace {namespace!r}" if namespace is not None else ""
        raise ToolError(f"Duplicate tool name {name!r}{location}. Rename one of the tools.", index)


def _join_name(namespace: str | None, name: str) -> str:
    joined_name = name if namespace is None else f"{namespace}__{name}"
    return (
        joined_name
        if len(joined_name) <= MAX_TOOL_NAME_CHARS and not _INVALID_CHARS.search(joined_name)
        else _hash_name(namespace, name)
    )


def _hash_name(namespace: str | None, name: str) -> str:
    """Returns a short, unique name. It is the same in every turn, because earlier calls must keep theirs."""
    digest = hashlib.sha256(f"{namespace}\0{name}".encode("utf-8", "surrogatepass")).hexdigest()[:8]
    readable = _INVALID_CHARS.sub("_", name if namespace is None else f"{namespace}__{name}")
    return f"{readable[: MAX_TOOL_NAME_CHARS - 9]}_{digest}"


def _create_spec(flat: str, namespace: str | None, tool: FunctionTool | CustomTool | HostedTool) -> ToolSpec:
    if isinstance(tool, HostedTool):
        return ToolSpec(
            model_name=flat,
            name=tool.name,
            namespace=namespace,
            description=tool.description,
            parameters=tool.parameters,
            server=tool,
        )
    spec = ToolSpec(
        model_name=flat,
        name=tool.name,
        namespace=namespace,
        description=tool.description or "",
        is_async=bool(tool.is_async),
    )
    if isinstance(tool, CustomTool):
        return replace(spec, kind="custom", format=tool.format)
    return replace(spec, parameters=tool.parameters, strict=bool(tool.strict))
