"""Many at once: who is counted, who is refused from the bytes alone, and what a connection is good for afterwards."""

import asyncio
import json
import select
import socket
import time
from collections.abc import Iterator

import httpx
import pytest

from antiphon.app.errors import ApiError
from antiphon.app.http.admission import (
    MAX_CACHED_HEAD_BYTES,
    AdmissionController,
    AdmissionPermit,
    RequestHead,
    parse_whole_request,
)
from antiphon.app.http.protocol import encode_error_response
from tests.app.http.test_protocol import Reader, connected
from tests.serving import RunningServer, scripted_registry, serve

BODY = json.dumps({"model": "scripted", "input": "hi"}).encode()


def asked(*headers: str, path: str = "/v1/responses", body: bytes = BODY, length: int | None = None) -> bytes:
    lines = [f"POST {path} HTTP/1.1", "Host: localhost", "Content-Type: application/json", *headers]
    if length is None or length >= 0:
        lines.append(f"Content-Length: {len(body) if length is None else length}")
    return "\r\n".join((*lines, "", "")).encode() + body


@pytest.mark.parametrize("path", ["/v1/responses", "/v1/responses/compact", "/v1/chat/completions"])
def test_a_whole_request_is_known_by_its_bytes(path: str) -> None:
    found = parse_whole_request(asked("X-Request-Id: a b", "Connection: keep-alive", path=path))
    assert found is not None and found.scope["path"] == path
    headers = found.scope["headers"]
    assert (b"x-request-id", b"a b") in headers and (b"host", b"localhost") in headers


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"POST /v1/responses HTTP/1.1\r\n",
        asked()[:-1],
        asked() + b"G",
        asked() * 2,
        asked(length=-1),
        asked(length=-5).replace(b"\r\n\r\n", b"\r\nContent-Length: +%d\r\n\r\n" % len(BODY)),
        asked(length=-5).replace(b"\r\n\r\n", b"\r\nContent-Length: 0%d\r\n\r\n" % len(BODY)),
        asked(f"Content-Length: {len(BODY)}"),
        asked("Transfer-Encoding: chunked"),
        asked("Expect: 100-continue"),
        asked("Upgrade: websocket"),
        asked("Connection: close"),
        asked("Connection: Upgrade"),
        asked(path="/v1/responses/input_tokens"),
        asked(path="/v1/responses?x=1"),
        asked().replace(b"HTTP/1.1", b"HTTP/1.0"),
        asked().replace(b"POST", b"GET"),
        asked().replace(b"\r\n", b"\n"),
        asked().replace(b"Host: ", b"Host : "),
        asked(" folded: line"),
        asked("X: \x00"),
    ],
)
def test_what_is_not_one_whole_turn_with_nothing_odd_about_it_goes_the_usual_way(data: bytes) -> None:
    assert parse_whole_request(data) is None


def test_a_head_that_was_seen_before_is_known_and_its_body_measured_anew() -> None:
    first = parse_whole_request(asked("X: 1"))
    assert parse_whole_request(asked("X: 1", body=BODY.swapcase())) is first
    assert parse_whole_request(asked("X: 1") + b"x") is None
    assert parse_whole_request(asked("X: 2")) is not first
    long = f"X: {'x' * MAX_CACHED_HEAD_BYTES}"
    assert parse_whole_request(asked(long)) is not None and parse_whole_request(asked(long)) is not parse_whole_request(
        asked(long)
    )


class Guest:
    """A connection that writes down what becomes of it."""

    def __init__(self) -> None:
        self.told = ""
        self.ticket: AdmissionPermit | None = None

    def accept(self, data: bytes, permit: AdmissionPermit | None) -> None:
        self.told, self.ticket = f"let in with {len(data)}", permit

    def reject(self, error: ApiError, request_id: str) -> None:
        self.told = f"turned away with {error.status} {request_id}"


def refuse(_: RequestHead) -> tuple[ApiError, str]:
    return ApiError(429, None, "too many"), "req_1"


