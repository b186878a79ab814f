"""A process of the sandbox: whose fault its end is, that its memory is bounded everywhere, and its proof at the start."""

import gc
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import structlog

from antiphon.app.sandbox import report, sandbox_process, sandboxed_template
from antiphon.app.sandbox.grammar_checker import GrammarChecker
from antiphon.app.sandbox.messages import SANDBOX_CPU_LIMIT_S, WorkerLimits
from antiphon.app.sandbox.sandbox_process import SandboxError, SandboxProcess
from antiphon.engine.process import resident_memory
from tests.conftest import StartServer
from tests.progress import HANG_TIMEOUT_S

pytestmark = pytest.mark.processes

Start = Callable[..., SandboxProcess]
LANDLOCK, NETWORK = "landlock", "an own network namespace"
CPU_LIMITS_S = {"boundless grammars": 0.05, "watched grammars": SANDBOX_CPU_LIMIT_S, "no library": SANDBOX_CPU_LIMIT_S}
"""Of a message, by program; 0.2 s for all others. Taking a gigabyte may take longer than the first, where memory is slow."""


def ask(process: SandboxProcess, message: bytes, **limits: Any) -> bytes | None:
    """Returns the header of the reply, or None if the message reached a limit."""
    reply = process.exchange(message, **limits)
    return None if reply is None else reply.header


@pytest.fixture
def start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Start]:
    """Returns a process that runs a program of `broken_workers`."""
    root = Path(__file__).parents[3]
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}{os.pathsep}{root}")
    processes = []

    def create(kind: str, **limits: Any) -> SandboxProcess:
        module = f"program_{len(processes)}"
        code = f"from tests.app.sandbox.broken_workers import main\nmain({kind!r})\n"
        (tmp_path / f"{module}.py").write_text(code, encoding="utf-8")
        limits = {"cpu_limit_s": CPU_LIMITS_S.get(kind, 0.2), **limits}
        processes.append(SandboxProcess(module, WorkerLimits(**limits)))
        return processes[-1]

    yield create
    for process in processes:
        process.close()


@pytest.mark.parametrize("message", [b"overflow", b"abort", b"compute", b"allocate"])
def test_message_that_reaches_a_limit_is_at_fault(start: Start, message: bytes) -> None:
    process = start("working")
    assert ask(process, message) is None
    assert ask(process, b"echo") == b"yes", "it is started again"
    assert ask(process, message) is None


def test_memory_that_earlier_messages_left_is_no_fault_of_a_message(start: Start) -> None:
    """The address space has 1 GiB, and each message leaves 400 MiB of it. The CPU time of a message is its own."""
    process = start("working")
    for num_restarts in (0, 0, 1, 1, 2):
        assert ask(process, b"leave memory") == b"yes"
        assert process.num_restarts == num_restarts or process.memory_is_watched
    before = process.num_restarts
    assert ask(process, b"compute") is None
    assert process.num_restarts == before + 1, "it is not tried again"


def test_process_cannot_reach_anything(start: Start) -> None:
    process = start("working")
    assert ask(process, b"echo") == b"yes"
    if LANDLOCK not in process.missing:
        assert {ask(process, action) for action in (b"read", b"list", b"write")} == {b"refused: Permission denied"}
    if NETWORK not in process.missing:
        assert ask(process, b"connect") in (b"refused: Network is unreachable", b"refused: Permission denied")


@pytest.mark.parametrize(
    ("message", "reason"),
    [(b"killed", "SIGKILL"), (b"terminated", "signal 15"), (b"exit", "exit status 3"), (b"bug", "exit status 1")],
)
def test_other_ends_are_the_servers_fault(start: Start, message: bytes, reason: str) -> None:
    process = start("working")
    for _ in range(2):
        with pytest.raises(SandboxError, match=reason):
            ask(process, message)
    assert ask(process, b"echo") == b"yes"


