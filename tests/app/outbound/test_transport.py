"""The transport below all requests for clients: its policy holds for every request and every body, without its users."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence

import httpx2
import pytest

from antiphon.app.outbound.faults import OutboundError, RefusedUrlError
from antiphon.app.outbound.fetcher import create_fetch_policy, parse_allowed_host
from antiphon.app.outbound.policy import OutboundPolicy
from antiphon.app.outbound.transport import PinnedTransport

URL = "https://a.example/"


class Endless(httpx2.AsyncByteStream):
    """A body without an end, which counts the chunks that were read and waits after the second."""

    def __init__(self) -> None:
        self.num_chunks = 0

    async def __aiter__(self) -> AsyncIterator[bytes]:
        while self.num_chunks < 2:
            self.num_chunks += 1
            yield b"x" * 10
        await asyncio.Event().wait()


async def resolve(_host: str, _port: int) -> Sequence[str]:
    return ["93.184.216.34"]


def open_transport(
    policy: OutboundPolicy,
    body: Endless,
    headers: dict[str, str] | None = None,
    get_deadline: Callable[[], float | None] = lambda: None,
) -> PinnedTransport:
    network = httpx2.MockTransport(lambda _: httpx2.Response(200, headers=headers, stream=body))
    return PinnedTransport(policy, resolve=resolve, get_deadline=get_deadline, network=network)


async def read(transport: PinnedTransport, url: str = URL) -> list[bytes]:
    response = await transport.handle_async_request(httpx2.Request("GET", url))
    assert isinstance(response.stream, httpx2.AsyncByteStream)
    return [chunk async for chunk in response.stream]


@pytest.mark.parametrize(
    ("headers", "code", "num_chunks"),
    [
        ({"content-encoding": "gzip"}, "encoded", 0),
        ({"content-encoding": "identity, br"}, "encoded", 0),
        ({"content-length": "16"}, "too_large", 0),
        ({"content-length": "15"}, "too_large", 2),
        ({"content-length": "nonsense", "content-encoding": " Identity "}, "too_large", 2),
    ],
)
async def test_body_is_checked_when_it_is_read(headers: dict[str, str], code: str, num_chunks: int) -> None:
    body = Endless()
    with pytest.raises(OutboundError) as caught:
        await read(open_transport(OutboundPolicy(max_body_bytes=15), body, headers))
    assert (caught.value.code, body.num_chunks) == (code, num_chunks)


async def test_deadline_that_is_set_later_ends_the_body() -> None:
    deadlines: list[float] = []
    body = Endless()
    transport = open_transport(OutboundPolicy(), body, get_deadline=lambda: deadlines[-1] if deadlines else None)
    response = await transport.handle_async_request(httpx2.Request("GET", URL))
    assert isinstance(response.stream, httpx2.AsyncByteStream)
    chunks = aiter(response.stream)
    await anext(chunks)
    deadlines.append(asyncio.get_running_loop().time())
    with pytest.raises(TimeoutError):
        async for _ in chunks:
            pass
    assert body.num_chunks == 2


@pytest.mark.parametrize(
    "url", ["https://b.example/", "http://a.example/", "https://a.example:8443/", "https://127.0.0.1/"]
)
async def test_every_request_must_be_allowed(url: str) -> None:
    body = Endless()
    policy = create_fetch_policy([parse_allowed_host("a.example")])
    with pytest.raises(RefusedUrlError):
        await read(open_transport(policy, body), url)
    assert not body.num_chunks
