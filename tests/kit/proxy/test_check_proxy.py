"""`check --proxy` on real traffic: no finding on this server, the right findings on others, the same replies."""

import asyncio
import itertools
import json
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest
import zstandard
from openai import AsyncOpenAI, BadRequestError, OpenAI
from websockets.sync.client import ClientConnection, connect
from websockets.sync.server import ServerConnection
from websockets.sync.server import serve as websocket_serve

from antiphon.kit.conformance.reports import list_finding_lines
from antiphon.kit.findings import Finding
from antiphon.kit.proxy.check_proxy import TrafficPrinter
from antiphon.kit.proxy.exchange import ServerExchange
from antiphon.kit.proxy.traffic_check import ExchangeReport
from tests.app.http.certificates import write_certificate
from tests.kit.checker.legal_streams import LEGAL
from tests.kit.checker.stream_writer import encode_sse
from tests.kit.proxy.wire_servers import CheckedProxy, run_checked_proxy, run_handler
from tests.progress import HANG_TIMEOUT_S
from tests.serving import RunningServer, serve

CALL = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Oslo"}}\n</tool_call>'
TOOLS: Any = [
    {
        "type": "function",
        "name": "get_weather",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
    }
]
SCRIPT = [
    {"name": "weather", "when": ["weather"], "output": ["<think>Hm.</think>", CALL]},
    {"name": "slow", "when": ["slow"], "output": ["One", {"pause": 600.0}, "two"]},
    {"name": "long", "when": ["long"], "output": ["word "] * 60},
    {"name": "hello", "output": ["Hello, ", "you", " there."]},
]
SERVER = partial(serve, SCRIPT, file_store=True)


@pytest.fixture
def proxy(server: RunningServer) -> Iterator[CheckedProxy]:
    with run_checked_proxy(server.url) as proxy:
        yield proxy


def test_sdk_sees_the_same_and_nothing_is_found(server: RunningServer, proxy: CheckedProxy) -> None:
    texts = []
    for url in (server.url, proxy.url):
        with OpenAI(base_url=url, api_key="none") as client:
            with client.responses.stream(model="scripted", input="Hi", store=True) as stream:
                kinds = [event.type for event in stream]
                final = stream.get_final_response()
            fetched = client.responses.retrieve(final.id)
            replayed = list(client.responses.retrieve(final.id, stream=True, starting_after=3))
            reply = client.responses.create(model="scripted", input="the weather?", tools=TOOLS)
            chunks = list(
                client.chat.completions.create(
                    model="scripted",
                    messages=[{"role": "user", "content": "Hi"}],
                    stream=True,
                    stream_options={"include_usage": True},
                )
            )
            with pytest.raises(BadRequestError):
                client.responses.create(model="scripted", input="Hi", temperature=99)
            kinds += [event.type for event in replayed]
            texts.append(
                (kinds, final.output_text, fetched.output_text, [item.type for item in reply.output], len(chunks))
            )
    assert texts[0] == texts[1]
    reports = proxy.wait_reports(6)
    assert [report.kind for report in reports] == ["stream", "response", "stream", "response", "chat stream", "error"]
    assert [str(finding) for report in reports for finding in report.findings if finding.level != "note"] == []
    assert reports[0].num_events - reports[2].num_events == 4 < reports[2].num_events


def test_asynchronous_sdk(proxy: CheckedProxy) -> None:
    async def read() -> list[str]:
        async with AsyncOpenAI(base_url=proxy.url, api_key="none") as client:
            stream = await client.responses.create(model="scripted", input="Hi", stream=True)
            return [event.type async for event in stream]

    assert asyncio.run(read())[-1] == "response.completed"
    assert not [finding for report in proxy.wait_reports(1) for finding in report.findings if finding.level != "note"]


def test_zstd_request_is_known_to_the_checks(proxy: CheckedProxy) -> None:
    body = zstandard.compress(
        json.dumps({"model": "scripted", "input": "Hi", "stream": True, "temperature": 0.5}).encode()
    )
    reply = httpx.post(
        f"{proxy.url}/responses", content=body, headers={"content-encoding": "zstd", "content-type": "application/json"}
    )
    assert reply.status_code == 200
    [report] = proxy.wait_reports(1)
    assert report.kind == "stream" and report.remark == "" and "echo-differs" not in proxy.codes


