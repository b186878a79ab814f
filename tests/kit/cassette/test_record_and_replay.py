"""What was recorded is replayed, byte for byte, to every client."""

import asyncio
import gzip
import json
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest
import zstandard
from click.testing import CliRunner
from openai import AsyncOpenAI, BadRequestError, NotFoundError, OpenAI

from antiphon.app.cli.commands import main
from antiphon.kit.cassette.reading import read_cassette
from antiphon.kit.checker.stream import check_sse
from antiphon.kit.proxy.exchange import ServerExchange
from tests.kit.cassette.cassette_files import run_player, run_recorder
from tests.kit.proxy.wire_servers import make_request, read_all, run_handler, send_raw, wait_until
from tests.progress import HANG_TIMEOUT_S
from tests.serving import RunningServer, serve

CALL = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Oslo"}}\n</tool_call>'
TOOLS: Any = [{"type": "function", "name": "get_weather", "parameters": {"type": "object"}}]
SCRIPT = [
    {"name": "weather", "when": ["weather"], "output": ["<think>Hm.</think>", CALL]},
    {
        "name": "quotes",
        "when": ["quotes"],
        "output": ["It's '''three''' \"double\" \\ back\n\ttab \u2028 \U0001f600 \x7f\x01", "'"],
    },
    {"name": "paused", "when": ["paused"], "output": ["One", {"pause": 0.5}, " two"]},
    {"name": "slow", "when": ["slow"], "output": ["One", {"pause": 600.0}, " two"]},
    {"name": "hello", "output": ["Hello, ", "you", " there."]},
]
SERVER = partial(serve, SCRIPT, file_store=True, api_keys=("sk-test-0123456789",))
HEADERS = {"authorization": "Bearer sk-test-0123456789"}
BODIES: list[dict[str, Any]] = [
    {"model": "scripted", "input": "Hi", "stream": True},
    {"model": "scripted", "input": "the weather?", "tools": TOOLS, "stream": True},
    {"model": "scripted", "input": "quotes", "stream": True},
    {"model": "scripted", "input": "quotes"},
    {"model": "scripted", "input": "Hi", "temperature": 99},
]


@pytest.fixture
def cassette(tmp_path: Path) -> Path:
    return tmp_path / "turns.toml"


def post(url: str, body: dict[str, Any], path: str = "/responses") -> httpx.Response:
    return httpx.post(f"{url}{path}", json=body, headers=HEADERS, timeout=HANG_TIMEOUT_S)


def test_replies_are_replayed_byte_for_byte(server: RunningServer, cassette: Path) -> None:
    chat = {"model": "scripted", "messages": [{"role": "user", "content": "quotes"}], "stream": True}
    messages = {
        "model": "scripted",
        "max_tokens": 50,
        "messages": [{"role": "user", "content": "quotes"}],
        "stream": True,
    }
    with run_recorder(server.url, cassette) as url:
        recorded = [post(url, body) for body in BODIES]
        recorded += [post(url, chat, "/chat/completions"), post(url, messages, "/messages")]
        recorded.append(httpx.get(f"{url}/models", headers=HEADERS))
    with run_player(cassette) as url:
        replayed = [post(url, body) for body in BODIES]
        replayed += [post(url, chat, "/chat/completions"), post(url, messages, "/messages")]
        replayed.append(httpx.get(f"{url}/models", headers=HEADERS))
    for one, other in zip(recorded, replayed, strict=True):
        assert (one.status_code, one.content) == (other.status_code, other.content)
        assert one.headers["content-type"] == other.headers["content-type"]
    assert recorded[0].content.endswith(b"[DONE]\n\n") and b"three" in recorded[3].content


def test_cassette_is_text_that_a_person_reads(server: RunningServer, cassette: Path) -> None:
    with run_recorder(server.url, cassette) as url:
        post(url, BODIES[0])
        post(url, BODIES[3])
    text = cassette.read_text()
    assert '  "input": "Hi",\n' in text
    assert re.search(r"""^  { at_ms = \d+, data = '{"type":"response.created",.*}' },$""", text, re.MULTILINE)
    assert 'authorization = "REDACTED"' in text
    assert '  "object": "response",\n' in text.replace("json = '''\n", "")


