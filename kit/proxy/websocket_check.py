"""Checks the turns of a WebSocket that passes through the proxy."""

import re
import time
from collections.abc import Callable, Generator, Iterator
from typing import Any

from websockets.exceptions import WebSocketException
from websockets.extensions.permessage_deflate import PerMessageDeflate
from websockets.frames import Frame as WebSocketFrame
from websockets.frames import Opcode
from websockets.streams import StreamReader

from antiphon.kit.checker.stream import StreamChecker
from antiphon.kit.conformance.exchanges import decode_event
from antiphon.kit.proxy.messages import HeaderList, IncomingRequest, find_header
from antiphon.kit.proxy.traffic_check import ExchangeReport

Json = dict[str, Any]
CREATE_TYPE = "response.create"
DEFAULT_WINDOW_BITS = 15


class WebSocketChecker:
    """Reads the frames of both sides. Each `response.create` is a turn, whose events are a stream."""

    def __init__(self, head: IncomingRequest, numbers: Iterator[int], report: Callable[[ExchangeReport], None]) -> None:
        self._head, self._numbers, self._report = head, numbers, report
        self._status = 0
        self._started_at = time.monotonic()
        self._from_client: _WebSocketReader | None = None
        self._from_server: _WebSocketReader | None = None
        self._remark = ""
        self._request: Json | None = None
        self._checker: StreamChecker | None = None
        self._num_events = 0

    def on_handshake(self, status: int, headers: HeaderList) -> None:
        """Prepares to read frames with the extensions that both sides agreed on."""
        self._status = status
        if status != 101:
            return
        accepted = find_header(headers, "sec-websocket-extensions")
        self._from_client = _WebSocketReader(_read_deflate(accepted, "client"), is_masked=True)
        self._from_server = _WebSocketReader(_read_deflate(accepted, "server"), is_masked=False)

    def on_client_data(self, data: bytes) -> None:
        """Begins a turn at each `response.create`."""
        for message in self._read_messages(self._from_client, data):
            if message.get("type") == CREATE_TYPE:
                self._end_turn("complete")
                self._begin_turn({key: value for key, value in message.items() if key != "type"})

    def on_server_data(self, data: bytes) -> None:
        """Checks the events of the turn. An event outside a turn is part of no stream."""
        for event in self._read_messages(self._from_server, data):
            if self._checker is None:
                continue
            if event.get("type") == "error" and self._num_events == 0 and "sequence_number" not in event:
                self._checker = None  # a request that was refused has no stream
                continue
            self._num_events += 1
            self._checker.check_event(event)
            if self._checker.final_response is not None:
                self._end_turn("complete")

    def on_close(self) -> None:
        """Ends the turn that runs, and reports a connection without turns."""
        is_first = self._request is None
        self._end_turn("client_left")
        if is_first or self._remark:
            self._send_report("not checked", "complete", ())

    def _begin_turn(self, request: Json) -> None:
        self._request, self._started_at, self._num_events = request, time.monotonic(), 0
        self._checker = StreamChecker(request)

    def _end_turn(self, ending: Any) -> None:
        checker, self._checker = self._checker, None
        if checker is None:
            return
        is_whole = checker.final_response is not None
        findings = checker.finish() if is_whole else checker.findings.list_findings()
        self._send_report("websocket turn", "complete" if is_whole else ending, tuple(findings))

    def _send_report(self, kind: Any, ending: Any, findings: tuple[Any, ...]) -> None:
        report = ExchangeReport(
            number=next(self._numbers),
            method=self._head.method,
            path=self._head.path,
            status=self._status,
            kind=kind,
            ending=ending,
            num_events=self._num_events if kind == "websocket turn" else 0,
            seconds=time.monotonic() - self._started_at,
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