@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        ("no library", "exit status 1.*at its start: ImportError: No module named 'llguidance'"),
        ("silent", "exit status 0.*at its start"),
        ("garbage", "at its start"),
    ],
)
def test_process_that_cannot_start_is_the_servers_fault(start: Start, kind: str, reason: str) -> None:
    process = start(kind)
    for _ in range(2):
        with pytest.raises(SandboxError, match=reason):
            ask(process, b"echo")


def test_process_that_cannot_be_created_is_the_servers_fault(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    process = start("working")
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    with pytest.raises(SandboxError, match="cannot be started: No such file"):
        ask(process, b"echo")
    monkeypatch.undo()


def test_full_temporary_folder_is_the_servers_fault(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    process = start("echo")

    def refuse() -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(sandbox_process.tempfile, "TemporaryFile", refuse)
        with pytest.raises(SandboxError, match="cannot be started: No space left on device"):
            ask(process, b"echo")
    gc.collect()  # a socket that is left open is a warning, and a failure
    assert ask(process, b"echo") == b"yes"


def test_process_that_does_not_answer_is_the_servers_fault(start: Start) -> None:
    process = start("working", reply_timeout_s=0.2)
    with pytest.raises(SandboxError, match="did not answer in time"):
        ask(process, b"wait")


@pytest.mark.parametrize("has_proc", [True, False])
def test_memory_is_watched_where_the_system_does_not_limit_it(
    start: Start, has_proc: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not has_proc:
        monkeypatch.setattr(resident_memory, "Path", lambda path: Path(f"/nowhere{path}"))
    process = start("without limit")
    assert ask(process, b"echo") == b"yes" and process.memory_is_watched
    assert ask(process, b"memory", watched_bytes=256 << 20) is None
    assert ask(process, b"echo") == b"yes"


def test_resident_memory_is_the_same_by_ps(monkeypatch: pytest.MonkeyPatch) -> None:
    by_proc = resident_memory.read_resident_bytes(os.getpid())
    monkeypatch.setattr(resident_memory, "Path", lambda path: Path(f"/nowhere{path}"))
    by_ps = resident_memory.read_resident_bytes(os.getpid())
    assert by_proc is not None and by_ps is not None and 0.5 < by_ps / by_proc < 2
    assert resident_memory.read_resident_bytes(2**22 + 1) is None


def test_resident_memory_of_no_process_is_unknown() -> None:
    assert resident_memory.read_resident_bytes(2**22 + 1) is None


LIMITED = """
import asyncio, resource
resource.setrlimit(resource.RLIMIT_AS, ({limit}, {limit}))
from antiphon.app.sandbox.grammar_checker import GRAMMAR_CHECKER
from antiphon.app.sandbox.report import prove_sandbox
prove_sandbox()
print(repr(asyncio.run(GRAMMAR_CHECKER.find_fault("lark", 'start: "a"'))))
"""


def test_grammar_is_checked_under_a_lower_hard_limit() -> None:
    """`ulimit -v` below the limit of the sandbox, which is 1 GiB."""
    limit = 768 << 20
    done = subprocess.run(
        [sys.executable, "-c", LIMITED.format(limit=limit)], capture_output=True, text=True, check=False, timeout=120
    )
    assert done.stdout.strip() == "''", done.stderr


def test_proof_passes_quietly() -> None:
    checker = GrammarChecker()
    with structlog.testing.capture_logs() as logs:
        report.prove_sandbox(checker)
    checker.process.stop()
    assert len(logs) == bool(checker.process.missing)


def test_proof_names_the_limits_that_the_system_lacks(monkeypatch: pytest.MonkeyPatch) -> None:
    checker = GrammarChecker()
    checker.prove()
    monkeypatch.setattr(checker, "prove", lambda: None)
    checker.process.missing = (NETWORK, LANDLOCK)
    with structlog.testing.capture_logs() as logs:
        report.prove_sandbox(checker)
    checker.process.stop()
    assert [row["event"] for row in logs] == [
        "Sandbox : this system does not offer an own network namespace, landlock to processes that read grammars and templates"
    ]


def test_proof_says_that_memory_is_watched(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    checker = GrammarChecker()
    checker.process = start("watched grammars")
    with structlog.testing.capture_logs() as logs:
        report.prove_sandbox(checker)
    assert [row["event"] for row in logs if "does not offer" not in row["event"]] == [
        "Sandbox : this system does not limit the memory of a process, so the server watches it"
    ]


def test_proof_tells_why_the_sandbox_does_not_work(start: Start) -> None:
    checker = GrammarChecker()
    checker.process = start("no library")
    with structlog.testing.capture_logs() as logs:
        report.prove_sandbox(checker)
    assert len(logs) == 1 and logs[0]["log_level"] == "error" and "llguidance" in logs[0]["event"]


def test_proof_watches_memory_whose_limit_has_no_effect(start: Start) -> None:
    checker = GrammarChecker()
    checker.process = start("boundless grammars")
    with structlog.testing.capture_logs() as logs:
        report.prove_sandbox(checker)
    events = [row["event"] for row in logs if "does not offer" not in row["event"]]
    assert [event.endswith("so the server watches it") for event in events] == [True]
    assert checker.process.memory_is_watched


def test_proof_notices_memory_without_a_bound(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    checker = GrammarChecker()
    checker.process = start("boundless grammars")
    monkeypatch.setattr(sandbox_process, "read_resident_bytes", lambda _: None)
    with structlog.testing.capture_logs() as logs:
        report.prove_sandbox(checker)
    assert len(logs) == 1 and "nothing ends it" in logs[0]["event"]


def test_proof_tells_that_templates_cannot_be_rendered(monkeypatch: pytest.MonkeyPatch) -> None:
    checker = GrammarChecker()
    monkeypatch.setattr(sandboxed_template.TEMPLATE_PROCESS, "_module", "nowhere")
    sandboxed_template.TEMPLATE_PROCESS.stop()
    with structlog.testing.capture_logs() as logs:
        report.prove_sandbox(checker, with_templates=True)
    checker.process.stop()
    assert len(logs) == 1 and "No module named nowhere" in logs[0]["event"] and "template" in logs[0]["event"]


STRICT: dict[str, Any] = {"type": "json_schema", "name": "x", "strict": True, "schema": {"type": "object"}}


def test_request_that_meets_a_broken_sandbox_gets_a_500(
    start: Start, start_server: StartServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = GrammarChecker()
    broken.process = start("no library")
    monkeypatch.setattr("antiphon.app.requests.constraints.GRAMMAR_CHECKER", broken)
    monkeypatch.setattr(sandboxed_template.TEMPLATE_PROCESS, "_module", "nowhere")
    sandboxed_template.TEMPLATE_PROCESS.stop()
    server = start_server(
        [{"name": f"any {n}", "output": ["Yes."]} for n in range(4)], trust_request_chat_template=True
    )
    body = {"model": "scripted", "input": "Hi", "text": {"format": {**STRICT, "schema": {"title": "only here"}}}}
    reply = httpx.post(f"{server.url}/responses", json=body, timeout=HANG_TIMEOUT_S)
    error = reply.json()["error"]
    assert (reply.status_code, error["type"], error["code"]) == (500, "server_error", "sandbox_unavailable")
    assert "text.format.schema" in error["message"] and "llguidance" not in error["message"]
    chat = {"model": "scripted", "messages": [{"role": "user", "content": "Hi"}]}
    reply = httpx.post(f"{server.url}/chat/completions", json={**chat, "chat_template": "Hi"}, timeout=HANG_TIMEOUT_S)
    assert (reply.status_code, reply.json()["error"]["code"]) == (500, "sandbox_unavailable")
    assert httpx.post(f"{server.url}/chat/completions", json=chat, timeout=HANG_TIMEOUT_S).status_code == 200