def test_sdks_read_a_replayed_stream(server: RunningServer, cassette: Path) -> None:
    def read(url: str) -> list[str]:
        with OpenAI(base_url=url, api_key="sk-test-0123456789", max_retries=0) as client:
            with client.responses.stream(model="scripted", input="the weather?", tools=TOOLS) as stream:
                events = [event.to_json() for event in stream]
            with pytest.raises(BadRequestError):
                client.responses.create(model="scripted", input="Hi", temperature=99)
            return events

    async def read_async(url: str) -> list[str]:
        async with AsyncOpenAI(base_url=url, api_key="sk-other-987654321") as client:
            stream = await client.responses.create(model="scripted", input="the weather?", tools=TOOLS, stream=True)
            return [event.type async for event in stream]

    with run_recorder(server.url, cassette) as url:
        recorded = read(url)
    with run_player(cassette) as url:
        assert read(url) == recorded
        assert asyncio.run(read_async(url))[-1] == "response.completed"


def test_edited_cassette_replays_the_edit(server: RunningServer, cassette: Path) -> None:
    with run_recorder(server.url, cassette) as url:
        original = post(url, BODIES[0]).content
    cassette.write_text(cassette.read_text().replace("there", "folks").replace('"input": "Hi"', '"input": "Ho"'))
    with run_player(cassette) as url:
        assert post(url, BODIES[0] | {"input": "Ho"}).content == original.replace(b"there", b"folks")
        assert post(url, BODIES[0]).status_code == 404


def test_equal_requests_get_their_replies_in_order_and_then_the_last(server: RunningServer, cassette: Path) -> None:
    with run_recorder(server.url, cassette) as url:
        recorded = [post(url, BODIES[0]).content for _ in range(2)]
    with run_player(cassette) as url:
        assert [post(url, BODIES[0]).content for _ in range(4)] == [*recorded, recorded[1], recorded[1]]
    with run_player(cassette, match="order") as url:
        assert [post(url, body).content for body in BODIES[1:3]] == recorded
        assert "have been played" in post(url, BODIES[0]).json()["error"]["message"]


def test_unknown_request_names_the_nearest_and_the_difference(server: RunningServer, cassette: Path) -> None:
    with run_recorder(server.url, cassette) as url:
        for body in BODIES[:3]:
            post(url, body)
    with run_player(cassette) as url:
        error = post(url, BODIES[1] | {"input": "the weather!"}).json()["error"]
        assert error == {
            "message": "no recorded exchange matches POST /v1/responses; the nearest is exchange 2, which differs at "
            'input: recorded "the weather?", but got "the weather!"',
            "type": "invalid_request_error",
            "code": "cassette_no_match",
            "param": None,
        }
        other = httpx.get(f"{url}/models")
        assert other.status_code == 404
        assert (
            other.json()["error"]["message"]
            == "no exchange of GET /v1/models was recorded; recorded: POST /v1/responses"
        )
        with (
            OpenAI(base_url=url, api_key="x") as client,
            pytest.raises(NotFoundError, match="no recorded exchange matches"),
        ):
            client.responses.create(model="scripted", input="new")


def test_unknown_request_is_forwarded_to_the_fallback(server: RunningServer, cassette: Path) -> None:
    with run_recorder(server.url, cassette) as url:
        recorded = post(url, BODIES[0]).content
    with run_player(cassette, fallback_url=server.url) as url:
        assert post(url, BODIES[0]).content == recorded
        reply = post(url, BODIES[0] | {"input": "x" * 100_000})
    assert reply.status_code == 200 and b"response.completed" in reply.content


