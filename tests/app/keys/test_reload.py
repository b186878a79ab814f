"""Reloads: a changed file of keys is in force without a restart, and a file that cannot be used changes nothing."""

import asyncio
import gc
import json
import threading
from collections.abc import Callable
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from click.testing import CliRunner
from websockets.sync.client import connect

from antiphon.app.cli import commands as cli
from antiphon.app.context import create_context
from antiphon.app.keys import pace, reloader
from antiphon.app.keys.key_file import read_key_file
from antiphon.app.keys.key_ring import KeyRing
from antiphon.app.keys.reloader import Reloader, ReloadReport
from antiphon.app.keys.sources import load_api_keys
from antiphon.app.main import launch
from antiphon.app.options.settings import Settings
from antiphon.app.store.factory import open_store
from tests.app.http.certificates import write_certificate
from tests.app.keys.key_file_faults import FAULTS
from tests.conftest import StartServer
from tests.progress import HANG_TIMEOUT_S, wait_with_progress
from tests.serving import RunningServer, scripted_registry

SCRIPT: list[dict[str, Any]] = [
    {"name": "slow", "when": ["slow"], "output": ["word "] * 100},
    {"name": "any", "output": ["Hello."]},
]
OLD, NEW = "sk-old", "sk-new"


def write(file: Path, *keys: str) -> None:
    file.write_text("".join(f'[[key]]\nowner = "a"\nkey = "{key}"\n' for key in keys))


@pytest.fixture(autouse=True)
def stable_files(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reloader, "STABLE_S", 0.0)


@pytest.fixture
def key_file(tmp_path: Path) -> Path:
    file = tmp_path / "keys.toml"
    write(file, OLD)
    return file


@pytest.fixture
def serve_keys(start_server: StartServer, key_file: Path) -> Callable[..., RunningServer]:
    def start(**settings: Any) -> RunningServer:
        return start_server(
            scripted_registry(SCRIPT, delay=0.02), file_keys=read_key_file(key_file), key_file=key_file, **settings
        )

    return start


def reload(server: RunningServer) -> dict[str, Any]:
    headers = {"authorization": f"Bearer {server.context.keys.control_key}"}
    reply = httpx.post(f"{server.url}/admin/reload", headers=headers, timeout=60)
    assert reply.status_code == 200, reply.text
    report: dict[str, Any] = reply.json()
    return report


def status(server: RunningServer, key: str) -> int:
    return httpx.get(f"{server.url}/models", headers={"authorization": f"Bearer {key}"}, timeout=60).status_code


def test_keys_change_without_a_restart(serve_keys: Callable[..., RunningServer], key_file: Path) -> None:
    server = serve_keys()
    assert (status(server, OLD), status(server, NEW)) == (200, 401)
    write(key_file, OLD, NEW)
    assert reload(server)["keys"] == 2
    assert (status(server, OLD), status(server, NEW)) == (200, 200)
    write(key_file, NEW)
    report = reload(server)
    assert (report["keys"], report["revoked"], report["faults"]) == (1, 1, [])
    assert report["not_reloaded"] == ["all other options"]
    assert (status(server, OLD), status(server, NEW)) == (401, 200)


@pytest.mark.parametrize("name", [*FAULTS, "0 bytes", "no UTF-8", "missing", "a folder"])
def test_bad_file_leaves_the_old_keys_in_force(key_file: Path, name: str) -> None:
    keys = KeyRing((), read_key_file(key_file))
    before = list(keys)
    if name in FAULTS:
        key_file.write_text(FAULTS[name][0])
    else:
        key_file.unlink()
        if name == "a folder":
            key_file.mkdir()
        elif name != "missing":
            key_file.write_bytes(b"" if name == "0 bytes" else b"\xff\xfe")
    report = asyncio.run(Reloader(keys, key_file).reload())
    [fault] = report.faults
    assert str(key_file) in fault and fault.endswith("; the API keys are as before") and "\n" not in fault
    assert list(keys) == before and report.revoked == 0


@pytest.mark.parametrize("last_line", ["", "nonsense\n"])
def test_large_file_is_read_in_parts(key_file: Path, monkeypatch: pytest.MonkeyPatch, last_line: str) -> None:
    pauses, collects = list[float](), list[bool]()

    def sleep(seconds: float) -> None:
        pauses.append(seconds)
        collects.append(gc.isenabled())

    monkeypatch.setattr(pace.time, "sleep", sleep)
    keys = KeyRing((), read_key_file(key_file))
    write(key_file, *(f"sk-{number}" for number in range(200)))
    key_file.write_text(key_file.read_text() + last_line)
    assert not pauses and gc.isenabled()
    report = asyncio.run(Reloader(keys, key_file).reload())
    assert (len(keys), bool(report.faults)) == ((1, True) if last_line else (200, False))
    assert len(pauses) >= 200 * 3 // pace.ITEMS_PER_PAUSE and not any(collects)
    assert gc.isenabled(), "Python's collector runs again"


@contextmanager
def slow_stream(server: RunningServer, key: str) -> Any:
    body = {"model": "scripted", "input": "slow", "stream": True}
    headers = {"authorization": f"Bearer {key}"}
    with httpx.stream("POST", f"{server.url}/responses", json=body, headers=headers, timeout=60) as reply:
        yield (json.loads(line[6:]) for line in reply.iter_lines() if line.startswith("data: {"))


