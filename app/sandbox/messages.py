"""Messages to the processes of the sandbox. Both sides import this module, the server without their libraries.

A message and its reply have the same form: a `HEAD`, a header, and a payload. A reply may bring a descriptor.
"""

import struct
from datetime import datetime
from typing import Any, Literal

from msgspec import Struct

GrammarKind = Literal["schema", "lark", "regex"]
HEAD = struct.Struct("<IId")
"""Lengths in bytes of the header and the payload, which follow, and seconds of CPU time: those that a message may take,
or that a reply took."""
MAX_SANDBOX_HEADER_BYTES = 32 << 20
"""Limit on the header of a reply. The text of a PDF's pages is part of it."""
PROBE_BYTES = 256 << 20
"""Memory that a probe holds where the system has no limit. The server allows it half of that."""
SANDBOX_CPU_LIMIT_S = 2.0
"""CPU time that a grammar or a template may take."""
REPLY_TIMEOUT_S = 60.0
"""Elapsed time after which a process that does not reply is killed. It bounds one that waits instead of computing; one
that computes is ended by its limit of CPU time."""
MEMORY_LIMIT = "a limit of memory"
"""Name of the limit in whose place the server watches the memory of a process."""


class WorkerLimits(Struct, frozen=True, kw_only=True):
    """Limits of a process and of one message. The defaults are those of grammars and templates."""

    memory_bytes: int = 1 << 30
    """Address space of the process, or where the system has no such limit, its resident memory."""
    max_payload_bytes: int = 128 << 20
    """Payload of a reply, and size of a file. A prompt of 16 million characters has at most 64 MB."""
    cpu_limit_s: float = SANDBOX_CPU_LIMIT_S
    """CPU time of a message that names no other."""
    reply_timeout_s: float = REPLY_TIMEOUT_S


class Greeting(Struct, frozen=True, array_like=True):
    """First reply of a process, sent when it can work."""

    missing: tuple[str, ...] = ()
    """Limits that this system does not offer."""


class MemoryProbe(Struct, frozen=True, array_like=True, tag=True):
    """A request to take more memory than the limit allows. A process that survives it replies."""


class CheckRequest(Struct, frozen=True, array_like=True, tag=True):
    """A grammar to check. The header of the reply is its fault as UTF-8, empty if there is none."""

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


class RenderReply(Struct, frozen=True, kw_only=True):
    """Reply to a `RenderRequest`, as msgpack. The payload is the text as UTF-8 in which surrogates may occur."""

    error: str | None = None
    param: str | None = None
    is_refusal: bool = False
    """True if the template itself refused the conversation."""
    variables: list[str] | None = None
    constants: list[str] = []