def test_client_that_leaves_is_no_finding(server: RunningServer, proxy: CheckedProxy) -> None:
    with httpx.stream(
        "POST", f"{proxy.url}/responses", json={"model": "scripted", "input": "slow", "stream": True}
    ) as reply:
        next(reply.iter_raw())
        left_at = time.monotonic()
    [report] = proxy.wait_reports(1)
    assert time.monotonic() - left_at < 2
    assert report.ending == "client_left" and report.findings == ()


def test_websocket_turns_are_checked(server: RunningServer, proxy: CheckedProxy) -> None:
    with connect(f"ws://127.0.0.1:{proxy.port}/v1/responses") as client:
        for prompt in ("Hi", "the weather?"):
            client.send(json.dumps({"type": "response.create", "model": "scripted", "input": prompt, "tools": TOOLS}))
            while json.loads(client.recv(timeout=HANG_TIMEOUT_S))["type"] != "response.completed":
                pass
        client.send(json.dumps({"type": "response.create", "model": "scripted", "input": "Hi", "temperature": 99}))
        assert json.loads(client.recv(timeout=HANG_TIMEOUT_S))["type"] == "error"
    reports = proxy.wait_reports(2)
    assert [(report.kind, report.findings) for report in reports] == [("websocket turn", ()), ("websocket turn", ())]
    assert min(report.num_events for report in reports) > 5


def send_create(client: ClientConnection, lane: str | None, prompt: str, **fields: Any) -> None:
    stream_id = {} if lane is None else {"stream_id": lane}
    client.send(json.dumps({"type": "response.create", "model": "scripted", "input": prompt, **stream_id, **fields}))


def read_until_ended(client: ClientConnection, count: int) -> list[Any]:
    """Returns the lanes of the events until this many turns have ended, those that were refused included."""
    lanes: list[Any] = []
    while count:
        event = json.loads(client.recv(timeout=HANG_TIMEOUT_S))
        lanes.append(event.get("stream_id"))
        count -= event["type"] in ("response.completed", "error")
    return lanes


def test_lanes_of_a_websocket_are_checked_each_by_itself(server: RunningServer, proxy: CheckedProxy) -> None:
    """Two lanes and the default one run at once, and one has its second request sent before the first is done."""
    with connect(f"ws://127.0.0.1:{proxy.port}/v1/responses") as client:
        for lane in ("a", "b", None):
            send_create(client, lane, "long", metadata={"lane": lane or "none"})
        send_create(client, "a", "the weather?", tools=TOOLS)
        send_create(client, "b", "Hi", temperature=99)
        lanes = read_until_ended(client, 5)
    assert lanes != sorted(lanes, key=str), "the events of the lanes alternate"
    reports = proxy.wait_reports(4)
    assert [(report.kind, report.ending, report.findings) for report in reports] == [
        ("websocket turn", "complete", ())
    ] * 4
    assert min(report.num_events for report in reports) > 5


def test_fault_of_a_lane_is_found_in_that_lane() -> None:
    events = {lane: LEGAL["text"]() for lane in "ab"}
    for event in events["b"]:
        if "response" in event:
            event["response"]["id"] = "resp_2"
    del events["b"][3]

    def answer(connection: ServerConnection) -> None:
        connection.recv()
        connection.recv()
        for pair in itertools.zip_longest(events["a"], events["b"]):
            for lane, event in zip("ab", pair, strict=True):
                if event is not None:
                    connection.send(json.dumps({**event, "stream_id": lane}))

    with websocket_serve(answer, "127.0.0.1", 0) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        with run_checked_proxy(f"http://127.0.0.1:{server.socket.getsockname()[1]}") as proxy:
            with connect(f"ws://127.0.0.1:{proxy.port}/v1/responses") as client:
                for lane in "ab":
                    client.send(json.dumps({"type": "response.create", "stream_id": lane}))
                assert len(list(client)) == len(events["a"]) + len(events["b"])
            reports = proxy.wait_reports(2)
        server.shutdown()
        thread.join()
    codes = [{each.code for each in report.findings if each.level == "error"} for report in reports]
    assert sorted(codes, key=len) == [set(), codes[0] | codes[1]] and "sequence-gap" in codes[0] | codes[1]


