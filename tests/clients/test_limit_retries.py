"""The SDKs of OpenAI and Anthropic and keys with limits: they wait as they document, and stop at a used-up budget."""

from pathlib import Path
from typing import Any

import anthropic
import httpx
import openai
import pytest

from antiphon.app.keys.key_file import parse_key_file
from tests.conftest import StartServer
from tests.serving import RunningServer

SCRIPT: list[dict[str, Any]] = [{"name": "any", "output": ["Hello."]}]
KEY = "sk-limited"


def start(start_server: StartServer, limit: str) -> RunningServer:
    return start_server(SCRIPT, api_keys=parse_key_file(f'[[key]]\nowner = "a"\nkey = "{KEY}"\n{limit}', Path("k")))


def use_up(server: RunningServer) -> None:
    headers, body = {"authorization": f"Bearer {KEY}"}, {"model": "scripted", "input": "Hi", "store": False}
    while httpx.post(f"{server.url}/responses", json=body, headers=headers, timeout=60).status_code == 200:
        pass


def count_rejections(server: RunningServer) -> int:
    usage: Any = server.context.usage
    return sum(row.counts.rejections for row in usage.list_minutes())


def call_openai(server: RunningServer) -> None:
    client = openai.OpenAI(base_url=server.url, api_key=KEY, max_retries=3)
    client.responses.create(model="scripted", input="Hi", store=False)


def call_anthropic(server: RunningServer) -> None:
    client = anthropic.Anthropic(base_url=server.root, api_key=KEY, max_retries=3)
    client.messages.create(model="scripted", max_tokens=20, messages=[{"role": "user", "content": "Hi"}])


CALLS = {"openai": call_openai, "anthropic": call_anthropic}


@pytest.mark.parametrize("sdk", CALLS)
def test_sdk_waits_for_the_told_time(start_server: StartServer, sdk: str) -> None:
    """A place comes back every 5 seconds. With pauses of its own, of 0.5 to 2 s, an SDK would be refused all times."""
    server = start(start_server, "requests_per_minute = 12")
    use_up(server)
    before = count_rejections(server)
    CALLS[sdk](server)
    assert count_rejections(server) - before <= 1


@pytest.mark.parametrize("sdk", CALLS)
def test_sdk_stops_when_the_budget_is_used_up(start_server: StartServer, sdk: str) -> None:
    server = start(start_server, "tokens_per_day = 1")
    use_up(server)
    before = count_rejections(server)
    with pytest.raises((openai.RateLimitError, anthropic.RateLimitError), match="exceeded your current quota"):
        CALLS[sdk](server)
    assert count_rejections(server) - before == 1, "it has tried again"
