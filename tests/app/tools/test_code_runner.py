"""Code runs in a container that keeps its variables, and nothing that the code does reaches the server or stays."""

import asyncio
import os
import signal
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from antiphon.app.tools.code.code_cells import clean_traceback, list_cells
from antiphon.app.tools.code.code_outcome import CodeLimits, CodeOutcome
from antiphon.app.tools.code.code_runner import FORGOTTEN, MAX_CODE_BYTES, CodeRunner, check_extra
from tests.progress import HANG_TIMEOUT_S

LIMITS = CodeLimits(run_timeout_s=1, grace_timeout_s=1, containers=4)
ENDED = "The process that runs the code has failed."
LOST = "The container has no variables now."


@pytest.fixture
async def runner() -> AsyncIterator[CodeRunner]:
    runner = CodeRunner(LIMITS)
    yield runner
    await runner.close()


async def run(runner: CodeRunner, code: str, container: str = "cntr_1", owner: str = "owner") -> CodeOutcome:
    return await runner.run(owner, container, code)


def worker_pids(runner: CodeRunner) -> list[int]:
    return [
        pid for session in runner.sessions.values() if session is not None and (pid := session.worker_pid) is not None
    ]


async def wait_until_dead(pid: int) -> None:
    for _ in range(500):
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return
        await asyncio.sleep(0.01)
    raise AssertionError("the process still runs")


@pytest.mark.parametrize(
    ("code", "logs"),
    [
        ("1 + 1", "2\n"),
        ("print('a')\n'b' * 3", "a\n'bbb'\n"),
        ("x = 5", ""),
        ("x = 5; x", "5\n"),
        ("x = 5\nx;", ""),
        ("print('a; b')", "a; b\n"),
        ("x = 1; 'a;b'", ""),
        ("None", ""),
        ("", ""),
        ("# nothing", ""),
        ("x = [\n1,\n2,\n]\nsum(\n  x\n)  # both", "3\n"),
        ("dict(\na=1,\nb=2)", "{'a': 1, 'b': 2}\n"),
        ('"""one\ntwo"""', "'one\\ntwo'\n"),
        ("if True:\n    y = 1\nelse:\n    y = 2\n", ""),
        ("def f():\n    return 3\n\nf()\n# the end\n", "3\n"),
        ("1 +\\\n2", "3\n"),
        ("import math\r\nmath.floor(2.5)\r\n", "2\n"),
        ("class A:\n    def __repr__(self):\n        return 'an A'\nA()", "an A\n"),
        ("import sys\nprint('e', file=sys.stderr)", "e\n"),
        ("'é' * 2", "'éé'\n"),
        ("print('<|start|>', '\\x00')", "<|start|> \x00\n"),
        ("print('\\ud800')", "\ufffd\n"),
    ],
)
async def test_output_and_last_value_are_told(runner: CodeRunner, code: str, logs: str) -> None:
    assert await run(runner, code) == CodeOutcome(logs=logs)


@pytest.mark.parametrize(
    ("code", "last", "line"),
    [
        ("1/0", "ZeroDivisionError: division by zero", "    1/0\n    ~~~\n"),
        ("x = 0\n1/x", "ZeroDivisionError: division by zero", "line 2, in <module>\n    1/x\n    ~~~\n"),
        (
            "def f(:\n  pass",
            "SyntaxError: Expected a parameter or the end of the parameter list",
            "line 1\n    def f(:",
        ),
        ("eval('1+')", "SyntaxError: Expected an expression (<string>, line 1)", "    eval('1+')\n"),
        ("import os\nos.environ['HOME']", "RuntimeError: 'os.environ' is not supported in this environment", ""),
        ("import os\nos.listdir('/')", "PermissionError: Permission denied: '/'", ""),
        ("import os\nos.system('ls')", "AttributeError: module 'os' has no attribute 'system'", ""),
        ("open('/etc/passwd').read()", "PermissionError: Permission denied: '/etc/passwd'", ""),
        ("open('out', 'w')", "PermissionError: Permission denied: '/out'", ""),
        ("import socket", "ModuleNotFoundError: No module named 'socket'", ""),
        ("import subprocess", "ModuleNotFoundError: No module named 'subprocess'", ""),
        ("import ctypes", "ModuleNotFoundError: No module named 'ctypes'", ""),
        ("def f(n): return f(n + 1)\nf(0)", "RecursionError: maximum recursion depth exceeded", "repeated"),
        ("raise SystemExit", "SystemExit", ""),
        ("(" * 100_000, "SyntaxError: Source is too deeply nested", ""),
    ],
)
async def test_exceptions_of_the_code_are_logs(runner: CodeRunner, code: str, last: str, line: str) -> None:
    outcome = await run(runner, "print('before')\n" + code if line == "" else code)
    assert outcome.error is None
    assert outcome.logs.rstrip().endswith(last) or "Cut" in outcome.logs
    assert line in outcome.logs and "pass;" not in outcome.logs
    assert len(outcome.logs.encode()) <= LIMITS.log_bytes


