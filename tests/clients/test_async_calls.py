"""Asynchronous calls over a real socket: a later turn may bring the output."""

from functools import partial
from pathlib import Path

import pytest

from tests.clients.python_install import PROGRAMS_FOLDER, install_python_clients, run_program
from tests.clients.sdk_helpers import post, record_prompts
from tests.conftest import fresh_server
from tests.serving import RunningServer, serve
from tests.snapshots.builtin_cases import write_call

CALL = write_call("get_weather", {"city": "Oslo"})
SCRIPT = [
    {"name": "answer", "when": ['The result of get_weather {"city": "Oslo"}:\nrain'], "output": ["It rains."]},
    {"name": "wait", "when": ["The result will follow.", "Take your time."], "output": ["I ", "wait."]},
    {"name": "call", "when": ["How is the weather?"], "output": [CALL]},
]
SERVER = partial(serve, SCRIPT)
server = fresh_server


@pytest.mark.timeout(600)  # the first run installs packages
def test_openai_python_sends_the_output_later(server: RunningServer, tmp_path: Path) -> None:
    prompts = record_prompts(server)
    results = run_program(
        [install_python_clients("python"), PROGRAMS_FOLDER / "openai_async.py", server.url, "scripted"], tmp_path
    )
    turns = [[["function_call", True]], ["I wait."], ["It rains."]]
    assert results == {"stored": turns, "sent": turns}
    assert prompts[:3] == prompts[3:]
    assert prompts[2].startswith(prompts[1]), "the engine finds the earlier turns in its prefix cache"


def test_other_calls_still_need_their_output(server: RunningServer) -> None:
    tool = {"type": "function", "name": "get_weather", "parameters": {"type": "object"}}
    fields = {"model": "scripted", "tools": [tool]}
    first = post(f"{server.url}/responses", json={**fields, "input": "How is the weather?"}).json()
    assert "async" not in first["output"][0] and "async" not in first["tools"][0]
    reply = post(
        f"{server.url}/responses",
        json={**fields, "input": "Take your time.", "previous_response_id": first["id"]},
    )
    assert reply.status_code == 400
    assert reply.json()["error"]["message"].startswith("No tool output found for function call call_")
