"""The server without what macOS lacks: `tests/without_linux/sitecustomize.py` takes it away in every process."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.app.server_helpers import free_port
from tests.kit.conformance.suite_scripts import write_script
from tests.progress import wait_with_progress
from tests.syntax import ROOT

pytestmark = pytest.mark.processes

ENVIRONMENT = os.environ | {"PYTHONPATH": f"{ROOT / 'tests' / 'without_linux'}{os.pathsep}{ROOT}"}
TIMEOUT_S = 120.0
SCHEMA = {
    "type": "object",
    "properties": {"city": {"type": "string"}},
    "required": ["city"],
    "additionalProperties": False,
}
STRICT_TOOL = {"type": "function", "name": "weather", "strict": True, "parameters": SCHEMA}
GRAMMAR_TOOL = {
    "type": "custom",
    "name": "answer",
    "format": {"type": "grammar", "syntax": "lark", "definition": 'start: "yes" | "no"'},
}
CALLS = (
    ("strict", '<tool_call>{"name": "weather", "arguments": {"city": "Oslo"}}</tool_call>'),
    ("grammar", '<tool_call>{"name": "answer", "arguments": {"input": "yes"}}</tool_call>'),
)


class ServerProcess:
    """A process `antiphon serve --engine scripted`."""

    def __init__(self, folder: Path) -> None:
        port = free_port()
        command = [sys.executable, "-m", "antiphon", "serve", "--engine", "scripted", "--port", str(port)]
        command += ["--script", str(folder / "script.toml"), "--store", str(folder / "responses.db")]
        self.url = f"http://127.0.0.1:{port}"
        with (folder / "log").open("w", encoding="utf-8") as log:
            self.process = subprocess.Popen(command, cwd=ROOT, env=ENVIRONMENT, stderr=log)
        wait_with_progress(self._answers, "the server did not start", pid=self.process.pid)

    def _answers(self) -> bool:
        try:
            return httpx.get(f"{self.url}/ready", timeout=1).status_code == 200
        except httpx.TransportError:
            assert self.process.poll() is None
            return False

    def respond(self, text: str, **fields: Any) -> dict[str, Any]:
        body = {"model": "scripted", "input": text, **fields}
        reply = httpx.post(f"{self.url}/v1/responses", json=body, timeout=TIMEOUT_S)
        assert reply.status_code == 200, reply.text
        response: dict[str, Any] = reply.json()
        return response

    def terminate(self) -> int:
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(TIMEOUT_S)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("without_linux")
    replies = [{"name": name, "when": [f"Call {name}"], "output": [output]} for name, output in CALLS]
    replies += [{"name": f"again {n}", "when": ["Hello"], "output": ["Hello there."]} for n in range(2)]
    rows = []
    for reply in (*replies, *write_script(suites=["basics"])):
        members = "".join(f"{key} = {json.dumps(value, ensure_ascii=False)}\n" for key, value in reply.items())
        rows.append(f"[[reply]]\n{members}")
    (folder / "script.toml").write_text("\n".join(rows), encoding="utf-8")
    return folder


@pytest.fixture(scope="module")
def server(folder: Path) -> Iterator[ServerProcess]:
    running = ServerProcess(folder)
    yield running
    running.process.kill()
    running.process.wait()


def test_names_of_linux_are_missing() -> None:
    code = "import os, pathlib; print(hasattr(os, 'sched_getaffinity'), pathlib.Path('/proc/self').exists())"
    done = subprocess.run([sys.executable, "-c", code], env=ENVIRONMENT, capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "False"]


def test_strict_call_and_grammar_are_answered(server: ServerProcess) -> None:
    (call,) = server.respond("Call strict", tools=[STRICT_TOOL], tool_choice="required")["output"]
    assert (call["type"], json.loads(call["arguments"])) == ("function_call", {"city": "Oslo"})
    (call,) = server.respond("Call grammar", tools=[GRAMMAR_TOOL], tool_choice="required")["output"]
    assert (call["type"], call["input"]) == ("custom_tool_call", "yes")


def test_greedy_grammar_is_refused(server: ServerProcess) -> None:
    definition = "start: a0\n" + "\n".join(f'a{n}: ("x" (a{n + 1}))' for n in range(990)) + '\na990: "y"\n'
    tool = {**GRAMMAR_TOOL, "format": {**GRAMMAR_TOOL["format"], "definition": definition + "\n// macOS"}}
    body = {"model": "scripted", "input": "Hello", "tools": [tool]}
    reply = httpx.post(f"{server.url}/v1/responses", json=body, timeout=TIMEOUT_S)
    assert reply.status_code in (200, 400)
    assert server.respond("Call grammar", tools=[GRAMMAR_TOOL], tool_choice="required")["status"] == "completed"


def test_check_finds_nothing(server: ServerProcess) -> None:
    command = [sys.executable, "-m", "antiphon", "check", server.url, "--suite", "basics"]
    done = subprocess.run(
        command, cwd=ROOT, env=ENVIRONMENT, capture_output=True, text=True, check=False, timeout=TIMEOUT_S
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_stored_response_outlives_sigterm(server: ServerProcess, folder: Path) -> None:
    response = server.respond("Hello")
    assert response["output"][0]["content"][0]["text"] == "Hello there."
    assert server.terminate() in (0, -signal.SIGTERM)
    again = ServerProcess(folder)
    try:
        stored = httpx.get(f"{again.url}/v1/responses/{response['id']}", timeout=TIMEOUT_S).json()
        assert stored["output"] == response["output"]
        follow_up = again.respond("Hello", previous_response_id=response["id"])
        assert follow_up["status"] == "completed"
        assert again.terminate() in (0, -signal.SIGTERM)
    finally:
        again.process.kill()
        again.process.wait()
    assert "Traceback" not in (folder / "log").read_text(encoding="utf-8")


def test_two_models_share_a_memory_limit() -> None:
    command = [sys.executable, "-m", "tests.without_linux.two_models"]
    done = subprocess.run(
        command, cwd=ROOT, env=ENVIRONMENT, capture_output=True, text=True, check=False, timeout=TIMEOUT_S
    )
    assert done.returncode == 0, done.stderr
    [seen] = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]  # beside lines of the log
    assert seen["statuses"] == ["incomplete"] * 3
    assert seen["reserved"] == 7 * (1 << 30) // 4, "the memory of a process is known by `ps`"
