"""Messages to the process that compiles grammars. Both sides import this module, the server without the library."""

import struct
from typing import Literal

from msgspec import Struct

GrammarKind = Literal["schema", "lark", "regex"]
LENGTH = struct.Struct("<I")
"""Length in bytes of the message that follows: a `CheckRequest` as msgpack, or the fault as UTF-8 in the reply."""


class CheckRequest(Struct, frozen=True, array_like=True):
    """A grammar to check."""

    kind: GrammarKind
    source: str
