"""Removes the secrets of a request right after it was parsed, before anything can echo, store or log them.

Hosted tools carry credentials for other servers: an `mcp` tool has `headers` and `authorization`. Those that a running
turn needs are in its `ToolSecrets`. As in OpenAI's API, a reply has `headers` null and no `authorization`.
"""

import re
from collections.abc import Mapping
from typing import Any

from antiphon.events.tools import HOSTED_TOOL_TYPES

_USER_INFO = re.compile(r"(?<=://)[^/?#\s]*@")
"""User and password of a URL."""
MEDIA_URL_KEYS = ("image_url", "file_url")


def remove_secrets(body: Mapping[str, Any]) -> dict[str, Any]:
    """Returns a Responses or chat request without credentials. Values of a wrong type stay, to be rejected later."""
    result = dict(body)
    if isinstance(body.get("tools"), list):
        result["tools"] = [_clean_tool(tool) for tool in body["tools"]]
    for key in ("input", "messages", "items"):
        if isinstance(body.get(key), list):
            result[key] = [_clean_entry(entry) for entry in body[key]]
    return result


def strip_user_info(url: str) -> str:
    """Returns a URL without user and password: `https://me:secret@host/` gives `https://host/`."""
    return _USER_INFO.sub("", url, count=1)


def _clean_tool(tool: Any) -> Any:
    """Removes the credentials of a hosted tool. The schemas of other tools may have keys of any name."""
    if not isinstance(tool, dict) or str(tool.get("type")) not in HOSTED_TOOL_TYPES:
        return tool
    clean = {key: value for key, value in _clean_urls(tool).items() if key != "authorization"}
    if clean["type"] == "mcp":
        clean["headers"] = None
    return clean


def _clean_entry(entry: Any) -> Any:
    """Removes credentials from the tools and the media of an input item or a chat message."""
    if not isinstance(entry, dict):
        return entry
    clean = dict(entry)
    if isinstance(entry.get("tools"), list):
        clean["tools"] = [_clean_tool(tool) for tool in entry["tools"]]
    for key in ("content", "output"):
        if isinstance(entry.get(key), list):
            clean[key] = [_clean_part(part) for part in entry[key]]
    return clean


def _clean_part(part: Any) -> Any:
    if not isinstance(part, dict):
        return part
    clean = dict(part)
    for key in MEDIA_URL_KEYS:
        if isinstance(part.get(key), str):
            clean[key] = strip_user_info(part[key])
        elif isinstance(part.get(key), dict):
            clean[key] = _clean_urls(part[key])
    if isinstance(part.get("file"), dict):  # chat nests the URL of a file one level deeper
        clean["file"] = _clean_urls(part["file"])
    return clean


def _clean_urls(value: dict[str, Any]) -> dict[str, Any]:
    return {
        key: strip_user_info(inner) if isinstance(inner, str) and key.endswith("url") else inner
        for key, inner in value.items()
    }
