"""A token for a tool server is nowhere else: not in logs, the store, metrics, errors or events, whatever fails."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx

from tests.clients.hosted.tool_servers import (
    Json,
    ToolTraffic,
    find_items,
    read_events,
    serve_tools,
    text_result,
    tool,
    write_call,
)
from tests.invariants import check_stream
from tests.progress import HANG_TIMEOUT_S
from tests.serving import read_until_ready
from tests.syntax import ROOT

TOKEN = "marked-token-7c1f9e"
HEADER = "marked-header-55d0aa"
LABEL = "mine"
SCRIPT = [
    ("end", ["The result of"], "Done."),
    ("failed", ["The tool failed"], "It failed."),
    ("call", ["[read]"], write_call("read", {"text": "a"}, LABEL)),
    ("write", ["[write]"], write_call("write", {}, LABEL)),
    ("any", ["Hi"], "Yes."),
]


def answer(name: str, arguments: Json) -> Json:
    """Repeats the credentials wherever a result has texts."""
    del arguments
    text = f"The result of {name}: {TOKEN}, Bearer {TOKEN}, {HEADER}"
    link = {"type": "resource_link", "name": TOKEN, "uri": f"https://example.com/?key={TOKEN}"}
    structured = {TOKEN: [HEADER, {"a": TOKEN}]}
    return {**text_result(text, structuredContent=structured, isError=name == "write"), "content": [
        {"type": "text", "text": text}, link, {"type": "text", "text": f"{TOKEN}\n{HEADER}"},
    ]}  # fmt: skip


def leaking_tools() -> list[Json]:
    schema = {
        "type": "object",
        "properties": {"text": {"type": "string", "description": f"Key {TOKEN}"}},
        "title": HEADER,
    }
    return [{"name": name, "description": f"Bearer {TOKEN}", "inputSchema": schema} for name in ("read", "write")]


class Client:
    """Sends requests with the token, and keeps all that comes back."""

    def __init__(self, client: httpx.Client, url: str) -> None:
        self._client = client
        self.tool = tool(LABEL, server_url=url, authorization=TOKEN, headers={"X-Api-Key": HEADER})
        self.seen: list[str] = []

    def send(self, body: Json, status: int = 200, path: str = "responses") -> httpx.Response:
        reply = self._client.post(path, json={"model": "scripted", "input": "Hi", "tools": [self.tool], **body})
        assert reply.status_code == status, reply.text
        self.seen.append(f"{reply.headers}\n{reply.text}")
        return reply

    def get(self, path: str) -> httpx.Response:
        reply = self._client.get(path)
        self.seen.append(f"{reply.headers}\n{reply.text}")
        return reply


def use_tools(client: Client, traffic: ToolTraffic) -> None:
    for text in ("[read]", "[write]"):
        response = check_stream(read_events(client.send({"input": text, "stream": True})))
        [call] = find_items(response, "mcp_call")
        assert (call["status"] == "failed") == (text == "[write]")
        client.get(f"responses/{response['id']}")
        client.get(f"responses/{response['id']}?stream=true")
        client.get(f"responses/{response['id']}/input_items")
    client.send({"input": "[read]", "background": True, "stream": True})
    asking = {**client.tool, "require_approval": "always"}
    asked = client.send({"input": "[read]", "tools": [asking]}).json()
    [request] = find_items(asked, "mcp_approval_request")
    approval = {"type": "mcp_approval_response", "approval_request_id": request["id"], "approve": True}
    approved = {"previous_response_id": asked["id"], "input": [approval], "tools": [asking]}
    client.send(approved)
    client.send(approved, 400)
    assert len(traffic.calls) == 4
    client.send({"input": "Hi"}, path="responses/input_tokens")


def fail(client: Client, traffic: ToolTraffic) -> None:
    """Sends what is refused, and asks for lists that cannot be read."""
    bad: list[tuple[Json, Json]] = [
        ({}, {"temperature": 9}),
        ({}, {"max_tool_calls": 0}),
        ({}, {"tool_choice": {"type": "mcp", "server_label": TOKEN[:8]}}),
        ({"headers": {"authorization": TOKEN}}, {}),
        ({"headers": {"X-Key": f"{TOKEN}\r\n"}}, {}),
        ({"headers": TOKEN}, {}),
        ({"headers": [TOKEN]}, {}),
        ({"headers": {"X-Key": [TOKEN]}}, {}),
        ({"authorization": [TOKEN]}, {}),
        ({"authorization": {TOKEN: TOKEN}}, {}),
        ({"authorization": f"{TOKEN}\n"}, {}),
        ({"server_url": f"https://me:{TOKEN}@127.0.0.1/"}, {}),
        ({"server_url": f"https://nobody.example/?key={TOKEN}"}, {}),
        ({"server_label": 5}, {}),
        ({"type": "mcpx"}, {}),
        ({"require_approval": 5}, {}),
    ]
    for changes, body in bad:
        client.send({"tools": [{**client.tool, **changes}], **body}, 400)
    for status in (401, 403, 404, 429, 500, 302):
        traffic.list_status = status
        client.send({}, 424)
        client.send({"background": True}, 424)
    traffic.list_status = 200
    traffic.tools = [{"name": TOKEN}]
    client.send({}, 200)  # the tool is left out
    client.send({"messages": [], "input": None}, 400, "chat/completions")


def test_token_is_nowhere_else(tmp_path: Path) -> None:
    script, store = tmp_path / "script.toml", tmp_path / "store" / "responses.db"
    store.parent.mkdir()
    rows = (
        f"[[reply]]\nname = {json.dumps(n)}\nwhen = {json.dumps(w)}\noutput = [{json.dumps(o)}]\n" for n, w, o in SCRIPT
    )
    script.write_text("".join(rows), encoding="utf-8")
    with serve_tools(tools=leaking_tools(), answer=answer) as traffic:
        host = traffic.url.removeprefix("http://").removesuffix("/mcp")
        command = [sys.executable, "-m", "antiphon", "serve", "--engine", "scripted", "--script", str(script)]
        command += ["--port", "0", "--store", str(store), "--log-format", "json", "--mcp-allow", host]
        with subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
            try:
                assert process.stderr is not None
                (url,) = read_until_ready(process.stderr)["base_urls"]
                with httpx.Client(base_url=f"{url}/", timeout=HANG_TIMEOUT_S) as http_client:
                    client = Client(http_client, traffic.url)
                    use_tools(client, traffic)
                    fail(client, traffic)
                    client.get(url.removesuffix("/v1") + "/metrics")
                while_running = [path.read_bytes() for path in store.parent.iterdir()]
            finally:
                process.terminate()
                output, log = process.communicate(timeout=HANG_TIMEOUT_S)
    assert any(row.get("authorization") == f"Bearer {TOKEN}" for row in traffic.headers), "it was sent"
    assert any(row.get("x-api-key") == HEADER for row in traffic.headers)
    found: dict[str, Any] = {
        "log": log,
        "output": output,
        "store": [path.read_bytes() for path in store.parent.iterdir()],
    }
    found |= {"store while it was open": while_running, "replies": client.seen}
    assert "[removed]" in str(found["replies"]) and b"[removed]" in b"".join(while_running)
    assert [place for place, content in found.items() if TOKEN in str(content) or HEADER in str(content)] == []