def test_what_varies_from_run_to_run_is_ignored(server: RunningServer, cassette: Path) -> None:
    def make_body(run: int) -> dict[str, Any]:
        output = f"Chunk ID: a{run}b\nWall time: 0.0{run} seconds\nOutput:\nhi"
        items = [
            {
                "type": "message",
                "role": "user",
                "id": f"msg_{run}",
                "content": [{"type": "input_text", "text": f"<cwd>/tmp/{run}</cwd>"}],
            },
            {"type": "function_call", "call_id": "call_1", "name": "f", "arguments": "{}", "id": f"fc_{run}"},
            {"type": "function_call_output", "call_id": "call_1", "output": output},
        ]
        return {
            "model": "scripted",
            "input": items,
            "prompt_cache_key": str(run),
            "client_metadata": {"turn": str(run)},
        }

    with run_recorder(server.url, cassette) as url:
        recorded = post(url, make_body(1)).content
    with run_player(cassette) as url:
        assert post(url, make_body(2)).content == recorded
        changed = make_body(2)
        changed["input"][1]["call_id"] = "call_2"
        assert "input[1].call_id" in post(url, changed).json()["error"]["message"]
    with run_player(cassette, match="exact") as url:
        assert post(url, make_body(2)).status_code == 404
        assert post(url, make_body(1)).content == recorded


@pytest.mark.parametrize(
    ("at_ms", "speed", "shortest", "longest"), [(300, 1.0, 0.3, 60), (20_000, 50.0, 0.4, 15), (60_000, 0, 0, 30)]
)
def test_speed(hand_written: str, at_ms: int, speed: float, shortest: float, longest: float) -> None:
    with run_player(hand_written.replace("at_ms = 10", f"at_ms = {at_ms}"), speed=speed) as url:
        started_at = time.monotonic()
        httpx.post(f"{url}/responses", json={"input": "Hi"}, timeout=HANG_TIMEOUT_S)
        assert shortest <= time.monotonic() - started_at <= longest


def test_times_are_recorded(server: RunningServer, cassette: Path) -> None:
    with run_recorder(server.url, cassette) as url:
        post(url, {"model": "scripted", "input": "paused", "stream": True})
    [exchange] = read_cassette(cassette)
    times = [frame.at_ms for frame in exchange.response.frames or ()]
    assert times == sorted(times)
    assert times[-1] - times[0] >= 250, (
        "the pause takes 500 ms, of which a late reading of the first frame takes a part"
    )


def test_compressed_bodies_are_recorded_as_text(cassette: Path) -> None:
    async def answer_gzipped(exchange: ServerExchange) -> None:
        await exchange.read_body()
        data = gzip.compress(b'data: {"type": "a"}\n\ndata: [DONE]\n\n')
        exchange.start_reply(200, [(b"content-type", b"text/event-stream"), (b"content-encoding", b"gzip")])
        exchange.write_data(data[:20])
        exchange.write_data(data[20:])
        exchange.end_reply()

    request = zstandard.compress(b'{"input": "Hi"}')
    headers = {"content-encoding": "zstd", "content-type": "application/json"}
    with run_handler(answer_gzipped) as upstream, run_recorder(upstream, cassette) as url:
        recorded = httpx.post(f"{url}/responses", content=request, headers=headers)
    assert recorded.headers["content-encoding"] == "gzip"
    with run_player(cassette) as url:
        replayed = httpx.post(f"{url}/responses", content=request, headers=headers)
        assert httpx.post(f"{url}/responses", json={"input": "Hi"}).content == replayed.content == recorded.content
    assert '"input": "Hi"' in cassette.read_text()


FRAMES = (
    b": ping\n\n"
    b":no space\n\n"
    b'event: named\ndata: {"type": "other"}\n\n'
    b'data: {"type": "unnamed"}\n\n'
    b"event: x\r\ndata: {}\r\n\r\n"
    b"id: 7\nretry: 10\ndata: 1\ndata: 2\n\n"
    b'data:{"a":1}\n\n'
    b"data: \xff\xfe\n\n"
    b"data: [DONE]\n\n"
    b"event: cut\ndata: {"
)  # fmt: skip


def test_odd_frames_are_replayed_byte_for_byte(cassette: Path) -> None:
    async def answer_odd(exchange: ServerExchange) -> None:
        exchange.start_reply(200, [(b"content-type", b"text/event-stream")])
        for index in range(0, len(FRAMES), 5):
            exchange.write_data(FRAMES[index : index + 5])
            await exchange.drain()
        exchange.end_reply()

    with run_handler(answer_odd) as upstream, run_recorder(upstream, cassette) as url:
        assert httpx.get(f"{url}/x").content == FRAMES
    with run_player(cassette) as url:
        assert httpx.get(f"{url}/x").content == FRAMES
    assert 'comment = "ping"' in cassette.read_text()


