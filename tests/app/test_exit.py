"""The end of a server by a signal: what it leaves behind, and its exit status."""

import json
import os
import signal
import sqlite3
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from antiphon.console.runtime_file import RuntimeInfo, delete_runtime_file, read_runtime_file, write_runtime_file
from tests.progress import HANG_TIMEOUT_S
from tests.serving import read_until_ready
from tests.syntax import ROOT

pytestmark = pytest.mark.processes


@pytest.fixture
def runtime_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "run"
    folder.mkdir(mode=0o700)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(folder))
    return folder / "antiphon"


@pytest.mark.parametrize(("sent", "status"), [(signal.SIGTERM, -signal.SIGTERM), (signal.SIGINT, 130)])
def test_server_cleans_up_before_it_ends_by_the_signal(
    tmp_path: Path, runtime_folder: Path, sent: signal.Signals, status: int
) -> None:
    script, store = tmp_path / "script.toml", tmp_path / "responses.db"
    script.write_text('[[reply]]\nname = "a"\noutput = ["Hello."]\n', encoding="utf-8")
    options = ["--engine", "scripted", "--script", str(script), "--store", str(store), "--log-format", "json"]
    command = [sys.executable, "-m", "antiphon", "serve", "--port", "0", *options]
    process = subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    with process.stderr as log:
        ready = read_until_ready(log)
        [file] = runtime_folder.glob("*.json")
        info = json.loads(file.read_text(encoding="utf-8"))
        assert stat.S_IMODE(file.stat().st_mode) == 0o600 and info["pid"] == process.pid
        assert info["url"] == ready["base_urls"][0] and len(info["page_key"]) >= 43
        assert info["page_key"] not in json.dumps(ready), "it is not logged"
        process.send_signal(sent)
        rest = log.read()
    assert process.wait(HANG_TIMEOUT_S) == status, rest
    assert not list(runtime_folder.iterdir()), "the runtime file is deleted"
    with sqlite3.connect(store) as connection:
        assert connection.execute("SELECT count(*) FROM writers").fetchone() == (0,), "the store is closed"
    connection.close()


def test_runtime_file_of_another_server_stays(runtime_folder: Path) -> None:
    write_runtime_file(8000, RuntimeInfo(url="http://127.0.0.1:8000/v1", page_key="k", pid=os.getpid() + 1))
    delete_runtime_file(8000)
    assert read_runtime_file(8000) is not None


def test_folder_that_others_can_write_to_is_refused(runtime_folder: Path) -> None:
    runtime_folder.mkdir()
    runtime_folder.chmod(0o777)
    with pytest.raises(PermissionError):
        write_runtime_file(8000, RuntimeInfo(url="http://127.0.0.1:8000/v1"))
    assert read_runtime_file(8000) is None
