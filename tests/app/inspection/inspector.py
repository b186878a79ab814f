"""A client of `/v1/inspect`, and the script of the server that it looks at."""

import json
from typing import Any, Self

import httpx

from tests.progress import HANG_TIMEOUT_S, wait_with_progress
from tests.serving import RunningServer

CALL = '<tool_call>\n{"name": "find", "arguments": {"a": 1}}\n</tool_call>'
TOOLS = [{"type": "function", "name": "find", "parameters": {"type": "object"}}]
SCRIPT: list[dict[str, Any]] = [
    {"name": "stall", "when": ["Wait"], "output": ["Hello ", {"stall": True}]},
    {
        "name": "call",
        "when": ["Search"],
        "output": ["<think>\nHm.\n</think>\n\nI look.\n", CALL],
        "tokens_per_chunk": 4,
    },
    {
        "name": "unknown",
        "when": ["Unknown"],
        "output": ["I look.\n", '<tool_call>\n{"name": "seek", "arguments": {"a": 1}}\n</tool_call>'],
        "tokens_per_chunk": 3,
    },
    {"name": "any", "output": ["Hello there, how are you?"], "cached_tokens": 5},
]


class Inspector:
    """A client of `/v1/inspect` with the key of its page, or with an API key."""

    def __init__(self, server: RunningServer, key: str | None = None) -> None:
        self.server = server
        key = server.context.page_key if key is None else key
        headers = {"authorization": f"Bearer {key}"} if key else {}
        self.client = httpx.Client(base_url=server.root, headers=headers, timeout=HANG_TIMEOUT_S)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.client.close()

    def get(self, path: str = "", **query: Any) -> httpx.Response:
        return self.client.get(f"/v1/inspect{path}", params=query)

    def lines(self, path: str, **query: Any) -> list[dict[str, Any]]:
        response = self.get(path, **query)
        assert response.status_code == 200 and response.headers["content-type"] == "application/x-ndjson", response.text
        return [json.loads(line) for line in response.text.splitlines() if line]

    def ask(self, text: str = "Hi", path: str = "responses", **fields: Any) -> str:
        """Generates a response, and returns its id once its record is packed."""
        body = {"model": "scripted", "input": text, "store": False} | fields
        response = self.client.post(f"/v1/{path}", json=body)
        assert response.status_code == 200, response.text
        turn_id = str(response.json()["id"])
        recorder = self.server.context.turn_manager.recorder
        if recorder is not None:
            wait_with_progress(lambda: not recorder.num_packing, "the record is packed")
        return turn_id
