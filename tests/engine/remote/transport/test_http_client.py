"""The HTTP client: which connections are used again, which requests are repeated, and where a response ends."""

import asyncio
import ssl
from pathlib import Path

import pytest

from antiphon.engine.remote.transport import http_client
from antiphon.engine.remote.transport.connection import RemoteConnectionError, SilenceTimeoutError
from antiphon.engine.remote.transport.endpoint import RemoteEndpoint
from antiphon.engine.remote.transport.http_client import HttpClient
from tests.engine.remote.transport.raw_server import CHUNKED, END_CHUNK, Part, chunk, ok, raw_server
from tests.engine.remote.transport.recording_sink import RecordingSink
from tests.progress import HANG_TIMEOUT_S

KEPT = (ok(b"first"),)
"""Reply after which the connection is kept."""


def create_client(endpoint: RemoteEndpoint, silence_timeout_s: float = HANG_TIMEOUT_S) -> HttpClient:
    return HttpClient(endpoint, {}, silence_timeout_s=silence_timeout_s)


class TestRepeatedRequests:
    """A request is repeated only if the server closed a kept connection before a byte of the answer."""

    @pytest.mark.parametrize(
        "reply",
        [
            (CHUNKED, chunk(b"data: 1\n\n"), "reset"),
            (CHUNKED, chunk(b"data: 1\n\n"), "close"),
            (b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nhalf", "close"),
            (CHUNKED, "close"),
            (b"HTTP/1.1 200", "close"),
            (b"HTTP/1.1 103 Early Hints\r\n\r\n", "close"),
            (b"nonsense\r\n\r\n", "close"),
        ],
        ids=str,
    )
    async def test_reply_that_breaks_on_a_kept_connection_is_not_requested_again(self, reply: tuple[Part, ...]) -> None:
        async with raw_server(KEPT, reply, KEPT) as (server, endpoint):
            client, sink = create_client(endpoint), RecordingSink()
            await client.request("GET", "/")
            with pytest.raises(RemoteConnectionError) as caught:
                await client.request("GET", "/", sink=sink)
            assert caught.value.answered
            assert server.requests == [1, 1]

    @pytest.mark.parametrize("end", ["close", "reset"])
    async def test_kept_connection_that_the_server_closed_is_replaced(self, end: Part) -> None:
        async with raw_server(KEPT, (end,), (ok(b"second"),)) as (server, endpoint):
            client = create_client(endpoint)
            await client.request("GET", "/")
            assert (await client.request("GET", "/")).body == b"second"
            assert server.requests == [1, 1, 2]

    @pytest.mark.parametrize("end", ["close", "reset"])
    async def test_new_connection_that_ends_is_an_error(self, end: Part) -> None:
        async with raw_server((end,), KEPT) as (server, endpoint):
            with pytest.raises(RemoteConnectionError) as caught:
                await create_client(endpoint).request("GET", "/")
            assert not caught.value.answered and server.requests == [1]

    async def test_silence_on_a_kept_connection_is_an_error(self) -> None:
        """The server has the request and may be working on it."""
        async with raw_server(KEPT, ("wait",), KEPT) as (server, endpoint):
            client = create_client(endpoint, 0.05)
            await client.request("GET", "/")
            with pytest.raises(SilenceTimeoutError) as caught:
                await client.request("GET", "/")
            assert not caught.value.answered and server.requests == [1, 1]


class TestKeptConnections:
    """Connections that can carry another request are kept."""

    async def test_latest_connection_is_used_first(self) -> None:
        async with raw_server(*[KEPT] * 4) as (server, endpoint):
            client = create_client(endpoint)
            await asyncio.gather(client.request("GET", "/"), client.request("GET", "/"))
            last = client.idle_connections[-1]
            await client.request("GET", "/")
            assert client.idle_connections[-1] is last and server.num_connections == 2

    @pytest.mark.parametrize(
        "reply",
        [
            (ok(headers=b"Connection: close\r\n"),),
            (ok() + b"HTTP/1.1 500 behind\r\nContent-Length: 0\r\n\r\n",),
            (ok() + b"x",),
            (b"HTTP/1.1 200 OK\r\n\r\nuntil the end", "close"),
            (b"HTTP/1.0 200 OK\r\nContent-Length: 0\r\n\r\n",),
        ],
        ids=str,
    )
    async def test_connection_that_cannot_carry_another_request_is_closed(self, reply: tuple[Part, ...]) -> None:
        async with raw_server(reply, KEPT) as (server, endpoint):
            client = create_client(endpoint)
            assert (await client.request("GET", "/")).status == 200
            assert not client.idle_connections
            assert (await client.request("GET", "/")).body == b"first"
            assert server.requests == [1, 2]

    @pytest.mark.parametrize(("age_s", "connections"), [(3.9, [1, 1]), (4.1, [1, 2])])
    async def test_connection_that_was_idle_too_long_is_not_used(self, age_s: float, connections: list[int]) -> None:
        async with raw_server(KEPT, KEPT) as (server, endpoint):
            client = create_client(endpoint)
            await client.request("GET", "/")
            client.idle_connections[0].last_data_at = asyncio.get_running_loop().time() - age_s
            await client.request("GET", "/")
            assert server.requests == connections

    async def test_young_connection_that_has_ended_is_not_used(self) -> None:
        async with raw_server(KEPT, KEPT) as (server, endpoint):
            client = create_client(endpoint)
            await client.request("GET", "/")
            client.idle_connections[0].is_reusable = False
            await client.request("GET", "/")
            assert server.requests == [1, 2]

    async def test_number_of_kept_connections_is_limited(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(http_client, "MAX_IDLE_CONNECTIONS", 2)
        async with raw_server(*[KEPT] * 5) as (_, endpoint):
            client = create_client(endpoint)
            for number in (2, 3):
                await asyncio.gather(*(client.request("GET", "/") for _ in range(number)))
                assert len(client.idle_connections) == 2

    async def test_close_hangs_up(self) -> None:
        async with raw_server(KEPT) as (server, endpoint):
            client = create_client(endpoint)
            await client.request("GET", "/")
            client.close()
            async with asyncio.timeout(HANG_TIMEOUT_S):
                while not server.num_hung_up:
                    await asyncio.sleep(0.01)
            assert not client.idle_connections


class TestEndOfAResponse:
    """Where a response ends, and what precedes it."""

    @pytest.mark.parametrize("is_one_write", [True, False])
    @pytest.mark.parametrize(
        "interim",
        [
            b"HTTP/1.1 103 Early Hints\r\nLink: </style.css>\r\n\r\n",
            b"HTTP/1.1 100 Continue\r\n\r\n",
            b"HTTP/1.1 102 Processing\r\nContent-Length: 5\r\n\r\n" * 3,
        ],
        ids=str,
    )
    async def test_interim_response_is_not_the_response(self, interim: bytes, is_one_write: bool) -> None:
        reply = (interim + ok(b"real"),) if is_one_write else (interim, ok(b"real"))
        async with raw_server(KEPT, reply, KEPT) as (server, endpoint):
            client = create_client(endpoint)
            await client.request("GET", "/")
            response = await client.request("GET", "/")
            assert (response.status, response.body) == (200, b"real")
            assert (await client.request("GET", "/")).body == b"first"
            assert server.requests == [1, 1, 1]

    async def test_interim_response_with_a_length_does_not_bound_the_response(self) -> None:
        interim = b"HTTP/1.1 103 Early Hints\r\nContent-Length: 0\r\n\r\n"
        async with raw_server((interim, b"HTTP/1.1 200 OK\r\n\r\nuntil the end", "close")) as (_, endpoint):
            assert (await create_client(endpoint).request("GET", "/")).body == b"until the end"

    async def test_response_without_a_length_ends_with_the_connection(self) -> None:
        async with raw_server((b"HTTP/1.1 200 OK\r\n\r\nuntil ", b"the end", "close")) as (_, endpoint):
            assert (await create_client(endpoint).request("GET", "/")).body == b"until the end"

    async def test_response_without_a_length_that_is_reset_is_an_error(self) -> None:
        async with raw_server((b"HTTP/1.1 200 OK\r\n\r\nuntil ", "reset")) as (_, endpoint):
            with pytest.raises(RemoteConnectionError):
                await create_client(endpoint).request("GET", "/")

    async def test_body_of_an_error_is_returned_and_not_streamed(self) -> None:
        async with raw_server((ok(b"no", status=b"400 Bad Request"),)) as (_, endpoint):
            sink = RecordingSink()
            response = await create_client(endpoint).request("GET", "/", sink=sink)
            assert (response.status, response.body, sink.parts) == (400, b"no", [])

    async def test_switch_of_protocols_is_an_error(self) -> None:
        reply = b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\nConnection: Upgrade\r\n\r\nhello"
        async with raw_server((reply, "wait")) as (_, endpoint):
            with pytest.raises(RemoteConnectionError, match="not HTTP"):
                await create_client(endpoint).request("GET", "/")

    async def test_sink_with_enough_hangs_up(self) -> None:
        async with raw_server((CHUNKED, chunk(b"one"), chunk(b"two"), "wait")) as (server, endpoint):
            client, sink = create_client(endpoint), RecordingSink(enough_after=1)
            assert (await client.request("GET", "/", sink=sink)).status == 200
            assert b"".join(sink.parts) in (b"one", b"onetwo") and not client.idle_connections
            async with asyncio.timeout(HANG_TIMEOUT_S):
                while not server.num_hung_up:
                    await asyncio.sleep(0.01)

    async def test_error_of_the_sink_is_raised(self) -> None:
        async with raw_server((CHUNKED, chunk(b"one"), "wait")) as (_, endpoint):
            with pytest.raises(RuntimeError, match="broken sink"):
                await create_client(endpoint).request("GET", "/", sink=RecordingSink(error=RuntimeError("broken sink")))

    async def test_cancelled_request_hangs_up(self) -> None:
        async with raw_server((CHUNKED, chunk(b"one"), "wait")) as (server, endpoint):
            client, sink = create_client(endpoint), RecordingSink()
            request = asyncio.create_task(client.request("GET", "/", sink=sink))
            async with asyncio.timeout(HANG_TIMEOUT_S):
                while not sink.parts:
                    await asyncio.sleep(0.01)
                request.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await request
                while not server.num_hung_up:
                    await asyncio.sleep(0.01)
            assert not client.idle_connections

    async def test_large_response_leaves_the_connection_usable(self) -> None:
        """Reading pauses while slices are parsed, and continues for the next response."""
        body = b"x" * 1_000_000
        reply = CHUNKED + chunk(body) + END_CHUNK
        async with raw_server((reply,), (reply,)) as (server, endpoint):
            client = create_client(endpoint)
            for _ in range(2):
                sink = RecordingSink(backlog_per_part=2)
                await client.request("GET", "/", sink=sink)
                assert b"".join(sink.parts) == body and not sink.has_backlog
            assert server.requests == [1, 1]


class TestConnecting:
    """Errors before a connection exists name the server."""

    async def test_server_that_does_not_listen(self) -> None:
        async with raw_server() as (_, endpoint):
            pass
        with pytest.raises(RemoteConnectionError, match=f"{endpoint.name} cannot be reached") as caught:
            await create_client(endpoint).request("GET", "/")
        assert not caught.value.answered

    async def test_missing_socket_file(self, tmp_path: Path) -> None:
        with pytest.raises(RemoteConnectionError, match="cannot be reached: No such file"):
            await create_client(RemoteEndpoint(socket_path=str(tmp_path / "none"))).request("GET", "/")

    async def test_error_of_several_addresses(self, monkeypatch: pytest.MonkeyPatch) -> None:
        async def refuse(*_: object, **__: object) -> None:
            raise OSError("Multiple exceptions: one, two")

        monkeypatch.setattr(asyncio.get_running_loop(), "create_connection", refuse)
        with pytest.raises(RemoteConnectionError, match="cannot be reached: Multiple exceptions: one, two"):
            await create_client(RemoteEndpoint(host="localhost", port=1)).request("GET", "/")

    async def test_server_without_tls(self) -> None:
        async def greet(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.write(b"220 hello\r\n")
            writer.close()

        async with await asyncio.start_server(greet, "127.0.0.1", 0) as server:
            endpoint = RemoteEndpoint(host="127.0.0.1", port=server.sockets[0].getsockname()[1], is_tls=True)
            with pytest.raises(RemoteConnectionError, match=f"{endpoint.name}: TLS failed"):
                await create_client(endpoint).request("GET", "/")

    async def test_connection_that_is_not_accepted_in_time(self, monkeypatch: pytest.MonkeyPatch) -> None:
        async def wait_forever(*_: object, **__: object) -> None:
            await asyncio.Event().wait()

        monkeypatch.setattr(http_client, "ENGINE_CONNECT_TIMEOUT_S", 0.01)
        monkeypatch.setattr(type(asyncio.get_running_loop()), "create_connection", wait_forever, raising=False)
        with pytest.raises(RemoteConnectionError, match=r"no connection to localhost:80 within 0\.01 s"):
            await create_client(RemoteEndpoint()).request("GET", "/")

    def test_certificates_are_verified(self) -> None:
        client = HttpClient(RemoteEndpoint(is_tls=True, port=443), {}, silence_timeout_s=1.0)
        assert client.tls is not None
        assert (client.tls.verify_mode, client.tls.check_hostname) == (ssl.CERT_REQUIRED, True)

    async def test_head_of_a_request(self) -> None:
        async with raw_server((ok(),), (ok(),)) as (server, endpoint):
            based = RemoteEndpoint(host=endpoint.host, port=endpoint.port, base_path="/engine")
            client = HttpClient(based, {"Authorization": "Bearer k"}, silence_timeout_s=30)
            await client.request("GET", "/health", headers={"X-Request-Id": "1"})
            head = server.heads[0]
            assert head.startswith(b"GET /engine/health HTTP/1.1\r\n") and b"X-Request-Id: 1\r\n" in head
            assert b"Authorization: Bearer k\r\n" in head and b"Content-Length" not in head
            assert b"Host: %b\r\n" % endpoint.host_header.encode() in head
