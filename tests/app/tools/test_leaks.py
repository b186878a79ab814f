"""Credentials of tool servers are sent to these servers, and to nobody else: whole servers are searched for them."""

import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.app.server_helpers import free_port
from tests.app.tools.hostile_servers import COMPLETE, Request, answer_well, serve_raw
from tests.progress import HANG_TIMEOUT_S

HEADER, BEARER, OPERATORS = "marked-header-11aa22bb", "marked-bearer-33cc44dd", "marked-operator-55ee66ff"
SECRETS = (HEADER, BEARER, OPERATORS)
HOW = ("text", "tool_error", "structured", "protocol_error", "http_401", "http_500", "header", "broken_json", "hang_up")
"""Ways in which the tool server repeats what it was sent."""


class RepeatingServer:
    """A tool server that repeats what it was sent. `received` has the headers of all requests."""

    def __init__(self) -> None:
        self.received = ""

    async def answer(self, request: Request) -> None:
        self.received += json.dumps(request.headers)
        await repeat_secrets(request)


async def repeat_secrets(request: Request) -> None:
    """Answers a call with all headers of the request, in the way that the arguments name."""
    if request.method != "tools/call":
        await answer_well(request)
        return
    how, said = request.params["arguments"]["how"], json.dumps(request.headers)
    match how:
        case "text" | "tool_error":
            link = {"type": "resource_link", "name": said, "uri": f"https://a.example/{said}"}
            content = [{"type": "text", "text": said}, link]
            await request.result({**COMPLETE, "content": content, "isError": how == "tool_error"})
        case "structured":
            await request.result({**COMPLETE, "content": [], "structuredContent": request.headers})
        case "protocol_error":
            error = {"code": -32000, "message": said, "data": request.headers}
            await request.send_json({"jsonrpc": "2.0", "id": request.id, "error": error})
        case "http_401" | "http_500":
            status = "401 Unauthorized" if how == "http_401" else "500 Internal Server Error"
            await request.send_body(said.encode(), status=status)
        case "header":
            await request.send_body(b"{}", status="302 Found", headers=f"Location: https://a.example/?{said}\r\n")
        case "broken_json":
            await request.send_body(said.encode()[:-1])
        case "hang_up":
            request.writer.close()


async def refuse_list(request: Request) -> None:
    """Refuses the list of tools with all headers of the request."""
    if request.method != "tools/list":
        await answer_well(request)
        return
    await request.send_body(json.dumps(request.headers).encode(), status="403 Forbidden")


def build_script() -> str:
    """Returns a script whose model calls the tool in the way that the prompt names, and then repeats what it has read."""
    lines = ['[[reply]]\nname = "done"\nwhen = ["<tool_response>"]\noutput = ["Done."]\n']
    for how in HOW:
        call = json.dumps({"name": "box__tool", "arguments": {"how": how}})
        output = f"<tool_call>\n{call}\n</tool_call>"
        lines.append(f'[[reply]]\nname = "{how}"\nwhen = ["repeat by {how}."]\noutput = [{json.dumps(output)}]\n')
    return "".join(lines)


class Traffic:
    """A running server, and all that its clients have read."""

    def __init__(self, client: httpx.AsyncClient, url: str) -> None:
        self.client, self.url = client, url
        self.read: list[str] = []

    async def send(self, method: str, path: str, **options: Any) -> httpx.Response:
        reply = await self.client.request(method, path, **options)
        self.read += [reply.text, str(reply.headers)]
        return reply

    async def use_everywhere(self, how: str, tool: dict[str, Any]) -> None:
        """Runs a turn in each form, and reads it back in all ways."""
        tools = [{"type": "mcp", "server_label": "box", "require_approval": "never", **tool}]
        body = {"model": "scripted", "input": f"Now repeat by {how}.", "tools": tools}
        streamed = await self.send("POST", "/v1/responses", json={**body, "stream": True})
        assert "mcp_call_arguments.done" in streamed.text, streamed.text
        whole = (await self.send("POST", "/v1/responses", json=body)).json()
        assert whole["status"] == "completed", whole
        path = f"/v1/responses/{whole['id']}"
        for read in (path, f"{path}?stream=true", f"{path}/input_items"):
            assert (await self.send("GET", read)).status_code == 200
        later = {**body, "previous_response_id": whole["id"], "input": "And?", "background": True}
        assert (await self.send("POST", "/v1/responses", json=later)).status_code == 200


