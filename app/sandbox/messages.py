"""Messages to the processes of the sandbox. Both sides import this module, the server without their libraries."""

import struct
from datetime import datetime
from typing import Any, Literal

from msgspec import Struct

GrammarKind = Literal["schema", "lark", "regex"]
LENGTH = struct.Struct("<I")
"""Length in bytes of the message that follows."""
MAX_REPLY_BYTES = 128 << 20
"""Maximum length of a reply. A prompt of 16 million characters has at most 64 MB."""
MEMORY_BYTES = 1 << 30
"""Limit on the address space of a process, or where the system has no such limit, on its resident memory."""
PROBE_BYTES = 256 << 20
"""Memory that a probe holds where the system has no limit. The server allows it half of that."""
CPU_LIMIT_S = 2.0
"""CPU time that the process may use for one message."""


class Greeting(Struct, frozen=True, array_like=True):
    """First message of a process, sent when it can work."""

    memory_is_limited: bool
    """False if the system does not limit the memory of a process. The server then watches it."""


class MemoryProbe(Struct, frozen=True, array_like=True, tag=True):
    """A request to take more memory than the limit allows. A process that survives it replies."""


class CheckRequest(Struct, frozen=True, array_like=True, tag=True):
    """A grammar to check. The reply is its fault as UTF-8, empty if there is none."""

    kind: GrammarKind
    source: str


class RenderRequest(Struct, frozen=True, kw_only=True):
    """A chat template of a request, and the variables to render it with; None: it is only compiled.

    The message is a pickle, which keeps the types of all values. It goes from the server to the process only.
    """

    source: str
    context: dict[str, Any] | None = None
    now: datetime | None = None
    max_chars: int = 0
    max_steps: int = 0
    cpu_limit_s: float = CPU_LIMIT_S


class RenderReply(Struct, frozen=True, kw_only=True):
    """Reply to a `RenderRequest`, as msgpack. `text` is UTF-8 in which surrogates may occur."""

    text: bytes = b""
    error: str | None = None
    param: str | None = None
    is_refusal: bool = False
    """True if the template itself refused the conversation."""
    variables: list[str] | None = None
    constants: list[str] = []
    cpu_s: float = 0.0
    """CPU time that the request took."""
