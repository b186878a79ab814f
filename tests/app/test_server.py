"""A whole server: client disconnects, overload, replayed streams, and graceful shutdown on signals."""

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.app.server_helpers import free_port, wait_until
from tests.conftest import StartServer
from tests.progress import HANG_TIMEOUT_S, wait_with_progress
from tests.serving import RunningServer, scripted_registry, serve
from tests.syntax import ROOT

STALLING_SCRIPT = [{"name": "stall", "output": ["Hello ", {"stall": True}]}]
RESPONSES_REQUEST = ("/responses", {"model": "scripted", "input": "hi"})
CHAT_REQUEST = ("/chat/completions", {"model": "scripted", "messages": [{"role": "user", "content": "hi"}]})
CLIENT_TIMEOUT = httpx.Timeout(30)

SERVER = partial(serve, partial(scripted_registry, STALLING_SCRIPT, max_num_seqs=2))


def read_first_line(reply: httpx.Response) -> Iterator[str]:
    """Reads one line. Returns the iterator, which the caller must hold: httpx closes the stream when it is collected."""
    lines = reply.iter_lines()
    next(lines)
    return lines


def is_idle(server: RunningServer) -> bool:
    stats = server.engine.stats()
    return (stats.running, stats.waiting, stats.running_cache_tokens, server.context.turn_manager.num_running) == (
        0,
        0,
        0,
        0,
    )


@pytest.mark.parametrize(("path", "body"), [RESPONSES_REQUEST, CHAT_REQUEST])
def test_client_disconnect_frees_the_slot(server: RunningServer, path: str, body: dict[str, Any]) -> None:
    with httpx.stream("POST", server.url + path, json={**body, "stream": True}, timeout=CLIENT_TIMEOUT) as reply:
        _lines = read_first_line(reply)
        assert wait_until(30, lambda: server.engine.stats().running == 1)
    assert wait_until(30, lambda: is_idle(server))


@pytest.mark.parametrize(("path", "body"), [RESPONSES_REQUEST, CHAT_REQUEST])
def test_disconnect_before_an_unstreamed_reply_frees_the_slot(
    server: RunningServer, path: str, body: dict[str, Any]
) -> None:
    with pytest.raises(httpx.ReadTimeout):
        httpx.post(server.url + path, json=body, timeout=httpx.Timeout(10, read=0.3))
    assert wait_until(30, lambda: is_idle(server))
    assert wait_until(30, lambda: bool(server.access_records) and server.access_records[-1].status == 499)


def test_client_disconnect_cancels_every_choice(server: RunningServer) -> None:
    path, body = CHAT_REQUEST
    with httpx.stream(
        "POST", server.url + path, json={**body, "stream": True, "n": 2}, timeout=CLIENT_TIMEOUT
    ) as reply:
        _lines = read_first_line(reply)
        assert wait_until(30, lambda: server.engine.stats().running == 2)
    assert wait_until(30, lambda: is_idle(server))


def test_client_disconnect_removes_a_queued_request(server: RunningServer) -> None:
    path, body = RESPONSES_REQUEST
    with (
        httpx.stream("POST", server.url + path, json={**body, "stream": True}, timeout=CLIENT_TIMEOUT) as first,
        httpx.stream("POST", server.url + path, json={**body, "stream": True}, timeout=CLIENT_TIMEOUT) as second,
    ):
        _lines = read_first_line(first), read_first_line(second)
        with pytest.raises(httpx.ReadTimeout):
            httpx.post(server.url + path, json=body, timeout=httpx.Timeout(10, read=0.2))
        assert wait_until(30, lambda: server.engine.stats().waiting == 0)
        assert server.engine.stats().running == 2
    assert wait_until(30, lambda: is_idle(server))


