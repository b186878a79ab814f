"""The weather agent: two turns, with a call of its tool between them."""

import asyncio

import pytest
from app.weather import report_weather
from openai import AsyncOpenAI

from antiphon.kit.testing import assert_conformant


@pytest.fixture
def server(responses_server):
    return responses_server("cases.toml")


def test_agent_calls_its_tool_and_reports(server, event_snapshot):
    async def run():
        async with AsyncOpenAI(base_url=server.base_url, api_key=server.api_key) as client:
            return await report_weather(client, server.model, "What is the temperature in Oslo?")

    report = asyncio.run(run())
    assert report.text == "It is 4 degrees in Oslo."
    assert event_snapshot == report.events
    first, second = server.requests
    assert [tool["name"] for tool in first["tools"]] == ["get_temperature"]
    assert second["input"][-1]["output"] == "4 degrees"
    for stream in server.streams:
        assert_conformant(stream)
