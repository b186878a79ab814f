"""The log sink: a reader that does not read, a full device, and closed standard streams never block or end the server."""

import json
import os
import pty
import re
import select
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from antiphon.app.observability.log_sink import MAX_QUEUED_CHARS, LogSink
from tests.app.server_helpers import free_port
from tests.progress import HANG_TIMEOUT_S, wait_with_progress
from tests.syntax import ROOT

pytestmark = pytest.mark.processes

SCRIPT = '[[reply]]\nname = "hello"\noutput = ["Hello."]\n'
LINE = "x" * 99 + "\n"


@pytest.fixture
def script(tmp_path: Path) -> str:
    path = tmp_path / "script.toml"
    path.write_text(SCRIPT, encoding="utf-8")
    return str(path)


def serve_command(script: str, port: int, *options: str) -> list[str]:
    base = [sys.executable, "-m", "antiphon", "serve", "--engine", "scripted", "--script", script]
    return [*base, "--port", str(port), "--store", "memory", *options]


def wait_until_ready(port: int, process: "subprocess.Popen[bytes]") -> None:
    def is_ready() -> bool:
        assert process.poll() is None, "the server exited"
        try:
            return httpx.get(f"http://127.0.0.1:{port}/ready", timeout=HANG_TIMEOUT_S).status_code == 200
        except httpx.TransportError:
            return False

    wait_with_progress(is_ready, "the server did not start", pid=process.pid)


@contextmanager
def running(command: list[str], port: int, **options: object) -> "Iterator[subprocess.Popen[bytes]]":
    process: subprocess.Popen[bytes] = subprocess.Popen(command, cwd=ROOT, **options)  # type: ignore[call-overload]
    try:
        wait_until_ready(port, process)
        yield process
    finally:
        process.kill()
        process.wait()


def test_lines_are_written_in_order() -> None:
    reader, writer = os.pipe()
    sink = LogSink(writer)
    for number in range(100):
        sink.write(f"{number}\n")
    sink.close()
    os.close(writer)
    with os.fdopen(reader) as file:
        assert file.read().split() == [str(number) for number in range(100)]


def test_write_does_not_block_when_the_pipe_is_full() -> None:
    """A write that blocked would never return: the pipe is read only after all of them."""
    reader, writer = os.pipe()
    sink = LogSink(writer)
    count = 4 * MAX_QUEUED_CHARS // len(LINE)
    for _ in range(count):
        sink.write(LINE)
    assert sink.num_dropped > count // 2
    received = b""
    while select.select([reader], [], [], 1)[0]:
        received += os.read(reader, 1 << 20)
    sink.write("after\n")
    while select.select([reader], [], [], 1)[0]:
        received += os.read(reader, 1 << 20)
    sink.close()
    lines = received.decode().splitlines()
    reports = [line for line in lines if line != LINE.strip()]
    assert reports.pop() == lines[-1] == "after"
    matches = [re.fullmatch(r"WARNING antiphon.log: (\d+) log lines were dropped: .*", report) for report in reports]
    assert sum(int(match[1]) for match in matches if match) == sink.num_dropped
    assert len(lines) - 1 - len(reports) == count - sink.num_dropped
    os.close(reader)
    os.close(writer)


def test_device_that_refuses_writes_costs_lines_only() -> None:
    descriptor = os.open("/dev/full", os.O_WRONLY)
    sink = LogSink(descriptor)
    sink.write("lost\n")
    sink.close()
    sink.write("late\n")
    assert sink.num_dropped == 2
    os.close(descriptor)


def test_server_answers_while_nothing_reads_its_log(script: str) -> None:
    port = free_port()
    command = serve_command(script, port)
    with running(command, port, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=HANG_TIMEOUT_S) as client:
            for _ in range(1_500):
                client.get("/" + "x" * 90)
            assert client.get("/health").status_code == 200
        assert process.stdout is not None and process.stderr is not None
        process.stdout.close()
        process.stderr.close()


