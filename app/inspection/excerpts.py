"""The excerpt of a request by which a list shows what a turn was about: the last text of its user."""

from collections.abc import Iterator
from typing import Any

import msgspec

MAX_EXCERPT_CHARS = 80
_INPUT_TEXT_TYPES = ("input_text", "text")


def find_excerpt(request: bytes) -> str:
    """Returns the last text of the user in the body of a request on any API, in one line; empty if there is none.

    `request` is the body without secrets. Control characters besides white space stay as they are.
    """
    try:
        body = msgspec.json.decode(request)
    except (msgspec.DecodeError, RecursionError):
        return ""
    if not isinstance(body, dict):
        return ""
    sent = next((body[name] for name in ("input", "messages", "prompt") if body.get(name)), None)
    text = next((text for text in _list_texts(sent) if text and not text.isspace()), "")
    words = " ".join(text[: 16 * MAX_EXCERPT_CHARS].split())
    return words if len(words) <= MAX_EXCERPT_CHARS else f"{words[: MAX_EXCERPT_CHARS - 1]}…"


def _list_texts(sent: Any) -> Iterator[str]:
    """Yields the texts of the user, the last one first."""
    if isinstance(sent, str):
        yield sent
    for item in reversed(sent) if isinstance(sent, list) else ():
        if isinstance(item, str):  # a prompt of many
            yield item
        elif isinstance(item, dict) and item.get("role") == "user":
            content = item.get("content")
            parts = [content] if isinstance(content, str) else content if isinstance(content, list) else []
            yield from reversed([_read_part(part) for part in parts])


def _read_part(part: Any) -> str:
    if isinstance(part, dict):
        part = part.get("text") if part.get("type") in _INPUT_TEXT_TYPES else None
    return part if isinstance(part, str) else ""
