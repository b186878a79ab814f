"""The relay in front of a server, and what it records."""

import json
import socket
import threading
import tomllib
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest

from antiphon.kit.proxy.exchange import LINGER_NOT
from antiphon.kit.pytest_plugin.exchanges import ConnectionRecorder, RelayedExchange
from antiphon.kit.pytest_plugin.relay import RecordingRelay
from antiphon.kit.pytest_plugin.script_file import CasesError, dump_value, find_script
from antiphon.kit.pytest_plugin.snapshot_files import compare_lines

Handler = Callable[[socket.socket], None]
StartRelay = Callable[[Handler], RecordingRelay]

REPLY = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"


@pytest.fixture
def start_relay() -> Iterator[StartRelay]:
    """Starts a relay in front of a server whose connections a function handles."""
    with ExitStack() as stack:

        def start(handle: Handler) -> RecordingRelay:
            listener = stack.enter_context(socket.create_server(("127.0.0.1", 0)))

            def serve() -> None:
                while True:
                    try:
                        connection, _ = listener.accept()
                    except OSError:
                        return
                    with connection:
                        handle(connection)

            thread = threading.Thread(target=serve)
            thread.start()
            stack.callback(thread.join)
            stack.callback(listener.shutdown, socket.SHUT_RDWR)
            relay = RecordingRelay(listener.getsockname()[1])
            relay.start()
            stack.callback(relay.stop)
            return relay

        yield start


def read_request(connection: socket.socket) -> bytes:
    data = b""
    while b"\r\n\r\n" not in data:
        data += connection.recv(65_536)
    return data


def test_bytes_pass_unchanged_and_are_recorded(start_relay: StartRelay) -> None:
    def handle(connection: socket.socket) -> None:
        for number in range(2):  # both on one connection
            read_request(connection)
            connection.sendall(REPLY + b"5\r\nhello\r\n")
            connection.sendall(b"1\r\n%d\r\n0\r\n\r\n" % number)

    relay = start_relay(handle)
    with httpx.Client(base_url=relay.url) as client:
        assert [client.get(f"/{number}").text for number in range(2)] == ["hello0", "hello1"]
    assert [(exchange.path, exchange.stream, exchange.is_complete) for exchange in relay.exchanges] == [
        ("/0", b"hello0", True),
        ("/1", b"hello1", True),
    ]


