"""A fault as it is written in a script or a cassette, and where each kind applies."""

from collections.abc import Mapping
from typing import Any, Literal, get_args

import msgspec

FaultKind = Literal[
    "cut",
    "reset",
    "stall",
    "failed",
    "status",
    "broken_arguments",
    "duplicate_id",
    "wrong_order",
    "duplicate_event",
    "drop_event",
    "split_frame",
    "id_changed",
]
ApiName = Literal["responses", "chat", "completions", "messages"]

POSITIONAL_KINDS: frozenset[str] = frozenset(
    {"cut", "reset", "stall", "failed", "wrong_order", "duplicate_event", "drop_event", "split_frame"}
)
"""Kinds that happen at a marked event."""
JSON_REPLY_KINDS: frozenset[str] = frozenset({"status", "reset", "stall", "broken_arguments"})
"""Kinds that also apply to a reply in one piece."""

_APIS_OF_KIND: dict[str, frozenset[str]] = {
    "broken_arguments": frozenset({"responses", "chat", "messages"}),
    "duplicate_id": frozenset({"responses"}),
    "id_changed": frozenset({"responses"}),
}
"""APIs of the kinds that do not apply to all."""

_KINDS_OF_FIELD: dict[str, frozenset[str]] = {
    "at": POSITIONAL_KINDS,
    "number": POSITIONAL_KINDS | {"broken_arguments", "duplicate_id", "id_changed"},
    "seconds": frozenset({"stall", "split_frame"}),
    "status": frozenset({"status"}),
    "code": frozenset({"status", "failed"}),
    "message": frozenset({"status", "failed"}),
    "retry_after": frozenset({"status"}),
}


class FaultError(ValueError):
    """Raised for a fault that cannot be read, or that does not apply to a reply; the message is one line."""


class WireFault(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """A fault of a reply. The package's docstring describes the kinds."""

    kind: FaultKind
    at: str | None = None
    """Type of the marked event: an event's `type`, a chunk's `object`, or `[DONE]`. None: events with text."""
    number: int | None = None
    """Number of the marked event among those of its type, or of the item or call; from 1, the default."""
    seconds: float | None = None
    """Length of a pause. None: for ever in a stall, 0.2 s inside a frame."""
    times: int | None = None
    """Number of requests that meet the fault. None: all."""
    status: int | None = None
    """HTTP status. None: 503."""
    code: str | None = None
    """Error code. None: `server_error`."""
    message: str | None = None
    retry_after: float | None = None
    """Value of the header Retry-After in seconds. None: no header."""

    def __post_init__(self) -> None:
        for field, kinds in _KINDS_OF_FIELD.items():
            if getattr(self, field) is not None and self.kind not in kinds:
                raise ValueError(f"the kind {self.kind} has no {field}; {field} belongs to {', '.join(sorted(kinds))}")
        for field in ("number", "times"):
            value = getattr(self, field)
            if value is not None and value < 1:
                raise ValueError(f"{field} must be at least 1")
        for field in ("seconds", "retry_after"):
            value = getattr(self, field)
            if value is not None and value < 0:
                raise ValueError(f"{field} must not be negative")
        if self.status is not None and not 400 <= self.status <= 599:
            raise ValueError("status must be from 400 to 599")

    @property
    def error_code(self) -> str:
        """Code of the error that the client receives."""
        return self.code or "server_error"

    @property
    def error_message(self) -> str:
        """Message of the error that the client receives."""
        return self.message or "This failure was asked for by the test."

    @property
    def http_status(self) -> int:
        """Status of a reply of the kind `status`."""
        return self.status or 503

    @property
    def error_headers(self) -> tuple[tuple[str, str], ...]:
        """Headers of a reply of the kind `status`, besides those of every reply."""
        return () if self.retry_after is None else (("retry-after", f"{self.retry_after:g}"),)

    @property
    def error_body(self) -> bytes:
        """Body of a reply of the kind `status`, as OpenAI's APIs write it."""
        error = {
            "message": self.error_message,
            "type": "invalid_request_error" if self.http_status < 500 else "server_error",
            "param": None,
            "code": self.error_code,
        }
        return msgspec.json.encode({"error": error})

    def check_use(self, api: ApiName, *, streamed: bool) -> None:
        """Raises `FaultError` if this kind does not apply to a reply of this API."""
        apis = _APIS_OF_KIND.get(self.kind, frozenset(get_args(ApiName)))
        if api not in apis:
            raise FaultError(f"the fault {self.kind} applies to {', '.join(sorted(apis))} only, not to {api}")
        if not streamed and self.kind not in JSON_REPLY_KINDS:
            raise FaultError(f"the fault {self.kind} applies to streams only: send the request with stream: true")
        if not streamed and self.kind == "broken_arguments" and api == "messages":
            raise FaultError("the fault broken_arguments applies to streams of messages only: send stream: true")


class CountedFault:
    """A fault and the number of requests that it still applies to."""

    def __init__(self, fault: WireFault) -> None:
        self.fault = fault
        self._left = fault.times

    def take_fault(self) -> WireFault | None:
        """Returns the fault for the next request, or None if it has happened often enough."""
        if self._left is None:
            return self.fault
        if self._left == 0:
            return None
        self._left -= 1
        return self.fault


def parse_fault(table: Mapping[str, Any]) -> WireFault:
    """Returns the fault that a script or a cassette describes. Raises `FaultError`."""
    try:
        return msgspec.convert(dict(table), WireFault)
    except msgspec.ValidationError as error:
        raise FaultError(f"fault: {error}") from None
