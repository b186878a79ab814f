"""A kit for everyone's Responses server and everyone's agent: check streams, snapshot them, record and replay them."""

from antiphon.kit.chat.stream import check_chat_sse
from antiphon.kit.checker.stream import StreamChecker, check_events, check_sse
from antiphon.kit.findings import Finding

__all__ = ["Finding", "StreamChecker", "check_chat_sse", "check_events", "check_sse"]
