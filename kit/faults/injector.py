"""Applies a fault to a stream of frames: frames in, what to write out. It waits for nothing and writes nothing."""

import math
from collections.abc import Iterable

import msgspec

from antiphon.kit.faults.edits import create_editor
from antiphon.kit.faults.failure import FailureBuilder
from antiphon.kit.faults.fault import POSITIONAL_KINDS, WireFault
from antiphon.kit.faults.frames import EventFrame, parse_frame

SPLIT_PAUSE_S = 0.2
"""Pause inside a frame that is written in two pieces."""


class WriteBytes(msgspec.Struct, frozen=True):
    """Write these bytes at once, apart from those before and after."""

    data: bytes


class PauseWriting(msgspec.Struct, frozen=True):
    """Write nothing for this time, pings included; `seconds` is infinite for ever."""

    seconds: float


class CloseConnection(msgspec.Struct, frozen=True):
    """End the body as if it were whole, then close the connection."""


class ResetConnection(msgspec.Struct, frozen=True):
    """Reset the connection, once what was written has reached the client."""


WireAction = WriteBytes | PauseWriting | CloseConnection | ResetConnection


class FaultInjector:
    """Applies one fault to one stream. It holds frames back only where the fault needs it.

    Example: `FaultInjector(WireFault(kind="drop_event")).feed(frame)` is `[]` for the first delta.
    """

    def __init__(self, fault: WireFault) -> None:
        self._fault = fault
        self._number = 0
        self._held: list[bytes] = []
        self._failure = FailureBuilder() if fault.kind == "failed" else None
        self._editor = create_editor(fault)
        self._is_marked_found = False
        self.ended = False
        """True once the stream is over: all frames from now on are dropped."""

    @property
    def is_applied(self) -> bool:
        """True once the fault has happened. False at the end of a stream without the marked event."""
        return self._is_marked_found if self._editor is None else self._editor.is_applied

    def feed(self, raw: bytes) -> list[WireAction]:
        """Returns what to write instead of this frame."""
        if self.ended:
            return []
        frame = parse_frame(raw)
        if self._editor is not None:
            return [WriteBytes(data) for data in self._editor.edit(frame)]
        if self._failure is not None:
            self._failure.add_frame(frame)
        if frame.is_comment:
            return [WriteBytes(raw)]
        held, self._held = self._held, []
        if not self._is_marked(frame):
            return [WriteBytes(data) for data in (raw, *held)]
        return self._apply(frame.raw)

    def finish(self) -> list[WireAction]:
        """Returns what to write after the last frame: what is still held back."""
        held, self._held = self._held, []
        if self._editor is not None and not self.ended:
            held = self._editor.finish()
        return [WriteBytes(data) for data in held]

    def _is_marked(self, frame: EventFrame) -> bool:
        fault = self._fault
        if fault.kind not in POSITIONAL_KINDS or self._is_marked_found:
            return False
        if not (frame.has_text if fault.at is None else frame.kind == fault.at):
            return False
        self._number += 1
        self._is_marked_found = self._number == (fault.number or 1)
        return self._is_marked_found

    def _apply(self, raw: bytes) -> list[WireAction]:
        """Returns what to write instead of the marked frame."""
        seconds = self._fault.seconds
        match self._fault.kind:
            case "cut":
                self.ended = True
                return [WriteBytes(raw), CloseConnection()]
            case "reset":
                self.ended = True
                return [WriteBytes(raw), ResetConnection()]
            case "stall":
                self.ended = seconds is None
                return [WriteBytes(raw), PauseWriting(math.inf if seconds is None else seconds)]
            case "failed":
                self.ended = True
                assert self._failure is not None
                endings = self._failure.build_frames(self._fault.error_code, self._fault.error_message)
                return [WriteBytes(data) for data in (raw, *endings)]
            case "wrong_order":
                self._held = [raw]
                return []
            case "duplicate_event":
                return [WriteBytes(raw), WriteBytes(raw)]
            case "split_frame":
                half, pause = len(raw) // 2, SPLIT_PAUSE_S if seconds is None else seconds
                return [WriteBytes(raw[:half]), PauseWriting(pause), WriteBytes(raw[half:])]
        return []  # drop_event


def apply_fault(fault: WireFault, frames: Iterable[bytes]) -> list[WireAction]:
    """Returns what to write instead of these frames, which are a whole stream."""
    injector = FaultInjector(fault)
    actions = [action for frame in frames for action in injector.feed(frame)]
    return [*actions, *injector.finish()]