async def test_as_many_are_let_in_as_there_are_places_one_a_turn_of_the_loop() -> None:
    crowd, guests = AdmissionController(lambda: 3, refuse), [Guest() for _ in range(6)]
    for guest in guests:
        crowd.submit(guest, asked())
    later = Guest()
    crowd.submit(later, b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
    let_in, away = f"let in with {len(asked())}", "turned away with 429 req_1"
    assert later.told.startswith("let in") and later.ticket is None
    assert [guest.told for guest in guests] == [let_in, "", "", away, away, away]
    for count in (1, 2, 3):  # behind those who were refused
        await asyncio.sleep(0)
        assert [guest.told for guest in guests[:3]] == [let_in] * count + [""] * (3 - count)
    assert crowd.num_admitted == 3
    for guest in guests[:3]:
        assert guest.ticket is not None
        guest.ticket.release()
        guest.ticket.release()
    assert crowd.num_admitted == 0
    await asyncio.sleep(0)
    crowd.submit(guests[5], asked())
    assert guests[5].told == let_in, "whoever comes alone does not wait"


async def test_while_some_are_refused_the_others_wait_but_not_for_long(monkeypatch: pytest.MonkeyPatch) -> None:
    crowd, guests = AdmissionController(lambda: 3, refuse), [Guest() for _ in range(3)]
    for guest in guests:
        crowd.submit(guest, asked())

    async def told(count: int) -> int:
        """How many were let in after so many turns, in each of which one more is refused."""
        for _ in range(count):
            crowd.submit(Guest(), asked())
            await asyncio.sleep(0)
        return sum(guest.told != "" for guest in guests)

    assert await told(20) == 1
    await asyncio.sleep(0)
    assert await told(0) == 2, "nobody was refused since"
    monkeypatch.setattr(crowd, "_delay_until", 0.0)
    assert await told(2) == 3


def test_an_error_is_written_with_its_headers() -> None:
    error = ApiError(429, "c", "m", headers=(("retry-after", "1"),))
    head, _, body = encode_error_response(error, [(b"connection", b"close")]).partition(b"\r\n\r\n")
    assert head.split(b"\r\n") == [
        b"HTTP/1.1 429 Too Many Requests",
        b"content-type: application/json",
        b"content-length: %d" % len(body),
        b"retry-after: 1",
        b"connection: close",
    ]


@pytest.fixture
def busy() -> Iterator[RunningServer]:
    """One turn runs for ever and one waits: there is no place left."""
    stalls = scripted_registry([{"name": "x", "output": [{"stall": True}]}], max_num_seqs=1, max_waiting=1)
    with serve(stalls) as served, connected(served) as one, connected(served) as two:
        for line in (one, two):
            line.sendall(asked())
        until_full(served)
        yield served


def until_full(served: RunningServer) -> None:
    model = served.context.models.served[0]
    while served.context.turn_manager.free_slots(model.engine):
        time.sleep(0.01)


def test_one_too_many_hears_of_it_and_its_connection_goes_on(busy: RunningServer) -> None:
    with connected(busy) as line:
        for _ in range(2):
            line.sendall(asked("X-Request-Id: mine"))
            said = line.recv(65536)
            assert said.startswith(b"HTTP/1.1 429 Too Many Requests\r\n")
            assert b"\r\nretry-after: 1\r\n" in said and b"\r\nx-request-id: mine\r\n" in said and b"\r\ndate: " in said
            assert json.loads(said.partition(b"\r\n\r\n")[2])["error"]["code"] == "rate_limit_exceeded"
        reader = Reader(line)
        reader.ask("/health")
        assert reader.answer()[0] == 200
    assert [(entry.path, entry.status) for entry in busy.access_records[:2]] == [("/v1/responses", 429)] * 2
    assert busy.access_records[0].request_id == "mine"


def test_a_refusal_from_the_bytes_and_one_of_the_usual_way_are_the_same(busy: RunningServer) -> None:
    fast = httpx.post(f"{busy.url}/responses", content=BODY, headers={"content-type": "application/json"})
    slow = httpx.post(
        f"{busy.url}/responses", content=BODY, headers={"content-type": "application/json", "connection": "close"}
    )
    assert fast.status_code == slow.status_code == 429 and fast.json() == slow.json()
    odd = {"date", "x-request-id", "connection"}
    assert {name: value for name, value in fast.headers.items() if name not in odd} == {
        name: value for name, value in slow.headers.items() if name not in odd
    }


def test_what_is_wrong_is_told_before_that_it_is_one_too_many(busy: RunningServer) -> None:
    for header, status in (("Host: evil.example", 421), ("Content-Type: text/plain", 415)):
        name = header.partition(":")[0]
        kept = [line for line in asked().partition(b"\r\n\r\n")[0].decode().split("\r\n") if not line.startswith(name)]
        with connected(busy) as line:
            line.sendall("\r\n".join((*kept, header, "", "")).encode() + BODY)
            assert line.recv(65536).startswith(b"HTTP/1.1 %d " % status)


def test_at_the_same_instant_exactly_as_many_get_in_as_there_are_places() -> None:
    with serve(
        scripted_registry([{"name": "x", "output": [{"stall": True}]}], max_num_seqs=2, max_waiting=3)
    ) as served:
        lines = [socket.create_connection(("127.0.0.1", served.port)) for _ in range(60)]
        try:
            for line in lines:
                line.sendall(asked())
            waiting, told = list(lines), list[bytes]()
            while len(told) < 55 and (ready := select.select(waiting, [], [], 10)[0]):
                told += [line.recv(65536)[:13] for line in ready]
                waiting = [line for line in waiting if line not in ready]
            assert told == [b"HTTP/1.1 429 "] * 55
            assert not select.select(waiting, [], [], 0.2)[0], "five run or wait"
        finally:
            for line in lines:
                line.close()


def test_requests_that_become_no_turns_keep_no_place() -> None:
    with serve(scripted_registry([{"name": "x", "output": ["Hello."]}], max_num_seqs=1, max_waiting=1)) as served:
        nonsense = [asked(body=b"{"), asked(body=b'{"model": "none", "input": "x"}'), asked().replace(b"Host", b"Hose")]
        for data in nonsense * 3:
            with connected(served) as line:
                line.sendall(data)
                assert line.recv(65536)[9:10] == b"4"
        for cut in (30, len(asked()) - 3):  # and nobody keeps one by not finishing a request
            for _ in range(3):
                with connected(served) as line:
                    line.sendall(asked()[:cut])
        with connected(served) as line:
            line.sendall(asked())
            assert line.recv(65536).startswith(b"HTTP/1.1 200 ")
