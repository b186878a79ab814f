"""The tools `shell` and `apply_patch` on the embedded model, which was trained on functions with one command as text."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from antiphon.engine.embedded import MODEL_DIR
from antiphon.engine.options import EngineOptions
from antiphon.engine.process.client import ProcessEngine
from tests.clients.python_install import PROGRAMS_FOLDER, install_python_clients, run_program
from tests.clients.sdk_helpers import dump_sdk_object, get, open_sdk
from tests.clients.test_client_tools_page import SHELL_PROGRAM, run_page_program
from tests.codex.test_codex_embedded import load_model_format, make_registry, needs_weights
from tests.engine.threaded_engine import ThreadWorker
from tests.invariants import check_stream
from tests.serving import RunningServer, serve

pytestmark = needs_weights
SHELL = {"type": "shell", "environment": {"type": "local"}}
PATCH = {"type": "apply_patch"}


@pytest.fixture(scope="module")
def server() -> Iterator[RunningServer]:
    """A server of the embedded model."""
    engine = ProcessEngine(MODEL_DIR, EngineOptions(device="cpu", threads=1), spawn=ThreadWorker)
    with serve(make_registry(engine, load_model_format())) as running:
        yield running


@pytest.mark.timeout(600)  # the first run installs packages
def test_agent_runs_the_command_and_reports_its_output(server: RunningServer, tmp_path: Path) -> None:
    task = {"url": server.url, "model": "antiphon", "prompts": {"shell": "run `echo antiphon-7391`"}}
    program = [install_python_clients("python"), PROGRAMS_FOLDER / "agents_tools.py", json.dumps(task)]
    runs = run_program(program, tmp_path)["shell"]
    assert len(runs) == 6
    for name, run in runs.items():
        assert [call["commands"] for call in run["calls"]] == [["echo antiphon-7391"]], name
        assert "antiphon-7391" in run["text"].splitlines(), name


def test_program_of_the_page_runs_on_the_embedded_model(server: RunningServer, tmp_path: Path) -> None:
    assert run_page_program(SHELL_PROGRAM, server, tmp_path) == "hello\n"


@pytest.mark.parametrize("prompt", ["run the command echo hello", "create the file notes.txt with the text hello"])
@pytest.mark.parametrize("choice", ["auto", {"type": "shell"}, {"type": "apply_patch"}], ids=["auto", "shell", "patch"])
def test_any_answer_is_a_whole_stream_and_stored(server: RunningServer, prompt: str, choice: Any) -> None:
    """The model was not trained on patches: forced to write one, it writes text without meaning, which is cut."""
    body = {"model": "antiphon", "input": prompt, "tools": [SHELL, PATCH], "tool_choice": choice}
    with open_sdk(server) as (client, _):
        events = list(client.responses.create(**body, max_output_tokens=60, stream=True))
    response = check_stream([dump_sdk_object(event) for event in events])
    assert get(f"{server.url}/responses/{response['id']}").json() == response
    kinds = {item["type"] for item in response["output"]} - {"reasoning"}
    if isinstance(choice, dict):
        assert kinds <= {f"{choice['type']}_call"}
