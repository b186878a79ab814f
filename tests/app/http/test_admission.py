"""Admission control: the fast parser of whole requests, permits, rejections under load, and the connection after them."""

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
    HeadParser,
    RequestHead,
)
from antiphon.app.http.protocol import encode_error_response
from antiphon.app.main.application import ENDPOINT_TABLE
from tests.app.http.socket_client import SocketClient, connect
from tests.serving import RunningServer, scripted_registry, serve

STARTING = ENDPOINT_TABLE.list_starting()
parse_whole_request = HeadParser(STARTING).parse
BODY = json.dumps({"model": "scripted", "input": "hi"}).encode()


def build_request(*headers: str, path: str = "/v1/responses", body: bytes = BODY, length: int | None = None) -> bytes:
    lines = [f"POST {path} HTTP/1.1", "Host: localhost", "Content-Type: application/json", *headers]
    if length is None or length >= 0:
        lines.append(f"Content-Length: {len(body) if length is None else length}")
    return "\r\n".join((*lines, "", "")).encode() + body


@pytest.mark.parametrize("path", ["/v1/responses", "/v1/responses/compact", "/v1/chat/completions", "/v1/completions"])
def test_whole_request_is_parsed_from_its_bytes(path: str) -> None:
    head = parse_whole_request(build_request("X-Request-Id: a b", "Connection: keep-alive", path=path))
    assert head is not None and head.scope["path"] == path
    headers = head.scope["headers"]
    assert (b"x-request-id", b"a b") in headers and (b"host", b"localhost") in headers


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"POST /v1/responses HTTP/1.1\r\n",
        build_request()[:-1],
        build_request() + b"G",
        build_request() * 2,
        build_request(length=-1),
        build_request(length=-5).replace(b"\r\n\r\n", b"\r\nContent-Length: +%d\r\n\r\n" % len(BODY)),
        build_request(length=-5).replace(b"\r\n\r\n", b"\r\nContent-Length: 0%d\r\n\r\n" % len(BODY)),
        build_request(f"Content-Length: {len(BODY)}"),
        build_request("Transfer-Encoding: chunked"),
        build_request("Expect: 100-continue"),
        build_request("Upgrade: websocket"),
        build_request("Connection: close"),
        build_request("Connection: Upgrade"),
        build_request(path="/v1/responses/input_tokens"),
        build_request(path="/v1/responses?x=1"),
        build_request().replace(b"HTTP/1.1", b"HTTP/1.0"),
        build_request().replace(b"POST", b"GET"),
        build_request().replace(b"\r\n", b"\n"),
        build_request().replace(b"Host: ", b"Host : "),
        build_request(" folded: line"),
        build_request("X: \x00"),
    ],
)
def test_other_requests_are_left_to_the_regular_parser(data: bytes) -> None:
    assert parse_whole_request(data) is None


def test_parsed_head_is_cached_but_the_body_length_is_checked() -> None:
    first = parse_whole_request(build_request("X: 1"))
    assert parse_whole_request(build_request("X: 1", body=BODY.swapcase())) is first
    assert parse_whole_request(build_request("X: 1") + b"x") is None
    assert parse_whole_request(build_request("X: 2")) is not first
    long_header = f"X: {'x' * MAX_CACHED_HEAD_BYTES}"
    assert parse_whole_request(build_request(long_header)) is not None and parse_whole_request(
        build_request(long_header)
    ) is not parse_whole_request(build_request(long_header))


class FakeConnection:
    """Records whether the controller accepted or rejected its request."""

    def __init__(self) -> None:
        self.outcome = ""
        self.permit: AdmissionPermit | None = None

    def submit_to(self, controller: AdmissionController, data: bytes) -> None:
        controller.submit(data, self.accept, self.reject)

    def accept(self, data: bytes, permit: AdmissionPermit | None) -> None:
        self.outcome, self.permit = f"accepted with {len(data)}", permit

    def reject(self, error: ApiError, request_id: str) -> None:
        self.outcome = f"rejected with {error.status} {request_id}"


def create_rejection(_: RequestHead) -> tuple[ApiError, str]:
    return ApiError(429, None, "too many"), "req_1"