def test_client_that_stops_reading_is_disconnected(start_server: StartServer) -> None:
    script = [{"name": "flood", "output": ["x" * 2_000_000, {"stall": True}], "tokens_per_chunk": 1000}]
    server = start_server(script, stall_timeout=0.5)
    body = json.dumps({**RESPONSES_REQUEST[1], "stream": True}).encode()
    head = f"POST /v1/responses HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: {len(body)}"
    with socket.socket() as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        client.connect(("127.0.0.1", server.port))
        client.sendall(head.encode() + b"\r\n\r\n" + body)
        # On a busy machine the request may have ended before the first poll.
        assert wait_until(4, lambda: server.engine.stats().running == 1 or server.access_records)
        assert wait_until(4, lambda: is_idle(server))


def test_disconnect_inside_the_request_body_is_logged_as_499(start_server: StartServer) -> None:
    server = start_server(STALLING_SCRIPT)
    with socket.create_connection(("127.0.0.1", server.port)) as client:
        client.sendall(b"POST /v1/responses HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n")
        client.sendall(b"Content-Length: 100\r\n\r\n{")
    assert wait_until(30, lambda: [record.status for record in server.access_records] == [499])


def test_stored_response_is_cancelled_after_a_disconnect(server: RunningServer) -> None:
    path, body = RESPONSES_REQUEST
    with httpx.stream("POST", server.url + path, json={**body, "stream": True}, timeout=CLIENT_TIMEOUT) as reply:
        lines = reply.iter_lines()
        data = next(line for line in lines if line.startswith("data: "))
        response_id = json.loads(data.removeprefix("data: "))["response"]["id"]
    assert wait_until(30, lambda: is_idle(server))
    stored_url = f"{server.url}/responses/{response_id}"
    # The store shows the last step once it is committed, a moment after the engine is idle.
    assert wait_until(30, lambda: httpx.get(stored_url).json()["status"] == "cancelled")


def test_overload_is_answered_with_429_at_once(start_server: StartServer) -> None:
    server = start_server(scripted_registry(STALLING_SCRIPT, max_num_seqs=1, max_waiting=1))
    path, body = RESPONSES_REQUEST
    with (
        httpx.Client(timeout=CLIENT_TIMEOUT) as client,
        httpx.stream("POST", server.url + path, json={**body, "stream": True}, timeout=CLIENT_TIMEOUT) as running,
        contextlib.ExitStack() as stack,
    ):
        _lines = read_first_line(running)
        # A socket, which does not wait for its reply: the request stays in the queue until the end of this block.
        waiting = stack.enter_context(socket.create_connection(("127.0.0.1", server.port), timeout=HANG_TIMEOUT_S))
        content = json.dumps(body).encode()
        head = f"POST /v1{path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        waiting.sendall(f"{head}Content-Length: {len(content)}\r\n\r\n".encode() + content)
        assert wait_until(30, lambda: server.engine.stats().waiting == 1)
        for _ in range(20):
            reply = client.post(server.url + path, json=body)
            assert (reply.status_code, reply.headers["retry-after"]) == (429, "1")
            assert reply.json()["error"]["code"] == "rate_limit_exceeded"
            assert client.get(server.root + "/health").status_code == 200
    assert wait_until(30, lambda: is_idle(server))


def test_stored_stream_can_be_replayed_from_any_event(start_server: StartServer) -> None:
    server = start_server([{"name": "hello", "output": ["Hello ", "world."]}])
    path, body = RESPONSES_REQUEST
    stream = httpx.post(server.url + path, json={**body, "stream": True}).text
    response_id = json.loads(stream.split("data: ")[1].splitlines()[0])["response"]["id"]
    replay = httpx.get(f"{server.url}/responses/{response_id}?stream=true").text
    assert replay == stream
    partial_replay = httpx.get(f"{server.url}/responses/{response_id}?stream=true&starting_after=3").text
    assert '"sequence_number":4' in partial_replay.splitlines()[1]
    assert stream.endswith(partial_replay)
    for start in ("x", "1.5", "-2", ""):
        reply = httpx.get(f"{server.url}/responses/{response_id}?stream=true&starting_after={start}")
        assert (reply.status_code, reply.json()["error"]["param"]) == (400, "starting_after")


