"""What the engine's process and its parent say to each other: frozen structs as msgpack, each behind its length.

Orders go down, reports come up. A step's report carries the chunks of all its jobs, so that a step costs one message,
one write and one wake-up, however many streams there are.
"""

import struct
from typing import Any, Generic, TypeVar

import msgspec

from antiphon.engine.protocol import Chunk, EngineInfo, Job, Stats

Said = tuple[str, Chunk]
"""A job's id and what a step brought for it."""

T = TypeVar("T")
_LENGTH = struct.Struct("<I")
_encode = msgspec.msgpack.Encoder().encode


class Start(msgspec.Struct, frozen=True, array_like=True, tag=0):
    """The first order. ``build`` is the import path ``module:function`` of an ``engine.process.worker.Build``."""

    build: str
    folder: str
    options: dict[str, Any]
    """Fields of ``engine.builder.Options`` that are not left to their defaults."""


class Add(msgspec.Struct, frozen=True, array_like=True, tag=1):
    """Queue a job. A job that is refused gets one chunk, with a fault."""

    job: Job


class Cancel(msgspec.Struct, frozen=True, array_like=True, tag=2):
    """End a job before the next step."""

    id: str


class Ping(msgspec.Struct, frozen=True, array_like=True, tag=3):
    """Say something, between two steps at the latest."""


class Stop(msgspec.Struct, frozen=True, array_like=True, tag=4):
    """Leave. What is still in flight is the parent's to end."""


Order = Start | Add | Cancel | Ping | Stop


class Stage(msgspec.Struct, frozen=True, array_like=True, tag=0):
    """How far loading has come, in a few words for a person."""

    text: str


class Ready(msgspec.Struct, frozen=True, array_like=True, tag=1):
    """The model is loaded: jobs may come, at most ``slots`` and ``queue`` of them at once."""

    info: EngineInfo
    slots: int
    queue: int


class Failed(msgspec.Struct, frozen=True, array_like=True, tag=2):
    """The process cannot start, or cannot go on, and ends now; the reason is one line."""

    reason: str


class Step(msgspec.Struct, frozen=True, array_like=True, tag=3):
    """What one step brought, and the counts after it."""

    said: tuple[Said, ...]
    stats: Stats


class Pong(msgspec.Struct, frozen=True, array_like=True, tag=4):
    """The answer to a ping."""


Report = Stage | Ready | Failed | Step | Pong


def pack(message: Order | Report) -> bytes:
    """A message as it travels: four bytes of length, then msgpack."""
    body = _encode(message)
    return _LENGTH.pack(len(body)) + body


class Unpacker(Generic[T]):
    """Finds whole messages in a stream of bytes, however it was cut."""

    def __init__(self, decoder: "msgspec.msgpack.Decoder[T]") -> None:
        self._decode = decoder.decode
        self._rest = bytearray()

    def feed(self, data: bytes) -> list[T]:
        """The messages that are whole now. Raises ``msgspec.DecodeError`` for what is none."""
        self._rest += data
        found, at = list[T](), 0
        while len(self._rest) - at >= _LENGTH.size:
            body = at + _LENGTH.size
            end = body + _LENGTH.unpack_from(self._rest, at)[0]
            if end > len(self._rest):
                break
            found.append(self._decode(self._rest[body:end]))
            at = end
        del self._rest[:at]
        return found


def orders() -> Unpacker[Order]:
    """For the engine's process."""
    return Unpacker(msgspec.msgpack.Decoder(Order))


def reports() -> Unpacker[Report]:
    """For its parent."""
    return Unpacker(msgspec.msgpack.Decoder(Report))