async def test_requests_are_admitted_up_to_the_limit_one_per_loop_iteration() -> None:
    controller = AdmissionController(STARTING, lambda: 3, create_rejection)
    connections = [FakeConnection() for _ in range(6)]
    for connection in connections:
        connection.submit_to(controller, build_request())
    health_check = FakeConnection()
    health_check.submit_to(controller, b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
    accepted, rejected = f"accepted with {len(build_request())}", "rejected with 429 req_1"
    assert health_check.outcome.startswith("accepted") and health_check.permit is None
    assert [connection.outcome for connection in connections] == [accepted, "", "", rejected, rejected, rejected]
    for count in (1, 2, 3):  # after the rejected ones
        await asyncio.sleep(0)
        assert [connection.outcome for connection in connections[:3]] == [accepted] * count + [""] * (3 - count)
    assert controller.num_admitted == 3
    for connection in connections[:3]:
        assert connection.permit is not None
        connection.permit.release()
        connection.permit.release()
    assert controller.num_admitted == 0
    await asyncio.sleep(0)
    connections[5].submit_to(controller, build_request())
    assert connections[5].outcome == accepted, "a single request does not wait"


async def test_rejections_delay_admission_but_not_for_long(monkeypatch: pytest.MonkeyPatch) -> None:
    controller = AdmissionController(STARTING, lambda: 3, create_rejection)
    connections = [FakeConnection() for _ in range(3)]
    for connection in connections:
        connection.submit_to(controller, build_request())

    async def count_accepted(iterations: int) -> int:
        """Runs the loop. One more request is rejected in each iteration. Returns the number of accepted ones."""
        for _ in range(iterations):
            FakeConnection().submit_to(controller, build_request())
            await asyncio.sleep(0)
        return sum(connection.outcome != "" for connection in connections)

    assert await count_accepted(20) == 1
    await asyncio.sleep(0)
    assert await count_accepted(0) == 2, "no request was rejected since"
    monkeypatch.setattr(controller, "_delay_until", 0.0)
    assert await count_accepted(2) == 3


def test_error_response_has_its_headers() -> None:
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
def busy_server() -> Iterator[RunningServer]:
    """A full server: one turn runs without end, one waits."""
    registry = scripted_registry([{"name": "x", "output": [{"stall": True}]}], max_num_seqs=1, max_waiting=1)
    with serve(registry) as server, connect(server) as first, connect(server) as second:
        for client in (first, second):
            client.sendall(build_request())
        wait_until_full(server)
        yield server


def wait_until_full(server: RunningServer) -> None:
    model = server.context.models.served[0]
    while server.context.capacity.free_slots(model.engine):
        time.sleep(0.01)


def test_request_over_the_limit_gets_429_and_keeps_its_connection(busy_server: RunningServer) -> None:
    with connect(busy_server) as client:
        for _ in range(2):
            client.sendall(build_request("X-Request-Id: mine"))
            reply = client.recv(65536)
            assert reply.startswith(b"HTTP/1.1 429 Too Many Requests\r\n")
            for header in (b"\r\nretry-after: 1\r\n", b"\r\nx-request-id: mine\r\n", b"\r\ndate: "):
                assert header in reply
            assert json.loads(reply.partition(b"\r\n\r\n")[2])["error"]["code"] == "rate_limit_exceeded"
        http_client = SocketClient(client)
        http_client.send_request("/health")
        assert http_client.read_reply()[0] == 200
    assert [(entry.path, entry.status) for entry in busy_server.access_records[:2]] == [("/v1/responses", 429)] * 2
    assert busy_server.access_records[0].request_id == "mine"


def test_fast_and_regular_rejection_are_equal(busy_server: RunningServer) -> None:
    fast = httpx.post(f"{busy_server.url}/responses", content=BODY, headers={"content-type": "application/json"})
    slow = httpx.post(
        f"{busy_server.url}/responses",
        content=BODY,
        headers={"content-type": "application/json", "connection": "close"},
    )
    assert fast.status_code == slow.status_code == 429 and fast.json() == slow.json()
    differing = {"date", "x-request-id", "connection"}
    assert {name: value for name, value in fast.headers.items() if name not in differing} == {
        name: value for name, value in slow.headers.items() if name not in differing
    }


def test_invalid_request_is_reported_before_the_limit(busy_server: RunningServer) -> None:
    for header, status in (("Host: evil.example", 421), ("Content-Type: text/plain", 415)):
        name = header.partition(":")[0]
        head = build_request().partition(b"\r\n\r\n")[0].decode().split("\r\n")
        other_lines = [line for line in head if not line.startswith(name)]
        with connect(busy_server) as client:
            client.sendall("\r\n".join((*other_lines, header, "", "")).encode() + BODY)
            assert client.recv(65536).startswith(b"HTTP/1.1 %d " % status)


def test_simultaneous_requests_are_admitted_exactly_up_to_the_limit() -> None:
    with serve(
        scripted_registry([{"name": "x", "output": [{"stall": True}]}], max_num_seqs=2, max_waiting=3)
    ) as server:
        clients = [socket.create_connection(("127.0.0.1", server.port)) for _ in range(60)]
        try:
            for client in clients:
                client.sendall(build_request())
            waiting, replies = list(clients), list[bytes]()
            while len(replies) < 55 and (ready := select.select(waiting, [], [], 10)[0]):
                replies += [client.recv(65536)[:13] for client in ready]
                waiting = [client for client in waiting if client not in ready]
            assert replies == [b"HTTP/1.1 429 "] * 55
            assert not select.select(waiting, [], [], 0.2)[0], "five run or wait"
        finally:
            for client in clients:
                client.close()


def test_requests_that_start_no_turn_hold_no_permit() -> None:
    with serve(scripted_registry([{"name": "x", "output": ["Hello."]}], max_num_seqs=1, max_waiting=1)) as server:
        invalid = [
            build_request(body=b"{"),
            build_request(body=b'{"model": "none", "input": "x"}'),
            build_request().replace(b"Host", b"Hose"),
        ]
        for data in invalid * 3:
            with connect(server) as client:
                client.sendall(data)
                assert client.recv(65536)[9:10] == b"4"
        for size in (30, len(build_request()) - 3):  # an unfinished request holds no permit either
            for _ in range(3):
                with connect(server) as client:
                    client.sendall(build_request()[:size])
        with connect(server) as client:
            client.sendall(build_request())
            assert client.recv(65536).startswith(b"HTTP/1.1 200 ")