@pytest.mark.parametrize("shell_suffix", [">&- 2>&-", "> /dev/full 2>&1", "<&- >&- 2>&-"])
def test_server_starts_without_usable_standard_streams(shell_suffix: str, script: str) -> None:
    port = free_port()
    words = " ".join(f"'{word}'" for word in serve_command(script, port))
    with running(["bash", "-c", f"exec {words} {shell_suffix}"], port):
        body = {"model": "scripted", "input": "hello"}
        reply = httpx.post(f"http://127.0.0.1:{port}/v1/responses", json=body, timeout=HANG_TIMEOUT_S)
        assert reply.json()["status"] == "completed"


def test_json_log_has_objects_only(script: str) -> None:
    port = free_port()
    command = serve_command(script, port, "--log-format", "json")
    with running(command, port, stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as process:
        httpx.get(f"http://127.0.0.1:{port}/v1/models", timeout=HANG_TIMEOUT_S)
        httpx.get(f"http://127.0.0.1:{port}/nothing", timeout=HANG_TIMEOUT_S)
        process.terminate()
        assert process.stdout is not None
        records = [json.loads(line) for line in process.stdout.read().splitlines()]
        process.stdout.close()
    early = [record for record in records if record.get("status") == 503]  # the server listens before it is ready
    assert all(record["path"] == "/ready" for record in early)
    records = [record for record in records if record not in early]
    events = [record["event"] for record in records]
    assert events == ["loading model", "model", "ready", "request", "request", "request"]
    assert records[2]["base_urls"] == [f"http://127.0.0.1:{port}/v1"]
    assert all({"event", "level", "timestamp"} <= record.keys() for record in records)


@pytest.mark.parametrize("model", ["scripted", "embedded"])
def test_terminal_shows_clean_lines_from_the_first_request_on(model: str, script: str) -> None:
    port = free_port()
    command = serve_command(script, port)
    if model == "embedded":
        pytest.importorskip("torch")
        command = [*command[:4], "--port", str(port), "--store", "memory"]
    main, terminal = pty.openpty()
    environment = {**os.environ, "TERM": "xterm-256color", "COLUMNS": "120"}
    with running(command, port, stdin=terminal, stdout=terminal, stderr=terminal, env=environment):
        for _ in range(3):
            httpx.get(f"http://127.0.0.1:{port}/v1/models", timeout=HANG_TIMEOUT_S)
        output = b""
        while select.select([main], [], [], 0.5)[0]:
            output += os.read(main, 1 << 16)
    os.close(terminal)
    os.close(main)
    text = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", output.decode())
    requests = [line.rsplit("\r", 1)[-1] for line in text.replace("\r\n", "\n").splitlines() if "/v1/models" in line]
    assert len(requests) == 3
    for line in requests:
        assert re.fullmatch(r"200 GET /v1/models \d+ ms req_[0-9a-f]{24}", line), repr(line)
    assert "Loading" not in text[text.index("base URL") :]


def test_sighup_reads_the_keys_again_without_a_terminal(script: str, tmp_path: Path) -> None:
    port, keys = free_port(), tmp_path / "keys"
    keys.write_text("sk-old")
    command = [*serve_command(script, port), "--api-key-file", str(keys)]
    with running(command, port, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        keys.write_text("sk-new")
        process.send_signal(signal.SIGHUP)

        def is_reloaded() -> bool:
            headers = {"authorization": "Bearer sk-new"}
            reply = httpx.get(f"http://127.0.0.1:{port}/v1/models", headers=headers, timeout=HANG_TIMEOUT_S)
            return reply.status_code == 200

        wait_with_progress(is_reloaded, "the key is not accepted")


def test_sighup_ends_a_server_whose_terminal_was_closed(script: str) -> None:
    port = free_port()
    main, terminal = pty.openpty()
    with running(serve_command(script, port), port, stdin=terminal, stdout=terminal, stderr=terminal) as process:
        os.close(terminal)
        os.close(main)
        process.send_signal(signal.SIGHUP)
        assert process.wait(20) == -signal.SIGTERM
