"""Messages between the worker process and its parent: frozen structs as msgpack, each preceded by its length.

The parent sends commands, the worker sends reports. The report of a step carries the chunks of all its jobs, so that a
step costs one message, one write and one wake-up for any number of jobs.
"""

import struct
from typing import Generic, TypeVar

import msgspec

from antiphon.engine.media_messages import MediaArray
from antiphon.engine.options import EngineOptions
from antiphon.engine.protocol import EngineInfo, EngineStats, Job, JobChunk

MessageT = TypeVar("MessageT")
_LENGTH = struct.Struct("<I")
_encode = msgspec.msgpack.Encoder().encode


class StartCommand(msgspec.Struct, frozen=True, array_like=True, tag=0):
    """The first command. `core_factory` is the import path, `module:function`, of a `worker.CoreFactory`."""

    core_factory: str
    folder: str
    options: EngineOptions


class AddJob(msgspec.Struct, frozen=True, array_like=True, tag=1):
    """Queues a job. A rejected job gets a single chunk, with a fault."""

    job: Job


class CancelJob(msgspec.Struct, frozen=True, array_like=True, tag=2):
    """Ends a job before the next step."""

    id: str


class PingCommand(msgspec.Struct, frozen=True, array_like=True, tag=3):
    """Requests a `PongReport`, sent after the current step at the latest."""


class StopCommand(msgspec.Struct, frozen=True, array_like=True, tag=4):
    """Makes the worker exit. The parent ends the jobs that are still in flight."""


class LoadAdapter(msgspec.Struct, frozen=True, array_like=True, tag=5):
    """Loads an adapter between two steps. The worker answers with an `AdapterReport`."""

    request: int
    name: str
    path: str
    root: str = ""
    """Folder that the adapter's files must be in; empty for any."""


class UnloadAdapter(msgspec.Struct, frozen=True, array_like=True, tag=6):
    """Unloads an adapter. Jobs that have it keep it. The worker answers with an `AdapterReport`."""

    request: int
    name: str


class MediaData(msgspec.Struct, frozen=True, array_like=True, tag=7):
    """Answers a `NeedMedia`. The descriptor of the file comes through the socket for descriptors, with `number`."""

    job_id: str
    key: bytes
    number: int
    arrays: tuple[MediaArray, ...]
    size: int


class MediaMissing(msgspec.Struct, frozen=True, array_like=True, tag=8):
    """Answers a `NeedMedia` for a picture that the source lacks. The message is one line for the client."""

    job_id: str
    key: bytes
    message: str


Command = (
    StartCommand
    | AddJob
    | CancelJob
    | PingCommand
    | StopCommand
    | LoadAdapter
    | UnloadAdapter
    | MediaData
    | MediaMissing
)


class LoadProgress(msgspec.Struct, frozen=True, array_like=True, tag=0):
    """Stage of loading, as a short text for the operator."""

    text: str


class WorkerReady(msgspec.Struct, frozen=True, array_like=True, tag=1):
    """The model is loaded. At most `max_num_seqs` jobs may run and `max_waiting` wait."""

    info: EngineInfo
    max_num_seqs: int
    max_waiting: int


class WorkerFailed(msgspec.Struct, frozen=True, array_like=True, tag=2):
    """The worker cannot start or continue, and exits now. The reason is one line."""

    reason: str


class StepReport(msgspec.Struct, frozen=True, array_like=True, tag=3):
    """Chunks of one step, and the counts after it."""

    chunks: tuple[JobChunk, ...]
    stats: EngineStats


class PongReport(msgspec.Struct, frozen=True, array_like=True, tag=4):
    """Reply to a `PingCommand`."""


class AdapterReport(msgspec.Struct, frozen=True, array_like=True, tag=5):
    """Result of the command with the number `request`. `code` and `message` are those of an error, or empty."""

    request: int
    code: str = ""
    message: str = ""


class NeedMedia(msgspec.Struct, frozen=True, array_like=True, tag=6):
    """Asks for the arrays of a picture of a job. The parent answers with `MediaData` or `MediaMissing`."""

    job_id: str
    key: bytes


Report = LoadProgress | WorkerReady | WorkerFailed | StepReport | PongReport | AdapterReport | NeedMedia


def encode_message(message: Command | Report) -> bytes:
    """Returns a message in wire format: four bytes of length, then msgpack."""
    body = _encode(message)
    return _LENGTH.pack(len(body)) + body


class MessageDecoder(Generic[MessageT]):
    """Extracts complete messages from a byte stream that may be split anywhere."""

    def __init__(self, decoder: "msgspec.msgpack.Decoder[MessageT]") -> None:
        self._decode = decoder.decode
        self._buffer = bytearray()

    def feed(self, data: bytes) -> list[MessageT]:
        """Returns the messages that `data` completes. Raises `msgspec.DecodeError` for an invalid message."""
        self._buffer += data
        messages, start = list[MessageT](), 0
        while len(self._buffer) - start >= _LENGTH.size:
            body = start + _LENGTH.size
            end = body + _LENGTH.unpack_from(self._buffer, start)[0]
            if end > len(self._buffer):
                break
            messages.append(self._decode(self._buffer[body:end]))
            start = end
        del self._buffer[:start]
        return messages


def command_decoder() -> MessageDecoder[Command]:
    """Returns a decoder of commands, for the worker."""
    return MessageDecoder(msgspec.msgpack.Decoder(Command))


def report_decoder() -> MessageDecoder[Report]:
    """Returns a decoder of reports, for the parent."""
    return MessageDecoder(msgspec.msgpack.Decoder(Report))
