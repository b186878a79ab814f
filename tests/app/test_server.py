"""Clients that leave, storms, and the end of the server: slots are freed, streams end legally."""

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.conftest import Serve
from tests.serving import RunningServer, scripted_registry, serve
from tests.syntax import ROOT

STALL = [{"name": "stall", "output": ["Hello ", {"stall": True}]}]
RESPONSES = ("/responses", {"model": "scripted", "input": "hi"})
CHAT = ("/chat/completions", {"model": "scripted", "messages": [{"role": "user", "content": "hi"}]})
TIMEOUT = httpx.Timeout(10)


@pytest.fixture(scope="module")
def stalling() -> Iterator[RunningServer]:
    with serve(scripted_registry(STALL, max_num_seqs=2)) as served:
        yield served


def within(seconds: float, holds: Callable[[], bool]) -> bool:
    """Whether it comes to hold in that time."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if holds():
            return True
        time.sleep(0.01)
    return holds()


def first_line(reply: httpx.Response) -> Iterator[str]:
    """Reads one line. Whoever lets go of the rest closes the stream, so it is handed back to be held."""
    lines = reply.iter_lines()
    next(lines)
    return lines


def idle(served: RunningServer) -> bool:
    stats = served.engine.stats()
    return (stats.running, stats.waiting, stats.running_cache_tokens, served.context.turn_manager.num_running) == (
        0,
        0,
        0,
        0,
    )


@pytest.mark.parametrize(("path", "body"), [RESPONSES, CHAT])
def test_a_reader_that_leaves_a_stream_frees_its_slot(stalling: RunningServer, path: str, body: dict[str, Any]) -> None:
    with httpx.stream("POST", stalling.url + path, json={**body, "stream": True}, timeout=TIMEOUT) as reply:
        _held = first_line(reply)
        assert within(1, lambda: stalling.engine.stats().running == 1)
    assert within(1, lambda: idle(stalling))


@pytest.mark.parametrize(("path", "body"), [RESPONSES, CHAT])
def test_a_reader_that_leaves_before_an_unstreamed_answer_frees_its_slot(
    stalling: RunningServer, path: str, body: dict[str, Any]
) -> None:
    with pytest.raises(httpx.ReadTimeout):
        httpx.post(stalling.url + path, json=body, timeout=httpx.Timeout(10, read=0.3))
    assert within(1, lambda: idle(stalling))
    assert within(1, lambda: bool(stalling.access_records) and stalling.access_records[-1].status == 499)


def test_all_choices_of_a_reader_that_leaves_are_given_up(stalling: RunningServer) -> None:
    path, body = CHAT
    with httpx.stream("POST", stalling.url + path, json={**body, "stream": True, "n": 2}, timeout=TIMEOUT) as reply:
        _held = first_line(reply)
        assert within(1, lambda: stalling.engine.stats().running == 2)
    assert within(1, lambda: idle(stalling))


def test_a_reader_that_leaves_while_it_waits_leaves_the_queue(stalling: RunningServer) -> None:
    path, body = RESPONSES
    with (
        httpx.stream("POST", stalling.url + path, json={**body, "stream": True}, timeout=TIMEOUT) as one,
        httpx.stream("POST", stalling.url + path, json={**body, "stream": True}, timeout=TIMEOUT) as two,
    ):
        _held = first_line(one), first_line(two)
        with pytest.raises(httpx.ReadTimeout):
            httpx.post(stalling.url + path, json=body, timeout=httpx.Timeout(10, read=0.2))
        assert within(1, lambda: stalling.engine.stats().waiting == 0)
        assert stalling.engine.stats().running == 2
    assert within(1, lambda: idle(stalling))


def test_a_reader_that_stops_reading_is_cut_off(server: Serve) -> None:
    flood = [{"name": "flood", "output": ["x" * 2_000_000, {"stall": True}], "tokens_per_chunk": 1000}]
    served = server(flood, stall_timeout=0.5)
    body = json.dumps({**RESPONSES[1], "stream": True}).encode()
    head = f"POST /v1/responses HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: {len(body)}"
    with socket.socket() as line:
        line.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        line.connect(("127.0.0.1", served.port))
        line.sendall(head.encode() + b"\r\n\r\n" + body)
        # On a busy machine it may be over before anybody looks.
        assert within(4, lambda: served.engine.stats().running == 1 or served.access_records)
        assert within(4, lambda: idle(served))


def test_a_client_that_leaves_inside_its_body_is_no_fault_of_ours(server: Serve) -> None:
    served = server(STALL)
    with socket.create_connection(("127.0.0.1", served.port)) as line:
        line.sendall(b"POST /v1/responses HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n")
        line.sendall(b"Content-Length: 100\r\n\r\n{")
    assert within(1, lambda: [one.status for one in served.access_records] == [499])


def test_a_stored_response_that_was_left_is_cancelled(stalling: RunningServer) -> None:
    path, body = RESPONSES
    with httpx.stream("POST", stalling.url + path, json={**body, "stream": True}, timeout=TIMEOUT) as reply:
        lines = reply.iter_lines()
        data = next(line for line in lines if line.startswith("data: "))
        made = json.loads(data.removeprefix("data: "))["response"]["id"]
    assert within(1, lambda: idle(stalling))
    stored = httpx.get(f"{stalling.url}/responses/{made}").json()
    assert stored["status"] == "cancelled"


def test_a_storm_is_answered_at_once(server: Serve) -> None:
    served = server(scripted_registry(STALL, max_num_seqs=1, max_waiting=1))
    path, body = RESPONSES
    with (
        httpx.Client(timeout=TIMEOUT) as client,
        httpx.stream("POST", served.url + path, json={**body, "stream": True}, timeout=TIMEOUT) as first,
    ):
        _held = first_line(first)
        waiting = threading.Thread(target=_left_alone, args=(served.url + path, body))
        waiting.start()
        assert within(1, lambda: served.engine.stats().waiting == 1)
        for _ in range(20):
            began = time.monotonic()
            reply = client.post(served.url + path, json=body)
            assert time.monotonic() - began < 0.5
            assert (reply.status_code, reply.headers["retry-after"]) == (429, "1")
            assert reply.json()["error"]["code"] == "rate_limit_exceeded"
            assert client.get(served.root + "/health").status_code == 200
        waiting.join()
    assert within(1, lambda: idle(served))


def _left_alone(url: str, body: dict[str, Any]) -> None:
    with pytest.raises(httpx.ReadTimeout):
        httpx.post(url, json=body, timeout=httpx.Timeout(10, read=2))


def test_a_stored_stream_can_be_read_again_from_anywhere(server: Serve) -> None:
    served = server([{"name": "hello", "output": ["Hello ", "world."]}])
    path, body = RESPONSES
    whole = httpx.post(served.url + path, json={**body, "stream": True}).text
    made = json.loads(whole.split("data: ")[1].splitlines()[0])["response"]["id"]
    again = httpx.get(f"{served.url}/responses/{made}?stream=true").text
    assert again == whole
    later = httpx.get(f"{served.url}/responses/{made}?stream=true&starting_after=3").text
    assert '"sequence_number":4' in later.splitlines()[1]
    assert whole.endswith(later)
    for wrong in ("x", "1.5", "-2", ""):
        reply = httpx.get(f"{served.url}/responses/{made}?stream=true&starting_after={wrong}")
        assert (reply.status_code, reply.json()["error"]["param"]) == (400, "starting_after")


def test_what_is_not_stored_is_not_found(server: Serve) -> None:
    served = server([{"name": "hello", "output": ["Hello."]}])
    path, body = RESPONSES
    made = httpx.post(served.url + path, json={**body, "store": False}).json()["id"]
    assert httpx.get(f"{served.url}/responses/{made}").status_code == 404


# The process


class Process:
    """`antiphon serve --engine scripted` as a user starts it."""

    def __init__(self, script: Path, *more: str) -> None:
        self._port = free_port()
        command = [sys.executable, "-m", "antiphon.app.cli", "serve", "--engine", "scripted", "--script", str(script)]
        command += ["--port", str(self._port), *more]
        self.process = subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE, text=True)
        self.url = f"http://127.0.0.1:{self._port}"
        assert within(20, self._answers), "the server did not start"

    def _answers(self) -> bool:
        try:
            return httpx.get(f"{self.url}/ready", timeout=1).status_code == 200
        except httpx.TransportError:
            assert self.process.poll() is None, self.process.communicate()[1]
            return False

    def signal(self, number: int) -> float:
        """Send a signal; when that was."""
        os.kill(self.process.pid, number)
        return time.monotonic()


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
        return port


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Process]]:
    script = tmp_path / "script.toml"
    script.write_text('[[reply]]\nname = "stall"\nspeak = ["Hello ", {stall = true}]\n', encoding="utf-8")
    running: list[Process] = []

    def started(*more: str) -> Process:
        running.append(Process(script, *more))
        return running[-1]

    yield started
    for one in running:
        one.process.kill()
        one.process.communicate()


def test_sigterm_ends_open_streams_legally(start: Callable[..., Process]) -> None:
    one = start("--shutdown-timeout", "0.3")
    path, body = RESPONSES
    with httpx.stream("POST", f"{one.url}/v1{path}", json={**body, "stream": True}, timeout=TIMEOUT) as reply:
        lines = reply.iter_lines()
        next(lines)
        told = one.signal(signal.SIGTERM)
        said = [line for line in lines if line]
    assert time.monotonic() - told < 3
    assert said[-1] == "data: [DONE]"
    last = json.loads(said[-2].removeprefix("data: "))
    assert last["type"] == "response.failed"
    assert last["response"]["output"][0]["status"] == "incomplete"
    assert one.process.wait(5) in (0, -signal.SIGTERM)


def test_sigterm_answers_what_was_not_streamed(start: Callable[..., Process]) -> None:
    one = start("--shutdown-timeout", "0.3")
    path, body = RESPONSES
    got: list[httpx.Response] = []
    asking = threading.Thread(target=lambda: got.append(httpx.post(f"{one.url}/v1{path}", json=body, timeout=TIMEOUT)))
    asking.start()
    time.sleep(0.5)
    one.signal(signal.SIGTERM)
    asking.join(5)
    assert got[0].json()["status"] == "failed"
    assert one.process.wait(5) in (0, -signal.SIGTERM)


def test_a_second_signal_insists(start: Callable[..., Process]) -> None:
    one = start("--shutdown-timeout", "60")
    path, body = RESPONSES
    with httpx.stream("POST", f"{one.url}/v1{path}", json={**body, "stream": True}, timeout=TIMEOUT) as reply:
        _held = first_line(reply)
        one.signal(signal.SIGTERM)
        time.sleep(0.5)
        assert one.process.poll() is None
        one.signal(signal.SIGTERM)
        assert one.process.wait(5) is not None


def test_an_idle_server_goes_at_once(start: Callable[..., Process]) -> None:
    one = start("--shutdown-timeout", "60")
    told = one.signal(signal.SIGTERM)
    assert one.process.wait(5) in (0, -signal.SIGTERM)
    assert time.monotonic() - told < 2


@pytest.mark.parametrize(("path", "body"), [RESPONSES, CHAT])
def test_a_turn_too_many_is_refused_before_it_is_read(path: str, body: dict[str, Any]) -> None:
    with serve(scripted_registry(STALL, max_num_seqs=1, max_waiting=0)) as served:
        with httpx.stream("POST", served.url + path, json={**body, "stream": True}, timeout=TIMEOUT) as held:
            _held = first_line(held)
            for sent in (json.dumps(body), "no JSON at all"):
                reply = httpx.post(served.url + path, content=sent, headers={"content-type": "application/json"})
                assert reply.status_code == 429 and reply.headers["retry-after"] == "1"
                assert reply.json()["error"]["code"] == "rate_limit_exceeded"
            assert httpx.get(f"{served.url}/models").status_code == 200, "whatever opens no turn is served"
        assert within(1, lambda: idle(served))
        assert (
            httpx.post(
                served.url + path, content="no JSON at all", headers={"content-type": "application/json"}
            ).status_code
            == 400
        )


def test_behind_many_who_connect_at_once_nobody_waits_for_as_many_turns_of_the_loop(server: Serve) -> None:
    served, turns, lines = server([{"name": "x", "output": ["x"]}]), [0], list[socket.socket]()
    ask = b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n"

    def busy() -> None:
        """A turn of the loop as it is while many streams run."""
        turns[0] += 1
        time.sleep(0.3 if turns[0] == 1 else 0.002)
        if turns[0] < 1000:
            served.loop.call_soon(busy)

    try:
        served.loop.call_soon_threadsafe(busy)
        time.sleep(0.1)
        for _ in range(160):
            lines.append(socket.create_connection(("127.0.0.1", served.port), timeout=10))
            lines[-1].sendall(ask)
        for line in lines:
            assert line.recv(4096).startswith(b"HTTP/1.1 200")
        assert turns[0] < 80
    finally:
        turns[0] = 1000
        for line in lines:
            line.close()
