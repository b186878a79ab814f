"""Secrets of a request appear nowhere: not in events, replies, the store file, logs, metrics or errors."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx
import pytest

from antiphon.app.requests.secrets import remove_secrets
from tests.progress import HANG_TIMEOUT_S
from tests.serving import read_until_ready
from tests.syntax import ROOT

SECRET = "marked-secret-4711"  # not a real one
MCP_TOOL = {
    "type": "mcp",
    "server_label": "files",
    "server_url": f"https://user:{SECRET}@mcp.example.com/sse",
    "headers": {"X-Token": SECRET},
    "authorization": SECRET,
    "require_approval": "never",
}
HOSTED_TOOL = {"type": "image_generation", "authorization": SECRET, "proxy_url": f"https://user:{SECRET}@example.com/a"}
IMAGE = {"type": "input_image", "image_url": f"https://user:{SECRET}@example.com/a.png"}
FILE = {"type": "input_file", "file_url": f"https://{SECRET}@example.com/a.pdf"}
MESSAGE = {"role": "user", "content": [{"type": "input_text", "text": "Hi"}, IMAGE]}
BODY: dict[str, Any] = {
    "model": "scripted",
    "input": [{"type": "additional_tools", "role": "developer", "tools": [MCP_TOOL]}, MESSAGE],
    "tools": [HOSTED_TOOL],
    "client_metadata": {"token": SECRET},
}
CHAT_IMAGE = {"type": "image_url", "image_url": {"url": f"https://user:{SECRET}@example.com/a.png"}}
CHAT_MESSAGE = {"role": "user", "content": [CHAT_IMAGE], "api_key": SECRET}
CHAT_BODY = {"model": "scripted", "messages": [CHAT_MESSAGE], "store": True}
INVALID = [
    {**BODY, "tools": [MCP_TOOL]},
    {**BODY, "temperature": 9},
    {**BODY, "tools": [{**MCP_TOOL, "type": "mcpx"}]},
    {**BODY, "tools": [{**MCP_TOOL, "headers": SECRET, "authorization": {SECRET: 1}}], "top_p": 5},
    {**BODY, "client_metadata": {"token": [SECRET]}},
    {**BODY, "input": [{"role": "user", "content": [{**IMAGE, "image_url": f"http://{SECRET}@127.0.0.1/"}]}]},
    {**BODY, "input": [{"role": "user", "content": [FILE]}]},
]


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / "script.toml"
    replies = "".join(f'[[reply]]\nname = "hello {n}"\noutput = ["Hello."]\n' for n in range(8))
    path.write_text(replies, encoding="utf-8")
    return path


def test_secrets_appear_nowhere(tmp_path: Path, script: Path) -> None:
    store = tmp_path / "responses.db"
    command = [sys.executable, "-m", "antiphon", "serve", "--engine", "scripted", "--script", str(script)]
    command += ["--port", "0", "--store", str(store), "--log-format", "json", "--api-key", SECRET + "-key"]
    seen: list[str] = []
    with subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        (url,) = read_until_ready(process.stderr)["base_urls"]
        headers = {"authorization": f"Bearer {SECRET}-key", "cookie": SECRET}
        with httpx.Client(base_url=f"{url}/", timeout=HANG_TIMEOUT_S, headers=headers) as client:
            made = client.post("responses", json=BODY)
            assert made.status_code == 200, made.text
            (tool,) = made.json()["tools"]
            assert tool == {"type": "image_generation", "proxy_url": "https://example.com/a"}
            response_id = made.json()["id"]
            seen += [made.text, client.get(f"responses/{response_id}").text]
            seen += [client.get(f"responses/{response_id}/input_items").text]
            seen += [client.get(f"responses/{response_id}?stream=true").text]
            seen += [client.post("responses", json={**BODY, "stream": True, "background": True}).text]
            completion = client.post("chat/completions", json=CHAT_BODY)
            messages = client.get(f"chat/completions/{completion.json()['id']}/messages")
            assert len(messages.json()["data"]) == 1
            seen += [completion.text, messages.text]
            seen.append(client.post("conversations", json={"items": [MESSAGE]}).text)  # its URL may be refused
            conversation = client.post("conversations", json={"items": BODY["input"][:1]}).json()["id"]
            seen += [client.get(f"conversations/{conversation}/items").text]
            for body in INVALID:
                reply = client.post("responses", json=body)
                assert reply.status_code == 400, body
                seen.append(reply.text)
            seen += [client.get(f"{url.removesuffix('/v1')}/metrics").text]
            seen += [client.get("models", headers={"authorization": f"Bearer {SECRET}"}).text]
        stored = b"".join(path.read_bytes() for path in tmp_path.glob("responses.db*"))
        process.terminate()
        seen.append(process.stderr.read())
    assert len(json.loads(seen[0])["output"]) == 1
    assert [text for text in seen if SECRET in text] == []
    assert SECRET.encode() not in stored


def test_schema_of_a_function_may_have_a_property_named_authorization() -> None:

    tool = {"type": "function", "name": "f", "parameters": {"properties": {"authorization": {"type": "string"}}}}
    assert remove_secrets({"tools": [tool]}) == {"tools": [tool]}
