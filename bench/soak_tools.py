"""Tools for the soak test, and requests to a server that runs them.

The tools answer, hang, die in the middle of a call, or answer with 10 MB: over HTTP, in a process of their own, and as a
command of the server. Clients wait for the end, leave while the tool runs, cancel, delete, or approve.
"""

import asyncio
import json
import subprocess
import sys
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from bench.install import find_script
from bench.soak_requests import SoakRequests

SERVER = find_script("soak_tool_server")
LABELS = ("http", "command")
TOOLS = ("answer", "hang", "die", "flood")
ENDS = {"answer": "completed", "hang": "failed", "die": "failed", "flood": "failed"}
"""Status of the call of each tool."""


def _write_call(tool: str) -> str:
    return f'<tool_call>\\n{{"name": "{tool}", "arguments": {{}}}}\\n</tool_call>'


TOOL_SCRIPT = """
[[reply]]
name = "answered"
when = ["<tool_response>"]
output = ["That is all that there is to say. "]
tokens_per_chunk = 2
""" + "".join(
    f"""
[[reply]]
name = "{tool}"
when = ["Please {tool} now."]
output = ["<think>\\nA thought.\\n</think>\\n\\n", "{_write_call(tool).replace('"', chr(92) + '"')}"]
tokens_per_chunk = 4
"""
    for tool in TOOLS
)
"""One reply for each tool, and the one after its output."""


class ToolRequests(SoakRequests):
    """Requests whose responses call tools."""

    def choose(self) -> Callable[[], Awaitable[str]]:
        """Returns a random request, a function that returns its outcome."""
        actions = [self.read_whole, self.read_stream, self.read_background, self.leave, self.cancel, self.delete]
        return self.rng.choice([*actions, self.approve])

    async def read_whole(self) -> str:
        """Reads a whole reply."""
        body, call = self._choose_call()
        return call.judge((await self._post("/responses", **body)).json())

    async def read_stream(self) -> str:
        """Reads a stream to its end."""
        body, call = self._choose_call()
        text = (await self._post("/responses", **body, stream=True)).text
        last = [line.removeprefix("data: ") for line in text.splitlines() if line.startswith("data: {")][-1:]
        return call.judge(json.loads(last[0])["response"] if last else json.loads(text))

    async def read_background(self) -> str:
        """Polls a response in the background, then deletes it."""
        body, call = self._choose_call()
        response = (await self._post("/responses", **body, background=True)).json()
        while response.get("status") in ("queued", "in_progress"):
            await asyncio.sleep(0.1)
            response = (await self.client.get(f"{self.url}/responses/{response['id']}")).json()
        if "id" in response:
            await self.client.delete(f"{self.url}/responses/{response['id']}")
        return call.judge(response)

    async def leave(self) -> str:
        """Leaves a stream while the tool runs."""
        body, call = self._choose_call("hang")
        body |= {"model": "scripted", "stream": True}
        async with self.client.stream("POST", f"{self.url}/responses", json=body) as reply:
            if reply.status_code != 200:
                return call.judge(json.loads(await reply.aread()))
            async for line in reply.aiter_lines():
                if "mcp_call_arguments.done" in line:
                    await asyncio.sleep(self.rng.uniform(0, 0.1))
                    return "left"
        return "ended before it was left"

    async def cancel(self) -> str:
        """Cancels a response while the tool runs."""
        response_id = await self._start_hanging()
        reply = await self.client.post(f"{self.url}/responses/{response_id}/cancel")
        return f"cancel {reply.json().get('status', reply.status_code)}"

    async def delete(self) -> str:
        """Deletes a response while the tool runs."""
        response_id = await self._start_hanging()
        return f"delete {(await self.client.delete(f'{self.url}/responses/{response_id}')).status_code}"

    async def approve(self) -> str:
        """Approves a call twice: the second time is refused."""
        body, call = self._choose_call(approval="always")
        asked = (await self._post("/responses", **body)).json()
        if asked.get("error"):
            return call.judge(asked)
        (request,) = [item for item in asked["output"] if item["type"] == "mcp_approval_request"]
        answer = {"type": "mcp_approval_response", "approval_request_id": request["id"], "approve": True}
        body |= {"input": [answer], "previous_response_id": asked["id"]}
        outcome = call.judge((await self._post("/responses", **body)).json())
        return f"approved {outcome}, again {(await self._post('/responses', **body)).status_code}"

    async def _start_hanging(self) -> str:
        """Starts a response in the background. Returns its id when its tool may run."""
        body, _ = self._choose_call("hang")
        response = (await self._post("/responses", **body, background=True)).json()
        await asyncio.sleep(self.rng.uniform(0, 0.3))
        return str(response.get("id", "none"))

    def _choose_call(self, tool: str = "", *, approval: str = "never") -> tuple[dict[str, Any], "ExpectedCall"]:
        """Returns the body of a request, and the call that its response has."""
        call = ExpectedCall(self.rng.choice(LABELS), tool or self.rng.choice((*TOOLS, "answer", "answer")))
        tools = [{"type": "mcp", "server_label": call.label, "require_approval": approval}]
        return {"input": f"Please {call.tool} now.", "tools": tools}, call


class ExpectedCall(NamedTuple):
    """The call of a response. Those of a command also fail when another call ends it."""

    label: str
    tool: str

    def judge(self, response: dict[str, Any]) -> str:
        """Returns the outcome of the response, in capitals if it is wrong."""
        name = f"{self.label} {self.tool}"
        if response.get("error"):
            return f"{name} refused: {response['error']['message']}"
        calls = [item["status"] for item in response["output"] if item["type"] == "mcp_call"]
        allowed = {ENDS[self.tool], "failed"} if self.label == "command" else {ENDS[self.tool]}
        if response["status"] != "completed" or len(calls) != 1 or calls[0] not in allowed:
            return f"{name} WRONG {response['status']} {calls}"
        return f"{name} {calls[0]}"


def list_tool_options(url: str) -> list[str]:
    """Returns the options of a server that has the tools over HTTP and as a command."""
    command = f"{sys.executable} {SERVER}"
    return ["--tool-server", f"http={url}", "--tool-command", f"command={command}"]


@contextmanager
def run_tool_server() -> Iterator[str]:
    """Serves the tools over HTTP in a process. Yields the URL."""
    with subprocess.Popen(
        [sys.executable, SERVER, "http"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as process:
        try:
            assert process.stdout is not None
            yield process.stdout.readline().strip()
        finally:
            process.kill()


def count_descendants(pid: int) -> int:
    """Returns how many processes are children of this one, or theirs."""
    children: dict[int, list[int]] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            text = path.read_text(encoding="utf-8", errors="replace")
        except OSError:  # it has just ended
            continue
        children.setdefault(int(text.rpartition(")")[2].split()[1]), []).append(int(path.parent.name))
    found, waiting = 0, [pid]
    while waiting:
        next_ones = children.get(waiting.pop(), [])
        found += len(next_ones)
        waiting += next_ones
    return found
