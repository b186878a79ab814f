"""Two servers with one store: each reads, resumes, cancels and deletes the responses of the other."""

import json
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.app.server_helpers import wait_until
from tests.clients.sdk_helpers import get, post
from tests.invariants import check_stream
from tests.progress import HANG_TIMEOUT_S
from tests.serving import RunningServer, scripted_registry, serve

SCRIPT: list[dict[str, Any]] = [
    {"name": "more", "when": ["three."], "output": ["Four."]},
    {"name": "endless", "when": ["Forever"], "output": ["On and on", {"stall": True}]},
    {
        "name": "slow",
        "when": ["Slowly"],
        "output": ["One", {"pause": 0.4}, " two", {"pause": 0.4}, " three."],
        "tokens_per_chunk": 1,
    },
    {"name": "any", "output": ["Yes."]},
]
ServerPair = tuple[RunningServer, RunningServer]


@pytest.fixture(params=["sqlite", "postgres"])
def pair(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[ServerPair]:
    store: dict[str, Any] = {"store_file": tmp_path / "responses.db"}
    if request.param == "postgres":
        store = {"store_url": request.getfixturevalue("postgres_server").create_database()}
    with (
        serve(scripted_registry(SCRIPT), **store) as first,
        serve(scripted_registry(SCRIPT), **store) as second,
    ):
        yield first, second


def start_background(server: RunningServer, text: str) -> str:
    response = post(f"{server.url}/responses", json={"model": "scripted", "input": text, "background": True}).json()
    assert response["status"] == "queued"
    return str(response["id"])


def read_stream(server: RunningServer, response_id: str, after: int = -1) -> list[dict[str, Any]]:
    reply = get(f"{server.url}/responses/{response_id}?stream=true&starting_after={after}", timeout=HANG_TIMEOUT_S)
    assert reply.text.endswith("data: [DONE]\n\n")
    return [json.loads(row[6:]) for row in reply.text.splitlines() if row.startswith("data: {")]


def test_stream_resumes_on_another_server_after_any_event(pair: ServerPair) -> None:
    first, second = pair
    response_id = start_background(first, "Slowly")
    events = read_stream(second, response_id)
    check_stream(events)
    assert events == read_stream(first, response_id)
    for number in range(len(events)):
        assert read_stream(second, response_id, number) == events[number + 1 :]
    follow_up = {"model": "scripted", "input": "And?", "previous_response_id": response_id}
    assert post(f"{second.url}/responses", json=follow_up).json()["output"][0]["content"][0]["text"] == "Four."


def test_stream_resumes_on_another_server_at_every_event_while_it_is_generated(pair: ServerPair) -> None:
    first, second = pair
    response_id = start_background(first, "Slowly")
    with ThreadPoolExecutor(max_workers=22) as pool:
        readers = [pool.submit(read_stream, second, response_id, number) for number in range(-1, 21)]
        resumed = [reader.result() for reader in readers]
    events = read_stream(first, response_id)
    check_stream(events)
    assert len(events) < len(readers), "one reader begins after each event"
    for number, received in enumerate(resumed):
        assert received == events[number:], number


def test_another_server_cancels_a_running_response(pair: ServerPair) -> None:
    first, second = pair
    response_id = start_background(first, "Forever")
    time.sleep(0.3)
    reply = post(f"{second.url}/responses/{response_id}/cancel", timeout=HANG_TIMEOUT_S)
    assert reply.status_code == 200, reply.text
    cancelled = reply.json()
    assert cancelled["status"] == "cancelled"
    assert get(f"{second.url}/responses/{response_id}").json() == cancelled
    # The first server shows the last event once its event loop has heard of the commit, which the second has seen.
    path = f"{first.url}/responses/{response_id}"
    assert wait_until(HANG_TIMEOUT_S, lambda: get(path).json()["status"] != "in_progress")
    assert get(path).json() == cancelled
    assert not first.engine.stats().running
    check_stream(read_stream(second, response_id))
    assert post(f"{second.url}/responses/{response_id}/cancel").json() == cancelled, (
        "a second cancellation changes nothing"
    )


def test_deletion_by_another_server_stops_and_removes_the_response(pair: ServerPair) -> None:
    first, second = pair
    response_id = start_background(first, "Forever")
    time.sleep(0.3)
    assert httpx.delete(f"{second.url}/responses/{response_id}").json()["deleted"]
    assert get(f"{second.url}/responses/{response_id}").status_code == 404
    for _ in range(100):
        if not first.engine.stats().running and get(f"{first.url}/responses/{response_id}").status_code == 404:
            return
        time.sleep(0.05)
    raise AssertionError("the deleted response still runs or is still stored")
