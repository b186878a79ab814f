"""The outcome of one call of a tool that this server runs."""

from typing import Any

from msgspec import Struct

from antiphon.events.hosted import McpCallError


class ToolOutcome(Struct, frozen=True, kw_only=True):
    """The text that the model reads, and the error if the call has failed. `text` of a failed call tells why."""

    text: str
    error: McpCallError | None = None
    structured: Any = None
    """The structured content of an MCP result, if there is one."""
    links: tuple[str, ...] = ()
    """URLs of resource links in the result."""
