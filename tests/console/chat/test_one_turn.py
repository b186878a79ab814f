"""`antiphon chat` in a pipe: one turn, the answer alone, and an exit status."""

import json
import signal
import subprocess
from functools import partial
from pathlib import Path

import pytest

from tests.console.chat.chat_script import APIS, SCRIPT, TOOL, run_piped
from tests.kit.hostile_server import ATTACKS, run_hostile_server
from tests.kit.hostile_texts import find_terminal_controls
from tests.kit.pseudo_terminal import COMMAND
from tests.serving import RunningServer, serve

KEY = "sk-chat-secret"
SERVER = partial(serve, SCRIPT, api_keys=(KEY,))


@pytest.mark.parametrize("api", APIS)
def test_answer_is_all_that_is_written(server: RunningServer, api: str) -> None:
    done = run_piped("--url", server.root, "--api", api, stdin=b"first words\n", ANTIPHON_API_KEY=KEY)
    assert (done.returncode, done.stdout.decode(), done.stderr) == (0, "Hello, you. \U0001f99c é\n", b"")


@pytest.mark.parametrize("api", APIS)
def test_reasoning_is_not_part_of_the_answer(server: RunningServer, api: str) -> None:
    done = run_piped("--url", server.root, "--api", api, stdin=b"think", ANTIPHON_API_KEY=KEY)
    assert (done.returncode, done.stdout) == (0, b"The answer.\n")


@pytest.mark.parametrize("api", APIS)
def test_calls_are_json_lines(server: RunningServer, api: str, tmp_path: Path) -> None:
    tools = tmp_path / "tools.json"
    tools.write_text(json.dumps([TOOL]))
    arguments = ("--url", server.root, "--api", api, "--tools", str(tools))
    done = run_piped(*arguments, stdin=b"ask for the weather", ANTIPHON_API_KEY=KEY)
    answer, call = done.stdout.decode().splitlines()
    assert (done.returncode, answer) == (0, "Looking.")
    found = json.loads(call)
    assert (found["name"], json.loads(found["arguments"])) == ("get_weather", {"city": "Oslo"})
    assert found["call_id"]


@pytest.mark.parametrize("api", APIS)
def test_limit_makes_the_reply_incomplete(server: RunningServer, api: str) -> None:
    arguments = ("--url", server.root, "--api", api, "--max-output-tokens", "12")
    done = run_piped(*arguments, stdin=b"say much", ANTIPHON_API_KEY=KEY)
    assert done.returncode == 1 and done.stdout.startswith(b"word ") and len(done.stdout) < 100
    reason = {"responses": "max_output_tokens", "chat": "length", "messages": "max_tokens"}[api]
    assert done.stderr.decode() == f"Error: the reply is incomplete: {reason}\n"


@pytest.mark.parametrize("api", APIS)
def test_cut_reply_fails_and_keeps_its_text(api: str) -> None:
    with serve(SCRIPT) as server:
        done = run_piped("--url", server.root, "--api", api, stdin=b"be cut")
    assert (done.returncode, done.stdout) == (1, b"Half\n")
    assert done.stderr.startswith(b"Error: the ") and done.stderr.count(b"\n") == 1


@pytest.mark.parametrize("api", APIS)
def test_ctrl_c_ends_a_pipe_with_130(api: str) -> None:
    with serve(SCRIPT) as server:
        command = [*COMMAND, "chat", "--url", server.root, "--api", api]
        with subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        ) as process:
            assert process.stdin is not None and process.stdout is not None and process.stderr is not None
            process.stdin.write(b"be slow")
            process.stdin.close()
            assert process.stdout.read(9) == b"It begins"
            process.send_signal(signal.SIGINT)
            assert (process.stdout.read(), process.stderr.read(), process.wait()) == (b"\n", b"", 130)


def test_instructions_and_model_reach_the_server(server: RunningServer) -> None:
    arguments = ("--url", server.url, "--model", "scripted", "--instructions", "speak like a pirate")
    done = run_piped(*arguments, stdin=b"first words", ANTIPHON_URL="http://127.0.0.1:9", OPENAI_API_KEY=KEY)
    assert (done.returncode, done.stdout) == (0, b"Arr.\n")
    unknown = run_piped("--url", server.url, "--model", "none", stdin=b"x", OPENAI_API_KEY=KEY)
    assert (unknown.returncode, unknown.stdout) == (1, b"") and b"404" in unknown.stderr


