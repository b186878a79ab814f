"""`antiphon replay`: a server that answers with the exchanges of a cassette."""

import asyncio
import math
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from http import HTTPStatus

from antiphon.kit.cassette.exchanges import RecordedExchange, RecordedReply, RecordedRequest
from antiphon.kit.cassette.matching import ExchangeMatcher, MatchMode, NoMatchError
from antiphon.kit.cassette.redaction import Redactor
from antiphon.kit.faults import (
    CloseConnection,
    CountedFault,
    FaultInjector,
    PauseWriting,
    ResetConnection,
    WireAction,
    WireFault,
    WriteBytes,
    break_json_reply,
)
from antiphon.kit.proxy.call_guard import ExchangeObserver
from antiphon.kit.proxy.decoding import UnknownEncodingError, decode_body
from antiphon.kit.proxy.exchange import ServerExchange
from antiphon.kit.proxy.messages import IncomingRequest, find_header
from antiphon.kit.proxy.proxy import ReverseProxy, guard_handler, make_base_url
from antiphon.kit.proxy.server import make_error, run_server
from antiphon.kit.proxy.upstream import UpstreamServer
from antiphon.kit.terminal_output import print_line

NO_MATCH_CODE = "cassette_no_match"
PLAYED_RESET_DELAY_S = 0.1
"""Time for which a client may read what was written before a reset. A reset discards what it has not read."""
BODYLESS_STATUSES = (204, 304)


class CassettePlayer:
    """Answers requests from a cassette. `speed` divides the recorded times; 0: no waiting."""

    def __init__(
        self,
        exchanges: Sequence[RecordedExchange],
        *,
        match: MatchMode = "body",
        speed: float = 1.0,
        fallback: UpstreamServer | None = None,
        print_line: Callable[[str], None] = print_line,
        report_miss: Callable[[str], None] = lambda _: None,
    ) -> None:
        self._report_miss = report_miss
        self._matcher = ExchangeMatcher(exchanges, match)
        self._faults = {
            index: CountedFault(exchange.fault) for index, exchange in enumerate(exchanges, 1) if exchange.fault
        }
        self._speed, self._print_line = speed, print_line
        self._fallback = ReverseProxy(fallback, lambda _: ExchangeObserver()) if fallback is not None else None

    async def answer_request(self, exchange: ServerExchange) -> None:
        """Answers one request."""
        title = f"{exchange.request.method} {exchange.request.path}"
        if exchange.request.is_websocket:
            await exchange.send_json(426, make_error("a cassette has no WebSockets; use POST", "upgrade_required"))
            return
        body = await exchange.read_body()
        try:
            index, recorded = self._matcher.find_exchange(_read_request(exchange.request, body))
        except NoMatchError as error:
            if self._fallback is not None:
                self._print_line(f"{title}: passed on to the fallback; {error}")
                exchange.unread_body(body)
                await self._fallback.forward_exchange(exchange)
                return
            self._print_line(f"{title}: 404; {error}")
            self._report_miss(str(error))
            await exchange.send_json(404, make_error(str(error), NO_MATCH_CODE))
            return
        self._print_line(f"{title}: exchange {index}")
        fault = self._faults[index].take_fault() if index in self._faults else None
        player = _ReplyPlayer(exchange, recorded.response, fault, self._speed)
        await player.play()
        if not player.is_fault_applied:
            self._print_line(f"{title}: the fault of exchange {index} found no place in the reply")


