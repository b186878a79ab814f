"""How the commands of clients find a server on this machine."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from antiphon.console.runtime_file import RuntimeInfo, list_runtime_infos, runtime_folder, write_runtime_file
from antiphon.console.server_address import find_server

DEFAULT = "http://127.0.0.1:8000/v1"


@pytest.fixture(autouse=True)
def own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    monkeypatch.delenv("ANTIPHON_URL", raising=False)
    return tmp_path


def write_server(port: int, pid: int) -> str:
    url = f"http://127.0.0.1:{port}/v1"
    write_runtime_file(port, RuntimeInfo(url=url, pid=pid))
    return url


@pytest.fixture
def dead_pid() -> int:
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    return process.pid


def test_only_server_that_lives_is_found(dead_pid: int, monkeypatch: pytest.MonkeyPatch) -> None:
    assert (find_server().base_url, find_server().source) == (DEFAULT, "the default")
    write_server(7001, dead_pid)
    assert find_server().base_url == DEFAULT
    url = write_server(7002, os.getpid())
    assert (find_server().base_url, find_server().source) == (url, "the runtime file of the server")
    assert find_server("http://h").base_url == "http://h/v1"
    monkeypatch.setenv("ANTIPHON_URL", "http://variable")
    assert find_server().base_url == "http://variable/v1"


def test_several_servers_are_not_guessed_at() -> None:
    for port in (7001, 7002):
        write_server(port, os.getpid())
    assert (find_server().base_url, find_server().source) == (DEFAULT, "the default, since 2 servers run")


@pytest.mark.parametrize("pid", [0, -1, 1 << 80])
def test_number_of_no_process_is_no_server(pid: int) -> None:
    write_server(7001, os.getpid())
    path = runtime_folder() / "7001.json"
    path.write_text(path.read_text().replace(f'"pid":{os.getpid()}', f'"pid":{pid}'))
    assert list_runtime_infos() == [] and find_server().base_url == DEFAULT


def test_files_that_no_server_wrote_are_skipped() -> None:
    url = write_server(7001, os.getpid())
    folder = runtime_folder()
    (folder / "7002.json").write_text("{")
    (folder / "notes.json").write_text("{}")
    (folder / "-1.json").write_text('{"url": "http://x", "pid": 1}')
    (folder / "7003.json").mkdir()
    assert find_server().base_url == url
