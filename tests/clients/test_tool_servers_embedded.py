"""The embedded model calls a real tool server inside one response, and reports what the tool returned.

The server runs as an operator starts it. The model copies: it writes the time zone that the user wrote.
"""

import json
import subprocess
import sys
from collections.abc import Iterator

import httpx
import pytest

from tests.clients.sdk_helpers import Json, parse_events
from tests.clients.tool_servers import TIME_COMMAND, name_server
from tests.codex.embedded_registry import needs_weights
from tests.invariants import check_stream
from tests.progress import HANG_TIMEOUT_S
from tests.serving import read_until_ready

pytestmark = needs_weights


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    """The URL of a server process with the embedded model and a time server."""
    command = [sys.executable, "-m", "antiphon", "serve", "--port", "0", "--device", "cpu", "--log-format", "json"]
    command += ["--tool-command", TIME_COMMAND]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        try:
            (base_url,) = read_until_ready(process.stderr)["base_urls"]
            yield base_url
        finally:
            process.terminate()
            process.communicate()


def ask(url: str, prompt: str) -> Json:
    """Returns the streamed response to a question, which the tool may answer without an approval."""
    request = {"model": "antiphon", "input": prompt, "tools": [name_server("time")], "temperature": 0, "stream": True}
    return check_stream(
        parse_events(httpx.post(f"{url}/responses", json=request, timeout=HANG_TIMEOUT_S).content), request
    )


@pytest.mark.parametrize(
    ("prompt", "zone"),
    [
        ("What time is it in Asia/Tokyo?", "Asia/Tokyo"),
        ("What is the time in Africa/Cairo?", "Africa/Cairo"),
        ("get the current time in America/Lima", "America/Lima"),
        ("What time is it in Europe/Oslo?", "Europe/Oslo"),
        ("What time is it in the timezone Asia/Tokyo?", "Asia/Tokyo"),
        ("What is the time in the time zone Europe/Berlin?", "Europe/Berlin"),
    ],
)
def test_model_calls_the_tool_and_reports_the_time(url: str, prompt: str, zone: str) -> None:
    response = ask(url, prompt)
    assert response["status"] == "completed"
    (call,) = [item for item in response["output"] if item["type"] == "mcp_call"]
    assert (call["name"], json.loads(call["arguments"]), call["status"]) == (
        "get_current_time",
        {"timezone": zone},
        "completed",
    )
    assert response["output"][-1]["content"][0]["text"] == call["output"]


def test_model_reports_that_the_tool_has_failed(url: str) -> None:
    """The tool knows time zones, and no cities. The model knows neither."""
    response = ask(url, "What time is it in Oslo?")
    assert response["status"] == "completed"
    (call,) = [item for item in response["output"] if item["type"] == "mcp_call"]
    assert (json.loads(call["arguments"]), call["status"]) == ({"timezone": "Oslo"}, "failed")
    assert "No time zone found with key Oslo" in response["output"][-1]["content"][0]["text"]
