"""Tools of a request, which the client offers to the model."""

from typing import Annotated, Any, Literal

from msgspec import Meta, Struct, field

ToolName = Annotated[str, Meta(pattern=r"^[A-Za-z0-9_-]{1,128}\Z")]
"""Name of a tool or a namespace. They are pasted into prompts, so no other characters are allowed."""
ShortName = Annotated[str, Meta(pattern=r"^[A-Za-z0-9_-]{1,64}\Z")]
"""Name of a format, and of a tool in chat completions."""

ServerLabel = Annotated[str, Meta(pattern=r"^[A-Za-z][A-Za-z0-9_-]{0,63}\Z")]
"""Name of an MCP server, which precedes the names of its tools in prompts."""


class Tool(Struct, frozen=True, kw_only=True, tag_field="type"):
    """A tool that the model may call."""


class FunctionTool(Tool, frozen=True, kw_only=True, tag="function"):
    """A tool that takes a JSON object. `parameters` is its JSON Schema."""

    name: ToolName
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None
    defer_loading: bool | None = None
    """True if the tool is not shown to the model before a search has found it."""
    is_async: bool | None = field(default=None, name="async")
    """True if the conversation may continue before the client sends the output of a call."""


class TextFormat(Struct, frozen=True, kw_only=True, tag_field="type", tag="text"):
    """Unconstrained raw input."""


class GrammarFormat(Struct, frozen=True, kw_only=True, tag_field="type", tag="grammar"):
    """Raw input that must match a grammar."""

    syntax: Literal["lark", "regex"]
    definition: str


class CustomTool(Tool, frozen=True, kw_only=True, tag="custom"):
    """A tool that takes raw text."""

    name: ToolName
    description: str | None = None
    format: TextFormat | GrammarFormat | None = None
    defer_loading: bool | None = None
    is_async: bool | None = field(default=None, name="async")


class NamespaceTool(Tool, frozen=True, kw_only=True, tag="namespace"):
    """Tools under a common name. A call of such a tool carries `namespace`."""

    name: ToolName
    description: str | None = None
    tools: tuple[FunctionTool | CustomTool, ...]
    defer_loading: bool | None = None


class ShellSkill(Struct, frozen=True, kw_only=True):
    """A folder with instructions on the client's machine."""

    name: str
    description: str
    path: str


class ShellEnvironment(Struct, frozen=True, kw_only=True, tag_field="type", tag="local"):
    """The environment of the client's shell."""

    skills: tuple[ShellSkill, ...] | None = None


class ShellTool(Tool, frozen=True, kw_only=True, tag="shell"):
    """A shell that the client runs."""

    environment: ShellEnvironment | None = None


class PatchTool(Tool, frozen=True, kw_only=True, tag="apply_patch"):
    """Changes of files, which the client makes."""


class LocalShellTool(Tool, frozen=True, kw_only=True, tag="local_shell"):
    """A shell that the client runs (older form)."""


class ToolSearchTool(Tool, frozen=True, kw_only=True, tag="tool_search"):
    """A search among deferred tools. `description` and `parameters` are those of a search that the client runs."""

    execution: Literal["client", "server"] = "server"
    description: str | None = None
    parameters: dict[str, Any] | None = None


class McpTool(Tool, frozen=True, kw_only=True, tag="mcp"):
    """Tools of an MCP server, which the server of the response calls. Its credentials are kept elsewhere."""

    server_label: ServerLabel
    server_url: str | None = None
    connector_id: str | None = None
    tunnel_id: str | None = None
    server_description: str | None = None
    allowed_tools: Any = None
    require_approval: Any = None
    defer_loading: bool | None = None
    allowed_callers: Any = None


BuiltinTool = ShellTool | PatchTool | LocalShellTool | ToolSearchTool


COMPUTER_TOOL_TYPES = ("computer", "computer-preview", "computer_use", "computer_use_preview")
"""Types of tools that are not offered: only models that were trained for them can use them."""

WEB_SEARCH_TYPES = ("web_search", "web_search_2025_08_26", "web_search_preview", "web_search_preview_2025_03_11")
HOSTED_TOOL_TYPES = frozenset(
    (*WEB_SEARCH_TYPES, *"code_interpreter file_search image_generation mcp programmatic_tool_calling".split())
)
"""Types of tools that a server runs itself. Those that this server is not set up for are hidden from the model."""
