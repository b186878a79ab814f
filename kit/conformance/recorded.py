"""Recorded streams: which API they are of, and their findings."""

from collections.abc import Mapping
from typing import Any, Literal

from antiphon.kit.chat.stream import check_chat_sse
from antiphon.kit.checker.stream import check_sse
from antiphon.kit.conformance.exchanges import list_frames
from antiphon.kit.findings import Finding

Api = Literal["responses", "chat"]


def detect_api(data: bytes) -> Api:
    """Returns the API of a stream: chat, if its first event is a chunk of a chat completion."""
    for event in list_frames(data):
        if isinstance(event.get("type"), str) and "choices" not in event:
            return "responses"
        return "chat" if "choices" in event or event.get("object") == "chat.completion.chunk" else "responses"
    return "responses"


def check_recorded(data: bytes, api: Api | None, request: Mapping[str, Any] | None) -> tuple[Api, list[Finding]]:
    """Returns the API and the findings of a recorded stream."""
    api = api or detect_api(data)
    return api, check_chat_sse(data, request) if api == "chat" else check_sse(data, request)
