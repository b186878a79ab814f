"""What the engine's process and its parent say to each other: frozen structs as msgpack, each behind its length.

Orders go down, reports come up. A step's report carries the chunks of all its jobs, so that a step costs one message,
one write and one wake-up, however many streams there are.
"""

import struct
from typing import Generic, TypeVar

import msgspec

from antiphon.engine.options import EngineOptions
from antiphon.engine.protocol import EngineInfo, EngineStats, Job, JobChunk

MessageT = TypeVar("MessageT")
_LENGTH = struct.Struct("<I")
_encode = msgspec.msgpack.Encoder().encode


class StartCommand(msgspec.Struct, frozen=True, array_like=True, tag=0):
    """The first order. ``build`` is the import path ``module:function`` of an ``engine.process.worker.Build``."""

    core_factory: str
    folder: str
    options: EngineOptions


class AddJob(msgspec.Struct, frozen=True, array_like=True, tag=1):
    """Queue a job. A job that is refused gets one chunk, with a fault."""

    job: Job


class CancelJob(msgspec.Struct, frozen=True, array_like=True, tag=2):
    """End a job before the next step."""

    id: str


class PingCommand(msgspec.Struct, frozen=True, array_like=True, tag=3):
    """Say something, between two steps at the latest."""


class StopCommand(msgspec.Struct, frozen=True, array_like=True, tag=4):
    """Leave. What is still in flight is the parent's to end."""


Command = StartCommand | AddJob | CancelJob | PingCommand | StopCommand


class LoadProgress(msgspec.Struct, frozen=True, array_like=True, tag=0):
    """How far loading has come, in a few words for a person."""

    text: str


class WorkerReady(msgspec.Struct, frozen=True, array_like=True, tag=1):
    """The model is loaded: jobs may come, at most ``slots`` and ``queue`` of them at once."""

    info: EngineInfo
    max_num_seqs: int
    max_waiting: int


class WorkerFailed(msgspec.Struct, frozen=True, array_like=True, tag=2):
    """The process cannot start, or cannot go on, and ends now; the reason is one line."""

    reason: str


class StepReport(msgspec.Struct, frozen=True, array_like=True, tag=3):
    """What one step brought, and the counts after it."""

    chunks: tuple[JobChunk, ...]
    stats: EngineStats


class PongReport(msgspec.Struct, frozen=True, array_like=True, tag=4):
    """The answer to a ping."""


Report = LoadProgress | WorkerReady | WorkerFailed | StepReport | PongReport


def encode_message(message: Command | Report) -> bytes:
    """A message as it travels: four bytes of length, then msgpack."""
    body = _encode(message)
    return _LENGTH.pack(len(body)) + body


class MessageDecoder(Generic[MessageT]):
    """Finds whole messages in a stream of bytes, however it was cut."""

    def __init__(self, decoder: "msgspec.msgpack.Decoder[MessageT]") -> None:
        self._decode = decoder.decode
        self._buffer = bytearray()

    def feed(self, data: bytes) -> list[MessageT]:
        """The messages that are whole now. Raises ``msgspec.DecodeError`` for what is none."""
        self._buffer += data
        found, at = list[MessageT](), 0
        while len(self._buffer) - at >= _LENGTH.size:
            body = at + _LENGTH.size
            end = body + _LENGTH.unpack_from(self._buffer, at)[0]
            if end > len(self._buffer):
                break
            found.append(self._decode(self._buffer[body:end]))
            at = end
        del self._buffer[:at]
        return found


def command_decoder() -> MessageDecoder[Command]:
    """For the engine's process."""
    return MessageDecoder(msgspec.msgpack.Decoder(Command))


def report_decoder() -> MessageDecoder[Report]:
    """For its parent."""
    return MessageDecoder(msgspec.msgpack.Decoder(Report))
