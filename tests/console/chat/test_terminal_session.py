"""`antiphon chat` in a pseudo-terminal."""

import json
import re
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path

import pytest

from tests.console.chat.chat_script import APIS, SCRIPT, TOOL
from tests.kit.hostile_server import ATTACKS, run_hostile_server
from tests.kit.hostile_texts import find_foreign_controls
from tests.kit.pseudo_terminal import CTRL_C, CTRL_D, PseudoTerminal, run_in_terminal
from tests.progress import HANG_TIMEOUT_S, wait_with_progress
from tests.serving import RunningServer, serve

SERVER = partial(serve, SCRIPT)
WIDTHS = (40, 200)
ENTER = "\r"
PRESS_AGAIN_S = 2.0
EDITOR_CONTROLS = re.compile(rb"\x1b\[\?2004[hl]|\r(?!OVER)")
"""What the line editor writes: the mode of pasted text, and the begin of a line."""


@contextmanager
def open_chat(url: str, *arguments: str, columns: int = 100, **environment: str) -> Iterator[PseudoTerminal]:
    with run_in_terminal("chat", "--url", url, *arguments, columns=columns, **environment) as terminal:
        terminal.wait_for("/help lists the commands.")
        terminal.wait_for("> ")
        yield terminal


def send(terminal: PseudoTerminal, line: str, answer: str) -> None:
    """Types a line, and waits for an answer and for the next prompt."""
    start = len(terminal.output)
    terminal.type(line + ENTER)

    def is_answered() -> bool:
        _, found, rest = terminal.output[start:].partition(answer.encode())
        return bool(found) and b"> " in rest

    terminal.wait_until(is_answered, answer)


def press_ctrl_c(terminal: PseudoTerminal, answer: str, *, count: int = 1) -> None:
    """Types Ctrl-C at a prompt until the answer comes.

    Between its prompt and its first wait, the line editor notes a signal only with the next key.
    """

    def press_again() -> bool:
        nonlocal pressed_at
        if terminal.output.count(answer.encode()) >= count:
            return True
        if time.monotonic() - pressed_at > PRESS_AGAIN_S and terminal.process.poll() is None:
            terminal.type(CTRL_C)
            pressed_at = time.monotonic()
        return False

    pressed_at = 0.0
    terminal.wait_until(press_again, answer)


def end_with_ctrl_c(terminal: PseudoTerminal) -> None:
    """Types Ctrl-C at a prompt until the command has ended with status 0."""
    deadline = time.monotonic() + HANG_TIMEOUT_S
    while terminal.process.poll() is None and time.monotonic() < deadline:
        terminal.type(CTRL_C)
        with suppress(AssertionError):
            terminal.wait_end(PRESS_AGAIN_S)
    assert terminal.process.returncode == 0


def strip_editor(output: bytes) -> bytes:
    return EDITOR_CONTROLS.sub(b"", output.replace(b"\r\n", b"\n"))


def find_controls(terminal: PseudoTerminal) -> list[str]:
    """Returns the control characters of the whole output but those of the line editor."""
    terminal.wait_quiet()
    return find_foreign_controls(strip_editor(terminal.output))


@pytest.mark.parametrize("api", APIS)
@pytest.mark.parametrize("columns", WIDTHS)
def test_turns_of_one_conversation(server: RunningServer, api: str, columns: int) -> None:
    with open_chat(server.root, "--api", api, columns=columns) as terminal:
        send(terminal, "first words", "Hello, you. \U0001f99c é")
        send(terminal, "second words", "I remember both.")
        send(terminal, "/clear", "The conversation is empty.")
        send(terminal, "second words", "I know only the second.")
        terminal.type(CTRL_D)
        assert terminal.wait_end() == 0
        assert find_controls(terminal) == []
        assert f"scripted at {server.url} ({api})." in strip_editor(terminal.output).decode().replace("\n", "")


@pytest.mark.parametrize("api", APIS)
def test_reasoning_is_dim_and_the_answer_is_not(server: RunningServer, api: str) -> None:
    with open_chat(server.root, "--api", api) as terminal:
        send(terminal, "think", "The answer.")
        shown = re.sub(r"\x1b\[0m\x1b\[2m", "", terminal.text)
        assert re.search("\x1b\\[2mA deep thought\\.\\s*\x1b\\[0m\n", shown), shown
        assert re.search("(^|\n)The answer\\.\n", shown)


@pytest.mark.parametrize("variable", [{"NO_COLOR": "1"}, {"TERM": "dumb"}], ids=["NO_COLOR", "dumb"])
@pytest.mark.parametrize("columns", WIDTHS)
def test_without_colors_reasoning_has_a_label(server: RunningServer, variable: dict[str, str], columns: int) -> None:
    with open_chat(server.root, columns=columns, **variable) as terminal:
        send(terminal, "think", "The answer.")
        text = strip_editor(terminal.output).decode()
        assert "[reasoning]\nA deep thought.\n[answer]\nThe answer.\n" in text and "\x1b" not in text


