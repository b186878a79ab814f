"""Checks the turns of a WebSocket that passes through the proxy."""

import re
import time
from collections import defaultdict, deque
from collections.abc import Callable, Generator, Iterator
from typing import Any

from websockets.exceptions import WebSocketException
from websockets.extensions.permessage_deflate import PerMessageDeflate
from websockets.frames import Frame as WebSocketFrame
from websockets.frames import Opcode
from websockets.streams import StreamReader

from antiphon.kit.checker.stream import StreamChecker
from antiphon.kit.conformance.exchanges import decode_event
from antiphon.kit.findings import Finding, quote
from antiphon.kit.json_values import Json
from antiphon.kit.proxy.messages import HeaderList, IncomingRequest, find_header
from antiphon.kit.proxy.traffic_check import ExchangeReport

CREATE_TYPE = "response.create"
LANE_KEY = "stream_id"
"""Names the lane of a request, of its events and of its errors. Lanes run at once; without it, all are one lane."""
DEFAULT_WINDOW_BITS = 15
MAX_QUOTED_MESSAGE_CHARS = 60


class _CheckedLane:
    """The turns of one `stream_id`, which run one after the other."""

    def __init__(self) -> None:
        self.waiting: deque[tuple[Json | None, float]] = deque()
        """Requests without an event yet, and the times at which they were sent. None: a successor, made by a steer."""
        self.checker: StreamChecker | None = None
        """The checker of the turn that runs."""
        self.started_at = 0.0
        self.num_events = 0
        self.steered_id: str | None = None
        """Response that ended because of a steer. Its successor has no request of its own."""

    def begin_turn(self, event: Json) -> bool:
        """Begins the turn of the lane's next request at its first event. Returns False if there is none."""
        response = event.get("response")
        previous = response.get("previous_response_id") if isinstance(response, dict) else None
        if self.steered_id is not None and previous == self.steered_id:
            self.waiting.appendleft((None, time.monotonic()))
        self.steered_id = None
        if not self.waiting:
            return False
        request, self.started_at = self.waiting.popleft()
        self.checker, self.num_events = StreamChecker(request), 0
        return True


