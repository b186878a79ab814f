"""An MCP server in threads, whose tools answer what a test says, and requests to a server that uses it."""

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Event, Thread
from typing import Any

import httpx

from tests.clients.sdk_helpers import post
from tests.invariants import check_stream
from tests.progress import HANG_TIMEOUT_S
from tests.serving import RunningServer, scripted_registry, serve

Json = dict[str, Any]
Answer = Callable[[str, Json], Json]
"""Returns the result of a call, for the name of the tool and its arguments."""

LABEL = "kit"
READ = {
    "name": "read",
    "description": "Reads a text.",
    "inputSchema": {"type": "object", "properties": {"text": {"type": "string"}}},
    "annotations": {"readOnlyHint": True},
}
WRITE = {"name": "write", "inputSchema": {"type": "object"}}


def text_result(text: str, **more: Any) -> Json:
    return {"resultType": "complete", "content": [{"type": "text", "text": text}], **more}


@dataclass
class ToolTraffic:
    """What a tool server has seen, and what it answers."""

    url: str = ""
    tools: list[Json] = field(default_factory=lambda: [READ, WRITE])
    answer: Answer = lambda name, arguments: text_result(f"The result of {name}.")
    connections: int = 0
    lists: int = 0
    calls: list[tuple[str, Json]] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)
    list_status: int = 200
    running: Event = field(default_factory=Event)
    go_on: Event = field(default_factory=Event)
    """Ends the calls of the tool `wait`."""


@contextmanager
def serve_tools(**settings: Any) -> Iterator[ToolTraffic]:
    """Serves tools of MCP over HTTP on loopback, in the protocol of 2026-07-28."""
    traffic = ToolTraffic(**settings)
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(_ToolHandler, traffic)) as server:
        server.daemon_threads = True
        traffic.url = f"http://127.0.0.1:{server.server_port}/mcp"
        thread = Thread(target=server.serve_forever, args=(0.01,), daemon=True)
        thread.start()
        try:
            yield traffic
        finally:
            traffic.go_on.set()
            server.shutdown()
            thread.join()


class _ToolHandler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def __init__(self, traffic: ToolTraffic, *args: Any) -> None:
        self._traffic = traffic
        super().__init__(*args)

    def setup(self) -> None:
        super().setup()
        self._traffic.connections += 1

    def do_POST(self) -> None:
        message = json.loads(self.rfile.read(int(self.headers["content-length"])))
        self._traffic.headers.append({name.lower(): value for name, value in self.headers.items()})
        try:
            status, result = self._answer(message["method"], message.get("params", {}))
            self._send(status, {"jsonrpc": "2.0", "id": message.get("id"), "result": result})
        except ConnectionError:
            self.close_connection = True

    def _answer(self, method: str, params: Json) -> tuple[int, Json]:
        traffic, fresh = self._traffic, {"resultType": "complete", "ttlMs": 0, "cacheScope": "private"}
        if method == "server/discover":
            return 200, {**fresh, "supportedVersions": ["2026-07-28"], "capabilities": {"tools": {}}}
        if method == "tools/list":
            traffic.lists += 1
            return traffic.list_status, {**fresh, "tools": traffic.tools}
        if method != "tools/call":
            return 405, {}
        traffic.calls.append((params["name"], params.get("arguments", {})))
        traffic.running.set()
        if params["name"] == "wait":
            traffic.go_on.wait(HANG_TIMEOUT_S)
        return 200, traffic.answer(params["name"], params.get("arguments", {}))

    def _send(self, status: int, value: Json) -> None:
        body = json.dumps(value).encode()
        self.send_response(status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *args: Any) -> None:
        """Writes nothing."""


def write_call(name: str, arguments: Any, label: str = LABEL) -> str:
    """Returns a call as the dialect hermes writes it. A text is taken as it is."""
    text = arguments if isinstance(arguments, str) else json.dumps(arguments)
    return f'<tool_call>\n{{"name": "{label}__{name}", "arguments": {text}}}\n</tool_call>'


def tool(label: str = LABEL, *, approval: Any = "never", **fields: Any) -> Json:
    """Returns an `mcp` tool of a request."""
    return {"type": "mcp", "server_label": label, "require_approval": approval, **fields}


@contextmanager
def serve_hosted(script: list[Json], traffic: ToolTraffic, **settings: Any) -> Iterator[RunningServer]:
    """Serves a script with the tool server as the operator's `kit`."""
    registry = settings.pop("registry", {})
    settings = {"tool_servers": (f"{LABEL}={traffic.url}",), "file_store": True, **settings}
    with serve(partial(scripted_registry, script, **registry), **settings) as server:
        yield server


def send(server: RunningServer, body: Mapping[str, Any], key: str = "", path: str = "responses") -> httpx.Response:
    """Sends a request, and checks that no fault of the server answers it."""
    headers = {"content-type": "application/json"} | ({"authorization": f"Bearer {key}"} if key else {})
    fields = {"model": "scripted", "input": "Hi", **body}
    content = json.dumps(fields)  # in ASCII, so that halves of surrogates can be sent
    reply = post(f"{server.url}/{path}", content=content, headers=headers, timeout=HANG_TIMEOUT_S)
    assert reply.status_code < 500, reply.text[:500]
    return reply


def read_events(reply: httpx.Response) -> list[Json]:
    assert reply.status_code == 200, reply.text[:500]
    return [json.loads(row[6:]) for row in reply.text.splitlines() if row.startswith("data: {")]


def run(server: RunningServer, body: Mapping[str, Any], key: str = "") -> Json:
    """Streams a response. Returns its last state, after the checker has read all events."""
    return check_stream(read_events(send(server, {**body, "stream": True}, key)))


def list_kinds(response: Json) -> list[str]:
    return [item["type"] for item in response["output"]]


def find_items(response: Json, kind: str) -> list[Json]:
    return [item for item in response["output"] if item["type"] == kind]
