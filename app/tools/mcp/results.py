"""A result of MCP's `tools/call`, as JSON, becomes the outcome of a tool: text, error, structured content, links."""

from typing import Any

from msgspec import DecodeError, json, to_builtins

from antiphon.app.requests.media.data_urls import decode_base64
from antiphon.app.tools.mcp.tool_server import ToolLimits
from antiphon.app.tools.outcome import ResultImage, ToolOutcome
from antiphon.app.turn_types.blob_urls import UNKNOWN_TYPE, refer_to
from antiphon.events.hosted import McpCallError, McpExecutionError
from antiphon.events.result_images import hide_images
from antiphon.harmony.prompt.hosted_items import write_failure

NO_CONTENT_TEXT = "[no content]"
REMOVED_SECRET = "[removed]"  # noqa: S105  what stands in the place of a secret
MAX_LINK_CHARS = 2048
_MAX_LABEL_CHARS = 200


def convert_result(result: dict[str, Any], limits: ToolLimits) -> ToolOutcome:
    """Returns the outcome of a call. `result` is a CallToolResult with its names on the wire.

    The text is that of all parts. What is no text becomes a placeholder, and pictures are kept beside it. Structured
    content follows as JSON, unless a part is the same value as text, as it should be: the parts may be a mere summary.
    A text above the limit is cut, and says so.
    """
    parts = [part for part in result.get("content", []) if isinstance(part, dict)]
    texts = [hide_images(_describe_part(part)) for part in parts]  # strangers' texts name no stored bytes
    structured = result.get("structuredContent")
    if structured is not None and not _is_repeated(structured, parts):
        texts.append(hide_images(json.encode(structured).decode()))
    text = cut_text("\n".join(filter(None, texts)) or NO_CONTENT_TEXT, limits.max_output_bytes)
    error, marked_text = None, ""
    images = {index: image for index, part in enumerate(parts) if (image := _read_image(part)) is not None}
    if result.get("isError") is True:
        error = McpExecutionError(content=[{"type": "text", "text": text}])
        text = write_failure(to_builtins(error))
    elif images:
        marked = [images[index].placeholder if index in images else text for index, text in enumerate(texts)]
        marked_text = cut_text("\n".join(filter(None, marked)), limits.max_output_bytes)
    return ToolOutcome(
        text=text,
        error=error,
        structured=_keep_structured(structured, limits.max_structured_bytes),
        links=_find_links(parts, limits.max_links),
        images=tuple(images.values()) if marked_text else (),
        marked_text=marked_text,
    )


def convert_error(error: McpCallError) -> ToolOutcome:
    """Returns the outcome of a call that got no result. The model reads it in the words of later turns."""
    return ToolOutcome(text=write_failure(to_builtins(error)), error=error)


def cut_text(text: str, max_bytes: int) -> str:
    """Cuts a text to a size in UTF-8 and adds a note that tells how much is missing."""
    encoded = text.encode(errors="replace")
    if len(encoded) <= max_bytes:
        return encoded.decode()
    kept = encoded[:max_bytes].decode(errors="ignore")
    return f"{kept}\n[cut: {len(encoded) - max_bytes} more bytes]"


def remove_secrets(value: Any, secrets: tuple[str, ...]) -> Any:
    """Returns a JSON value in whose texts no secret is left: servers may repeat what was sent to them."""
    if not secrets:
        return value
    if isinstance(value, str):
        for secret in sorted(secrets, key=len, reverse=True):
            value = value.replace(secret, REMOVED_SECRET)
        return value
    if isinstance(value, dict):
        return {remove_secrets(key, secrets): remove_secrets(entry, secrets) for key, entry in value.items()}
    if isinstance(value, list):
        return [remove_secrets(entry, secrets) for entry in value]
    return value


def _describe_part(part: dict[str, Any]) -> str:
    """Returns the text of a content part."""
    match part:
        case {"type": "text", "text": str(text)}:
            return text
        case {"type": "resource_link", "uri": str(uri)}:
            name = _label(part.get("title") or part.get("name") or "")
            return f"[link: {name} {_label(uri)}]" if name else f"[link: {_label(uri)}]"
        case {"type": "resource", "resource": {"text": str(text)}}:
            return text
        case {"type": "resource", "resource": dict(resource)}:
            return f"[resource: {_label(resource.get('mimeType') or resource.get('uri') or 'unknown')}]"
        case {"type": str(kind)}:
            return f"[{_label(kind)}: {_label(part.get('mimeType') or 'unknown')}]"
    return ""


def _read_image(part: dict[str, Any]) -> ResultImage | None:
    """Returns the picture of a part, or of a resource in it; None for another part. Data that is no base64 is empty."""
    match part:
        case {"type": "image", "data": str(encoded)}:
            claimed = part.get("mimeType")
        case {"type": "resource", "resource": {"blob": str(encoded), "mimeType": str(claimed)}}:
            if not claimed.lower().startswith("image/"):
                return None
        case _:
            return None
    label, data = _label(claimed or "unknown"), decode_base64(encoded) or b""
    return ResultImage(refer_to(data, label.partition(";")[0].strip() or UNKNOWN_TYPE), data, label)


def _label(text: object) -> str:
    """Returns a short text on one line: names and types are strangers' words."""
    return " ".join(str(text).split())[:_MAX_LABEL_CHARS]


def _is_repeated(structured: Any, parts: list[dict[str, Any]]) -> bool:
    """Tells whether the parts of a result are its structured content.

    Servers of the SDK for Python put a value that is no object into `{"result": value}`, and each item of a list into a
    part of its own.
    """
    if any(structured == _parse_json(part.get("text")) for part in parts):
        return True
    if not isinstance(structured, dict) or structured.keys() != {"result"}:
        return False
    value = structured["result"]
    items = value if isinstance(value, list) else [value]
    return len(items) == len(parts) and all(map(_is_item, items, parts))


def _is_item(item: Any, part: dict[str, Any]) -> bool:
    """Tells whether a part is an item of a list: as text, or as it is."""
    text = part.get("text")
    if item in (text, _parse_json(text)):
        return True
    return isinstance(item, dict) and all(item.get(key) == value for key, value in part.items())


def _parse_json(text: Any) -> Any:
    """Returns the value that a text is as JSON; the text if it is none."""
    try:
        return json.decode(text) if isinstance(text, str) else text
    except (DecodeError, UnicodeEncodeError, RecursionError):
        return text


def _find_links(parts: list[dict[str, Any]], max_links: int) -> tuple[str, ...]:
    uris = (part.get("uri") for part in parts if part.get("type") == "resource_link")
    links = dict.fromkeys(uri for uri in uris if isinstance(uri, str) and len(uri) <= MAX_LINK_CHARS)
    return tuple(links)[:max_links]


def _keep_structured(structured: Any, max_bytes: int) -> Any:
    return structured if structured is None or len(json.encode(structured)) <= max_bytes else None
