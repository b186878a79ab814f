"""A kit for everyone's Responses server and everyone's agent: check streams, snapshot them, record and play them."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from antiphon.kit.chat.stream import check_chat_sse
    from antiphon.kit.checker.stream import StreamChecker, check_events, check_sse
    from antiphon.kit.findings import Finding

__all__ = ["Finding", "StreamChecker", "check_chat_sse", "check_events", "check_sse"]

_MODULES = {
    "Finding": "antiphon.kit.findings",
    "StreamChecker": "antiphon.kit.checker.stream",
    "check_chat_sse": "antiphon.kit.chat.stream",
    "check_events": "antiphon.kit.checker.stream",
    "check_sse": "antiphon.kit.checker.stream",
}
"""Module of each name. A name is imported when it is first used, since pytest imports this package in every run."""


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_MODULES[name]), name)
