"""Restarts: a server that is replaced while clients send requests refuses no connection and cuts no stream."""

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, suppress
from pathlib import Path
from typing import Any, Self

import httpx
import pytest

from antiphon.app.lifecycle.handover import take_over
from antiphon.app.lifecycle.listeners import take_inherited_socket
from antiphon.app.lifecycle.service_manager import ServiceManager, take_service_manager
from antiphon.app.options.serve_options import ServeError
from antiphon.console.runtime_file import read_runtime_file
from tests.app.server_helpers import free_port
from tests.counts import FULL_COUNTS
from tests.progress import HANG_TIMEOUT_S, wait_with_progress
from tests.syntax import ROOT

pytestmark = pytest.mark.processes

NUM_CLIENTS, NUM_REPLACEMENTS = (200, 10) if FULL_COUNTS else (20, 2)
SCRIPT = """
[[reply]]
name = "slow"
when = ["slow"]
output = ["one ", "two ", "three ", {pause = 0.3}, "four ", {pause = 0.3}, "five"]

[[reply]]
name = "any"
output = ["Hello."]
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of runtime files, with a short path: names of Unix sockets are limited to 107 bytes."""
    runtime = Path("/tmp") / f"antiphon-test-{os.getpid()}-{time.monotonic_ns() % 10**6}"
    runtime.mkdir(mode=0o700)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(runtime))
    (tmp_path / "script.toml").write_text(SCRIPT, encoding="utf-8")
    return tmp_path


@pytest.fixture
def processes() -> Iterator[list[subprocess.Popen[bytes]]]:
    started: list[subprocess.Popen[bytes]] = []
    yield started
    for process in started:
        with suppress(OSError):
            process.kill()
        process.wait()


def serve_command(folder: Path, port: int, *more: str) -> list[str]:
    options = ["--engine", "scripted", "--script", str(folder / "script.toml"), "--store", str(folder / "store.db")]
    command = [sys.executable, "-m", "antiphon", "serve", "--port", str(port), "--shutdown-timeout", "60"]
    return [*command, "--log-format", "json", *options, *more]


def wait_for_process(port: int, process: subprocess.Popen[bytes]) -> None:
    """Waits until a process has written the runtime file of a port, which it does when it is ready."""

    def is_ready() -> bool:
        assert process.poll() is None, "the server has ended"
        info = read_runtime_file(port)
        return info is not None and info.pid == process.pid

    wait_with_progress(is_ready, "the server is not ready")


class Clients:
    """Threads that send one request after the other, until they are stopped. Each counts what went wrong."""

    def __init__(self, port: int) -> None:
        self._url = f"http://127.0.0.1:{port}/v1/responses"
        self._stopped = threading.Event()
        self.faults: list[str] = []
        self.background: list[str] = []
        self.num_done = 0
        self._threads = [threading.Thread(target=self._run, args=(number,)) for number in range(NUM_CLIENTS)]

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopped.set()
        for thread in self._threads:
            thread.join(HANG_TIMEOUT_S)

    def wait_for_requests(self) -> None:
        """Waits until as many requests as there are clients have been answered from now on."""
        before = self.num_done
        wait_with_progress(lambda: self.num_done >= before + NUM_CLIENTS, "no requests are answered")

    def _run(self, number: int) -> None:
        text = "slow" if number % 2 else "hi"
        body = {"model": "scripted", "input": text, "store": False, "stream": True}
        with httpx.Client(timeout=HANG_TIMEOUT_S) as client:
            while not self._stopped.is_set():
                try:
                    if number % 10 == 0:
                        sent = {"model": "scripted", "input": "slow", "background": True, "store": True}
                        reply = client.post(self._url, json=sent)
                        self.background.append(reply.json()["id"])
                    with client.stream("POST", self._url, json=body) as stream:
                        lines = [line for line in stream.iter_lines() if line.startswith("data: {")]
                    last = json.loads(lines[-1][6:]) if lines else {}
                    if last.get("type") != "response.completed":
                        self.faults.append(f"{stream.status_code} {lines[-1:]}")
                except (httpx.HTTPError, KeyError) as error:
                    self.faults.append(repr(error))
                self.num_done += 1
                time.sleep(0.01)


def check_background(port: int, ids: list[str]) -> None:
    """Every response in the background has ended, as completed or with the error of a restart."""
    with httpx.Client(base_url=f"http://127.0.0.1:{port}/v1", timeout=HANG_TIMEOUT_S) as client:
        for response_id in ids:

            def has_ended(response_id: str = response_id) -> bool:
                return str(client.get(f"/responses/{response_id}").json().get("status")) in ("completed", "failed")

            wait_with_progress(has_ended, "a response in the background does not end")


