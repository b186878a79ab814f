"""The engine that the options create: over given servers, or over a server that it starts itself."""

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from antiphon.app.options.remote_options import RemoteServeOptions
from antiphon.app.options.serve_options import ServeError, ServeOptions
from antiphon.app.options.settings import Settings
from antiphon.app.remote.launch import create_remote_engine
from antiphon.engine.embedded import MODEL_DIR
from antiphon.engine.errors import LoadError
from antiphon.engine.options import EngineOptions
from antiphon.engine.protocol import Chunk
from antiphon.engine.remote.engine import RemoteEngine
from antiphon.engine.remote.options import RemoteTimeouts
from antiphon.engine.remote.remote_job import MAX_JOB_ATTEMPTS
from tests.engine.remote.remote_helpers import EOS, make_job, merge_chunks
from tests.progress import HANG_TIMEOUT_S

pytestmark = pytest.mark.processes

ROOT = Path(__file__).resolve().parents[3]


CONTINUE_WITHIN_S = 12.5


async def create_engine(**options: Any) -> RemoteEngine:
    remote, on_status = RemoteServeOptions(**options.pop("remote", {})), options.pop("on_status", lambda *_: None)
    serve_options = ServeOptions(**{"engine": "vllm", "models": (str(MODEL_DIR),), "remote": remote, **options})
    engine, _, _ = await create_remote_engine(
        serve_options, None, on_status, separate_owners=False, continue_within_s=CONTINUE_WITHIN_S
    )
    assert isinstance(engine, RemoteEngine)
    return engine


@pytest.fixture
def vllm_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A command `vllm` on the path."""
    command = tmp_path / "vllm"
    command.write_text(f'#!/bin/sh\ncd {ROOT} && exec {sys.executable} -m tests.engine.remote.fake_vllm "$@"\n')
    command.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    return command


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"engine": "sglang"}, "--engine sglang needs --engine-url URL"),
        ({"engine": "vllm", "models": ()}, "--engine vllm needs --engine-url URL"),
        ({"remote": {"urls": ("gpu1:8000",)}}, "--engine-url: not a URL"),
        ({"remote": {"urls": ("http://gpu1",), "key_env": "NO_SUCH_KEY"}}, "the variable is not set"),
        ({"remote": {"urls": ("http://gpu1",)}, "models": ()}, "needs --tokenizer"),
    ],
)
async def test_unusable_options_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ServeError, match=message):
        await create_engine(**options)


async def test_steps_are_told_with_the_name_of_the_model() -> None:
    shown: list[tuple[str, str]] = []
    for options, name in (({}, "model"), ({"name": "mine"}, "mine")):
        remote = {"urls": ("http://127.0.0.1:9",), "tokenizer": str(MODEL_DIR)}
        engine = await create_engine(remote=remote, models=(), on_status=lambda *each: shown.append(each), **options)
        start = asyncio.create_task(engine.start())
        await wait_until(lambda: bool(shown))
        await engine.close()
        await asyncio.wait({start})
        assert {each for each, _ in shown} == {name}
        shown.clear()


async def test_options_of_lost_servers_reach_the_engine() -> None:
    for remote, policy in (({}, "any"), ({"continuation": "strict"}, "strict")):
        engine = await create_engine(remote={"urls": ("http://127.0.0.1:9",), **remote})
        assert (engine._options.continuation, engine._timeouts.continue_within_s) == (policy, CONTINUE_WITHIN_S)


def test_page_tells_the_limits_of_tries() -> None:
    page = " ".join((ROOT / "docs" / "remote.md").read_text(encoding="utf-8").split())
    assert (
        f"another replica is tried, at most {MAX_JOB_ATTEMPTS} in {RemoteTimeouts().retry_window_s:g} seconds" in page
    )
    assert f"waits for one for {RemoteTimeouts().continue_within_s:g} seconds (`--continue-within`)" in page
    assert Settings().continue_within == RemoteTimeouts().continue_within_s


async def test_missing_command_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(ServeError, match="the command vllm is not installed"):
        await create_engine()


async def test_vllm_is_started_restarted_and_ended(vllm_command: Path) -> None:
    engine = await create_engine(engine_options=EngineOptions(max_model_len=1000))
    child = engine.child
    assert child is not None
    flags = " ".join(child.command)
    assert "--structured-outputs-config" in flags and flags.endswith("--max-model-len 1000")
    await engine.start()
    assert await run_job(engine) == (50, EOS)
    first = list_session(child.pid)
    assert len(first) >= 4, "the guard and the second one, the server and its worker"
    second_guard = next(pid for pid, command in first.items() if "killpg" in command and pid != child.pid)
    os.kill(second_guard, signal.SIGKILL)  # which changes nothing
    await wait_until(lambda: not is_alive(second_guard))
    assert engine.unready_reason() is None
    server = find_server(first)
    os.kill(server, signal.SIGKILL)
    await wait_until(lambda: engine.unready_reason() is not None)
    assert "vllm" in str(engine.unready_reason())
    await wait_until(lambda: not any(is_alive(pid) for pid in first))
    await wait_until(lambda: engine.unready_reason() is None)
    assert await run_job(engine) == (50, EOS)
    second = list_session(child.pid)
    folder = Path(child.command[child.command.index("--uds") + 1]).parent
    await engine.close()
    await wait_until(lambda: not any(is_alive(pid) for pid in second))
    assert not folder.exists()


async def test_killed_guard_leaves_no_server(vllm_command: Path) -> None:
    engine = await create_engine()
    child = engine.child
    assert child is not None
    await engine.start()
    assert child.pid is not None
    session = list_session(child.pid)
    os.kill(child.pid, signal.SIGKILL)
    await wait_until(lambda: not any(is_alive(pid) for pid in session))
    await wait_until(lambda: engine.unready_reason() is None)
    assert await run_job(engine) == (50, EOS)
    await engine.close()


async def test_vllm_that_fails_at_its_start_is_told_in_one_line(
    vllm_command: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAKE_VLLM_ERROR", "no such device")
    engine = await create_engine()
    with pytest.raises(LoadError, match=r"vllm stopped \(exit status 1\): ValueError: no such device"):
        await engine.start()


def test_killed_parent_leaves_no_server(vllm_command: Path, tmp_path: Path) -> None:
    code = f"""
