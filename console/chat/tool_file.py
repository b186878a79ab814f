"""The file of `--tools`: a JSON list of tools, in the form of the Responses or of the chat API."""

import json
from pathlib import Path
from typing import Any

from antiphon.kit.json_values import Json

ANSWERED_TYPES = ("function", "custom")
"""Types of tools whose calls the user answers."""
SERVER_TYPES = ("web_search", "code_interpreter", "file_search", "mcp")
"""Types of tools that a server runs. Only the Responses API has them in this form."""


class ToolFileError(ValueError):
    """Raised for a file that cannot be used. The message names it, and may quote it."""


def load_tools(path: Path, api: str) -> list[Json]:
    """Returns the tools of a file in the form of the Responses API. Raises `ToolFileError`."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ToolFileError(f"{path}: cannot be read: {error.strerror or error}") from None
    except (ValueError, RecursionError) as error:
        raise ToolFileError(f"{path}: not JSON: {error}") from None
    if not isinstance(value, list):
        raise ToolFileError(f"{path}: must be a list of tools")
    return [_read_tool(tool, f"{path}: tool {number}", api) for number, tool in enumerate(value, 1)]


def _read_tool(tool: Any, place: str, api: str) -> Json:
    if not isinstance(tool, dict):
        raise ToolFileError(f"{place}: must be an object")
    kind = tool.get("type", "function")
    allowed = {"responses": (*ANSWERED_TYPES, *SERVER_TYPES), "chat": ANSWERED_TYPES, "messages": ("function",)}[api]
    if kind not in allowed:
        raise ToolFileError(f"{place}: the type {kind!r} cannot be used with --api {api}; use {' or '.join(allowed)}")
    fields = tool.get(kind)
    flat = {"type": kind} | (fields if isinstance(fields, dict) else {key: tool[key] for key in tool if key != "type"})
    if kind in ANSWERED_TYPES and not (isinstance(flat.get("name"), str) and flat["name"]):
        raise ToolFileError(f"{place}: has no name")
    return flat
