"""A turn of an agent on the embedded model, recorded, and replayed without it."""

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx

from antiphon.kit.chat.comparison import compare_chat
from antiphon.kit.chat.stream import read_chat_sse
from antiphon.kit.checker.stream import check_sse
from antiphon.kit.findings import FindingList
from tests.codex.embedded_registry import needs_weights
from tests.normalized_streams import normalize_stream
from tests.progress import HANG_TIMEOUT_S
from tests.serving import read_until_ready
from tests.syntax import ROOT

pytestmark = needs_weights
SHELL = {
    "type": "function",
    "name": "exec_command",
    "description": "Runs a command in a PTY, returning output or a session ID for ongoing interaction.",
    "strict": False,
    "parameters": {
        "type": "object",
        "properties": {"cmd": {"type": "string"}, "workdir": {"type": "string"}, "yield_time_ms": {"type": "number"}},
        "required": ["cmd"],
        "additionalProperties": False,
    },
}
PLAN = {
    "type": "function",
    "name": "update_plan",
    "description": "Updates the task plan.",
    "strict": False,
    "parameters": {"type": "object", "properties": {"explanation": {"type": "string"}}, "additionalProperties": False},
}
PATCH = {"type": "custom", "name": "apply_patch", "description": "Use the `apply_patch` tool to edit files."}
INSTRUCTIONS = "You are Codex, a coding agent. You and the user share one workspace."
PERMISSIONS = "<permissions instructions>Filesystem sandboxing is off.</permissions instructions>"
ENVIRONMENT = "<environment_context>\n  <cwd>/work</cwd>\n  <shell>bash</shell>\n</environment_context>"
PROMPT = "run `echo antiphon-7391`"
OUTPUT = "Chunk ID: 0b1\nWall time: 0.0 seconds\nProcess exited with code 0\nOutput:\nantiphon-7391\n"


@contextmanager
def run_server(*options: str) -> Iterator[str]:
    """Runs `antiphon serve` and yields its base URL."""
    command = [sys.executable, "-m", "antiphon", "serve", "--port", "0", "--store", "memory"]
    with subprocess.Popen(
        [*command, "--log-format", "json", *options], stderr=subprocess.PIPE, text=True, cwd=ROOT
    ) as process:
        assert process.stderr is not None
        try:
            (url,) = read_until_ready(process.stderr)["base_urls"]
            yield url
        finally:
            process.terminate()
            process.stderr.read()


def user_message(text: str) -> dict[str, Any]:
    return {"type": "message", "role": "user", "content": [{"type": "input_text", "text": text}]}


def codex_body(items: list[dict[str, Any]]) -> dict[str, Any]:
    """Returns a request as Codex sends it."""
    head = [
        {"type": "message", "role": "developer", "content": [{"type": "input_text", "text": PERMISSIONS}]},
        user_message(ENVIRONMENT),
        user_message(PROMPT),
    ]
    return {
        "model": "antiphon",
        "instructions": INSTRUCTIONS,
        "input": [*head, *items],
        "tools": [SHELL, PLAN, PATCH],
        "tool_choice": "auto",
        "parallel_tool_calls": True,
        "reasoning": {"summary": "auto"},
        "store": False,
        "stream": True,
        "include": ["reasoning.encrypted_content"],
        "prompt_cache_key": "0199a8f0-0000-7000-8000-000000000001",
    }


def run_turn(url: str) -> list[bytes]:
    """Runs a turn as Codex does: a request, the command that it asks for, and a request with its output."""
    first = httpx.post(f"{url}/responses", json=codex_body([]), timeout=HANG_TIMEOUT_S).content
    output = read_response(first)["output"]
    [call] = [item for item in output if item["type"] == "function_call"]
    items = [*output, {"type": "function_call_output", "call_id": call["call_id"], "output": OUTPUT}]
    return [first, httpx.post(f"{url}/responses", json=codex_body(items), timeout=HANG_TIMEOUT_S).content]


def read_response(stream: bytes) -> dict[str, Any]:
    """Returns the response of the terminal event."""
    frames = [line for line in stream.decode().split("\n") if line.startswith("data: {")]
    response: dict[str, Any] = json.loads(frames[-1].removeprefix("data: "))["response"]
    return response


def chat_body() -> dict[str, Any]:
    """Returns the first request of the turn for Chat Completions."""
    roles = [("system", INSTRUCTIONS), ("developer", PERMISSIONS), ("user", ENVIRONMENT), ("user", PROMPT)]
    tools = [
        {"type": tool["type"], tool["type"]: {key: value for key, value in tool.items() if key != "type"}}
        for tool in (SHELL, PLAN, PATCH)
    ]
    return {
        "model": "antiphon",
        "messages": [{"role": role, "content": text} for role, text in roles],
        "tools": tools,
        "stream": True,
        "stream_options": {"include_usage": True},
    }


def test_recorded_turn_replays_byte_for_byte_and_through_chat(tmp_path: Path) -> None:
    file = tmp_path / "turn.toml"
    with run_server("--record", str(file)) as url:
        recorded = run_turn(url)
    assert '"embedded"' in file.read_text() and "exec_command" in file.read_text()
    with run_server("--engine", "scripted", "--script", str(file)) as url:
        replayed = run_turn(url)
        chat = httpx.post(f"{url}/chat/completions", json=chat_body(), timeout=HANG_TIMEOUT_S).content
    assert [*map(normalize_stream, replayed)] == [*map(normalize_stream, recorded)]
    assert replayed != recorded, "the ids are new"
    for stream in recorded:
        assert not [str(finding) for finding in check_sse(stream) if finding.level == "error"]
    findings = FindingList()
    compare_chat(read_response(recorded[0]), read_chat_sse(chat, chat_body()), findings)
    assert not [str(finding) for finding in findings.list_findings()]