def test_a_reset_reaches_the_client_as_a_reset(start_relay: StartRelay) -> None:
    def handle(connection: socket.socket) -> None:
        read_request(connection)
        connection.sendall(REPLY + b"5\r\nhello\r\n")
        connection.recv(1)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, LINGER_NOT)

    relay = start_relay(handle)
    with socket.create_connection(("127.0.0.1", urlsplit(relay.url).port)) as client:
        client.sendall(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n")
        while b"hello" not in client.recv(65_536):
            pass
        client.sendall(b"x")
        with pytest.raises(ConnectionResetError):
            client.recv(1)
    (exchange,) = relay.exchanges
    assert (exchange.status, exchange.reply_body, exchange.is_complete) == (200, b"hello", False)


def test_an_early_end_reaches_the_client_as_an_end(start_relay: StartRelay) -> None:
    def handle(connection: socket.socket) -> None:
        read_request(connection)
        connection.sendall(REPLY + b"5\r\nhel")

    relay = start_relay(handle)
    with httpx.Client(base_url=relay.url) as client, pytest.raises(httpx.RemoteProtocolError):
        client.get("/")
    assert relay.exchanges[0].reply_body == b"hel"


def test_a_client_that_leaves_ends_the_connection_to_the_server(start_relay: StartRelay) -> None:
    left = threading.Event()

    def handle(connection: socket.socket) -> None:
        read_request(connection)
        if connection.recv(1) == b"":
            left.set()

    relay = start_relay(handle)
    with socket.create_connection(("127.0.0.1", urlsplit(relay.url).port)) as client:
        client.sendall(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n")
    assert left.wait(30)


def test_a_client_may_stop_sending_before_the_reply(start_relay: StartRelay) -> None:
    def handle(connection: socket.socket) -> None:
        read_request(connection)
        assert connection.recv(1) == b""
        connection.sendall(REPLY + b"5\r\nhello\r\n0\r\n\r\n")

    relay = start_relay(handle)
    with socket.create_connection(("127.0.0.1", urlsplit(relay.url).port)) as client:
        client.sendall(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n")
        client.shutdown(socket.SHUT_WR)
        received = b"".join(iter(lambda: client.recv(65_536), b""))
    assert received.endswith(b"hello\r\n0\r\n\r\n")


def test_stopping_does_not_wait_for_a_client_that_does_not_read(start_relay: StartRelay) -> None:
    full = threading.Event()

    def handle(connection: socket.socket) -> None:
        read_request(connection)
        connection.settimeout(0.5)
        try:
            while True:
                connection.send(b"x" * 65_536)
        except OSError:  # all buffers are full
            full.set()

    relay = start_relay(handle)
    with socket.create_connection(("127.0.0.1", urlsplit(relay.url).port)) as client:
        client.sendall(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n")
        assert full.wait(30)
        relay.stop()


def test_a_server_that_is_gone_resets_the_client() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    relay = RecordingRelay(port)
    relay.start()
    try:
        with pytest.raises(httpx.TransportError):
            httpx.get(f"{relay.url}/")
    finally:
        relay.stop()


REQUEST_BYTES = (
    b'POST /v1/responses HTTP/1.1\r\nHost: a\r\nContent-Length: 14\r\n\r\n{"input":"Hi"}'
    b"GET /v1/models HTTP/1.1\r\nHost: a\r\n\r\n"
)
REPLY_BYTES = (
    b"HTTP/1.1 100 Continue\r\n\r\n"
    + REPLY
    + b"6\r\ndata: \r\n4\r\n{}\n\n\r\n0\r\n\r\nHTTP/1.1 404 Not Found\r\nContent-Length: 2\r\n\r\nno"
)


@pytest.mark.parametrize("size", [1, 2, 7, 10_000])
def test_exchanges_do_not_depend_on_the_sizes_of_reads(size: int) -> None:
    exchanges: list[RelayedExchange] = []
    recorder = ConnectionRecorder(exchanges)
    for start in range(0, len(REQUEST_BYTES), size):
        recorder.add_request_bytes(REQUEST_BYTES[start : start + size])
    for start in range(0, len(REPLY_BYTES), size):
        recorder.add_reply_bytes(REPLY_BYTES[start : start + size])
    first, second = exchanges
    assert (first.request, first.stream.request, first.status, first.stream) == (
        {"input": "Hi"},
        {"input": "Hi"},
        200,
        b"data: {}\n\n",
    )
    assert (second.path, second.request, second.status, second.is_stream) == ("/v1/models", None, 404, False)


@pytest.mark.parametrize("data", [b"\x16\x03\x01 no HTTP\r\n\r\n", b"GET / HTTP/1.1\r\nBroken\r\n\r\n"])
def test_what_is_no_http_is_not_recorded(data: bytes) -> None:
    exchanges: list[RelayedExchange] = []
    recorder = ConnectionRecorder(exchanges)
    recorder.add_request_bytes(data)
    recorder.add_reply_bytes(data)
    recorder.add_request_bytes(REQUEST_BYTES)
    recorder.add_reply_bytes(REPLY_BYTES)
    assert exchanges == []


def test_inline_cases_become_toml(tmp_path: Path) -> None:
    cases: list[Any] = [
        "Text.",
        {
            "name": "a",
            "when": ["w"],
            "output": ['"\\\n\x7f\u2028😀\x00', {"pause": 0.5}, {"stall": True}, {"ids": [1, 2]}],
            "finish": None,
        },
        {"output": "One text."},
    ]
    table = tomllib.loads(find_script(cases, tmp_path, tmp_path).read_text(encoding="utf-8"))
    assert table == {
        "reply": [
            {"name": "reply 1", "output": ["Text."]},
            {
                "name": "a",
                "when": ["w"],
                "output": ['"\\\n\x7f\u2028😀\x00', {"pause": 0.5}, {"stall": True}, {"ids": [1, 2]}],
            },
            {"name": "reply 3", "output": ["One text."]},
        ]
    }
    with pytest.raises(CasesError, match="cannot hold"):
        dump_value(object())


def test_long_lines_are_cut_around_the_difference() -> None:
    expected, actual = (f"same\n{json.dumps('x' * 300 + end + 'y' * 300)}\nsame\n" for end in ("A", "B"))
    heading, same, old, new, _ = compare_lines(expected, actual)
    assert (heading, same) == ("line 1:", "  same")
    assert old == f"- …{'x' * 40}A{'y' * 119}…" and new == f"+ …{'x' * 40}B{'y' * 119}…"


def test_lines_without_a_counterpart_are_grouped() -> None:
    assert list(compare_lines("a\nb\nc\nd\n", "a\nX\nd\n")) == ["line 1:", "  a", "- b", "- c", "+ X", "  d"]
    assert list(compare_lines("", "a\n")) == ["line 1:", "+ a"]
