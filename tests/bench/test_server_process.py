"""Tests that all processes of a server are observed and terminated."""

import sys
import time
from pathlib import Path

from bench.server_process import ServerProcess

CHILD_CODE = "import time; a = bytearray(50 << 20); print('up', flush=True); time.sleep(60)"
PARENT_CODE = (
    "import subprocess, sys, time; "
    f"subprocess.Popen([sys.executable, '-c', {CHILD_CODE!r}], start_new_session=True); time.sleep(60)"
)
IGNORE_SIGTERM_CODE = (
    "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('up', flush=True); time.sleep(60)"
)


def wait_for_output(text: str, process: ServerProcess) -> None:
    deadline = time.monotonic() + 60
    while text not in process.tail():
        assert time.monotonic() < deadline and not process.has_exited, process.tail()
        time.sleep(0.02)


def test_child_processes_are_measured_and_terminated(tmp_path: Path) -> None:
    process = ServerProcess([sys.executable, "-c", PARENT_CODE], tmp_path / "log", {})
    try:
        wait_for_output("up", process)
        assert process.peak_memory() >= process.resident_memory() > 50 << 20
        assert process.cpu_seconds() > 0
        pids = [pid for pid, _ in process.process_stats()]
        assert len(pids) == 2
        process.pause()
    finally:
        process.terminate()
    assert process.has_exited
    assert not list(process.process_stats())


def test_process_that_ignores_sigterm_is_killed(tmp_path: Path) -> None:
    process = ServerProcess([sys.executable, "-c", IGNORE_SIGTERM_CODE], tmp_path / "log", {})
    wait_for_output("up", process)
    process.terminate(timeout_s=0.5)
    assert not list(process.process_stats())