@pytest.mark.parametrize("api", APIS)
def test_output_of_a_call_is_typed_in(server: RunningServer, api: str, tmp_path: Path) -> None:
    (tmp_path / "tools.json").write_text(json.dumps([{"type": "function", "function": TOOL}]))
    with open_chat(server.root, "--api", api, "--tools", str(tmp_path / "tools.json")) as terminal:
        send(terminal, "ask for the weather", "output of get_weather")
        assert re.search(r'→ get_weather\(\{"city": ?"Oslo"\}\)', terminal.text)
        if api == "chat":
            terminal.type(f'"""21 degrees{ENTER}')
            terminal.wait_for("… ")
        send(terminal, 'and dry"""' if api == "chat" else "21 degrees", "It is warm in Oslo.")
        assert find_controls(terminal) == []


@pytest.mark.parametrize("api", APIS)
def test_cancelled_call_is_told_to_the_model(server: RunningServer, api: str, tmp_path: Path) -> None:
    (tmp_path / "tools.json").write_text(json.dumps([TOOL]))
    with open_chat(server.root, "--api", api, "--tools", str(tmp_path / "tools.json")) as terminal:
        send(terminal, "ask for the weather", "output of get_weather")
        press_ctrl_c(terminal, "The calls are cancelled.")
        send(terminal, "go on", "No weather, then.")


@pytest.mark.parametrize("api", APIS)
def test_ctrl_c_stops_the_reply_and_closes_the_stream(api: str) -> None:
    with serve(SCRIPT) as server, open_chat(server.root, "--api", api) as terminal:
        terminal.type(f"be slow{ENTER}")
        terminal.wait_for("It begins")
        terminal.type(CTRL_C)
        terminal.wait_for("Stopped.")
        wait_with_progress(lambda: any(each.method == "POST" for each in server.access_records), "the stream is open")
        send(terminal, "first words", "Hello, you. That was slow.")  # the model reads the part that it wrote
        press_ctrl_c(terminal, "Ctrl-C again", count=2)
        send(terminal, "first words", "Hello, you.")  # a line in between: the next Ctrl-C is the first again
        press_ctrl_c(terminal, "Ctrl-C again", count=3)
        end_with_ctrl_c(terminal)
        assert find_controls(terminal) == []


def test_two_ctrl_c_end_the_program_after_a_stopped_reply(server: RunningServer) -> None:
    with open_chat(server.root) as terminal:
        terminal.type(f"be slow{ENTER}")
        terminal.wait_for("It begins")
        terminal.type(CTRL_C)
        terminal.wait_for("Stopped.")
        end_with_ctrl_c(terminal)


def test_settings(server: RunningServer) -> None:
    with open_chat(server.root, "--instructions", "be kind") as terminal:
        send(terminal, "/system", "instructions: be kind")
        send(terminal, "/system speak like a pirate", "instructions: speak like a pirate")
        send(terminal, "first words", "Arr.")
        send(terminal, "/system off", "instructions: none")
        send(terminal, "/clear", "The conversation is empty.")
        send(terminal, "first words", "Hello, you.")
        send(terminal, "/effort high", "effort: high")
        send(terminal, "/effort off", "effort: the default of the model")
        send(terminal, "/model", "* scripted")
        send(terminal, "/model other", "model: other")
        send(terminal, "first words", "404")
        send(terminal, "/model", "  scripted")


def test_commands_that_are_wrong(server: RunningServer) -> None:
    with open_chat(server.root) as terminal:
        send(terminal, "/nothing at all", "there is no command /nothing; /help lists them")
        send(terminal, "/save", "name a file: /save FILE")
        send(terminal, "/save /no/such/folder/file", "No such file or directory")
        send(terminal, "//first words", "Hello, you.")
        terminal.type(ENTER)
        send(terminal, "/nothing", "there is no command /nothing;")


@pytest.mark.parametrize("columns", WIDTHS)
def test_help_has_every_command_and_fits(server: RunningServer, columns: int) -> None:
    with open_chat(server.root, columns=columns) as terminal:
        send(terminal, "/help", "twice the program.")
        for name in ("model", "system", "effort", "clear", "raw", "save", "quit", "help"):
            assert f"\n/{name}" in terminal.text
        lines = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", terminal.text.partition("\n/help\n")[2]).split("\n")
        assert max(map(len, lines)) <= min(WIDTHS)
        terminal.type(f"/quit{ENTER}")
        assert terminal.wait_end() == 0


def test_message_of_many_lines(server: RunningServer) -> None:
    with open_chat(server.root) as terminal:
        terminal.type(f'"""line one{ENTER}')
        terminal.wait_for("… ")
        send(terminal, 'line two"""', "Two lines.")
        terminal.type(f'"""{ENTER}line one{ENTER}line two{ENTER}')
        send(terminal, '"""', "Two lines.")


