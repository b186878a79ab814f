"""Credentials of MCP servers reach their server and nothing else; begun answers continue after a call."""

from pathlib import Path
from typing import Any

import httpx

from tests.clients.hosted_tools_script import SCRIPT
from tests.clients.tool_thread import run_tools
from tests.serving import serve

SECRET = "marked-token-0817"  # not a real one
QUESTION = [{"role": "user", "content": "[add]"}]


def test_token_of_a_client_is_sent_and_kept_nowhere(tmp_path: Path) -> None:
    with run_tools() as tools:
        host = tools.url.split("/")[2]
        with serve(SCRIPT, mcp_allowed_hosts=(host,), store_file=tmp_path / "responses.db") as server:
            tool = {"type": "mcp", "server_label": "notes", "server_url": tools.url, "require_approval": "never"}
            named = {"type": "url", "name": "notes", "url": tools.url, "authorization_token": SECRET}
            bodies: dict[str, dict[str, Any]] = {
                "chat/completions": {"tools": [{**tool, "authorization": SECRET}], "store": True},
                "messages": {"mcp_servers": [named], "max_tokens": 4000},
            }
            texts = []
            for path, fields in bodies.items():
                tools.seen.headers.clear()
                body = {"model": "scripted", "messages": QUESTION, **fields}
                for stream in (False, True):
                    reply = httpx.post(f"{server.url}/{path}", json={**body, "stream": stream}, timeout=30)
                    assert reply.status_code == 200 and "the sum is 5" in reply.text, reply.text
                    texts.append(reply.text)
                assert {headers.get("authorization") for headers in tools.seen.headers} == {f"Bearer {SECRET}"}
            texts.append(httpx.get(f"{server.url}/chat/completions").text)
            texts += [str(record) for record in server.access_records]
    stored = b"".join(path.read_bytes() for path in tmp_path.iterdir())
    assert b"the sum is 5" in stored and SECRET.encode() not in stored
    assert [text for text in texts if SECRET in text] == []


def test_begun_answer_continues_after_a_call() -> None:
    begun = [*QUESTION, {"role": "assistant", "content": "Well: "}]
    with run_tools() as tools, serve(SCRIPT, tool_servers=(f"notes={tools.url}",)) as server:
        tool = {"type": "mcp", "server_label": "notes", "require_approval": "never"}
        chat = {"tools": [tool], "continue_final_message": True, "add_generation_prompt": False}
        named = {"type": "url", "name": "notes"}
        for path, fields in (
            ("chat/completions", chat),
            ("messages", {"mcp_servers": [named], "max_tokens": 4000}),
        ):
            body = {"model": "scripted", "messages": begun, **fields}
            reply = httpx.post(f"{server.url}/{path}", json=body, timeout=30)
            assert reply.status_code == 200 and "It is 5." in reply.text, reply.text
