"""A server's whole session is watched and ended."""

import sys
import time
from pathlib import Path

from tests.bench.server_process import Process

CHILD = "import time; a = bytearray(50 << 20); print('up', flush=True); time.sleep(60)"
PARENT = f"import subprocess, sys, time; subprocess.Popen([sys.executable, '-c', {CHILD!r}], start_new_session=True); time.sleep(60)"


def wait_for(text: str, process: Process) -> None:
    until = time.monotonic() + 60
    while text not in process.tail():
        assert time.monotonic() < until and not process.over, process.tail()
        time.sleep(0.02)


def test_children_are_counted_and_ended(tmp_path: Path) -> None:
    process = Process([sys.executable, "-c", PARENT], tmp_path / "log", {})
    try:
        wait_for("up", process)
        assert process.peak() > 50 << 20
        assert process.cpu() > 0
        pids = [pid for pid, _ in process._stats()]
        assert len(pids) == 2
        process.pause()
    finally:
        process.end()
    assert process.over
    assert not list(process._stats())


def test_one_that_does_not_listen_is_killed(tmp_path: Path) -> None:
    deaf = (
        "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('deaf', flush=True); time.sleep(60)"
    )
    process = Process([sys.executable, "-c", deaf], tmp_path / "log", {})
    wait_for("deaf", process)
    process.end(patience=0.5)
    assert not list(process._stats())
