"""An agent of openai-agents makes ten rounds of tool calls while its server is killed again and again."""

import asyncio
import contextlib
import json
import random
import subprocess
import sys
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from mcp.server import MCPServer

from tests.app.server_helpers import free_port
from tests.app.tools.sdk_servers import Seen, serve_sdk
from tests.clients.python_install import PROGRAMS_FOLDER, install_python_clients, run_program
from tests.clients.test_compaction_recovery import write_reply
from tests.progress import wait_with_progress
from tests.serving import read_until_ready
from tests.snapshots.builtin_cases import write_call
from tests.syntax import ROOT

pytestmark = pytest.mark.timeout(600)  # the first run installs packages
NUM_ROUNDS, NUM_KILLS = 10, 7
ANSWER = "All ten steps are done."


def build_script() -> list[dict[str, Any]]:
    """Returns a script that calls the tool once a round, whatever the results say."""
    calls = [write_call("steps__step", {"number": number}) for number in range(NUM_ROUNDS)]
    pauses = [{"pause": 0.02}, "I go", {"pause": 0.02}, " on.\n\n"]
    rounds = [
        {"name": f"round {number}", "when": [calls[number - 1]] if number else [], "output": [*pauses, call]}
        for number, call in enumerate(calls)
    ]
    last = {"name": "answer", "when": [calls[-1]], "output": [{"pause": 0.02}, ANSWER]}
    return [last, *reversed(rounds)]


@contextlib.asynccontextmanager
async def serve_steps() -> AsyncIterator[tuple[str, Counter[int]]]:
    """Serves a tool that counts its calls."""
    counts = Counter[int]()

    def build(_: Seen) -> MCPServer:
        server = MCPServer("steps")

        @server.tool()
        async def step(number: int) -> str:
            """Makes a step."""
            counts[number] += 1
            await asyncio.sleep(0.1)
            return f"Step {number} is made."

        return server

    async with serve_sdk(build, is_legacy=False) as (url, _):
        yield url, counts


class Server:
    """A server process that is started again on the same port."""

    def __init__(self, folder: Path, tool_url: str) -> None:
        script = folder / "script.toml"
        script.write_text("".join(map(write_reply, build_script())), encoding="utf-8")
        self.port = free_port()
        self._command = [sys.executable, "-m", "antiphon", "serve", "--engine", "scripted", "--script", str(script)]
        self._command += ["--port", str(self.port), "--store", str(folder / "responses.db"), "--log-format", "json"]
        self._command += ["--tool-server", f"steps={tool_url}"]
        self._process: subprocess.Popen[str] | None = None

    def start(self) -> None:
        self._process = subprocess.Popen(self._command, cwd=ROOT, stderr=subprocess.PIPE, text=True)
        assert self._process.stderr is not None
        read_until_ready(self._process.stderr)

    def kill(self) -> None:
        assert self._process is not None and self._process.stderr is not None
        self._process.kill()
        self._process.wait()
        self._process.stderr.close()


@pytest.mark.parametrize("background", [True, False], ids=["background", "foreground"])
async def test_agent_ends_as_if_its_server_had_lived(tmp_path: Path, *, background: bool) -> None:
    python, dice = install_python_clients("python"), random.Random(7)
    async with serve_steps() as (tool_url, counts):
        server = Server(tmp_path, tool_url)
        await asyncio.to_thread(server.start)
        url = f"http://127.0.0.1:{server.port}/v1"
        task = json.dumps({"url": url, "label": "steps", "prompt": "Make ten steps.", "background": background})
        program = [python, PROGRAMS_FOLDER / "agents_resume.py", task]
        running = asyncio.create_task(asyncio.to_thread(run_program, program, tmp_path))
        try:
            for number in range(NUM_KILLS):
                target = (number + 1) * NUM_ROUNDS // (NUM_KILLS + 1)
                await asyncio.to_thread(wait_with_progress, lambda: len(counts) > target, "a call is made")  # noqa: B023  # it is called in this pass
                await asyncio.sleep(dice.uniform(0.0, 0.2))
                server.kill()
                await asyncio.to_thread(server.start)
            result = await running
        finally:
            server.kill()
    assert result["text"] == ANSWER
    assert result["items"].count("mcp_call") == NUM_ROUNDS and result["resumed"] >= 1
    assert counts == dict.fromkeys(range(NUM_ROUNDS), 1), "each call is made once"