import asyncio, sys
sys.path.insert(0, {str(ROOT)!r})
from tests.app.remote.test_launch import create_engine
async def main():
    engine = await create_engine()
    await engine.start()
    print(engine.child.pid, flush=True)
    await asyncio.Event().wait()
asyncio.run(main())
"""
    # The folder of the test has a name that is too long for the address of a socket.
    temporary = tmp_path / ("temporary" * 12)
    temporary.mkdir()
    environment = os.environ | {"TMPDIR": str(temporary)}
    parent = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, env=environment)
    assert parent.stdout is not None
    session = list_session(int(parent.stdout.readline()))
    assert len(session) >= 4
    parent.kill()
    parent.wait()
    parent.stdout.close()
    asyncio.run(wait_until(lambda: not any(is_alive(pid) for pid in session)))


async def run_job(engine: RemoteEngine) -> tuple[int, ...]:
    chunks: list[Chunk] = []
    await engine.generate(make_job(), chunks.append)
    return merge_chunks(chunks)


def find_server(session: dict[int, str]) -> int:
    """Returns the id of the server's process, whose command the guards have among their arguments."""
    return next(pid for pid, command in session.items() if "fake_vllm" in command and "killpg" not in command)


def list_session(session: int | None) -> dict[int, str]:
    """Returns the commands of all processes of a session by process id."""
    commands = {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            fields = (folder / "stat").read_text().rpartition(")")[2].split()
            if int(fields[3]) == session and fields[0] != "Z":
                commands[int(folder.name)] = (folder / "cmdline").read_text().replace("\0", " ")
        except OSError:
            continue
    return commands


def is_alive(pid: int) -> bool:
    try:
        return (Path("/proc") / str(pid) / "stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


async def wait_until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(HANG_TIMEOUT_S):
        while not condition():
            await asyncio.sleep(0.02)
