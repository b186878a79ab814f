"""Every block of README.md, run in its order against the server that `make serve` starts: the embedded model, on this CPU.

A block that no entry of `RUNS`, `SHOWN` or `NOT_RUN` names fails the test. `make test-cpus` runs this file as on other CPUs, too.
"""

import json
import os
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import pytest

from antiphon.app.cli import commands as cli
from tests.codex.embedded_registry import needs_weights
from tests.counts import FULL_COUNTS
from tests.progress import HANG_TIMEOUT_S, wait_with_progress
from tests.syntax import ROOT

README = (ROOT / "README.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```(\w*)\n(.*?)^```$", README, re.MULTILINE | re.DOTALL)
BIN = Path(sys.executable).parent
STARTS = 20 if FULL_COUNTS else 1
ADDRESS = "127.0.0.1:8000"
REQUEST = {"model": "antiphon", "input": "Hello!"}

pytestmark = [
    needs_weights,
    pytest.mark.timeout(1800 if FULL_COUNTS else 600),
]


class Server(NamedTuple):
    """A server that `make serve` has started."""

    address: str
    environment: dict[str, str]
    model: dict[str, Any]
    """The line of its log that describes the model."""


@contextmanager
def make_serve(folder: Path) -> Iterator[Server]:
    """Runs `make serve` without its installation, on a free port, with files in a folder of its own."""
    runtime = folder / "run"
    runtime.mkdir(mode=0o700)
    environment = {
        **os.environ,
        "XDG_DATA_HOME": str(folder),
        "XDG_RUNTIME_DIR": str(runtime),
        "PATH": f"{BIN}:{os.environ['PATH']}",
    }
    for name in ("ANTIPHON_URL", "ANTIPHON_API_KEY", "OPENAI_API_KEY", "OPENAI_BASE_URL", "MAKEFLAGS", "MAKELEVEL"):
        environment.pop(name, None)
    command = ["make", "-o", ".venv/.ready-to-serve", f"BIN={BIN}", "serve", "ARGS=--port 0 --log-format json"]
    with (folder / "log").open("w") as log:
        process = subprocess.Popen(
            command, cwd=ROOT, env=environment, stdout=log, stderr=subprocess.STDOUT, start_new_session=True
        )
    records: dict[str, dict[str, Any]] = {}

    def is_ready() -> bool:
        lines = (folder / "log").read_text(encoding="utf-8")
        assert process.poll() is None, lines
        found = [json.loads(line) for line in lines.splitlines() if line.startswith("{") and line.endswith("}")]
        records.update({record["event"]: record for record in found})
        return "ready" in records

    try:
        wait_with_progress(is_ready, "the server is ready", pid=process.pid)
        address = records["ready"]["base_urls"][0].removeprefix("http://").removesuffix("/v1")
        yield Server(address, environment, records["model"])
    finally:
        os.killpg(process.pid, signal.SIGTERM)
        process.wait(HANG_TIMEOUT_S)