@pytest.mark.parametrize("api", APIS)
def test_raw_shows_events(server: RunningServer, api: str) -> None:
    with open_chat(server.root, "--api", api) as terminal:
        send(terminal, "/raw", "shown as events.")
        last = {"responses": '"type":"response.completed"', "chat": "[DONE]", "messages": '"type":"message_stop"'}[api]
        send(terminal, "first words", last)
        delta = {
            "responses": "response.output_text.delta: {",
            "chat": '"object":"chat.completion.chunk"',
            "messages": '"type":"text_delta"',
        }[api]
        assert delta in terminal.text and "\nHello, you." not in terminal.text
        send(terminal, "/raw", "shown as text.")
        send(terminal, "second words", "I remember both.")


@pytest.mark.parametrize("api", APIS)
def test_saved_conversation_is_private_and_whole(server: RunningServer, api: str, tmp_path: Path) -> None:
    file = tmp_path / "saved.json"
    with open_chat(server.root, "--api", api, ANTIPHON_API_KEY="sk-private") as terminal:
        send(terminal, "think", "The answer.")
        send(terminal, f"/save {file}", "2 items" if api != "responses" else "3 items")
        send(terminal, f"/save {file}", "File exists; name another one")
        assert "sk-private" not in terminal.text
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    saved = json.loads(file.read_text())
    assert (saved["url"], saved["api"], saved["model"]) == (server.url, api, "scripted")
    assert saved["items"][0] == {"role": "user", "content": "think"} and "The answer." in str(saved["items"][1:])
    assert "sk-private" not in file.read_text()


@pytest.mark.parametrize("api", APIS)
def test_server_that_dies_meanwhile(api: str) -> None:
    with serve(SCRIPT) as server:
        port = server.port
        terminal_block = open_chat(server.root, "--api", api)
        terminal = terminal_block.__enter__()
        try:
            send(terminal, "first words", "Hello, you.")
            terminal.type(f"be slow{ENTER}")
            terminal.wait_for("It begins")
        except BaseException:
            terminal_block.__exit__(None, None, None)
            raise
    try:
        terminal.wait_for("Error: ")
        send(terminal, "second words", f"no server answers at http://127.0.0.1:{port}/v1 (--url)")
        assert "The message is forgotten" in terminal.text
        terminal.type(CTRL_D)
        assert terminal.wait_end() == 0
        assert find_controls(terminal) == []
    finally:
        terminal_block.__exit__(None, None, None)


@pytest.mark.parametrize("columns", WIDTHS)
def test_unreachable_server_is_one_line(columns: int) -> None:
    with run_in_terminal("chat", columns=columns, ANTIPHON_URL="http://127.0.0.1:9") as terminal:
        assert terminal.wait_end() == 1
        assert terminal.text.startswith("Error: no server answers at http://127.0.0.1:9/v1 (ANTIPHON_URL): ")
        assert terminal.text.count("\n") == 1 and "--url" in terminal.text


@pytest.mark.parametrize("columns", WIDTHS)
@pytest.mark.parametrize("api", APIS)
@pytest.mark.parametrize("attack", ATTACKS)
def test_hostile_replies_reach_the_terminal_as_text(attack: str, api: str, columns: int, tmp_path: Path) -> None:
    with (
        run_hostile_server(ATTACKS[attack]) as url,
        run_in_terminal("chat", "--url", url, "--api", api, columns=columns) as terminal,
    ):
        terminal.wait_for("/help lists the commands.")
        terminal.wait_for("> ")
        terminal.type(f"hello{ENTER}")
        terminal.wait_for("output of tool")
        terminal.type(f"an output{ENTER}")  # the server calls again
        terminal.wait_for("output of tool", count=2)
        terminal.wait_quiet()  # so that the echo of Ctrl-C stands in no character
        press_ctrl_c(terminal, "The calls are cancelled.")
        send(terminal, f"/save {tmp_path / 'saved.json'}", "items are in")
        for command, answer in (("/model", "m"), ("/raw", "shown as events.")):
            send(terminal, command, answer)
        terminal.type(f"again{ENTER}")
        terminal.wait_for("output of tool", count=3)
        assert find_controls(terminal) == []
        assert "answer" in terminal.text and (attack == "long" or "answerx␛[2J" in terminal.text)
        assert json.loads((tmp_path / "saved.json").read_text())["items"]


def test_hostile_refusals_reach_the_terminal_as_text() -> None:
    with run_hostile_server(ATTACKS["sequences"], is_refusing=True) as url, open_chat(url, "--model", "m") as terminal:
        send(terminal, "hello", "Error: 400: nox␛[2J")
        assert find_controls(terminal) == []