@pytest.mark.skipif(sys.platform != "linux", reason="passes descriptors between processes as Linux does")
def test_replacement_refuses_no_connection_and_cuts_no_stream(
    folder: Path, processes: list[subprocess.Popen[bytes]]
) -> None:
    port = free_port()
    processes.append(subprocess.Popen(serve_command(folder, port), cwd=ROOT, stderr=subprocess.DEVNULL))
    wait_for_process(port, processes[0])
    with Clients(port) as clients:
        for _ in range(NUM_REPLACEMENTS):
            clients.wait_for_requests()
            old = processes[-1]
            new = subprocess.Popen(serve_command(folder, port, "--replace"), cwd=ROOT, stderr=subprocess.DEVNULL)
            processes.append(new)
            wait_for_process(port, new)
            assert old.wait(HANG_TIMEOUT_S) == 0
        clients.wait_for_requests()
    assert not clients.faults, clients.faults[:5]
    check_background(port, clients.background)
    assert [process.poll() for process in processes[:-1]] == [0] * NUM_REPLACEMENTS


@pytest.mark.skipif(sys.platform != "linux", reason="passes sockets as systemd does")
def test_socket_of_the_service_manager_outlives_the_server(
    folder: Path, processes: list[subprocess.Popen[bytes]]
) -> None:
    """The socket is open all the time, as systemd keeps it: connections wait while no server runs."""
    with closing(socket.socket()) as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(1024)
        port = listener.getsockname()[1]
        processes.append(start_activated(folder, listener))
        wait_for_process(port, processes[-1])
        with Clients(port) as clients:
            for _ in range(NUM_REPLACEMENTS):
                clients.wait_for_requests()
                processes[-1].send_signal(signal.SIGTERM)
                assert processes[-1].wait(HANG_TIMEOUT_S) == -signal.SIGTERM
                processes.append(start_activated(folder, listener))
                wait_for_process(port, processes[-1])
            clients.wait_for_requests()
        assert not clients.faults, clients.faults[:5]
        check_background(port, clients.background)


def start_activated(folder: Path, listener: socket.socket) -> subprocess.Popen[bytes]:
    """Starts a server with the socket as descriptor 3, as systemd does."""
    code = (
        "import os, sys; os.dup2(int(sys.argv[1]), 3); "
        "os.environ.update(LISTEN_PID=str(os.getpid()), LISTEN_FDS='1'); os.execv(sys.argv[2], sys.argv[2:])"
    )
    command = [sys.executable, "-c", code, str(listener.fileno()), *serve_command(folder, 1)]
    return subprocess.Popen(command, cwd=ROOT, pass_fds=[listener.fileno()], stderr=subprocess.DEVNULL)


def test_replacement_that_cannot_start_leaves_the_server_alone(
    folder: Path, processes: list[subprocess.Popen[bytes]]
) -> None:
    port = free_port()
    processes.append(subprocess.Popen(serve_command(folder, port), cwd=ROOT, stderr=subprocess.DEVNULL))
    wait_for_process(port, processes[0])
    broken = serve_command(folder, port, "--replace", "--script", str(folder / "missing.toml"))
    assert subprocess.run(broken, cwd=ROOT, stderr=subprocess.DEVNULL, check=False).returncode == 2
    assert httpx.get(f"http://127.0.0.1:{port}/ready", timeout=HANG_TIMEOUT_S).status_code == 200
    new = subprocess.Popen(serve_command(folder, port, "--replace"), cwd=ROOT, stderr=subprocess.DEVNULL)
    processes.append(new)
    wait_for_process(port, new)
    assert processes[0].wait(HANG_TIMEOUT_S) == 0, "the second attempt works"


def test_replace_without_a_server_starts_one(folder: Path, processes: list[subprocess.Popen[bytes]]) -> None:
    port = free_port()
    assert take_over(port) is None
    processes.append(subprocess.Popen(serve_command(folder, port, "--replace"), cwd=ROOT, stderr=subprocess.DEVNULL))
    wait_for_process(port, processes[0])


def test_drain_delay_is_the_order_of_kubernetes(folder: Path, processes: list[subprocess.Popen[bytes]]) -> None:
    """The endpoint is taken away after SIGTERM: until then, new connections get answers, and `/ready` says 503."""
    port = free_port()
    command = serve_command(folder, port, "--drain-delay", "3")
    processes.append(subprocess.Popen(command, cwd=ROOT, stderr=subprocess.DEVNULL))
    wait_for_process(port, processes[0])
    url = f"http://127.0.0.1:{port}"
    body = {"model": "scripted", "input": "hi", "store": False}
    with httpx.Client(timeout=HANG_TIMEOUT_S) as client:
        assert "connection" not in client.get(f"{url}/ready").headers
        processes[0].send_signal(signal.SIGTERM)
        wait_with_progress(lambda: httpx.get(f"{url}/ready", timeout=HANG_TIMEOUT_S).status_code == 503, "ready")
        reply = httpx.post(f"{url}/v1/responses", json=body, timeout=HANG_TIMEOUT_S)
        assert (reply.status_code, reply.headers["connection"]) == (200, "close")
        assert httpx.get(f"{url}/health", timeout=HANG_TIMEOUT_S).status_code == 200
    assert processes[0].wait(HANG_TIMEOUT_S) == -signal.SIGTERM


