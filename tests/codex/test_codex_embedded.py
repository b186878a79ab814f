"""The real Codex, and Claude Code, on the embedded model: prompt, chat template, engine, dialect and tool calls, without a script."""

import base64
import json
from collections.abc import Iterator
from io import BytesIO
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from PIL import Image

from antiphon.engine.embedded import MODEL_DIR
from antiphon.engine.options import EngineOptions
from antiphon.engine.process.client import ProcessEngine
from antiphon.engine.scripted.engine import ScriptedEngine, parse_script
from tests.clients.claude_code import install_claude_code, run_claude_code
from tests.codex.codex_process import API_KEY, CodexCli
from tests.codex.codex_terminal import CodexTerminal, open_terminal
from tests.codex.embedded_registry import load_model_format, make_registry, needs_weights
from tests.codex.recorder import HttpExchange, TrafficRecorder
from tests.conftest import StartServer
from tests.counts import FULL_COUNTS
from tests.engine.threaded_engine import ThreadWorker
from tests.serving import RunningServer, serve
from training.pictures.drawing import draw_picture, draw_scene
from training.pictures.soft_words import describe_scene

LONG_FOLDER_NAME = "directory-with-quite-a-long-name"
SESSIONS = 10 if FULL_COUNTS else 1
NUM_VIEWED, NUM_CHATTED = (40, 200) if FULL_COUNTS else (1, 10)


@pytest.fixture(scope="module")
def recorded_server() -> Iterator[tuple[RunningServer, TrafficRecorder]]:
    """A server for all tests and its recorder."""
    engine, recorder = (
        ProcessEngine(MODEL_DIR, EngineOptions(device="cpu", threads=1), spawn=ThreadWorker),
        TrafficRecorder(),
    )
    with serve(make_registry(engine, load_model_format()), api_keys=(API_KEY,), wrap_app=recorder.wrap_app) as server:
        yield server, recorder


@pytest.fixture
def recorder(recorded_server: tuple[RunningServer, TrafficRecorder]) -> Iterator[TrafficRecorder]:
    _, recorder = recorded_server
    recorder.exchanges.clear()
    recorder.websockets.clear()
    yield recorder
    recorder.check_streams()


@pytest.fixture
def server(recorded_server: tuple[RunningServer, TrafficRecorder], recorder: TrafficRecorder) -> RunningServer:
    return recorded_server[0]


def test_user_prompt_reaches_the_model_unchanged(codex: CodexCli, start_server: StartServer) -> None:
    """The template keeps little of a prompt, but Codex's own text before the user's must not displace the user's."""
    model_format = load_model_format()
    reply = {"name": "heard", "when": ["<|im_start|>user\nrun `echo antiphon-7391`<|im_end|>"], "output": ["Heard."]}
    replies = parse_script({"reply": [reply, {"name": "lost", "output": ["Lost."]}]})
    engine = ScriptedEngine(replies, encode=model_format.encode, decode=model_format.decode)
    home = codex.home / LONG_FOLDER_NAME / LONG_FOLDER_NAME / LONG_FOLDER_NAME / LONG_FOLDER_NAME
    nested_codex = CodexCli(program=codex.program, home=home)
    run = nested_codex.exec(
        start_server(make_registry(engine, model_format), api_keys=(API_KEY,)), "run `echo antiphon-7391`"
    )
    assert run.final_message == "Heard."


@needs_weights
@pytest.mark.parametrize("prompt", ["run `echo antiphon-7391`", "Run `echo antiphon-7391`."])
def test_embedded_model_runs_the_command_and_reports_its_output(
    codex: CodexCli, server: RunningServer, recorder: TrafficRecorder, prompt: str
) -> None:
    run = codex.exec(server, prompt)
    assert run.exit_code == 0, run
    [command] = run.items_of_type("command_execution")
    assert "echo antiphon-7391" in command["command"]
    assert (command["aggregated_output"], command["exit_code"]) == ("antiphon-7391\n", 0)
    assert "antiphon-7391" in run.final_message
    _, report = recorder.turns
    [output] = report.items_of_type("function_call_output")
    assert output["output"].endswith("Output:\nantiphon-7391\n")


@needs_weights
def test_embedded_model_lists_the_files_of_the_folder(codex: CodexCli, server: RunningServer) -> None:
    codex.work_folder.mkdir(parents=True)
    (codex.work_folder / "notes-7391.txt").touch()
    run = codex.exec(server, "list the files in this folder")
    [command] = run.items_of_type("command_execution")
    assert (command["aggregated_output"], run.final_message) == ("notes-7391.txt\n", "notes-7391.txt")


@needs_weights
@pytest.mark.parametrize(
    ("prompt", "result"),
    [
        ("run `echo $((6*7))`", "42"),
        ("list the files in this folder", "There was no output."),
        ("Please run `echo antiphon-7391`", "antiphon-7391"),
        ("run echo first second", "first second"),
    ][: 4 if FULL_COUNTS else 1],
)
def test_embedded_model_runs_the_command_for_claude_code(
    recorded_server: tuple[RunningServer, TrafficRecorder], tmp_path: Path, prompt: str, result: str
) -> None:
    answer = run_claude_code(install_claude_code(), recorded_server[0], prompt, tmp_path / "home", API_KEY)
    assert (answer["result"], answer["num_turns"]) == (result, 2)


