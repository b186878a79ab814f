"""URLs: which are fetched, whom the connection reaches, and servers that send too much, too slowly or elsewhere."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence

import httpx2
import pytest
from msgspec import structs

from antiphon.app.outbound.faults import FetchFault
from antiphon.app.outbound.fetcher import UrlFetcher, create_fetch_policy, parse_allowed_host
from antiphon.app.outbound.policy import AllowedHost
from tests.app.outbound.web import HOSTS, Answer, Web, redirect
from tests.progress import HANG_TIMEOUT_S


async def test_connection_goes_to_the_checked_address() -> None:
    web = Web({"https://pictures.example/a.png?x=1": httpx2.Response(200, content=b"picture")})
    fetcher = web.create_fetcher("pictures.example")
    assert await fetcher.fetch("a", "https://pictures.example/a.png?x=1", 100) == b"picture"
    (request,) = web.requests
    assert (request.url.host, request.headers["host"]) == ("93.184.216.34", "pictures.example")
    assert request.extensions["sni_hostname"] == "pictures.example"
    assert request.headers["accept-encoding"] == "identity"
    assert {"cookie", "authorization", "referer"}.isdisjoint(request.headers)
    assert web.num_lookups == 1


PRIVATE_URLS = """
https://127.0.0.1/ https://127.1/ https://2130706433/ https://0x7f000001/ https://0177.0.0.1/ https://127.0.0.1./
https://0.0.0.0/ https://10.0.0.1/ https://172.16.0.1/ https://192.168.1.1/ https://100.64.0.1/ https://169.254.169.254/
https://192.0.0.192/ https://198.18.0.1/ https://224.0.0.1/ https://255.255.255.255/ https://[::1]/ https://[::]/
https://[::ffff:127.0.0.1]/ https://[::ffff:7f00:1]/ https://[64:ff9b::127.0.0.1]/ https://[64:ff9b::a9fe:a9fe]/
https://[2002:7f00:1::]/ https://[fe80::1]/ https://[fc00::1]/ https://[fd00:ec2::254]/ https://[ff02::1]/
https://[::127.0.0.1]/ https://localhost/ https://metadata.google.internal/ https://1.0x7f/ https://①②⑦.0.0.1/
https://127。0。0。1/ https://127.0.0.1%00.pictures.example/
""".split()
OTHER_URLS = """
file:///etc/passwd ftp://pictures.example/ gopher://pictures.example/ data:image/png;base64,AAAA //pictures.example/
https://user@pictures.example/ https://user:word@pictures.example/ https://pictures.example@127.0.0.1/
https://pictures.example:22/ https://pictures.example:0/ https://pictures.example:99999/ http://pictures.example/
https://pictures.example\\@127.0.0.1/ https://pictures.example#@127.0.0.1/ https://other.example/
https://pictures.example.evil.example/ https://evil-pictures.example/ https:///a.png https://
""".split()


@pytest.mark.parametrize("url", [*PRIVATE_URLS, *OTHER_URLS])
async def test_url_is_refused_before_anything_is_sent(url: str) -> None:
    web = Web({}, {**HOSTS, "localhost": ["127.0.0.1"], "metadata.google.internal": ["169.254.169.254"]})
    any_host = web.create_fetcher("*", may_be_any=True)
    one_host = web.create_fetcher("pictures.example")
    for fetcher in (one_host, *([any_host] if url in PRIVATE_URLS else [])):
        with pytest.raises(FetchFault) as caught:
            await fetcher.fetch("a", url, 100)
        assert caught.value.code == "refused"
    assert not web.requests


@pytest.mark.parametrize("addresses", [["127.0.0.1"], ["93.184.216.34", "10.0.0.1"], ["fe80::1%eth0"], []])
async def test_every_address_must_be_public(addresses: list[str]) -> None:
    web = Web({}, {"pictures.example": addresses})
    with pytest.raises(FetchFault) as caught:
        await web.create_fetcher("pictures.example").fetch("a", "https://pictures.example/", 100)
    assert caught.value.detail == "this server fetches no URLs from 'pictures.example'."
    assert not web.requests


async def test_redirects_are_checked_like_the_first_url() -> None:
    start, end = "https://pictures.example/", "https://cdn.example/b"
    web = Web(
        {
            start: redirect("//cdn.example/a"),
            "https://cdn.example/a": redirect("b", 308),
            end: httpx2.Response(200, content=b"b"),
        }
    )
    assert await web.create_fetcher("pictures.example", "cdn.example").fetch("a", start, 100) == b"b"
    assert [request.url.host for request in web.requests] == ["93.184.216.34", *["2606:2800:220:1::1"] * 2]
    with pytest.raises(FetchFault, match="refused"):
        await web.create_fetcher("pictures.example").fetch("a", start, 100)


@pytest.mark.parametrize(
    ("location", "host"),
    [
        ("https://127.0.0.1/", "127.0.0.1"),
        ("http://pictures.example/", "pictures.example"),
        ("https://pictures.example:22/", "pictures.example"),
        ("data:image/png;base64,AAAA", "data:image"),
        ("https://[", "["),
        ("file:///etc/passwd", ""),
    ],
)
async def test_redirect_elsewhere_is_refused(location: str, host: str) -> None:
    web = Web({"https://pictures.example/": redirect(location)})
    with pytest.raises(FetchFault) as caught:
        await web.create_fetcher("pictures.example").fetch("a", "https://pictures.example/", 100)
    assert caught.value.code == "refused" and len(web.requests) == 1
    assert caught.value.host == host


async def test_redirects_end() -> None:
    web = Web({"https://pictures.example/": redirect("/"), "https://pictures.example/none": redirect("")})
    fetcher = web.create_fetcher("pictures.example")
    for path in ("", "none"):
        with pytest.raises(FetchFault) as caught:
            await fetcher.fetch("a", f"https://pictures.example/{path}", 100)
        assert caught.value.detail == f"Error while downloading https://pictures.example/{path}."
    assert len(web.requests) == 8


def _fail(error: Exception) -> Answer:
    def answer(_: httpx2.Request) -> httpx2.Response:
        raise error

    return answer


@pytest.mark.parametrize(
    ("answer", "code", "detail"),
    [
        (httpx2.Response(404), "status", "Upstream status code: 404."),
        (httpx2.Response(206, content=b"x"), "status", "Upstream status code: 206."),
        (httpx2.Response(200, content=b"x" * 101), "too_large", "It has more than 100 bytes."),
        (httpx2.Response(200, headers={"content-length": "1000"}), "too_large", "It has more than 100 bytes."),
        (httpx2.Response(200, headers={"content-encoding": "gzip"}, stream=httpx2.ByteStream(b"x")), "failed", ""),
        (_fail(httpx2.ConnectError("refused")), "failed", ""),
        (_fail(httpx2.ReadTimeout("slow")), "timeout", "Timeout while downloading"),
        (_fail(httpx2.RemoteProtocolError("no HTTP")), "failed", ""),
    ],
)
async def test_answers_that_are_no_picture(answer: httpx2.Response | Answer, code: str, detail: str) -> None:
    web = Web({"https://pictures.example/": answer})
    with pytest.raises(FetchFault) as caught:
        await web.create_fetcher("pictures.example").fetch("a", "https://pictures.example/", 100)
    assert caught.value.code == code and detail in caught.value.detail


async def test_second_address_is_tried() -> None:
    def answer(request: httpx2.Request) -> httpx2.Response:
        if request.url.host == "93.184.216.34":
            raise httpx2.ConnectError("refused")
        return httpx2.Response(200, content=b"second")

    web = Web({"https://pictures.example/": answer}, {"pictures.example": ["93.184.216.34", "93.184.216.35"]})
    assert await web.create_fetcher("pictures.example").fetch("a", "https://pictures.example/", 100) == b"second"


async def test_owner_has_four_downloads_at_a_time() -> None:
    running, most = 0, 0
    release = asyncio.Event()

    async def resolve(_host: str, _port: int) -> Sequence[str]:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await release.wait()
        running -= 1
        return HOSTS["pictures.example"]

    web = Web({"https://pictures.example/": lambda _: httpx2.Response(200)})
    fetcher = UrlFetcher(
        create_fetch_policy([parse_allowed_host("pictures.example")]),
        resolve=resolve,
        create_network=lambda: httpx2.MockTransport(web.answer),
    )
    tasks = [asyncio.create_task(fetcher.fetch("a", "https://pictures.example/", 9)) for _ in range(6)]
    other = asyncio.create_task(fetcher.fetch("b", "https://pictures.example/", 9))
    while running < 5:
        await asyncio.sleep(0)
    release.set()
    await asyncio.gather(*tasks, other)
    assert most == 5


Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@pytest.fixture
async def fetch_from() -> AsyncIterator[Callable[[Serve], Awaitable[bytes]]]:
    """Returns a function that starts a server on this machine and fetches from it over plain HTTP."""
    servers: list[asyncio.Server] = []

    async def fetch(serve: Serve) -> bytes:
        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        servers.append(server)
        port = server.sockets[0].getsockname()[1]

        async def resolve(_host: str, _port: int) -> Sequence[str]:
            return ["127.0.0.1"]

        policy = structs.replace(
            create_fetch_policy([AllowedHost(frozenset({"http"}), "localhost", port)]),
            reach="loopback",
            total_timeout_s=1.0 if serve in (_drip, _say_nothing) else HANG_TIMEOUT_S,
            head_timeout_s=0.5 if serve is _say_nothing else HANG_TIMEOUT_S,
        )
        return await UrlFetcher(policy, resolve=resolve).fetch("a", f"http://localhost:{port}/", 1 << 20)

    yield fetch
    for server in servers:
        server.close()


async def test_real_connection(fetch_from: Callable[[Serve], Awaitable[bytes]]) -> None:
    heads: list[bytes] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        heads.append(await reader.readuntil(b"\r\n\r\n"))
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\nSet-Cookie: a=b\r\n\r\nabc")
        writer.close()

    assert await fetch_from(serve) == b"abc"
    assert b"\r\nhost: localhost:" in heads[0].lower() and b"GET / HTTP/1.1" in heads[0]


async def _endless(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.readuntil(b"\r\n\r\n")
    writer.write(b"HTTP/1.1 200 OK\r\n\r\n")
    try:
        while True:
            writer.write(b"x" * 65536)
            await writer.drain()
    except ConnectionError:
        writer.close()


async def _drip(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.readuntil(b"\r\n\r\n")
    writer.write(b"HTTP/1.1 200 OK\r\n\r\n")
    try:
        while not writer.is_closing():
            writer.write(b"x")
            await asyncio.sleep(0.05)
    finally:
        writer.close()


async def _say_nothing(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.read()
    writer.close()


async def _bomb(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.readuntil(b"\r\n\r\n")
    writer.write(b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: 4\r\n\r\n\x1f\x8b\x08\0")
    writer.close()


@pytest.mark.parametrize(
    ("serve", "code"), [(_endless, "too_large"), (_drip, "timeout"), (_say_nothing, "timeout"), (_bomb, "failed")]
)
async def test_hostile_server(fetch_from: Callable[[Serve], Awaitable[bytes]], serve: Serve, code: str) -> None:
    with pytest.raises(FetchFault) as caught:
        await fetch_from(serve)
    assert caught.value.code == code


def test_rules_of_the_operator() -> None:
    assert parse_allowed_host("pictures.example").port == 443
    assert parse_allowed_host("http://pictures.example").port == 80
    assert parse_allowed_host("pictures.example:8443").port == 8443
    for wrong in ("*", "http://*", "*.example", "pictures.example/a", "user@pictures.example", "", "ftp://a.example"):
        with pytest.raises(ValueError, match=r"\."):
            parse_allowed_host(wrong)
    assert parse_allowed_host("*", may_be_any=True).host == "*"
    assert parse_allowed_host("93.184.216.34").host == "93.184.216.34"


@pytest.mark.parametrize(
    "host",
    ["localhost", "http://127.0.0.1:9472", "pictures.localhost", "10.0.0.1", "169.254.169.254", "[::1]", "[fd00::1]", "192.0.2.1",
     "[::ffff:10.0.0.1]", "nas.local", "db.internal", "router.home.arpa:8443", "0.0.0.0", "100.64.0.1", "224.0.0.1"],
)  # fmt: skip
def test_host_from_which_nothing_is_ever_fetched_is_refused_at_the_start(host: str) -> None:
    with pytest.raises(ValueError, match="is not public, so that no URL of it is ever fetched"):
        parse_allowed_host(host)
