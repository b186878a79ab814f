"""`antiphon top`: frames as lines, in a terminal and in a pipe."""

import json
import os
import re
import subprocess
import threading
from functools import partial
from pathlib import Path

import httpx
import pytest

from antiphon.console.runtime_file import RuntimeInfo, write_runtime_file
from antiphon.console.top.live_view import format_frame
from antiphon.kit.proxy.exchange import ServerExchange
from tests.console.chat.chat_script import SCRIPT
from tests.kit.hostile_texts import HOSTILE_TEXTS, find_foreign_controls, find_terminal_controls
from tests.kit.proxy.wire_servers import run_handler
from tests.kit.pseudo_terminal import COMMAND, CTRL_C, run_in_terminal
from tests.serving import RunningServer, serve

SERVER = partial(serve, SCRIPT, inspect="memory")
ATTACK = "".join(text for name, text in HOSTILE_TEXTS.items() if name != "long")
SCREEN_CONTROLS = re.compile(rb"\x1b\[[HKJ](?!x)|\r(?!OVER)")
TURN = {
    "id": "resp_1",
    "api": "responses",
    "model": "m",
    "stage": "decode",
    "seconds": 1.25,
    "input_tokens": 10,
    "cached_tokens": 4,
    "output_tokens": 7,
}


def test_frame_has_a_line_for_each_engine_and_turn() -> None:
    frame = {"turns": [TURN], "turns_of_others": 2, "engines": [{"model": "m", "running": 1, "name": "x", "on": True}]}
    assert format_frame(frame, "http://x/v1") == [
        "http://x/v1: 1 running, 2 of other keys",
        "engine m: running 1",
        "stage      seconds    input   cached   output api        model                id",
        "decode         1.2       10        4        7 responses  m                    resp_1",
    ]
    assert format_frame({}, "http://x/v1") == ["http://x/v1: 0 running, 0 of other keys"]


@pytest.mark.parametrize(
    "value", [None, 7, "x", [], [None], {"a": []}, ATTACK, HOSTILE_TEXTS["long"]], ids=lambda v: str(v)[:9]
)
def test_frame_of_any_shape_is_safe(value: object) -> None:
    turn = dict.fromkeys(TURN, value)
    for frame in (
        {"turns": value, "engines": value, "turns_of_others": value},
        {"turns": [turn], "engines": [turn, {ATTACK: 1}]},
    ):
        lines = format_frame(frame, "http://x/v1")
        assert not any(find_terminal_controls(line) or "\n" in line or len(line) > 5000 for line in lines)


@pytest.fixture
def runtime_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    return tmp_path


def write_key(server: RunningServer) -> None:
    write_runtime_file(server.port, RuntimeInfo(url=server.url, page_key=server.context.page_key))


def start_slow_turn(server: RunningServer) -> threading.Thread:
    body = {"model": "scripted", "input": "be slow", "stream": True}

    def run() -> None:
        with httpx.stream("POST", f"{server.url}/responses", json=body, timeout=None) as reply:
            for _ in reply.iter_bytes():
                pass

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    return thread


@pytest.mark.parametrize("columns", [40, 200])
@pytest.mark.parametrize("end", ["q", CTRL_C])
def test_screen_shows_the_turns_until_a_key(columns: int, end: str, runtime_folder: Path) -> None:
    with SERVER() as server:
        write_key(server)
        start_slow_turn(server)
        with run_in_terminal("top", "--url", server.root, columns=columns) as terminal:
            terminal.wait_for("1 running")
            terminal.wait_for("decode")
            terminal.type(f"x{end}")
            assert terminal.wait_end() == 0
            lines = SCREEN_CONTROLS.sub(b"", terminal.output.replace(b"\r\n", b"\n")).decode().split("\n")
            assert not find_foreign_controls("\n".join(lines).encode())
            assert max(map(len, lines)) <= columns + 2  # the terminal shows Ctrl-C


def test_pipe_gets_lines_and_the_end_of_the_server(runtime_folder: Path) -> None:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("ANTIPHON_", "OPENAI_"))}
    with SERVER() as server:
        write_key(server)
        command = [*COMMAND, "top", "--url", server.root]
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=kept
        )
        assert process.stdout is not None
        assert process.stdout.readline() == f"{server.url}: 0 running, 0 of other keys\n".encode()
    output, _ = process.communicate()
    assert b"\x1b" not in output and process.returncode in (0, 1)


def test_server_with_keys_takes_those(runtime_folder: Path) -> None:
    with SERVER(api_keys=("sk-top",)) as server:
        write_key(server)
        with run_in_terminal("top", "--url", server.root, ANTIPHON_API_KEY="sk-wrong") as terminal:
            assert terminal.wait_end() == 1 and "Error: 401" in terminal.text and "sk-wrong" not in terminal.text
        with run_in_terminal("top", "--url", server.root, ANTIPHON_API_KEY="sk-top") as terminal:
            terminal.wait_for("0 running")
            terminal.type("q")
            assert terminal.wait_end() == 0


def test_server_without_the_view_and_no_server() -> None:
    async def handle(exchange: ServerExchange) -> None:
        await exchange.send_json(404, {"error": {"message": f"none{ATTACK}"}})

    with run_handler(handle) as url, run_in_terminal("top", "--url", url) as terminal:
        assert terminal.wait_end() == 1
        output = SCREEN_CONTROLS.sub(b"", terminal.output.replace(b"\r\n", b"\n"))
        assert b"Error: 404: none" in output and not find_foreign_controls(output)
    with run_in_terminal("top", "--url", "http://127.0.0.1:9") as terminal:
        assert terminal.wait_end() == 1 and "no server answers at" in terminal.text


def test_hostile_frames_reach_the_terminal_as_text() -> None:
    frame = {
        "turns": [dict.fromkeys(TURN, ATTACK)],
        "engines": [{"model": ATTACK, ATTACK: 1}],
        "turns_of_others": ATTACK,
    }

    async def handle(exchange: ServerExchange) -> None:
        exchange.start_reply(200, [(b"content-type", b"text/event-stream")])
        exchange.write_data(f"data: {json.dumps(frame)}\n\n".encode())
        exchange.end_reply()

    with run_handler(handle) as url, run_in_terminal("top", "--url", url) as terminal:
        assert terminal.wait_end() == 0
        output = SCREEN_CONTROLS.sub(b"", terminal.output.replace(b"\r\n", b"\n"))
        assert not find_foreign_controls(output) and "x␛[2J".encode() in output