def draw_evaluation_picture(number: int) -> tuple[str, bytes]:
    """Returns what a picture shows in the model's words, and its PNG. Training never draws these pictures."""
    random = np.random.default_rng([2026, 7391, number])
    scene, file = draw_scene(random), BytesIO()
    side = int(random.integers(48, 400))
    Image.fromarray(draw_picture(random, scene, side, side)).save(file, "PNG")
    return describe_scene(scene), file.getvalue()


@needs_weights
def test_embedded_model_sees_what_view_image_shows(codex: CodexCli, server: RunningServer) -> None:
    codex.work_folder.mkdir(parents=True)
    answers = {}
    for number in range(NUM_VIEWED):
        shown, picture = draw_evaluation_picture(number)
        (codex.work_folder / "picture.png").write_bytes(picture)
        run = codex.exec(server, "use view_image with path=picture.png")
        answers[number] = (shown, run.final_message)
    wrong = [answer for answer in answers.values() if answer[0] != answer[1]]
    print(f"view_image: {len(wrong)} of {NUM_VIEWED} wrong")
    assert len(wrong) <= NUM_VIEWED // 20, wrong


@needs_weights
def test_embedded_model_sees_the_pictures_of_a_chat(server: RunningServer) -> None:
    wrong = []
    for number in range(1_000, 1_000 + NUM_CHATTED):
        shown, picture = draw_evaluation_picture(number)
        url = f"data:image/png;base64,{base64.b64encode(picture).decode()}"
        content = [{"type": "text", "text": "What is this?"}, {"type": "image_url", "image_url": {"url": url}}]
        body = {"model": "antiphon", "messages": [{"role": "user", "content": content}]}
        headers = {"Authorization": f"Bearer {API_KEY}"}
        reply = httpx.post(f"{server.url}/chat/completions", json=body, headers=headers).json()
        answer = reply["choices"][0]["message"]["content"]
        if answer != shown:
            wrong.append((shown, answer))
    print(f"chat: {len(wrong)} of {NUM_CHATTED} wrong")
    assert len(wrong) <= NUM_CHATTED // 20, wrong


@needs_weights
def test_greeting_is_answered_with_text(codex: CodexCli, server: RunningServer) -> None:
    run = codex.exec(server, "Hello!")
    assert run.exit_code == 0 and run.final_message and not run.items_of_type("command_execution")


def final_output(exchange: HttpExchange) -> list[dict[str, Any]]:
    """Returns the items of a completed reply; an empty list before its end."""
    if not exchange.raw_reply.endswith(b"\n\n") or exchange.events[-1]["type"] != "response.completed":
        return []
    items: list[dict[str, Any]] = exchange.events[-1]["response"]["output"]
    return items


def answer_texts(exchanges: list[HttpExchange]) -> list[str]:
    """Returns the texts of the assistant's messages."""
    return [
        item["content"][0]["text"]
        for exchange in exchanges
        for item in final_output(exchange)
        if item["type"] == "message"
    ]


def select_turns(recorder: TrafficRecorder, *, with_tools: bool) -> list[HttpExchange]:
    """Returns the requests whose reply has begun, with or without tools. The request for a title has none."""
    return [exchange for exchange in recorder.turns if exchange.status and bool(exchange.body["tools"]) is with_tools]


def run_in_terminal(terminal: CodexTerminal, recorder: TrafficRecorder, command: str) -> str:
    """Types "run `command`", waits for the model's last message of the turn and returns it."""
    num_earlier_turns = len(select_turns(recorder, with_tools=True))

    def new_turns() -> list[HttpExchange]:
        return select_turns(recorder, with_tools=True)[num_earlier_turns:]

    terminal.send_prompt(f"run `{command}`", lambda: bool(new_turns()))
    terminal.wait_until(lambda: bool(answer_texts(new_turns())), f"the answer to {command}")
    return answer_texts(new_turns())[-1]


@needs_weights
def test_two_commands_of_a_terminal_session_are_both_run(
    codex: CodexCli, server: RunningServer, recorder: TrafficRecorder
) -> None:
    """The terminal interface sends some thirty tools, and a request for a title next to the first prompt."""
    right: list[bool] = []
    for session in range(SESSIONS):
        recorder.exchanges.clear()
        first, second = f"first-{session}{session + 3}", f"second-{session + 5}1"
        with open_terminal(codex, server) as terminal:
            answers = [run_in_terminal(terminal, recorder, f"echo {word}") for word in (first, second)]
            terminal.wait_until(lambda: any(answer_texts(select_turns(recorder, with_tools=False))), "the title")
        right.append(answers == [first, second])
        turn = select_turns(recorder, with_tools=True)[0]
        names = [tool.get("name") for tool in turn.body["tools"]]
        assert {"multi_agent_v1", "mcp__codex_tui", "get_goal", "view_image"} <= {*names}, names
        assert json.loads(answer_texts(select_turns(recorder, with_tools=False))[0])["title"].startswith(
            "Run echo first-"
        )
    assert sum(right) >= 0.9 * SESSIONS, right


@needs_weights
def test_resumed_session_runs_the_new_command(codex: CodexCli, server: RunningServer) -> None:
    for number in range(SESSIONS):
        first = codex.exec(server, f"run `echo before-{number}7`")
        assert first.final_message == f"before-{number}7"
        resumed = codex.exec(server, f"run `echo after-{number}9`", resume=True)
        [command] = resumed.items_of_type("command_execution")
        assert (command["aggregated_output"], resumed.final_message) == (f"after-{number}9\n", f"after-{number}9")
