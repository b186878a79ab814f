"""The proxy changes no byte: against the same requests sent directly, and with servers that break off."""

import asyncio
import gzip
import hashlib
import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest

from antiphon.kit.proxy.exchange import ServerExchange
from antiphon.kit.proxy.messages import drop_hop_by_hop, find_header
from antiphon.kit.proxy.proxy import is_local_name
from antiphon.kit.proxy.upstream import UpstreamServer, UpstreamUrlError
from tests.kit.proxy.wire_servers import (
    CheckedProxy,
    make_request,
    read_all,
    run_checked_proxy,
    run_handler,
    send_raw,
    wait_until,
)
from tests.progress import HANG_TIMEOUT_S

SSE = [(b"Content-Type", b"text/event-stream")]
GZIPPED = gzip.compress(b'{"object": "list", "data": []}')
seen: list[str] = []
"""What the server has noticed: parts of a request, clients that left."""
events_read: list[bytes] = []
"""Events that the client has read of the stream that waits for it."""


async def answer(exchange: ServerExchange) -> None:
    """Answers by the path, as servers do."""
    path, method = exchange.request.path, exchange.request.method
    if path in ("/v1/echo", "/v1/half"):
        digest = hashlib.sha256()
        while part := await exchange.read_part():
            digest.update(part)
            seen.append(path)
        headers = [[name.decode(), value.decode()] for name, value in exchange.request.headers]
        await exchange.send_json(
            200, {"method": method, "target": exchange.request.target, "sha": digest.hexdigest(), "headers": headers}
        )
        return
    await exchange.read_body()
    if path == "/v1/length":
        exchange.start_reply(200, [(b"Content-Length", b"5"), (b"X-Case", b"Kept"), (b"x-two", b"1"), (b"x-two", b"2")])
        if method != "HEAD":
            exchange.write_data(b"hello")
        exchange.end_reply()
    elif path == "/v1/empty":
        exchange.start_reply(204, [(b"x-a", b"b")], b"Nothing")
        exchange.end_reply()
    elif path == "/v1/redirect":
        exchange.start_reply(307, [(b"location", b"http://127.0.0.1:1/x"), (b"content-length", b"0")])
        exchange.end_reply()
    elif path == "/v1/gzip":
        exchange.start_reply(200, [(b"content-encoding", b"gzip"), (b"content-type", b"application/json")])
        exchange.write_data(GZIPPED)
        exchange.end_reply()
    elif path == "/v1/large":
        exchange.start_reply(200, [(b"content-type", b"application/octet-stream")])
        for index in range(300):
            exchange.write_data(bytes([index % 256]) * 65536)
            await exchange.drain()
        exchange.end_reply()
    else:
        await answer_broken(exchange, path)


async def answer_broken(exchange: ServerExchange, path: str) -> None:
    exchange.start_reply(200, SSE)
    exchange.write_data(b"data: {}\n\n")
    await exchange.drain()
    if path == "/v1/cut":
        exchange.cut_connection()
    elif path == "/v1/reset":
        await asyncio.sleep(0.2)
        exchange.reset_connection()
    elif path == "/v1/stall":
        try:
            await asyncio.sleep(600)
        finally:
            seen.append("left")
    elif path == "/v1/steps":
        for index in range(5):
            while len(events_read) <= index:
                await asyncio.sleep(0.005)
            exchange.write_data(b"data: %d\n\n" % index)
            await exchange.drain()
        exchange.end_reply()
    else:
        for index in range(5):
            await asyncio.sleep(0.02)
            exchange.write_data(b"data: %d\n\n" % index)
        exchange.end_reply()


@pytest.fixture(scope="module")
def direct() -> Iterator[str]:
    with run_handler(answer) as url:
        yield f"{url}/v1"