def test_server_with_tls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    certificate, key = write_certificate(tmp_path)
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
    with (
        serve(SCRIPT, ssl_certfile=certificate, ssl_keyfile=key) as server,
        run_checked_proxy(f"https://127.0.0.1:{server.port}/v1") as proxy,
    ):
        reply = httpx.post(f"{proxy.url}/responses", json={"model": "scripted", "input": "Hi", "stream": True})
        assert "response.completed" in reply.text
        with connect(f"ws://127.0.0.1:{proxy.port}/v1/responses") as client:
            client.send(json.dumps({"type": "response.create", "model": "scripted", "input": "Hi"}))
            while json.loads(client.recv(timeout=HANG_TIMEOUT_S))["type"] != "response.completed":
                pass
        assert [report.kind for report in proxy.wait_reports(2)] == ["stream", "websocket turn"]
        assert "error" not in {finding.level for report in proxy.reports for finding in report.findings}


def test_failure_of_a_check_does_not_touch_a_websocket(
    proxy: CheckedProxy, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError("a fault of the checker")

    monkeypatch.setattr("antiphon.kit.checker.stream.StreamChecker.check_event", fail)
    with connect(f"ws://127.0.0.1:{proxy.port}/v1/responses") as client:
        client.send(json.dumps({"type": "response.create", "model": "scripted", "input": "Hi"}))
        while json.loads(client.recv(timeout=HANG_TIMEOUT_S))["type"] != "response.completed":
            pass
    assert "a fault of the checker" in caplog.text


def test_broken_turn_of_a_websocket_is_found() -> None:
    def answer(connection: ServerConnection) -> None:
        connection.recv()
        connection.send(json.dumps({"type": "response.in_progress", "sequence_number": 3, "response": {}}))

    with websocket_serve(answer, "127.0.0.1", 0) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        with run_checked_proxy(f"http://127.0.0.1:{server.socket.getsockname()[1]}") as proxy:
            with connect(f"ws://127.0.0.1:{proxy.port}/v1/responses") as client:
                client.send('{"type": "response.create", "input": "Hi"}')
                assert len(list(client)) == 1
            [report] = proxy.wait_reports(1)
        server.shutdown()
        thread.join()
    assert report.kind == "websocket turn" and {"sequence-start", "first-event"} <= {
        each.code for each in report.findings
    }


@pytest.mark.parametrize("sent", ["b", None, 5], ids=["of another lane", "missing", "no string"])
def test_event_of_a_websocket_in_a_lane_without_a_turn_is_found(sent: Any) -> None:
    """A server that mixes up lanes: no request of the lane that its events name is open."""
    stream_id = {} if sent is None else {"stream_id": sent}

    def answer(connection: ServerConnection) -> None:
        connection.recv()
        for number, kind in enumerate(("created", "in_progress")):
            event = {"type": f"response.{kind}", "sequence_number": number, "response": {}, **stream_id}
            connection.send(json.dumps(event))

    with websocket_serve(answer, "127.0.0.1", 0) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        with run_checked_proxy(f"http://127.0.0.1:{server.socket.getsockname()[1]}") as proxy:
            with connect(f"ws://127.0.0.1:{proxy.port}/v1/responses") as client:
                client.send('{"type": "response.create", "input": "Hi", "stream_id": "a"}')
                assert len(list(client)) == 2
            stray, turn = proxy.wait_reports(2)
        server.shutdown()
        thread.join()
    (finding,) = stray.findings
    assert (finding.code, finding.level, finding.count) == ("websocket-lane", "error", 1)
    assert "response.created" in finding.actual and ('"b"' in finding.actual) == (sent == "b")
    assert (turn.kind, turn.ending, turn.num_events) == ("websocket turn", "client_left", 0)


def test_refused_websocket_is_passed_on() -> None:
    with serve(SCRIPT, enable_websocket=False) as server, run_checked_proxy(server.url) as proxy:
        headers = {
            "upgrade": "websocket",
            "connection": "upgrade",
            "sec-websocket-key": "x" * 22 + "==",
            "sec-websocket-version": "13",
        }
        direct, through = (httpx.get(f"{url}/responses", headers=headers) for url in (server.url, proxy.url))
    assert direct.status_code == through.status_code == 426
    assert direct.json() == through.json()


BROKEN_STREAM = b'event: response.created\ndata: {"type": "response.in_progress", "sequence_number": 4}\n\n'


@pytest.mark.parametrize(
    ("path", "reply", "content_type", "expected"),
    [
        (
            "/responses",
            BROKEN_STREAM,
            b"text/event-stream",
            {"sse-event-name", "sequence-start", "first-event", "terminal-missing"},
        ),
        ("/responses", BROKEN_STREAM[:-1], b"text/event-stream", {"sse-cut-frame"}),
        ("/responses", b'{"id": "r"}', b"application/json", {"http-content-type", "response-key-missing"}),
        (
            "/chat/completions",
            b'data: {"id": "c"}\n\n',
            b"text/event-stream",
            {"chat-object", "chat-done-marker-missing"},
        ),
    ],
    ids=["stream", "cut frame", "no stream", "chat"],
)
def test_faults_of_a_server_are_found(path: str, reply: bytes, content_type: bytes, expected: set[str]) -> None:
    async def handle(exchange: ServerExchange) -> None:
        await exchange.read_body()
        exchange.start_reply(200, [(b"content-type", content_type)])
        for index in range(0, len(reply), 7):
            exchange.write_data(reply[index : index + 7])
        exchange.end_reply()

    with run_handler(handle) as url, run_checked_proxy(url) as proxy:
        body = httpx.post(f"{proxy.url}{path}", json={"stream": True, "input": "x"}).content
        [report] = proxy.wait_reports(1)
    assert body == reply
    assert expected <= {finding.code for finding in report.findings} and report.has_error


def test_error_without_the_form_of_the_api_is_found() -> None:
    async def handle(exchange: ServerExchange) -> None:
        await exchange.send_json(422, {"detail": "no"})

    with run_handler(handle) as url, run_checked_proxy(url) as proxy:
        assert httpx.post(f"{proxy.url}/responses", json={}).json() == {"detail": "no"}
        [report] = proxy.wait_reports(1)
    assert [finding.code for finding in report.findings] == ["http-error-form"]


def test_server_that_dies_in_a_stream_is_found() -> None:
    async def handle(exchange: ServerExchange) -> None:
        await exchange.read_body()
        exchange.start_reply(200, [(b"content-type", b"text/event-stream")])
        exchange.write_data(b": hello\n\n")
        exchange.cut_connection()

    with run_handler(handle) as url, run_checked_proxy(url) as proxy:
        with pytest.raises(httpx.RemoteProtocolError):
            httpx.post(f"{proxy.url}/responses", json={"stream": True})
        [report] = proxy.wait_reports(1)
    assert [finding.code for finding in report.findings] == ["http-disconnect", "stream-empty"]


def test_failure_of_a_check_does_not_touch_the_traffic(
    proxy: CheckedProxy, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError("a fault of the checker")

    monkeypatch.setattr("antiphon.kit.checker.stream.StreamChecker.check_event", fail)
    reply = httpx.post(f"{proxy.url}/responses", json={"model": "scripted", "input": "Hi", "stream": True})
    assert "response.completed" in reply.text
    [report] = proxy.wait_reports(1)
    assert report.kind == "not checked" and report.remark == "the check failed; see the log"
    assert "a fault of the checker" in caplog.text


def test_printer_shows_findings_and_a_summary() -> None:
    lines: list[str] = []
    printer = TrafficPrinter(lines.append)
    finding = Finding(code="first-event", expected="response.created", actual="error", position=0)
    printer.print_exchange(
        ExchangeReport(
            number=1,
            method="POST",
            path="/v1/responses",
            status=200,
            kind="stream",
            ending="cut",
            num_events=3,
            seconds=0.5,
            findings=(finding,),
        )
    )
    printer.print_summary()
    assert lines == [
        "   1 POST /v1/responses 200: stream, 3 events, 500 ms, the server closed the connection before the end, 1 finding",
        "    error first-event at event 0: expected response.created, but got error",
        f"        {finding.why}",
        "",
        "1 exchange: 1 stream",
        "     1 error    first-event",
    ]
    assert printer.exit_status == 1


ESCAPE = "\x1b]0;owned\x07\x1b[2J\x9b31m\u202e\r\ud83d"
"""What a terminal obeys: a new title, an empty screen, a colour, text from right to left, and half a character."""


def write_hostile_reply(place: str) -> tuple[list[tuple[bytes, bytes]], bytes]:
    """Returns the headers and the body of a reply with escape codes in one place."""
    headers = [(b"content-type", b"text/event-stream")]
    events = LEGAL["text"]()
    if place == "encoding":
        headers.append((b"content-encoding", b"x\x9b2J\x85"))
    elif place == "name":
        return headers, f"event: {ESCAPE.replace(chr(13), '')[:-1]}\ndata: {{}}\n\n".encode()
    elif place == "line":
        return headers, f"{ESCAPE.replace(chr(13), '')[:-1]}\n\n".encode()
    elif place == "error":
        return [(b"content-type", b"application/json")], json.dumps(
            {"error": {"message": ESCAPE, "type": ESCAPE}}
        ).encode()
    elif place == "response":
        return [(b"content-type", b"application/json")], json.dumps({"output": ESCAPE, "object": ESCAPE}).encode()
    elif place == "type":
        events[3]["type"] = ESCAPE[:-1].replace("\r", "")
    elif place == "id":
        for event in events[2:]:
            event["item_id"] = ESCAPE
        events[2]["item"] |= {"id": ESCAPE, "type": f"{ESCAPE}_call", ESCAPE: ESCAPE}
    elif place == "key":
        events[-1]["response"]["usage"] |= {"input_tokens": ESCAPE, "input_tokens_details": {ESCAPE: -1}}
        events[-1]["response"]["output"][0][ESCAPE] = ESCAPE
    return headers, encode_sse(events)


@pytest.mark.parametrize("place", ["encoding", "name", "line", "error", "response", "type", "id", "key"])
def test_server_writes_no_escape_codes_to_the_terminal(place: str) -> None:
    headers, body = write_hostile_reply(place)

    async def handle(exchange: ServerExchange) -> None:
        await exchange.read_body()
        exchange.start_reply(200, headers)
        exchange.write_data(body)
        exchange.end_reply()

    lines: list[str] = []
    with run_handler(handle) as url, run_checked_proxy(url) as proxy:
        reply = httpx.post(
            f"{proxy.url}/responses", json={"input": "x", "stream": True}, headers={"accept-encoding": "x"}
        )
        assert reply.status_code == 200
        [report] = proxy.wait_reports(1)
    printer = TrafficPrinter(lines.append)
    printer.print_exchange(report)
    text = "\n".join([*lines, *(line for each in report.findings for line in list_finding_lines(each))])
    assert report.findings or report.remark
    assert not re.search("[\x00-\x09\x0b-\x1f\x7f-\x9f\u2028-\u202e\ud800-\udfff]", text), ascii(text)
    assert (r"2J" in text) is (place != "error")  # an error in the form of the API has no finding that quotes it


@pytest.mark.parametrize(("prompt", "expected"), [("Hi", 0), (None, 1)], ids=["good", "bad"])
def test_signal_ends_the_command_with_the_exit_status(server: RunningServer, prompt: str | None, expected: int) -> None:
    async def handle(exchange: ServerExchange) -> None:
        await exchange.send_json(500, "no error object")

    code = "import sys; from antiphon.kit.proxy.check_proxy import run_proxy_command; sys.exit(run_proxy_command(sys.argv[1], '127.0.0.1', 0))"
    with run_handler(handle) as broken_url:
        upstream = server.url if prompt else broken_url
        with subprocess.Popen([sys.executable, "-uc", code, upstream], stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            url = process.stdout.readline().partition("base URL ")[2].partition(";")[0]
            httpx.post(f"{url}/responses", json={"model": "scripted", "input": prompt})
            process.send_signal(signal.SIGTERM if prompt else signal.SIGINT)
            output = process.stdout.read()
            assert process.wait(20) == expected
    assert "1 exchange: 1 " in output
