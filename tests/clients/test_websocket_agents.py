"""The OpenAI Agents SDK over a WebSocket: turns with a tool, which send only new items on one connection."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.clients.python_install import PROGRAMS_FOLDER, install_python_clients, run_program
from tests.codex.recorder import TrafficRecorder
from tests.conftest import StartServer

CALL = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Oslo"}}\n</tool_call>'
SCRIPT: list[dict[str, Any]] = [
    {"name": "again", "when": ["4 degrees in Oslo", "Where was that?"], "output": ["In Oslo."]},
    {"name": "report", "when": ["4 degrees in Oslo"], "output": ["It is 4 degrees."]},
    {"name": "call", "when": ["weather in Oslo"], "output": ["<think>\nLook.\n</think>\n\n", CALL]},
    {"name": "lost", "output": ["The prompt lacks what came before."]},
]


@pytest.mark.timeout(600)  # the first run installs packages
def test_agents_run_two_turns_with_a_tool_on_one_connection(start_server: StartServer, tmp_path: Path) -> None:
    recorder = TrafficRecorder()
    server = start_server(SCRIPT, wrap_app=recorder.wrap_app)
    prompts = ["What is the weather in Oslo?", "Where was that?"]
    task = {"url": server.url, "model": "scripted", "prompts": prompts}
    program: list[str | Path] = [install_python_clients("python"), PROGRAMS_FOLDER / "agents_websocket.py"]
    seen = run_program([*program, json.dumps(task)], tmp_path)
    turns = [{"text": "It is 4 degrees.", "outputs": ["4 degrees in Oslo"]}, {"text": "In Oslo.", "outputs": []}]
    assert seen == {"run": turns, "stream": turns}
    assert len(recorder.websockets) == 2, "one connection for each session"
    for messages in recorder.websockets:
        kinds = [[item.get("type", "message") for item in request["input"]] for request in messages.requests]
        assert kinds == [["message"], ["function_call_output"], ["message"]]
    assert recorder.exchanges == [], "nothing is sent over HTTP"