@pytest.fixture(scope="module")
def proxy(direct: str) -> Iterator[CheckedProxy]:
    with run_checked_proxy(direct) as proxy:
        yield proxy


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/length"),
        ("HEAD", "/length"),
        ("GET", "/empty"),
        ("HEAD", "/empty"),
        ("GET", "/redirect"),
        ("HEAD", "/redirect"),
        ("GET", "/gzip"),
        ("GET", "/stream"),
    ],
)
def test_raw_reply_is_the_same_as_without_the_proxy(direct: str, proxy: CheckedProxy, method: str, path: str) -> None:
    replies = []
    for url in (direct, proxy.url):
        with send_raw(url, make_request(method, f"/v1{path}", b"", "Connection: close")) as client:
            replies.append(read_all(client))
    assert replies[0] == replies[1] and replies[0].startswith(b"HTTP/1.1 ")


def test_request_reaches_the_server_unchanged(direct: str, proxy: CheckedProxy) -> None:
    body = os.urandom(3_000_000)
    target = "/v1/echo?a=%2Fb&c=d+e&q=ä%20".encode("latin-1").decode("latin-1").replace("ä", "%C3%A4")
    seen = []
    for url in (direct, proxy.url):
        headers = (
            "Connection: close",
            "X-Odd-Case: Yes",
            "Accept-Encoding: br",
            "Authorization: Bearer k",
            "content-encoding: zstd",
        )
        with send_raw(url, make_request("POST", target, body, *headers)) as client:
            seen.append(httpx.Response(200, content=read_all(client).partition(b"\r\n\r\n")[2]).json())
    assert seen[0]["sha"] == seen[1]["sha"] == hashlib.sha256(body).hexdigest()
    assert seen[0]["target"] == seen[1]["target"] == target
    ignored = ("host", "connection")
    kept = [[header for header in each["headers"] if header[0].lower() not in ignored] for each in seen]
    assert kept[0] == kept[1]
    assert dict(seen[1]["headers"])["Host"] == direct.removeprefix("http://").removesuffix("/v1")


def test_chunked_request_is_passed_on(direct: str, proxy: CheckedProxy) -> None:
    parts = [b"one", b"two" * 100_000, b"three"]
    reply = httpx.post(f"{proxy.url}/echo", content=iter(parts)).json()
    assert reply["sha"] == hashlib.sha256(b"".join(parts)).hexdigest()


def test_large_reply_is_passed_on(direct: str, proxy: CheckedProxy) -> None:
    assert httpx.get(f"{direct}/large").content == httpx.get(f"{proxy.url}/large").content


def test_events_arrive_one_by_one(proxy: CheckedProxy) -> None:
    """The server sends an event when the client has read the one before: a proxy that waits for more never ends."""
    events_read.clear()
    with httpx.stream("GET", f"{proxy.url}/steps", timeout=HANG_TIMEOUT_S) as reply:
        for data in reply.iter_raw():
            events_read.extend([data])  # one by one: the server watches the list
    assert events_read == [b"data: {}\n\n", *(b"data: %d\n\n" % index for index in range(5))]


def test_server_that_closes_in_the_middle_is_passed_on(proxy: CheckedProxy) -> None:
    with send_raw(proxy.url, make_request("GET", "/v1/cut")) as client:
        assert read_all(client).endswith(b"a\r\ndata: {}\n\n\r\n")
    assert proxy.wait_report("/v1/cut").ending == "cut"


def test_server_that_resets_is_passed_on(proxy: CheckedProxy) -> None:
    with send_raw(proxy.url, make_request("GET", "/v1/reset")) as client, pytest.raises(ConnectionResetError):
        read_all(client)
    assert proxy.wait_report("/v1/reset").ending == "reset"


def test_leaving_client_closes_the_server_side(proxy: CheckedProxy) -> None:
    client = send_raw(proxy.url, make_request("GET", "/v1/stall"))
    while b"data: {}" not in client.recv(1 << 16):
        pass
    client.close()
    wait_until(lambda: "left" in seen, "the server still writes")
    assert proxy.wait_report("/v1/stall").ending == "client_left"