async def test_code_before_an_error_runs_once(runner: CodeRunner) -> None:
    await run(runner, "n = 0")
    await run(runner, "n += 1\neval('1+')")
    await run(runner, "n += 1\nraise SyntaxError('mine')")
    assert (await run(runner, "n")).logs == "2\n"


async def test_variables_last_in_their_container(runner: CodeRunner) -> None:
    await run(runner, "x = 1\ndef f(): return x + 1")
    assert (await run(runner, "f()")).logs == "2\n"
    assert "NameError" in (await run(runner, "x", "cntr_2")).logs


async def test_container_of_another_owner_is_not_found(runner: CodeRunner) -> None:
    await run(runner, "x = 1")
    outcome = await run(runner, "x", owner="other")
    assert outcome == CodeOutcome(logs="", error="Container with id 'cntr_1' not found.")
    assert outcome.as_text() == outcome.error
    assert (await run(runner, "x")).logs == "1\n"


@pytest.mark.parametrize(
    "code",
    [
        "while True: pass",
        "while True:\n    try:\n        while True: pass\n    except BaseException: pass",
        "import time\ntime.sleep(60)",
        "import asyncio\nawait asyncio.sleep(60)",
        "pow(3, 10**8) % 7",
    ],
)
async def test_run_that_takes_too_long_is_ended(runner: CodeRunner, code: str) -> None:
    await run(runner, "x = 1")
    (pid,) = worker_pids(runner)
    outcome = await run(runner, "print('begun')\n" + code)
    assert outcome.error == f"The run was ended because it took more than 1 s. {LOST}"
    await wait_until_dead(pid)
    assert "NameError" in (await run(runner, "x")).logs


@pytest.mark.parametrize(
    "code",
    [
        "x = 'a' * (1 << 30)",
        "x = []\nwhile True: x.append('a' * 100_000)",
        "list(range(10**8))",
        "a = 'a' * 50_000_000\n[a + str(n) for n in range(9)]",
    ],
)
async def test_run_that_takes_too_much_memory_is_ended(code: str) -> None:
    runner = CodeRunner(CodeLimits(run_timeout_s=HANG_TIMEOUT_S))
    outcome = await run(runner, code)
    assert outcome.error is not None and "more than 128 MiB of memory" in outcome.error
    assert (await run(runner, "2")).logs == "2\n"
    await runner.close()


async def test_values_are_not_brought_into_the_server(runner: CodeRunner) -> None:
    outcome = await run(runner, "a = [0]\nfor _ in range(40): a = [a, a]\na")
    assert outcome.error is not None
    outcome = await run(runner, "list(range(200_000))")
    assert outcome.error is not None or len(outcome.logs) <= LIMITS.log_bytes


async def test_long_output_is_cut(runner: CodeRunner) -> None:
    outcome = await run(runner, "x = 1\nfor n in range(10_000): print('é' * 20)\n1/0")
    assert outcome.error is None and "\n[Cut: 410000 bytes in all.]\n" in outcome.logs
    assert outcome.logs.rstrip().endswith("ZeroDivisionError: division by zero")
    assert len(outcome.logs.encode()) <= LIMITS.log_bytes
    assert (await run(runner, "x")).logs == "1\n"


@pytest.mark.parametrize("code", ["print('x' * 10_000_000)", "while True: print('x')", "'x' * 10_000_000"])
async def test_flood_of_output_is_ended(runner: CodeRunner, code: str) -> None:
    outcome = await run(runner, code)
    assert outcome.error is not None and "printed more than 1048576 bytes" in outcome.error
    assert len(outcome.logs.encode()) <= LIMITS.log_bytes