def test_address_and_key_of_the_environment_and_of_a_file(server: RunningServer, tmp_path: Path) -> None:
    key_file = tmp_path / "key"
    key_file.write_text(f"# mine\n\n{KEY}\nsk-other\n")
    done = run_piped("--api-key-file", str(key_file), stdin=b"first words", ANTIPHON_URL=server.root)
    assert done.returncode == 0
    first = run_piped(stdin=b"first words", ANTIPHON_URL=server.root, ANTIPHON_API_KEY=KEY, OPENAI_API_KEY="sk-wrong")
    assert first.returncode == 0


@pytest.mark.parametrize("environment", [{}, {"ANTIPHON_API_KEY": "sk-wrong"}], ids=["none", "wrong"])
def test_refused_key_says_what_to_set_and_is_not_shown(server: RunningServer, environment: dict[str, str]) -> None:
    done = run_piped("--url", server.root, stdin=b"first words", **environment)
    assert done.returncode == 1 and b"--api-key-file" in done.stderr and b"sk-wrong" not in done.stderr
    assert done.stderr.count(b"\n") == 1


@pytest.mark.parametrize("arguments", [(), ("--model", "m")], ids=["list", "request"])
@pytest.mark.parametrize(("source", "name"), [("option", "--url"), ("variable", "ANTIPHON_URL")])
def test_unreachable_server_is_one_line(arguments: tuple[str, ...], source: str, name: str) -> None:
    url = "http://user:secret@127.0.0.1:9"
    done = run_piped(
        *arguments,
        *(("--url", url) if source == "option" else ()),
        stdin=b"x",
        **({"ANTIPHON_URL": url} if source == "variable" else {}),
    )
    text = done.stderr.decode()
    assert done.returncode == 1 and not done.stdout and text.count("\n") == 1
    assert f"no server answers at http://127.0.0.1:9/v1 ({name})" in text and "--url or ANTIPHON_URL" in text


@pytest.mark.parametrize(
    ("arguments", "stdin", "message"),
    [
        (("--url", "ftp://x"), b"x", "is no URL of a server"),
        (("--url", "http://x\x1b[2J"), b"x", "is no URL of a server"),
        (("--url", "http://x:99999"), b"x", "is no URL of a server"),
        (("--api-key-file", "/no/such/key"), b"x", "cannot read the API key"),
        (("--tools", "/no/such/tools"), b"x", "cannot be read"),
        (("--model", "m"), b" \n", "standard input is empty"),
        (("--model", "m"), b"\xff", "standard input is not UTF-8"),
    ],
    ids=str,
)
def test_unusable_options_exit_with_2(arguments: tuple[str, ...], stdin: bytes, message: str) -> None:
    done = run_piped(*arguments, stdin=stdin)
    assert done.returncode == 2 and message in done.stderr.decode()
    assert not find_terminal_controls(done.stderr.decode())


@pytest.mark.parametrize(
    ("content", "api", "message"),
    [
        ("{", "responses", "not JSON"),
        ("{}", "responses", "must be a list"),
        ("[1]", "responses", "tool 1: must be an object"),
        ('[{"type": "function"}]', "responses", "tool 1: has no name"),
        ('[{"type": "shell"}]', "responses", "'shell' cannot be used with --api responses"),
        ('[{"type": "custom", "name": "x"}]', "messages", "'custom' cannot be used with --api messages"),
        ('[{"type": "\\u001b[2J"}]', "chat", "cannot be used with --api chat"),
    ],
)
def test_unusable_tools_exit_with_2(content: str, api: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "tools.json").write_text(content)
    done = run_piped("--tools", str(tmp_path / "tools.json"), "--api", api, stdin=b"x")
    assert done.returncode == 2 and message in done.stderr.decode()
    assert not find_terminal_controls(done.stderr.decode())


@pytest.mark.parametrize("api", APIS)
def test_program_gets_the_exact_text(api: str) -> None:
    with run_hostile_server(ATTACKS["sequences"]) as url:
        done = run_piped("--url", url, "--api", api, stdin=b"x")
    exact = f"answer{ATTACKS['sequences']}\n".encode(errors="replace")
    assert done.returncode == 0 and done.stdout.startswith(exact)


def test_refusal_of_a_hostile_server_is_one_safe_line() -> None:
    with run_hostile_server(ATTACKS["sequences"], is_refusing=True) as url:
        done = run_piped("--url", url, stdin=b"x")
    text = done.stderr.decode()
    assert done.returncode == 1 and not find_terminal_controls(text) and text.count("\n") == 1
    assert text.startswith("Error: 400: nox␛[2J")