def test_client_that_leaves_in_its_request_closes_the_server_side(proxy: CheckedProxy) -> None:
    client = send_raw(proxy.url, make_request("POST", "/v1/half", b"", "Content-Length: 100"))
    client.sendall(b"half")
    wait_until(lambda: "/v1/half" in seen, "the server has not read the first part")
    client.close()
    assert proxy.wait_report("/v1/half").ending == "client_left"


def test_absent_server_gets_502() -> None:
    with run_checked_proxy("http://127.0.0.1:9") as proxy:
        reply = httpx.post(f"{proxy.url}/responses", json={"input": "x"})
        assert reply.status_code == 502 and reply.json()["error"]["code"] == "upstream_unreachable"
        assert proxy.wait_reports(1)[0].ending == "unreachable"


def test_hundred_streams_at_once(proxy: CheckedProxy) -> None:
    def read_stream(_: int) -> bytes:
        return httpx.get(f"{proxy.url}/stream", timeout=HANG_TIMEOUT_S).content

    with ThreadPoolExecutor(100) as pool:
        bodies = set(pool.map(read_stream, range(100)))
    assert len(bodies) == 1 and len(bodies.pop().split(b"\n\n")) == 7


def test_foreign_host_is_refused(proxy: CheckedProxy) -> None:
    request = make_request("GET", "/v1/length", b"", "Connection: close").replace(
        b"Host: 127.0.0.1", b"Host: evil.example:80"
    )
    with send_raw(proxy.url, request) as client:
        assert read_all(client).startswith(b"HTTP/1.1 403")


@pytest.mark.parametrize(
    ("host", "expected"),
    [("127.0.0.1:80", True), ("localhost", True), ("[::1]:9", True), ("[::1]", True), ("", True), ("x.localhost:1", True),
     ("evil.example", False), ("localhost.evil.example:80", False)],
)  # fmt: skip
def test_local_names(host: str, expected: bool) -> None:
    assert is_local_name(host) is expected


@pytest.mark.parametrize(
    ("url", "target"),
    [
        ("http://h:1", "/v1/responses?x=1"),
        ("http://h:1/", "/v1/responses?x=1"),
        ("http://h:1/v1", "/v1/responses?x=1"),
        ("https://h/api/v1/", "/api/v1/responses?x=1"),
        ("https://h/prefix", "/prefix/v1/responses?x=1"),
        ("unix:/tmp/socket", "/v1/responses?x=1"),
    ],
)
def test_path_at_the_server(url: str, target: str) -> None:
    from antiphon.kit.proxy.messages import IncomingRequest

    assert UpstreamServer(url).make_target(IncomingRequest("GET", "/v1/responses?x=1", ())) == target


@pytest.mark.parametrize(
    "url", ["localhost:8000", "ftp://h", "http://", "http://user:secret@h", "http://h?x=1", "http://h:x"]
)
def test_bad_base_url_is_reported(url: str) -> None:
    with pytest.raises(UpstreamUrlError) as caught:
        UpstreamServer(url)
    assert "secret" not in str(caught.value)


def test_headers_about_the_connection_are_dropped() -> None:
    headers = [(b"Connection", b"close, X-Mine"), (b"x-mine", b"1"), (b"TE", b"trailers"), (b"X-Else", b"2")]
    assert drop_hop_by_hop(headers) == [(b"X-Else", b"2")]
    assert find_header(headers, "te") == "trailers"


def test_unix_socket_upstream(tmp_path: object) -> None:
    async def scenario() -> bytes:
        path = f"{tmp_path}/s"

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.readuntil(b"\r\n\r\n")
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhi")
            await writer.drain()
            writer.close()

        server = await asyncio.start_unix_server(serve, path)
        from antiphon.kit.proxy.check_proxy import open_check_proxy

        async with (
            open_check_proxy(f"unix:{path}", "127.0.0.1", 0, lambda report: None) as url,
            httpx.AsyncClient() as client,
        ):
            content = (await client.get(f"{url}/models")).content
        server.close()
        return content

    assert asyncio.run(scenario()) == b"hi"