def test_unstored_response_is_not_found(start_server: StartServer) -> None:
    server = start_server([{"name": "hello", "output": ["Hello."]}])
    path, body = RESPONSES_REQUEST
    response_id = httpx.post(server.url + path, json={**body, "store": False}).json()["id"]
    assert httpx.get(f"{server.url}/responses/{response_id}").status_code == 404


# The server as a process


class ScriptedServerProcess:
    """A process `antiphon serve --engine scripted`, as a user starts it."""

    def __init__(self, script: Path, *options: str) -> None:
        self._port = free_port()
        command = [sys.executable, "-m", "antiphon", "serve", "--engine", "scripted", "--script", str(script)]
        command += ["--port", str(self._port), *options]
        self.process = subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE, text=True)
        self.url = f"http://127.0.0.1:{self._port}"
        wait_with_progress(self._answers, "the server did not start", pid=self.process.pid)

    def _answers(self) -> bool:
        try:
            return httpx.get(f"{self.url}/ready", timeout=1).status_code == 200
        except httpx.TransportError:
            assert self.process.poll() is None, self.process.communicate()[1]
            return False

    def signal(self, number: int) -> None:
        os.kill(self.process.pid, number)


@pytest.fixture
def start_process(tmp_path: Path) -> Iterator[Callable[..., ScriptedServerProcess]]:
    script = tmp_path / "script.toml"
    script.write_text('[[reply]]\nname = "stall"\nspeak = ["Hello ", {stall = true}]\n', encoding="utf-8")
    servers: list[ScriptedServerProcess] = []

    def start(*options: str) -> ScriptedServerProcess:
        servers.append(ScriptedServerProcess(script, *options))
        return servers[-1]

    yield start
    for server in servers:
        server.process.kill()
        server.process.communicate()


def test_sigterm_ends_open_streams_with_a_failed_response(start_process: Callable[..., ScriptedServerProcess]) -> None:
    server = start_process("--shutdown-timeout", "0.3")
    path, body = RESPONSES_REQUEST
    with httpx.stream("POST", f"{server.url}/v1{path}", json={**body, "stream": True}, timeout=CLIENT_TIMEOUT) as reply:
        lines = reply.iter_lines()
        next(lines)
        server.signal(signal.SIGTERM)
        remaining = [line for line in lines if line]
    assert remaining[-1] == "data: [DONE]"
    last = json.loads(remaining[-2].removeprefix("data: "))
    assert last["type"] == "response.failed"
    assert last["response"]["output"][0]["status"] == "incomplete"
    assert server.process.wait(30) in (0, -signal.SIGTERM)


def test_sigterm_answers_unstreamed_requests_as_failed(start_process: Callable[..., ScriptedServerProcess]) -> None:
    server = start_process("--shutdown-timeout", "0.3")
    path, body = RESPONSES_REQUEST
    replies: list[httpx.Response] = []
    thread = threading.Thread(
        target=lambda: replies.append(httpx.post(f"{server.url}/v1{path}", json=body, timeout=CLIENT_TIMEOUT))
    )
    thread.start()
    assert wait_until(30, lambda: httpx.get(f"{server.url}/load", timeout=HANG_TIMEOUT_S).json()["server_load"] == 1)
    server.signal(signal.SIGTERM)
    thread.join(30)
    assert replies[0].json()["status"] == "failed"
    assert server.process.wait(30) in (0, -signal.SIGTERM)


