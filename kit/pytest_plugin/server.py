"""The scripted server of a test: `antiphon serve --engine scripted` in a process of its own, behind a relay."""

import http.client
import json
import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import IO, NoReturn
from urllib.parse import urlsplit

import pytest

from antiphon.kit.pytest_plugin.install_hint import INSTALL_HINT
from antiphon.kit.pytest_plugin.relayed_server import RelayedServer
from antiphon.kit.pytest_plugin.script_file import Cases, CasesError, find_script
from antiphon.kit.terminal_text import show_controls

START_TIMEOUT_S = 120.0
"""Longest time until the server is ready. It takes about a second on an idle machine."""
STOP_TIMEOUT_S = 10.0
READY_POLL_S = 0.01
MAX_OUTPUT_CHARS = 4000
"""Length of the server's output in a failure."""


class ServerOutput:
    """Reads the server's log in a thread, so that its pipe never fills."""

    def __init__(self, pipe: IO[str]) -> None:
        self._pipe = pipe
        self._lines: list[str] = []
        self._base_url: str | None = None
        self.has_ended = False
        """True if the server has closed its output, which it does when it ends."""
        self._ready = threading.Event()
        self._thread = threading.Thread(target=self._read_lines, name="antiphon output", daemon=True)
        self._thread.start()

    def wait_listening(self) -> str | None:
        """Returns the base URL, once the server listens; None if it ends before, or takes too long."""
        self._ready.wait(START_TIMEOUT_S)
        return self._base_url

    def read_to_end(self) -> str:
        """Returns the whole output of a server that has ended, for a person."""
        self._thread.join()
        return self.text

    @property
    def text(self) -> str:
        """The end of the output so far."""
        return show_controls("\n".join(map(_format_log_line, self._lines))[-MAX_OUTPUT_CHARS:])

    def _read_lines(self) -> None:
        with self._pipe:
            for line in self._pipe:
                self._lines.append(line.rstrip("\n"))
                if self._base_url is None and '"ready"' in line:
                    self._base_url = _find_base_url(line)
                    self._ready.set()
        self.has_ended = True
        self._ready.set()


class ScriptedServer(RelayedServer):
    """A running scripted server."""

    model = "scripted"
    """Name of the model."""

    def __init__(self, process: subprocess.Popen[str], output: ServerOutput, upstream_url: str) -> None:
        super().__init__(urlsplit(upstream_url).port or 0)
        self._process, self._output = process, output

    @property
    def output(self) -> str:
        """The end of the server's log."""
        return self._output.text

    def stop(self) -> None:
        """Stops the server. Fails the test if the server has died before."""
        if self._is_stopped:
            return
        exit_status = self._process.poll()
        super().stop()
        _end_process(self._process)
        output = self._output.read_to_end()
        if exit_status is not None:
            pytest.fail(f"the scripted server died with exit status {exit_status}:\n{output}", pytrace=False)


class ServerPool(ExitStack):
    """Starts servers, and stops them all at its end. Files of cases are looked up in `folder`."""

    def __init__(self, command: Sequence[str], folder: Path) -> None:
        super().__init__()
        self._command, self._folder = command, folder

    def start_server(self, cases: Cases, **options: object) -> ScriptedServer:
        """Starts a server and waits until it is ready. Fails the test, with the server's output, if it is not."""
        __tracebackhide__ = True  # in a failure, the test's own line is shown
        scratch = Path(self.enter_context(TemporaryDirectory(prefix="antiphon-")))
        try:
            script = find_script(cases, self._folder, scratch)
        except CasesError as error:
            pytest.fail(f"responses_server: {error}", pytrace=False)
        arguments = ["serve", "--engine", "scripted", "--script", str(script), "--port", "0", "--store", "memory"]
        arguments += ["--log-format", "json", "--shutdown-timeout", "0", *_list_arguments(options)]
        process = self._start_process([*_find_command(self._command), *arguments])
        assert process.stderr is not None
        output = ServerOutput(process.stderr)
        upstream_url = output.wait_listening()
        if upstream_url is None:
            if output.has_ended:
                state = f"ended with exit status {process.wait()}"
            else:
                _end_process(process)
                state = f"was not ready after {START_TIMEOUT_S:g} s"
            pytest.fail(f"the scripted server {state}:\n{output.read_to_end()}", pytrace=False)
        _wait_ready(upstream_url, process)
        return self.enter_context(ScriptedServer(process, output, upstream_url))

    def _start_process(self, command: list[str]) -> subprocess.Popen[str]:
        # The settings of a server that the user runs must not change the one of the tests.
        environment = {name: value for name, value in os.environ.items() if not name.startswith("ANTIPHON_")}
        try:
            return subprocess.Popen(  # noqa: S603  the command is the user's own
                command,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                text=True,
                encoding="utf-8",
                errors="replace",
            )
        except OSError as error:
            _fail_without_command(f"{command[0]} cannot be run ({error.strerror})")


def _find_command(command: Sequence[str]) -> list[str]:
    """Returns the command of the settings, or that of pytest's environment, or that on PATH."""
    if command:
        return list(command)
    beside_python = Path(sys.executable).with_name("antiphon")
    found = str(beside_python) if os.access(beside_python, os.X_OK) else shutil.which("antiphon")
    if found is None:
        _fail_without_command("there is none beside Python and none on PATH")
    return [found]


def _fail_without_command(reason: str) -> NoReturn:
    pytest.fail(f"responses_server needs the command `antiphon`: {reason}. Install it: {INSTALL_HINT}", pytrace=False)


def _list_arguments(options: Mapping[str, object]) -> list[str]:
    """Returns `reasoning_output="summary"` as `--reasoning-output summary`. True is a flag, False its opposite."""
    arguments: list[str] = []
    for name, value in options.items():
        flag = name.replace("_", "-")
        if isinstance(value, bool):
            arguments.append(f"--{flag}" if value else f"--no-{flag}")
        else:
            arguments += [f"--{flag}", str(value)]
    return arguments


def _wait_ready(upstream_url: str, process: subprocess.Popen[str]) -> None:
    """Waits until `/ready` answers 200, or the process has ended."""
    address = urlsplit(upstream_url)
    deadline = time.monotonic() + START_TIMEOUT_S
    while process.poll() is None and time.monotonic() < deadline:
        connection = http.client.HTTPConnection(address.hostname or "", address.port, timeout=START_TIMEOUT_S)
        with suppress(OSError, http.client.HTTPException):
            connection.request("GET", "/ready")
            if connection.getresponse().status == http.client.OK:
                connection.close()
                return
        connection.close()
        time.sleep(READY_POLL_S)


def _end_process(process: subprocess.Popen[str]) -> None:
    process.terminate()
    try:
        process.wait(STOP_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _find_base_url(line: str) -> str | None:
    with suppress(ValueError):
        record = json.loads(line)
        if isinstance(record, dict) and record.get("event") == "ready":
            return str(record["base_urls"][0])
    return None


def _format_log_line(line: str) -> str:
    """Returns a line of the log for a person: its message, then the other fields."""
    with suppress(ValueError):
        record = json.loads(line)
        if isinstance(record, dict) and "event" in record:
            fields = {key: value for key, value in record.items() if key not in ("event", "timestamp", "exception")}
            rest = " ".join(f"{key}={value}" for key, value in fields.items())
            return f"{record['event']}  {rest}" + (f"\n{record['exception']}" if record.get("exception") else "")
    return line