async def test_long_code_is_refused(runner: CodeRunner) -> None:
    outcome = await run(runner, "#" * (MAX_CODE_BYTES + 1))
    assert outcome.error == f"The code is longer than {MAX_CODE_BYTES} bytes. Run a shorter part."
    assert "lone surrogates" in (await run(runner, "'\ud800'")).logs


async def test_killed_process_is_an_outcome(runner: CodeRunner) -> None:
    await run(runner, "x = 1")
    (pid,) = worker_pids(runner)
    os.kill(pid, signal.SIGKILL)
    assert (await run(runner, "x")).error == f"{ENDED} {LOST}"
    assert (await run(runner, "2")).logs == "2\n"


async def test_stopped_process_is_killed(runner: CodeRunner) -> None:
    await run(runner, "x = 1")
    (pid,) = worker_pids(runner)
    os.kill(pid, signal.SIGSTOP)
    await asyncio.sleep(0.1)
    assert (await run(runner, "x")).error == f"The run was ended because it took more than 1 s. {LOST}"
    await wait_until_dead(pid)


async def test_cancelled_run_is_killed() -> None:
    runner = CodeRunner()
    await run(runner, "x = 1")
    (pid,) = worker_pids(runner)
    task = asyncio.create_task(run(runner, "while True: pass"))
    await asyncio.sleep(0.2)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await wait_until_dead(pid)
    assert (await run(runner, "2")).logs == "2\n"
    await runner.close()


async def test_runs_of_one_container_take_turns(runner: CodeRunner) -> None:
    await run(runner, "n = 0")
    await asyncio.gather(*(run(runner, "n += 1") for _ in range(10)))
    assert (await run(runner, "n")).logs == "10\n"


async def test_container_used_longest_ago_is_dropped(runner: CodeRunner) -> None:
    for number in range(4):
        await run(runner, f"x = {number}", f"cntr_{number}")
    await run(runner, "x", "cntr_0")
    await run(runner, "x = 4", "cntr_4")
    assert (await run(runner, "x", "cntr_0")).logs == "0\n"
    assert "NameError" in (await run(runner, "x", "cntr_1")).logs


async def test_owner_of_many_containers_loses_one(runner: CodeRunner) -> None:
    await run(runner, "x = 'mine'", "cntr_first", owner="one")
    for number in range(9):
        await run(runner, "x = 1", f"cntr_{number}", owner="many")
    assert (await run(runner, "x", "cntr_first", owner="one")).logs == "'mine'\n"
    assert len(worker_pids(runner)) == 4


async def test_no_container_is_taken_from_a_run(runner: CodeRunner) -> None:
    busy = [asyncio.create_task(run(runner, "import time\ntime.sleep(0.5)", f"cntr_{n}")) for n in range(4)]
    await asyncio.sleep(0.2)
    outcome = await run(runner, "1", "cntr_new")
    assert outcome.error == "All containers of the server are running code. Try again later."
    assert {done.error for done in await asyncio.gather(*busy)} == {None}


async def test_idle_container_ends() -> None:
    runner = CodeRunner(CodeLimits(idle_timeout_s=0.2))
    await run(runner, "x = 1")
    (pid,) = worker_pids(runner)
    await wait_until_dead(pid)
    assert "NameError" in (await run(runner, "x")).logs
    await runner.close()


async def test_idle_container_gives_its_process_back_and_keeps_its_variables() -> None:
    runner = CodeRunner(CodeLimits(process_idle_timeout_s=0.02))
    for number in range(3):
        await run(runner, f"x = [{number}]\ndef add(a): return a + x[0]", f"cntr_{number}")
    for pid in worker_pids(runner):
        await wait_until_dead(pid)
    for number in range(3):
        assert await run(runner, "add(10)", f"cntr_{number}") == CodeOutcome(logs=f"{10 + number}\n")
    await runner.close()


async def test_variables_that_are_too_large_to_keep_are_told_of_once() -> None:
    runner = CodeRunner(CodeLimits(process_idle_timeout_s=0.02, saved_bytes=1000))
    await run(runner, "x = 'a' * 5000")
    [pid] = worker_pids(runner)
    await wait_until_dead(pid)
    outcome = await run(runner, "x")
    assert outcome.logs.startswith(FORGOTTEN) and "NameError" in outcome.logs
    assert await run(runner, "1") == CodeOutcome(logs="1\n")
    await runner.close()