def test_open_connection_is_told_that_the_server_is_not_ready(
    start_process: Callable[..., ScriptedServerProcess],
) -> None:
    server = start_process("--shutdown-timeout", "60")
    path, body = RESPONSES_REQUEST
    url = f"{server.url}/v1{path}"
    with (
        httpx.Client(base_url=server.url, timeout=CLIENT_TIMEOUT) as client,
        httpx.stream("POST", url, json={**body, "stream": True}, timeout=CLIENT_TIMEOUT) as reply,
    ):
        _lines = read_first_line(reply)
        assert client.get("/ready").status_code == 200
        server.signal(signal.SIGTERM)
        assert wait_until(30, lambda: client.get("/ready").status_code == 503)
        assert wait_until(30, lambda: refuses_connections(server))
        assert client.get("/ready").json()["reason"] == "the server is shutting down"
        refused = client.post(f"/v1{path}", json=body)
        assert (refused.status_code, refused.headers["retry-after"]) == (503, "1")
        server.signal(signal.SIGTERM)
        assert server.process.wait(30) is not None


def refuses_connections(server: ScriptedServerProcess) -> bool:
    try:
        httpx.get(f"{server.url}/health", timeout=HANG_TIMEOUT_S)
    except httpx.ConnectError:
        return True
    return False


def test_second_sigterm_stops_the_server_at_once(start_process: Callable[..., ScriptedServerProcess]) -> None:
    server = start_process("--shutdown-timeout", "60")
    path, body = RESPONSES_REQUEST
    with httpx.stream("POST", f"{server.url}/v1{path}", json={**body, "stream": True}, timeout=CLIENT_TIMEOUT) as reply:
        _lines = read_first_line(reply)
        server.signal(signal.SIGTERM)
        time.sleep(0.5)
        assert server.process.poll() is None
        server.signal(signal.SIGTERM)
        assert server.process.wait(30) is not None


def test_idle_server_exits_before_the_shutdown_timeout(start_process: Callable[..., ScriptedServerProcess]) -> None:
    server = start_process("--shutdown-timeout", "60")
    server.signal(signal.SIGTERM)
    assert server.process.wait(30) in (0, -signal.SIGTERM)


@pytest.mark.parametrize(("path", "body"), [RESPONSES_REQUEST, CHAT_REQUEST])
def test_full_server_rejects_a_request_before_it_parses_the_body(path: str, body: dict[str, Any]) -> None:
    with serve(scripted_registry(STALLING_SCRIPT, max_num_seqs=1, max_waiting=0)) as server:
        with httpx.stream("POST", server.url + path, json={**body, "stream": True}, timeout=CLIENT_TIMEOUT) as running:
            _lines = read_first_line(running)
            for content in (json.dumps(body), "no JSON at all"):
                reply = httpx.post(server.url + path, content=content, headers={"content-type": "application/json"})
                assert reply.status_code == 429 and reply.headers["retry-after"] == "1"
                assert reply.json()["error"]["code"] == "rate_limit_exceeded"
            assert httpx.get(f"{server.url}/models").status_code == 200, "requests that start no turn are served"
        assert wait_until(30, lambda: is_idle(server))
        assert (
            httpx.post(
                server.url + path, content="no JSON at all", headers={"content-type": "application/json"}
            ).status_code
            == 400
        )


def test_simultaneous_connections_are_accepted_in_batches(start_server: StartServer) -> None:
    """160 connections need fewer than 80 iterations of a busy event loop."""
    server, iterations, sockets = start_server([{"name": "x", "output": ["x"]}]), [0], list[socket.socket]()
    request = b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n"

    def occupy_loop() -> None:
        """Takes as long as an iteration of the loop while many streams run."""
        iterations[0] += 1
        time.sleep(0.3 if iterations[0] == 1 else 0.002)
        if iterations[0] < 1000:
            server.loop.call_soon(occupy_loop)

    try:
        server.loop.call_soon_threadsafe(occupy_loop)
        time.sleep(0.1)
        for _ in range(160):
            sockets.append(socket.create_connection(("127.0.0.1", server.port), timeout=HANG_TIMEOUT_S))
            sockets[-1].sendall(request)
        for client in sockets:
            assert client.recv(4096).startswith(b"HTTP/1.1 200")
        assert iterations[0] < 80
    finally:
        iterations[0] = 1000
        for client in sockets:
            client.close()