@pytest.mark.parametrize(("on_revoke", "status_at_the_end"), [("finish", "completed"), ("cancel", "cancelled")])
def test_running_turn_of_a_revoked_key(
    serve_keys: Callable[..., RunningServer], key_file: Path, on_revoke: str, status_at_the_end: str
) -> None:
    server = serve_keys(on_revoke=on_revoke)
    with slow_stream(server, OLD) as events:
        assert next(events)["type"] == "response.created"
        write(key_file, NEW)
        assert reload(server)["cancelled_turns"] == (1 if on_revoke == "cancel" else 0)
        assert status(server, OLD) == 401
        last = list(events)[-1]
    assert last["response"]["status"] == status_at_the_end


def test_connection_of_a_revoked_key_starts_no_more_turns(
    serve_keys: Callable[..., RunningServer], key_file: Path
) -> None:
    server = serve_keys()
    frame = json.dumps({"type": "response.create", "model": "scripted", "input": "Hi", "store": False})
    url = f"ws://127.0.0.1:{server.port}/v1/responses"
    with connect(url, additional_headers={"authorization": f"Bearer {OLD}"}) as websocket:
        websocket.send(frame)
        while json.loads(websocket.recv(60))["type"] != "response.completed":
            pass
        write(key_file, NEW)
        reload(server)
        websocket.send(frame)
        error = json.loads(websocket.recv(60))
    assert (error["type"], error["status"], error["error"]["code"]) == ("error", 401, "invalid_api_key")


def test_changed_file_is_noticed(key_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reloader, "CHECK_INTERVAL_S", 0.01)

    async def run() -> list[ReloadReport]:
        keys, reports, changed = KeyRing((), read_key_file(key_file)), list[ReloadReport](), asyncio.Event()
        watched = Reloader(keys, key_file)
        watched.on_reload += [reports.append, lambda _: changed.set()]
        task = asyncio.create_task(watched.watch())
        await asyncio.sleep(0.2)
        assert not reports, "nothing has changed"
        for content in ("[[key]]\n", f'[[key]]\nkey = "{NEW}"\n'):
            key_file.write_text(content)  # noqa: ASYNC240  # a short file
            await asyncio.wait_for(changed.wait(), 60)
            changed.clear()
        task.cancel()
        assert keys.find(NEW.encode()) is not None and keys.find(OLD.encode()) is None
        return reports

    first, second = asyncio.run(run())
    assert first.faults and not second.faults and second.revoked == 1


@pytest.mark.parametrize("moment", ["while the files are read", "while models are loaded"])
@pytest.mark.parametrize("changed", ["keys", "certificate"])
def test_file_that_changes_during_the_start_is_noticed(
    key_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moment: str, changed: str
) -> None:
    """The start reads the files early, and watches them only once all else is ready."""
    certificate, private_key = write_certificate(tmp_path)
    started: list[Settings] = []

    def change() -> None:
        if changed == "keys":
            write(key_file, NEW)
        else:
            write_certificate(tmp_path)

    def load(*values: Any) -> Any:
        found = load_api_keys(*values)
        if moment == "while the files are read":
            change()
        return found

    def start(_: object, settings: Settings, *__: object, **___: object) -> None:
        if moment == "while models are loaded":
            change()
        started.append(settings)

    monkeypatch.setattr(cli, "load_api_keys", load)
    monkeypatch.setattr(launch, "run_until_signal", start)
    options = ["--api-key-file", key_file, "--ssl-certfile", certificate, "--ssl-keyfile", private_key]
    flags = [*map(str, options), "--engine", "scripted", "--script", "none", "--store", "memory"]
    result = CliRunner().invoke(cli.main, ["serve", *flags])
    assert result.exit_code == 0, result.output
    [settings] = started

    async def watch_once() -> ReloadReport:
        store = open_store(settings)
        context = create_context(settings, scripted_registry(SCRIPT), store=store)
        reports: asyncio.Queue[ReloadReport] = asyncio.Queue()
        context.reloader.add_certificate([certificate, private_key], lambda: None)
        context.reloader.on_reload.append(reports.put_nowait)
        task = asyncio.create_task(context.reloader.watch())
        report = await asyncio.wait_for(reports.get(), HANG_TIMEOUT_S)
        task.cancel()
        await store.close()
        return report

    report = asyncio.run(watch_once())
    assert (report.revoked, report.certificate) == (int(changed == "keys"), True)


def test_half_written_file_is_not_read(key_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The file changes until the fourth look; it is read at the fifth, which finds no change."""
    monkeypatch.setattr(reloader, "STABLE_S", 3600.0)
    looks = 0

    async def sleep(_: float) -> None:
        nonlocal looks
        looks += 1
        if looks < 4:
            key_file.write_text(f'[[key]]\nkey = "sk-part-{looks}"\n' + "[[" * looks)  # noqa: ASYNC240
        elif looks == 4:
            write(key_file, OLD, NEW)

    monkeypatch.setattr(reloader.asyncio, "sleep", sleep)
    keys = KeyRing((), read_key_file(key_file))
    write(key_file, NEW)
    report = asyncio.run(Reloader(keys, key_file).reload())
    assert looks == 5 and report.faults == () and report.keys == 2


def test_streams_continue_while_keys_are_reloaded(serve_keys: Callable[..., RunningServer], key_file: Path) -> None:
    """No event is lost, and each stream ends as it would."""
    server = serve_keys()
    results: list[list[int]] = []

    def read() -> None:
        with slow_stream(server, OLD) as events:
            results.append([event["sequence_number"] for event in events])

    readers = [threading.Thread(target=read) for _ in range(20)]
    for reader in readers:
        reader.start()
    for number in range(20):
        write(key_file, OLD, *(f"sk-{number}-{index}" for index in range(100)))
        assert reload(server)["faults"] == []
    wait_with_progress(lambda: not any(reader.is_alive() for reader in readers), "streams do not end")
    assert len(results) == 20 and all(numbers == list(range(len(numbers))) for numbers in results)
    assert len({len(numbers) for numbers in results}) == 1