async def test_run_during_the_saving_keeps_its_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    runner = CodeRunner(LIMITS)
    await run(runner, "x = 5")
    container = runner._containers["cntr_1"]
    saving = asyncio.create_task(runner._save_session(container))
    await asyncio.sleep(0)
    assert await run(runner, "x") == CodeOutcome(logs="5\n")
    await saving
    assert await run(runner, "x") == CodeOutcome(logs="5\n")
    await runner.close()


async def test_owner_has_a_limit_of_containers() -> None:
    runner = CodeRunner(CodeLimits(containers=8, containers_of_owner=2))
    await run(runner, "x = 0", "cntr_other", "other")
    for number in range(4):
        await run(runner, f"x = {number}", f"cntr_{number}")
    assert list(runner.sessions) == ["cntr_other", "cntr_2", "cntr_3"]
    await runner.close()


async def test_container_that_is_gone_is_not_created_again(runner: CodeRunner) -> None:
    for owner in ("owner", "other"):
        outcome = await runner.run(owner, "cntr_1", "1", may_create=False)
        assert outcome == CodeOutcome(logs="", error="Container with id 'cntr_1' not found.")
        await runner.run("third", "cntr_1", "1")
        assert not runner.has_container(owner, "cntr_1") and runner.has_container("third", "cntr_1")


async def test_sleep_that_the_interpreter_cuts_short_is_told(
    runner: CodeRunner, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It continues after ten seconds, as if the rest of the sleep had passed."""

    async def feed_cells(*_: object) -> tuple[str, None]:
        await asyncio.sleep(LIMITS.run_timeout_s)
        return "", None

    monkeypatch.setattr(runner, "_feed_cells", feed_cells)
    outcome = await run(runner, "import time; time.sleep(100)")
    assert outcome.error == f"The run was ended because it took more than 1 s. {LOST}"


async def test_close_ends_everything(runner: CodeRunner) -> None:
    await run(runner, "1")
    busy = asyncio.create_task(run(runner, "while True: pass", "cntr_2"))
    pids = worker_pids(runner)
    await asyncio.sleep(0.2)
    start = time.monotonic()
    await runner.close()
    assert (await busy).error is not None
    assert time.monotonic() - start < 5
    for pid in pids:
        await wait_until_dead(pid)
    assert (await run(runner, "1")).error == "The server is shutting down."


def read_environment(pid: int) -> bytes:
    return Path(f"/proc/{pid}/environ").read_bytes()


async def test_run_that_waits_starts_nothing_after_close(runner: CodeRunner) -> None:
    busy = [asyncio.create_task(run(runner, "import time\ntime.sleep(0.5)")) for _ in range(3)]
    await asyncio.sleep(0.2)
    await runner.close()
    assert all(outcome.error is not None for outcome in await asyncio.gather(*busy))
    assert worker_pids(runner) == [] and runner._pool is None


@pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")
async def test_environment_of_the_process_is_empty(runner: CodeRunner) -> None:
    await run(runner, "1")
    (pid,) = worker_pids(runner)
    assert read_environment(pid) == b""


async def test_missing_program_is_an_outcome(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("MONTY_BIN", str(tmp_path / "none"))
    runner = CodeRunner()
    assert (await run(runner, "1")).error == f"{ENDED} {LOST}"
    await runner.close()


def test_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    check_extra()
    monkeypatch.setitem(sys.modules, "pydantic_monty", None)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ValueError, match=r"pip install 'antiphon\[code\]'"):
        check_extra()


def test_lines_of_a_cell_keep_their_numbers() -> None:
    lines = ["x = 1", "y = (", "2)", "x; y"]
    for cell in list_cells("\n".join(lines)):
        assert [line.replace("pass;_ = (", "") for line in cell.split("\n")[:4]] in (lines, [*lines[:3], "x;y"])


def test_traceback_without_the_added_text() -> None:
    assert clean_traceback("T\n    pass;_ = (f(1/0\n                ~~~\n") == "T\n    f(1/0\n      ~~~\n"
