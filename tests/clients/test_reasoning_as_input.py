"""Reasoning of an earlier turn reaches the model again in whatever form a client sends it back."""

from collections.abc import Callable
from functools import partial
from typing import Any

import httpx
import pytest

from tests.clients.sdk_helpers import Json, post, record_prompts
from tests.serving import RunningServer, serve

SCRIPT: list[dict[str, Any]] = [
    {"name": "next", "when": ["[next]"], "output": ["Yes."]},
    {"name": "first", "output": ["<think>\nThey greet me.\n</think>\n\n", "Hello."]},
]
FIRST = {"role": "user", "content": "Hi"}
NEXT = {"role": "user", "content": "[next]"}


FORMS: dict[str, Callable[[Json], Json]] = {
    "whole": lambda item: item,
    "without content": lambda item: {"type": "reasoning", "id": item["id"], "summary": item["summary"]},
    "without text": lambda item: {"type": "reasoning", "id": item["id"], "summary": []},
    "reference": lambda item: {"type": "item_reference", "id": item["id"]},
}
SERVERS = {
    output: partial(serve, SCRIPT, reasoning_output=output, api_keys=("sk-a", "sk-b"))
    for output in ("content", "summary", "both")
}


def create(server: RunningServer, key: str = "sk-a", **body: Any) -> httpx.Response:
    headers = {"authorization": f"Bearer {key}"}
    return post(f"{server.url}/responses", json={"model": "scripted", **body}, headers=headers)


@pytest.mark.parametrize("form", FORMS)
def test_reasoning_sent_back_reaches_the_model(server: RunningServer, form: str) -> None:
    reasoning, message = create(server, input=[FIRST]).json()["output"]
    prompts = record_prompts(server)
    reply = create(server, input=[FIRST, FORMS[form](reasoning), message, NEXT])
    assert reply.status_code == 200, reply.text
    assert prompts[-1].count("They greet me.") == 1


def test_reasoning_of_the_previous_response_reaches_the_model(server: RunningServer) -> None:
    first = create(server, input=[FIRST]).json()
    prompts = record_prompts(server)
    assert create(server, previous_response_id=first["id"], input=[NEXT]).status_code == 200
    assert prompts[-1].count("They greet me.") == 1


@pytest.mark.parametrize("key", ["sk-a", "sk-b"])
def test_reasoning_without_text_that_the_store_does_not_hold_is_left_out(server: RunningServer, key: str) -> None:
    """It may come from another server, or be another client's."""
    reasoning, message = create(server, "sk-b", input=[FIRST]).json()["output"]
    prompts = record_prompts(server)
    bare = {"type": "reasoning", "id": reasoning["id"] if key == "sk-a" else "rs_unknown", "summary": []}
    assert create(server, key, input=[FIRST, bare, message, NEXT]).status_code == 200
    assert "They greet me." not in prompts[-1]