def run(server: Server, command: list[str], folder: Path = ROOT, text: str = "") -> str:
    """Runs a command as a newcomer does, and returns what it prints. Fails if it fails."""
    done = subprocess.run(
        command, cwd=folder, env=server.environment, input=text, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, (command, done.stdout, done.stderr)
    return done.stdout


def run_shell(server: Server, block: str) -> str:
    return run(server, ["bash", "-euo", "pipefail", "-c", block.replace(ADDRESS, server.address)])


def check_started_server(server: Server, block: str, _: Path) -> None:
    assert block.rstrip().endswith("make serve")
    assert httpx.get(f"http://{server.address}/v1/models").json()["data"][0]["id"] == "antiphon"


def check_demo(server: Server, block: str, _: Path) -> None:
    assert run(server, bin_command(block.splitlines()[-1])).endswith("\nchecked: 0 findings\n")


def bin_command(line: str) -> list[str]:
    """Returns a command of the page, with the environment of the tests in place of `.venv`."""
    return shlex.split(line.replace(".venv/bin", str(BIN)))


def check_stream(server: Server, block: str, _: Path) -> None:
    """Compares the events with the list that follows the block in the README."""
    (shown,) = (text for language, text in BLOCKS if language == "text")
    expected = [line.split()[0] for line in shown.splitlines()]
    events = re.findall(r"^event: (.+)$", run_shell(server, block), re.MULTILINE)
    assert [event for event in dict.fromkeys(events) if event in expected] == list(dict.fromkeys(expected))
    assert events[-1] == "response.completed"


def check_picture(server: Server, block: str, _: Path) -> None:
    expected = re.findall(r"  # (.+)$", block.rstrip())
    reply = json.loads(run_shell(server, block))
    texts = [part["text"] for item in reply["output"] if item["type"] == "message" for part in item["content"]]
    assert texts == expected == ["digit 7, red/blue"], server.model


def check_python(server: Server, block: str, _: Path) -> None:
    printed = run(server, [sys.executable, "-c", block.replace(ADDRESS, server.address)]).splitlines()
    assert len(printed) == 2 and all(printed)


def check_pytest_example(server: Server, block: str, folder: Path) -> None:
    (folder / "test_agent.py").write_text(f"from openai import OpenAI\n\n\n{block}", encoding="utf-8")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", str(folder)]
    run(server, [*command, "--snapshot-update"], folder)
    assert "1 passed" in run(server, command, folder)


def check_kit(server: Server, block: str, folder: Path) -> None:
    """Runs each line of the block; those that serve until they are interrupted get a request."""
    lines = [line.partition("  #") for line in block.splitlines()]
    assert [shlex.split(line)[1] for line, _, _ in lines] == ["chat", "check", "check", "record", "replay"]
    chat, check, proxy, record, replay = (bin_command(line.replace(ADDRESS, server.address)) for line, _, _ in lines)
    assert run(server, chat, folder, "Hello!").strip()
    sample = [] if FULL_COUNTS else ["--suite", "basics", "--suite", "errors"]
    assert re.search(r"^ +all +\d+ +\d+ +0 ", run(server, [*check, *sample], folder), re.MULTILINE)
    cases = run(server, ["antiphon", "check", "--list"], folder)
    suites = re.findall(r"^ *(\w+)\.[\w-]+: ", cases, re.MULTILINE)
    assert f"{len(suites)} cases, {suites.count('codex')} of them what Codex sends" in lines[1][2]
    assert forward(server, proxy, folder)[1].endswith("1 exchange: 1 response\nno finding\n")
    reply, _ = forward(server, record, folder)
    assert (folder / "session.toml").exists()
    assert forward(server, replay, folder)[0] == reply


def forward(server: Server, command: list[str], folder: Path) -> tuple[Any, str]:
    """Starts a command that listens, and sends it a request. Returns the reply, and what the command printed."""
    at = command.index("--port") if "--port" in command else len(command)
    command = [*command[:at], "--port", "0", *command[at + 2 :]]
    with (folder / "printed").open("w") as printed:
        process = subprocess.Popen(command, cwd=folder, env=server.environment, stdout=printed, stderr=printed)

    def find_address() -> str | None:
        text = (folder / "printed").read_text(encoding="utf-8")
        assert process.poll() is None, text
        found = [each for each in re.findall(r"127\.0\.0\.1:\d+", text) if each != server.address]
        return found[0] if found else None

    try:
        wait_with_progress(find_address, "the command listens", pid=process.pid)
        reply = httpx.post(f"http://{find_address()}/v1/responses", json=REQUEST, timeout=HANG_TIMEOUT_S).json()
    finally:
        process.send_signal(signal.SIGINT)
        process.wait(HANG_TIMEOUT_S)
    return reply, (folder / "printed").read_text(encoding="utf-8")


RUNS: dict[str, Callable[[Server, str, Path], None]] = {
    "antiphon demo": check_demo,
    "make serve": check_started_server,
    '"stream": true}': check_stream,
    "samples/picture.png": check_picture,
    "from openai import OpenAI": check_python,
    "antiphon chat": check_kit,
    "def test_greeting": check_pytest_example,
}
"""A part of each block, and how it is run."""

NOT_RUN = {
    "response.created   ": "output of the block above it, with which it is compared",
    "PATH_OR_HUB_ID": "serves a model of the reader",
    "vllm serve": "needs vLLM, and installs",
}
"""A part of each block that is not run, and why."""


def test_blocks_run_in_their_order(tmp_path: Path) -> None:
    with make_serve(tmp_path) as server:
        for number, (_, block) in enumerate(BLOCKS):
            (key,) = find_keys(block)
            if key in RUNS:
                folder = tmp_path / f"block-{number}"
                folder.mkdir()
                RUNS[key](server, block, folder)


def find_keys(block: str) -> list[str]:
    keys = [key for key in (*RUNS, *NOT_RUN) if key in block]
    assert len(keys) == 1, f"say in tests/test_readme.py how this block is run, or why not:\n{block}"
    return keys


def test_every_block_is_known_and_every_entry_has_a_block() -> None:
    assert sorted(find_keys(block)[0] for _, block in BLOCKS) == sorted((*RUNS, *NOT_RUN))


def test_options_of_servers_in_blocks_exist() -> None:
    known = {name for parameter in cli.serve.params for name in (*parameter.opts, *parameter.secondary_opts)}
    lines = [line for _, block in BLOCKS for line in block.splitlines() if "antiphon serve" in line]
    assert len(lines) == 2
    for line in lines:
        assert {word for word in shlex.split(line) if word.startswith("--")} <= known


def test_picture_is_seen_at_every_start(tmp_path: Path) -> None:
    (block,) = (block for _, block in BLOCKS if "samples/picture.png" in block)
    for start in range(STARTS):
        folder = tmp_path / str(start)
        folder.mkdir()
        with make_serve(folder) as server:
            (model,) = httpx.get(f"http://{server.address}/v1/models").json()["data"]
            print(start, model.get("fallbacks"))
            assert model["input_modalities"] == ["text", "image"]
            check_picture(server, block, folder)