@pytest.mark.parametrize("kind", ["cut", "reset"])
def test_broken_connection_is_replayed(cassette: Path, kind: str) -> None:
    async def answer_broken(exchange: ServerExchange) -> None:
        exchange.start_reply(200, [(b"content-type", b"text/event-stream")])
        exchange.write_data(b"data: 1\n\n")
        await asyncio.sleep(0.1)
        (exchange.cut_connection if kind == "cut" else exchange.reset_connection)()

    def read(url: str) -> tuple[bytes, str]:
        data = b""
        with send_raw(url, make_request("GET", "/v1/x")) as client:
            try:
                while piece := client.recv(1 << 16):
                    data += piece
            except ConnectionResetError:
                return data, "reset"
        return data, "cut"

    with run_handler(answer_broken) as upstream, run_recorder(upstream, cassette) as url:
        assert read(url)[1] == kind
        wait_until(lambda: "[[exchange]]" in cassette.read_text(), "the exchange is not recorded")
    with run_player(cassette) as url:
        data, ending = read(url)
    assert ending == kind and data.endswith(b"9\r\ndata: 1\n\n\r\n")


def test_leaving_client_closes_the_upstream_and_is_recorded(server: RunningServer, cassette: Path) -> None:
    body = {"model": "scripted", "input": "slow", "stream": True}
    with run_recorder(server.url, cassette) as url:
        with httpx.stream("POST", f"{url}/responses", json=body, headers=HEADERS) as reply:
            next(reply.iter_raw())
        wait_until(lambda: "[[exchange]]" in cassette.read_text(), "the exchange is not recorded")
    [exchange] = read_cassette(cassette)
    assert exchange.response.ended == "client_left" and exchange.response.frames


def test_recording_alters_no_byte(cassette: Path) -> None:
    async def echo(exchange: ServerExchange) -> None:
        body = await exchange.read_body()
        exchange.start_reply(200, [(b"X-Odd", b"Value"), (b"Content-Length", str(len(body)).encode())])
        exchange.write_data(body)
        exchange.end_reply()

    request = make_request("POST", "/v1/echo?x=%20", bytes(range(256)) * 100, "Connection: close")
    with run_handler(echo) as upstream, run_recorder(upstream, cassette) as url:
        replies = []
        for each in (upstream, url):
            with send_raw(each, request) as client:
                replies.append(read_all(client))
    assert replies[0] == replies[1]
    [exchange] = read_cassette(cassette)
    assert exchange.request.body == exchange.response.body == bytes(range(256)) * 100
    assert exchange.request.path == "/v1/echo?x=%20"


def test_hundred_streams_at_once(server: RunningServer, cassette: Path) -> None:
    def read(url: str, index: int) -> bytes:
        return post(url, BODIES[0] | {"input": f"Hi {index}"}).content

    with ThreadPoolExecutor(100) as pool:
        with run_recorder(server.url, cassette) as url:
            recorded = list(pool.map(partial(read, url), range(100)))
        with run_player(cassette) as url:
            assert list(pool.map(partial(read, url), range(100))) == recorded
    assert not [finding for body in recorded for finding in check_sse(body) if finding.level == "error"]


def test_existing_file_is_kept_unless_appended(server: RunningServer, cassette: Path) -> None:
    with run_recorder(server.url, cassette) as url:
        post(url, BODIES[0])
    result = CliRunner().invoke(main, ["record", server.url, "--out", str(cassette), "--port", "0"])
    assert result.exit_code == 1 and result.output == f"Error: {cassette} exists; remove it, or add --append\n"
    with run_recorder(server.url, cassette, append=True) as url:
        post(url, BODIES[1])
    assert [json.loads(each.request.body)["input"] for each in read_cassette(cassette)] == ["Hi", "the weather?"]


def test_each_exchange_is_in_the_file_when_it_has_ended(server: RunningServer, cassette: Path) -> None:
    with run_recorder(server.url, cassette) as url:
        for count in (1, 2):
            post(url, BODIES[0])
            wait_until(lambda count=count: len(read_cassette(cassette)) == count, "the exchange is not in the file")


