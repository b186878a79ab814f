"""The server itself: chunk borders, cuts, resets, keep-alive, invalid HTTP, clients that leave."""

import asyncio
import json
import struct
import threading

import httpx
import pytest

from antiphon.kit.proxy.exchange import ServerExchange
from antiphon.kit.proxy.server import WireServerError, run_server
from tests.kit.proxy.wire_servers import (
    make_request,
    read_all,
    read_until,
    run_handler,
    run_in_thread,
    send_raw,
    wait_until,
)

MAX_POLLS = 400
"""Polls of five milliseconds until a request that was sent must have been read."""
SSE = [(b"content-type", b"text/event-stream")]


def test_each_write_is_one_chunk() -> None:
    async def handle(exchange: ServerExchange) -> None:
        exchange.start_reply(200, SSE)
        exchange.write_data(b"data: 1\n")
        exchange.write_data(b"\n")
        exchange.end_reply()

    with run_handler(handle) as url, send_raw(url, make_request("GET", "/", b"", "Connection: close")) as client:
        reply = read_all(client)
    assert reply.partition(b"\r\n\r\n")[2] == b"8\r\ndata: 1\n\r\n1\r\n\n\r\n0\r\n\r\n"


def test_cut_reply_has_no_last_chunk_and_no_reset() -> None:
    async def handle(exchange: ServerExchange) -> None:
        exchange.start_reply(200, SSE)
        exchange.write_data(b"data: 1")
        exchange.cut_connection()

    with run_handler(handle) as url, send_raw(url, make_request("GET", "/")) as client:
        assert read_all(client).endswith(b"7\r\ndata: 1\r\n")


def test_reset_reaches_the_client_as_a_reset() -> None:
    async def handle(exchange: ServerExchange) -> None:
        exchange.start_reply(200, SSE)
        exchange.write_data(b"data: 1")
        await asyncio.sleep(0.1)
        exchange.reset_connection()

    with (
        run_handler(handle) as url,
        send_raw(url, make_request("GET", "/")) as client,
        pytest.raises(ConnectionResetError),
    ):
        read_all(client)


def test_connection_serves_several_requests() -> None:
    async def handle(exchange: ServerExchange) -> None:
        body = await exchange.read_body()
        await exchange.send_json(
            200, {"path": exchange.request.path, "query": exchange.request.query, "size": len(body)}
        )

    with run_handler(handle) as url, httpx.Client() as client:
        first = client.post(f"{url}/a?x=1&y=", content=b"123")
        second = client.get(f"{url}/b")
        assert first.json() == {"path": "/a", "query": {"x": "1", "y": ""}, "size": 3}
        assert second.json() == {"path": "/b", "query": {}, "size": 0}


def test_pipelined_requests_are_answered_in_order() -> None:
    async def handle(exchange: ServerExchange) -> None:
        await exchange.read_body()
        await asyncio.sleep(0.01)
        await exchange.send_json(200, exchange.request.path)

    requests = (
        make_request("GET", "/1")
        + make_request("POST", "/2", b"xx")
        + make_request("GET", "/3", b"", "Connection: close")
    )
    with run_handler(handle) as url, send_raw(url, requests) as client:
        reply = read_all(client)
    assert [reply.index(name) for name in (b'"/1"', b'"/2"', b'"/3"')] == sorted(
        reply.index(name) for name in (b'"/1"', b'"/2"', b'"/3"')
    )


@pytest.mark.parametrize("is_in_one_write", [False, True], ids=["in_two_writes", "in_one_write"])
@pytest.mark.parametrize("size", [0, 5, 100_000], ids=["without_a_body", "with_a_body", "with_a_large_body"])
def test_request_that_comes_while_a_reply_runs_is_answered(size: int, is_in_one_write: bool) -> None:
    """The second request is read while the client is watched, or with the first one. It must not be lost."""
    is_sent = threading.Event()

    async def handle(exchange: ServerExchange) -> None:
        body = await exchange.read_body()
        if exchange.request.path == "/second":
            await exchange.send_json(200, {"second": len(body)})
            return
        exchange.start_reply(200, SSE)
        exchange.write_data(b"data: 1\n\n")
        await exchange.drain()
        for _ in range(MAX_POLLS):  # only the server knows when it has read the second one
            if is_sent.is_set() and exchange._connection.trailing_data[0]:
                break
            await asyncio.sleep(0.005)
        exchange.end_reply()

    first = make_request("GET", "/first")
    second = make_request("POST", "/second", b"x" * size, "Connection: close")
    with run_handler(handle) as url, send_raw(url, first + second if is_in_one_write else first) as client:
        read_until(client, b"data: 1")
        if not is_in_one_write:
            client.sendall(second)
        is_sent.set()
        assert read_all(client).endswith(json.dumps({"second": size}).encode())


def test_expect_100_continue_is_answered_before_the_body() -> None:
    async def handle(exchange: ServerExchange) -> None:
        await exchange.send_json(200, len(await exchange.read_body()))

    head = make_request("POST", "/", b"", "Expect: 100-continue", "Content-Length: 2", "Connection: close")
    with run_handler(handle) as url, send_raw(url, head) as client:
        assert client.recv(1 << 16).startswith(b"HTTP/1.1 100")
        client.sendall(b"ab")
        assert read_all(client).endswith(b"2")


def test_unread_body_does_not_destroy_the_reply() -> None:
    async def handle(exchange: ServerExchange) -> None:
        await exchange.send_json(404, "no")

    with run_handler(handle) as url:
        assert httpx.post(url, content=b"x" * 5_000_000).json() == "no"


def test_invalid_http_gets_400() -> None:
    async def handle(exchange: ServerExchange) -> None:
        raise AssertionError

    with run_handler(handle) as url, send_raw(url, b"NONSENSE\r\n\r\n") as client:
        assert read_all(client).startswith(b"HTTP/1.1 400")


def test_error_of_a_handler_gets_500(caplog: pytest.LogCaptureFixture) -> None:
    async def handle(exchange: ServerExchange) -> None:
        raise KeyError("secret detail")

    with run_handler(handle) as url:
        reply = httpx.get(url)
    assert reply.status_code == 500 and reply.json()["error"]["code"] == "internal"
    assert "secret detail" not in reply.text and "secret detail" in caplog.text


@pytest.mark.parametrize("reset", [False, True], ids=["close", "reset"])
def test_leaving_client_cancels_the_handler(reset: bool) -> None:
    ends: list[str] = []

    async def handle(exchange: ServerExchange) -> None:
        exchange.start_reply(200, SSE)
        try:
            await asyncio.sleep(600)
        finally:
            ends.append("left")

    with run_handler(handle) as url:
        client = send_raw(url, make_request("GET", "/"))
        client.recv(1 << 16)
        if reset:
            client.setsockopt(1, 13, struct.pack("ii", 1, 0))
        client.close()
        wait_until(lambda: bool(ends), "the handler runs on")


def test_used_port_is_reported_in_one_line() -> None:
    async def handle(exchange: ServerExchange) -> None:
        raise AssertionError

    with run_handler(handle) as url:
        port = int(url.rsplit(":", 1)[1])
        server = run_in_thread(lambda: run_server(handle, "127.0.0.1", port))
        with pytest.raises(WireServerError, match=f"cannot listen on 127.0.0.1:{port}: "), server:
            raise AssertionError