class WebSocketChecker:
    """Reads the frames of both sides. Each `response.create` is a turn of its lane, whose events are a stream."""

    def __init__(self, head: IncomingRequest, numbers: Iterator[int], report: Callable[[ExchangeReport], None]) -> None:
        self._head, self._numbers, self._report = head, numbers, report
        self._status = 0
        self._opened_at = time.monotonic()
        self._from_client: _WebSocketReader | None = None
        self._from_server: _WebSocketReader | None = None
        self._remark = ""
        self._lanes: defaultdict[str, _CheckedLane] = defaultdict(_CheckedLane)
        self._has_stray_event = False

    def on_handshake(self, status: int, headers: HeaderList) -> None:
        """Prepares to read frames with the extensions that both sides agreed on."""
        self._status = status
        if status != 101:
            return
        accepted = find_header(headers, "sec-websocket-extensions")
        self._from_client = _WebSocketReader(_read_deflate(accepted, "client"), is_masked=True)
        self._from_server = _WebSocketReader(_read_deflate(accepted, "server"), is_masked=False)

    def on_client_data(self, data: bytes) -> None:
        """Notes each `response.create` as a request of its lane."""
        for message in self._read_messages(self._from_client, data):
            if message.get("type") == CREATE_TYPE:
                request = {key: value for key, value in message.items() if key not in ("type", LANE_KEY)}
                self._find_lane(message).waiting.append((request, time.monotonic()))

    def on_server_data(self, data: bytes) -> None:
        """Checks the events of the lanes' turns. One with a sequence number is part of a stream, and needs a turn."""
        for event in self._read_messages(self._from_server, data):
            lane = self._find_lane(event)
            if (
                event.get("type") == "error"
                and "sequence_number" not in event
                and (lane.checker is None or "status" in event)
            ):
                if lane.waiting:  # a request that was refused has no stream
                    lane.waiting.popleft()
            elif lane.checker is not None or lane.begin_turn(event):
                self._check_event(lane, event)
            elif _is_of_a_stream(event) and not self._has_stray_event:
                self._report_stray_event(event)

    def on_close(self) -> None:
        """Ends the turns that run or wait, and reports a connection without turns."""
        is_first = not self._lanes
        for lane in self._lanes.values():
            while lane.checker is not None or lane.begin_turn({}):
                self._end_turn(lane, "client_left")
        if is_first or self._remark:
            self._send_report("not checked", "complete", (), self._opened_at)

    def _find_lane(self, message: Json) -> _CheckedLane:
        lane_id = message.get(LANE_KEY)
        return self._lanes[lane_id if isinstance(lane_id, str) else ""]

    def _check_event(self, lane: _CheckedLane, event: Json) -> None:
        assert lane.checker is not None
        lane.num_events += 1
        lane.checker.check_event(event)
        response = lane.checker.final_response
        if response is None:
            return
        if (response.get("incomplete_details") or {}).get("reason") == "steered":
            lane.steered_id = response.get("id")
        self._end_turn(lane, "complete")

    def _report_stray_event(self, event: Json) -> None:
        """Reports the first event of a connection that belongs to no turn: those after it have the same fault."""
        self._has_stray_event = True
        lane_id = event.get(LANE_KEY)
        place = f"the stream_id {quote(lane_id, MAX_QUOTED_MESSAGE_CHARS)}" if lane_id is not None else "no stream_id"
        finding = Finding(
            code="websocket-lane",
            expected="the stream_id of a request that is open",
            actual=f"{quote(event.get('type'), MAX_QUOTED_MESSAGE_CHARS)} with {place}",
        )
        self._send_report("websocket turn", "complete", (finding,), time.monotonic(), 1)

    def _end_turn(self, lane: _CheckedLane, ending: Any) -> None:
        checker, lane.checker = lane.checker, None
        if checker is None:
            return
        is_whole = checker.final_response is not None
        findings = checker.finish() if is_whole else checker.findings.list_findings()
        ending = "complete" if is_whole else ending
        self._send_report("websocket turn", ending, tuple(findings), lane.started_at, lane.num_events)

    def _send_report(
        self, kind: Any, ending: Any, findings: tuple[Any, ...], started_at: float, num_events: int = 0
    ) -> None:
        report = ExchangeReport(
            number=next(self._numbers),
            method=self._head.method,
            path=self._head.path,
            status=self._status,
            kind=kind,
            ending=ending,
            num_events=num_events,
            seconds=time.monotonic() - started_at,
            findings=findings,
            remark=self._remark or ("" if kind == "websocket turn" else "a WebSocket without turns"),
        )
        self._report(report)

    def _read_messages(self, reader: "_WebSocketReader | None", data: bytes) -> list[Json]:
        """Returns the JSON objects in the messages that these bytes complete."""
        if reader is None or self._remark:
            return []
        try:
            texts = reader.feed(data)
        except (WebSocketException, UnicodeDecodeError) as error:
            self._remark = f"frames that cannot be read: {error}"
            return []
        return [event for text in texts if (event := decode_event(text)) is not None]


def _is_of_a_stream(event: Json) -> bool:
    """Tells whether an event belongs to a turn. Those of a steer have a number, too, and may come after the turn."""
    return "sequence_number" in event and not str(event.get("type")).startswith("response.steer.")


class _WebSocketReader:
    """Joins frames to text messages."""

    def __init__(self, deflate: PerMessageDeflate | None, *, is_masked: bool) -> None:
        self._stream = StreamReader()
        self._extensions = [] if deflate is None else [deflate]
        self._is_masked = is_masked
        self._texts: list[str] = []
        self._parser = self._parse_frames()
        next(self._parser)

    def feed(self, data: bytes) -> list[str]:
        """Returns the messages that are complete with these bytes. Raises `WebSocketException`."""
        self._stream.feed_data(data)
        next(self._parser)
        texts, self._texts = self._texts, []
        return texts

    def _parse_frames(self) -> Generator[None, None, None]:
        parts: list[bytes] = []
        while True:
            frame = yield from WebSocketFrame.parse(
                self._stream.read_exact, mask=self._is_masked, extensions=self._extensions
            )
            if frame.opcode in (Opcode.PING, Opcode.PONG, Opcode.CLOSE):
                continue
            parts.append(bytes(frame.data))
            if frame.fin:
                self._texts.append(b"".join(parts).decode())
                parts = []


def _read_deflate(accepted: str, sender: str) -> PerMessageDeflate | None:
    """Returns the decoder for the messages of one side, by the extensions that the server accepted."""
    if "permessage-deflate" not in accepted:
        return None
    bits = re.search(rf"{sender}_max_window_bits=\"?(\d+)", accepted)
    return PerMessageDeflate(
        remote_no_context_takeover=f"{sender}_no_context_takeover" in accepted,
        local_no_context_takeover=True,
        remote_max_window_bits=int(bits[1]) if bits else DEFAULT_WINDOW_BITS,
        local_max_window_bits=DEFAULT_WINDOW_BITS,
    )