def test_drain_command_ends_a_server(folder: Path, processes: list[subprocess.Popen[bytes]]) -> None:
    port = free_port()
    processes.append(subprocess.Popen(serve_command(folder, port), cwd=ROOT, stderr=subprocess.DEVNULL))
    wait_for_process(port, processes[0])
    command = [sys.executable, "-m", "antiphon", "drain", "--url", f"http://127.0.0.1:{port}"]
    output = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert output == "The server ends; 0 responses run.\n"
    assert processes[0].wait(HANG_TIMEOUT_S) == 0


def test_two_processes_share_a_port(folder: Path, processes: list[subprocess.Popen[bytes]]) -> None:
    port = free_port()
    for _ in range(2):
        command = serve_command(folder, port, "--reuse-port")
        processes.append(subprocess.Popen(command, cwd=ROOT, stderr=subprocess.DEVNULL))
        wait_for_process(port, processes[-1])
    assert [process.poll() for process in processes] == [None, None]


def test_service_manager_hears_of_each_step(folder: Path, processes: list[subprocess.Popen[bytes]]) -> None:
    with ExitStack() as stack:
        manager = stack.enter_context(closing(socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)))
        path = Path(os.environ["XDG_RUNTIME_DIR"]) / "notify"
        manager.bind(str(path))
        manager.settimeout(HANG_TIMEOUT_S)
        environment = {**os.environ, "NOTIFY_SOCKET": str(path), "WATCHDOG_USEC": "200000"}
        command = serve_command(folder, free_port())
        process = subprocess.Popen(command, cwd=ROOT, stderr=subprocess.DEVNULL, env=environment)
        processes.append(process)

        def read_until(start: str) -> dict[str, Any]:
            while True:
                fields = dict(line.split("=", 1) for line in manager.recv(4096).decode().splitlines())
                if start in fields:
                    return fields

        assert read_until("READY")["STATUS"] == "ready"
        assert read_until("WATCHDOG") == {"WATCHDOG": "1"}
        process.send_signal(signal.SIGHUP)
        assert int(read_until("RELOADING")["MONOTONIC_USEC"]) > 0
        read_until("READY")
        process.send_signal(signal.SIGTERM)
        read_until("STOPPING")
        assert process.wait(HANG_TIMEOUT_S) == -signal.SIGTERM


@pytest.mark.parametrize(
    ("sent", "message"),
    [
        ({"LISTEN_PID": "ME", "LISTEN_FDS": "2"}, "passes 2 sockets; pass one"),
        ({"LISTEN_PID": "ME", "LISTEN_FDS": "0"}, ""),
        ({"LISTEN_PID": "1", "LISTEN_FDS": "1"}, ""),
        ({"LISTEN_PID": "ME", "LISTEN_FDS": "x"}, ""),
        ({}, ""),
    ],
)
def test_variables_of_other_sockets(sent: dict[str, str], message: str) -> None:
    environment = {name: value.replace("ME", str(os.getpid())) for name, value in sent.items()}
    if message:
        with pytest.raises(ServeError, match=message):
            take_inherited_socket(environment)
    else:
        assert take_inherited_socket(environment) is None
    assert not environment, "child processes do not get them"


@pytest.mark.parametrize(
    ("sent", "expected"),
    [
        ({}, ServiceManager()),
        ({"NOTIFY_SOCKET": "relative"}, ServiceManager()),
        ({"NOTIFY_SOCKET": "/run/x", "WATCHDOG_USEC": "3000000"}, ServiceManager("/run/x", 3.0)),
        ({"NOTIFY_SOCKET": "@x", "WATCHDOG_USEC": "3000000", "WATCHDOG_PID": "1"}, ServiceManager("@x")),
        ({"NOTIFY_SOCKET": "@x", "WATCHDOG_USEC": "soon"}, ServiceManager("@x")),
    ],
)
def test_variables_of_the_service_manager(sent: dict[str, str], expected: ServiceManager) -> None:
    environment = dict(sent)
    assert take_service_manager(environment) == expected
    assert not environment