@asynccontextmanager
async def serve(folder: Path, tool_url: str) -> AsyncIterator[tuple[Traffic, list[Path]]]:
    """Starts the command line's server with a store, a recording and logs. Yields its files, which are whole at the end."""
    script, store, recording, log = (
        folder / name for name in ("script.toml", "responses.db", "record.toml", "log.txt")
    )
    script.write_text(build_script(), encoding="utf-8")
    port, tool_port = free_port(), tool_url.split(":")[2].partition("/")[0]
    options = [
        *("--engine", "scripted", "--script", str(script), "--record", str(recording), "--store", str(store)),
        *("--port", str(port), "--log-format", "json", "--mcp-allow", f"127.0.0.1:{tool_port}"),
        *("--tool-server", f"own={tool_url}", "--tool-server-key", "own=TEST_TOOL_KEY"),
    ]
    environment = {**os.environ, "TEST_TOOL_KEY": OPERATORS}
    with log.open("wb") as output:
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "antiphon", "serve", *options, env=environment, stdout=output, stderr=output
        )
    try:
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=HANG_TIMEOUT_S) as client:
            async with asyncio.timeout(HANG_TIMEOUT_S):
                while b'"ready"' not in log.read_bytes():
                    assert process.returncode is None, log.read_text(encoding="utf-8")
                    await asyncio.sleep(0.05)
            yield Traffic(client, f"http://127.0.0.1:{port}"), [store, recording, log]
    finally:
        process.terminate()
        await process.wait()


async def test_secrets_of_tools_reach_their_servers_only(tmp_path: Path) -> None:
    server = RepeatingServer()
    async with serve_raw(server.answer, "*") as (url, seen), serve_raw(refuse_list, "*") as (closed_url, _):
        async with serve(tmp_path, url) as (traffic, files):
            for how in HOW:
                secret = {"headers": {"X-Api-Key": HEADER}, "authorization": BEARER}
                await traffic.use_everywhere(how, {"server_url": url, **secret})
                await traffic.use_everywhere(how, {"connector_id": "own"})
            await send_faults(traffic, url, closed_url)
            await traffic.send("GET", "/metrics")
            await traffic.send("GET", "/v1/models")
        assert sum(method == "tools/call" for method, _ in seen) >= 4 * len(HOW)
    assert all(secret in server.received for secret in SECRETS)
    texts = {"replies": "\n".join(traffic.read), **read_files(tmp_path)}
    assert {file.name for file in files} <= texts.keys()
    assert "mcp_call" in texts["responses.db"] + texts.get("responses.db-wal", "") and "ids" in texts["record.toml"]
    found = [(name, secret) for name, text in texts.items() for secret in SECRETS if secret in text]
    assert not found


def read_files(folder: Path) -> dict[str, str]:
    """Returns the content of all files, by name."""
    return {file.name: file.read_bytes().decode(errors="replace") for file in folder.iterdir()}


async def send_faults(traffic: Traffic, url: str, closed_url: str) -> None:
    """Sends requests that are refused: their errors repeat what was wrong, and no secret."""
    secret = {"headers": {"X-Api-Key": HEADER}, "authorization": BEARER}
    port = url.split(":")[2].partition("/")[0]
    refused = [
        {**secret, "server_url": closed_url},  # a host that is not allowed
        {**secret, "server_url": f"http://127.0.0.1:{port}/mcp", "allowed_tools": 3},
        {**secret, "server_url": url, "headers": {"X-Api-Key": HEADER, "Authorization": BEARER}},
        {**secret, "server_url": url, "headers": {"X-Api-Key": f"{HEADER}\r\nX: y"}},
        {**secret, "server_url": url, "headers": {"X-Api-Key": HEADER, "n": 3}},
        {**secret, "server_url": url, "authorization": [BEARER]},
        {**secret, "connector_id": "own"},
        {**secret, "connector_id": "none"},
    ]
    for tool in refused:
        body = {"model": "scripted", "input": "Hi", "tools": [{"type": "mcp", "server_label": "box", **tool}]}
        reply = await traffic.send("POST", "/v1/responses", json=body)
        assert reply.status_code == 400, (tool, reply.text)
    for body in ({"tools": secret}, {"tools": [{"type": "mcp", **secret}]}, {"tools": [{**secret, "type": "nothing"}]}):
        reply = await traffic.send("POST", "/v1/responses", json={"model": "scripted", "input": "Hi", **body})
        assert reply.status_code == 400, reply.text


@pytest.mark.parametrize(
    "secret", [{"headers": {"X-Api-Key": HEADER}}, {"authorization": BEARER}], ids=["header", "token"]
)
async def test_list_that_cannot_be_read_tells_no_secret(tmp_path: Path, secret: dict[str, Any]) -> None:
    async with serve_raw(refuse_list, "*") as (url, _), serve(tmp_path, url) as (traffic, files):
        for tool in ({"server_url": url, **secret}, {"connector_id": "own"}):
            body = {"model": "scripted", "input": "Hi", "tools": [{"type": "mcp", "server_label": "box", **tool}]}
            reply = await traffic.send("POST", "/v1/responses", json=body)
            assert (reply.status_code, reply.json()["error"]["type"]) == (424, "external_connector_error")
            assert "403" in reply.text
    texts = [*traffic.read, *(file.read_bytes().decode(errors="replace") for file in files if file.exists())]
    assert not [secret for secret in SECRETS for text in texts if secret in text]
