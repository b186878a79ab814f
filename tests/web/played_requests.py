"""Requests that the page sends: the models and the script behind them, and what the server received."""

from typing import Any

import httpx
import pytest

from tests.progress import HANG_TIMEOUT_S
from tests.serving import RunningServer

expect = pytest.importorskip("playwright.sync_api", reason="playwright is not installed").expect
CALL = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Oslo"}}\n</tool_call>'
SCRIPT = [
    {"name": "slow", "when": ["slow"], "output": ["One. ", {"pause": HANG_TIMEOUT_S}, "Two."]},
    {"name": "answered", "when": ["12 degrees"], "output": ["It is ", "12 degrees in Oslo."]},
    {"name": "call", "when": ["weather"], "output": [CALL]},
    {"name": "json", "when": ["JSON"], "output": ['{"answer": "yes"}']},
    {"name": "hello", "output": ["<think>\nHm.\n</think>\n\n", "Hello, ", "you."]},
]
MODELS = ("scripted", "other", "third", "fourth")
TOOLS = [{"type": "function", "name": "get_weather", "parameters": {"type": "object", "properties": {}}}]
Json = dict[str, Any]


def ask(server: RunningServer, **fields: Any) -> Json:
    """Makes a turn. Returns its response."""
    body = {"model": "scripted", "input": "Hi"} | fields
    return dict(httpx.post(f"{server.url}/responses", json=body, timeout=HANG_TIMEOUT_S).json())


def read_request(server: RunningServer, turn_id: str) -> Json:
    """Returns the request of a turn, as the server recorded it."""
    headers = {"authorization": f"Bearer {server.context.page_key}"}
    return dict(httpx.get(f"{server.url}/inspect/turns/{turn_id}/request", headers=headers).json())


def last_turn(server: RunningServer) -> Json:
    headers = {"authorization": f"Bearer {server.context.page_key}"}
    return dict(httpx.get(f"{server.url}/inspect/turns?limit=1", headers=headers).json()["data"][0])


def last_request(server: RunningServer) -> Json:
    return read_request(server, last_turn(server)["id"])


def find_item(page: Any, name: str) -> Any:
    """Returns the field of an item of the input."""
    return page.get_by_role("textbox", name=name, exact=True)


def send(page: Any) -> Any:
    """Sends the request, and waits until each model has answered. Returns the replies."""
    page.get_by_role("button", name="Send", exact=True).click()
    replies = page.locator(".column .output")
    expect(replies.filter(has_text="completed").first).to_be_visible()
    return replies
