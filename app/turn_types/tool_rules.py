"""Which tools of an MCP server may be called, and which calls need an approval of the client.

The rules are the fields `allowed_tools` and `require_approval` of an `mcp` tool. A filter with names and `read_only`
matches the tools that fit both. A tool is read-only if its annotations say so: in MCP, silence means that it may
modify something.
"""

from collections.abc import Mapping
from typing import Any

from msgspec import Struct

from antiphon.app.errors import clip_text, json_name

MAX_APPROVAL_AGE_S = 30 * 86_400
"""Time from a request for an approval to the last moment at which the client may approve it."""


class ToolRuleError(ValueError):
    """A malformed rule. `path` is the fault's place inside the tool, such as `require_approval.never.tool_names[0]`."""

    def __init__(self, path: str, message: str) -> None:
        super().__init__(f"{path}: {message}")
        self.path, self.message = path, message


class ToolFilter(Struct, frozen=True):
    """Matches tools by name, by whether they only read, or by both. Without either it matches all tools."""

    names: frozenset[str] | None = None
    read_only: bool | None = None

    def matches(self, name: str, read_only: bool | None) -> bool:
        """Tells whether a tool matches. `read_only` is its annotation; None if it has none."""
        has_name = self.names is None or name in self.names
        return has_name and (self.read_only is None or self.read_only == bool(read_only))


ALL_TOOLS = ToolFilter()
NO_TOOLS = ToolFilter(names=frozenset())


class ApprovalRule(Struct, frozen=True):
    """The tools whose calls need an approval. A tool that neither filter matches, or both, needs one."""

    always: ToolFilter = NO_TOOLS
    never: ToolFilter = NO_TOOLS


def needs_approval(rule: ApprovalRule, tool_name: str, read_only: bool | None, *, forced: bool) -> bool:
    """Tells whether a call needs an approval. `forced`: the operator requires one for every call of this server."""
    is_exempt = rule.never.matches(tool_name, read_only) and not rule.always.matches(tool_name, read_only)
    return forced or not is_exempt


def parse_approval_rule(value: Any) -> ApprovalRule:
    """Parses `require_approval`: null, "always", "never", or an object of two filters. Raises `ToolRuleError`."""
    path = "require_approval"
    if value is None or value == "always":
        return ApprovalRule()
    if value == "never":
        return ApprovalRule(never=ALL_TOOLS)
    if isinstance(value, str):
        raise ToolRuleError(path, f"Expected 'always', 'never' or an object, but got '{clip_text(value)}' instead.")
    if not isinstance(value, Mapping):
        raise _wrong_type(path, "a string or an object", value)
    _check_keys(value, ("always", "never"), path)
    return ApprovalRule(
        always=_parse_exception(value.get("always"), f"{path}.always"),
        never=_parse_exception(value.get("never"), f"{path}.never"),
    )


def parse_allowed_tools(value: Any) -> ToolFilter:
    """Parses `allowed_tools`: null for all tools, a list of names, or a filter. Raises `ToolRuleError`."""
    path = "allowed_tools"
    if value is None:
        return ALL_TOOLS
    if isinstance(value, list | tuple):
        return ToolFilter(names=_parse_names(value, path))
    if not isinstance(value, Mapping):
        raise _wrong_type(path, "an array or an object", value)
    return _parse_filter(value, path)


def _parse_exception(value: Any, path: str) -> ToolFilter:
    """Parses a filter of `require_approval`. One that names nothing matches no tool: it must not exempt all of them."""
    if value is None:
        return NO_TOOLS
    if not isinstance(value, Mapping):
        raise _wrong_type(path, "an object", value)
    tool_filter = _parse_filter(value, path)
    return NO_TOOLS if tool_filter == ALL_TOOLS else tool_filter


def _parse_filter(value: Mapping[str, Any], path: str) -> ToolFilter:
    _check_keys(value, ("tool_names", "read_only"), path)
    names, read_only = value.get("tool_names"), value.get("read_only")
    if not isinstance(read_only, bool | None):
        raise _wrong_type(f"{path}.read_only", "a boolean", read_only)
    return ToolFilter(
        names=None if names is None else _parse_names(names, f"{path}.tool_names"),
        read_only=read_only,
    )


def _parse_names(value: Any, path: str) -> frozenset[str]:
    if not isinstance(value, list | tuple):
        raise _wrong_type(path, "an array of strings", value)
    for index, name in enumerate(value):
        if not isinstance(name, str):
            raise _wrong_type(f"{path}[{index}]", "a string", name)
    return frozenset(value)


def _check_keys(value: Mapping[str, Any], known: tuple[str, ...], path: str) -> None:
    """Raises `ToolRuleError` for a key that has no meaning: a misspelled filter would go unnoticed."""
    for key in value:
        if key not in known:
            raise ToolRuleError(f"{path}.{clip_text(str(key))}", f"Unknown parameter. Use {' or '.join(known)}.")


def _wrong_type(path: str, expected: str, value: Any) -> ToolRuleError:
    return ToolRuleError(path, f"Expected {expected}, but got {json_name(value)} instead.")