@pytest.fixture
def hand_written() -> str:
    return """
version = 1
[[exchange]]
name = "a greeting"
[exchange.request]
method = "POST"
path = "/v1/responses"
json = '{"input": "Hi"}'
[exchange.response]
status = 200
events = [{ data = '{"type": "response.created"}' }, { at_ms = 10, data = "[DONE]" }]
"""


def test_hand_written_cassette(hand_written: str) -> None:
    with run_player(hand_written) as url:
        reply = httpx.post(f"{url}/responses", json={"input": "Hi"})
    assert reply.headers["content-type"] == "text/event-stream"
    assert reply.text == 'event: response.created\ndata: {"type": "response.created"}\n\ndata: [DONE]\n\n'


def test_fault_without_a_place_is_told(hand_written: str) -> None:
    text = hand_written.replace('name = "a greeting"', 'fault = { kind = "cut", at = "response.output_text.delta" }')
    printed: list[str] = []
    with run_player(text, print_line=printed.append) as url:
        httpx.post(f"{url}/responses", json={"input": "Hi"})
        wait_until(lambda: len(printed) == 2, "one more line")
    assert printed[1] == "POST /v1/responses: the fault of exchange 1 found no place in the reply"


def test_reset_of_a_replayed_stream(hand_written: str) -> None:
    text = hand_written.replace('name = "a greeting"', 'fault = { kind = "reset", at = "response.created" }')
    body = b'{"input": "Hi"}'
    with run_player(text) as url, send_raw(url, make_request("POST", "/v1/responses", body)) as client:
        client.recv(1 << 16)
        with pytest.raises(ConnectionResetError):
            read_all(client)


@contextmanager
def run_command(*arguments: str) -> Iterator[tuple[str, subprocess.Popen[str]]]:
    """Runs `antiphon` until the block has ended it. Yields the base URL that it prints."""
    command = [sys.executable, "-um", "antiphon", *arguments, "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        assert process.stdout is not None
        try:
            line = process.stdout.readline()
            assert "base URL http://127.0.0.1:" in line, line + process.stdout.read()
            yield line.partition("base URL ")[2].partition(";")[0], process
        finally:
            process.kill()


def test_commands(server: RunningServer, cassette: Path) -> None:
    with run_command("record", server.url, "--out", str(cassette)) as (url, process):
        recorded = post(url, BODIES[0]).content
        process.send_signal(signal.SIGINT)
        assert process.wait(20) == 0
        assert process.stdout is not None and "   1 POST /v1/responses 200: " in process.stdout.read()
    with run_command("replay", str(cassette), "--speed", "0") as (url, process):
        assert post(url, BODIES[0]).content == recorded
        assert post(url, BODIES[1]).status_code == 404
        process.send_signal(signal.SIGTERM)
        assert process.wait(20) == 0
        assert process.stdout is not None
        first, second = process.stdout.read().splitlines()
    assert first == "POST /v1/responses: exchange 1" and second.startswith(
        "POST /v1/responses: 404; no recorded exchange"
    )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["replay", "absent.toml"], "absent.toml: No such file or directory"),
        (["record", "localhost:1", "--out", "x.toml"], "is no base URL; write http://HOST:PORT"),
        (["replay", "absent.toml", "--speed", "fast"], "'fast' is neither 'original' nor a number of at least 0"),
    ],
)
def test_mistakes_on_the_command_line(
    arguments: list[str], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(main, arguments)
    assert result.exit_code in (1, 2) and message in result.output
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("fault", "expected"),
    [
        ('{ kind = "status", status = 429, code = "slow_down", retry_after = 2, times = 1 }', 429),
        ('{ kind = "duplicate_event", at = "response.created" }', 200),
    ],
)
def test_fault_of_an_exchange(hand_written: str, fault: str, expected: int) -> None:
    text = hand_written.replace('name = "a greeting"', f"fault = {fault}")
    with run_player(text) as url:
        reply = httpx.post(f"{url}/responses", json={"input": "Hi"})
        assert reply.status_code == expected
        if expected == 429:
            assert reply.headers["retry-after"] == "2" and reply.json()["error"]["code"] == "slow_down"
            assert httpx.post(f"{url}/responses", json={"input": "Hi"}).status_code == 200
        else:
            assert reply.text.count("event: response.created") == 2