class _ReplyPlayer:
    """Plays one reply."""

    def __init__(self, exchange: ServerExchange, reply: RecordedReply, fault: WireFault | None, speed: float) -> None:
        self._exchange, self._reply, self._fault, self._speed = exchange, reply, fault, speed
        self._started_at = asyncio.get_running_loop().time()
        self._is_closed = False
        self.is_fault_applied = True
        """False if a fault of a stream found no place in it."""

    async def play(self) -> None:
        fault = self._fault
        await self._wait_until(self._reply.at_ms)
        if fault is not None and fault.kind == "status":
            await self._send_status(fault)
        elif self._reply.frames is not None:
            await self._play_frames()
        else:
            await self._play_body()
        if not self._is_closed:
            await self._end()

    async def _send_status(self, fault: WireFault) -> None:
        self._is_closed = True
        body = fault.error_body
        headers = [("content-type", "application/json"), ("content-length", str(len(body))), *fault.error_headers]
        self._start(fault.http_status, headers)
        self._exchange.write_data(body)
        self._exchange.end_reply()
        await self._exchange.drain()

    async def _play_frames(self) -> None:
        reply = self._reply
        injector = None if self._fault is None else FaultInjector(self._fault)
        self._start(reply.status, reply.headers)
        for frame in reply.frames or ():
            await self._wait_until(frame.at_ms)
            await self._run_actions([WriteBytes(frame.data)] if injector is None else injector.feed(frame.data))
            if self._is_closed:
                return
        if injector is not None:
            await self._run_actions(injector.finish())
            self.is_fault_applied = injector.is_applied

    async def _run_actions(self, actions: Sequence[WireAction]) -> None:
        for action in actions:
            if isinstance(action, WriteBytes):
                self._exchange.write_data(action.data)
                await self._exchange.drain()
            elif isinstance(action, PauseWriting):
                await _pause(action.seconds)
            elif isinstance(action, ResetConnection):
                await self._reset()
                return
            elif isinstance(action, CloseConnection):
                self._exchange.end_reply()
                await self._exchange.drain()
                self._exchange.cut_connection()
                self._is_closed = True
                return

    async def _play_body(self) -> None:
        reply, fault, body = self._reply, self._fault, self._reply.body
        if fault is not None and fault.kind == "broken_arguments":
            body = break_json_reply(fault, body)
        if fault is not None and fault.kind == "stall":
            await _pause(math.inf if fault.seconds is None else fault.seconds)
        has_length = reply.status not in BODYLESS_STATUSES
        length = [("content-length", str(len(body)))] if has_length else []
        self._start(reply.status, [*reply.headers, *length])
        if fault is not None and fault.kind == "reset":
            self._exchange.write_data(body[: len(body) // 2])
            await self._reset()
        elif reply.ended in ("cut", "reset"):
            self._exchange.write_data(body[: max(len(body) - 1, 0)])
        elif self._exchange.request.method != "HEAD":
            self._exchange.write_data(body)

    async def _end(self) -> None:
        """Ends the reply as it ended when it was recorded."""
        await self._exchange.drain()
        if self._reply.ended == "reset":
            await self._reset()
        elif self._reply.ended == "cut":
            self._exchange.cut_connection()
        else:
            self._exchange.end_reply()
            await self._exchange.drain()

    async def _reset(self) -> None:
        self._is_closed = True
        await self._exchange.drain()
        await asyncio.sleep(PLAYED_RESET_DELAY_S)
        self._exchange.reset_connection()

    def _start(self, status: int, headers: Sequence[tuple[str, str]]) -> None:
        encoded = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in headers]
        phrase = HTTPStatus(status).phrase if status in HTTPStatus._value2member_map_ else ""
        self._exchange.start_reply(status, encoded, phrase.encode())

    async def _wait_until(self, at_ms: int) -> None:
        if self._speed > 0:
            elapsed = asyncio.get_running_loop().time() - self._started_at
            await asyncio.sleep(max(at_ms / 1e3 / self._speed - elapsed, 0))


async def _pause(seconds: float) -> None:
    """Waits; for ever if `seconds` is infinite, until the client leaves."""
    if seconds == math.inf:
        await asyncio.get_running_loop().create_future()
    await asyncio.sleep(seconds)


def _read_request(head: IncomingRequest, body: bytes) -> RecordedRequest:
    """Returns a request as it would have been recorded: decoded, and without its secrets."""
    with suppress(UnknownEncodingError):  # it can match by its bytes
        body = decode_body(body, find_header(head.headers, "content-encoding"))
    redactor = Redactor()
    path = redactor.redact_path(head.target)
    redactor.redact_headers((name.decode("latin-1"), value.decode("latin-1")) for name, value in head.headers)
    body = redactor.redact_json(body)
    return RecordedRequest(method=head.method, path=redactor.redact_text(path), body=redactor.redact_bytes(body))


@asynccontextmanager
async def open_player(
    exchanges: Sequence[RecordedExchange],
    host: str = "127.0.0.1",
    port: int = 0,
    *,
    match: MatchMode = "body",
    speed: float = 1.0,
    fallback_url: str | None = None,
    print_line: Callable[[str], None] = print_line,
    report_miss: Callable[[str], None] = lambda _: None,
) -> AsyncIterator[str]:
    """Serves a cassette until the block ends. Yields the base URL for clients.

    `report_miss` gets a message for each request that was not recorded. Raises `UpstreamUrlError` and
    `WireServerError`.
    """
    fallback = UpstreamServer(fallback_url) if fallback_url else None
    player = CassettePlayer(
        exchanges, match=match, speed=speed, fallback=fallback, print_line=print_line, report_miss=report_miss
    )
    try:
        async with run_server(guard_handler(player.answer_request, host), host, port) as bound_port:
            yield make_base_url(host, bound_port)
    finally:
        if fallback is not None:
            await fallback.close()
