"""Stored streams whose client disconnects: the response runs on for a time, in which the client can read on."""

import asyncio
import json
import time
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from antiphon.app.options.api_keys import ApiKey, KeyLimits, key_digest
from antiphon.app.turns import turn_groups
from tests.app.store.store_helpers import StorePlace
from tests.invariants import check_stream
from tests.progress import HANG_TIMEOUT_S, wait_with_progress
from tests.serving import RunningServer, scripted_registry, serve

pytestmark = pytest.mark.processes
NUM_WORDS = 40
TEXT = "".join(f"w{number} " for number in range(NUM_WORDS))
WORDS = [step for number in range(NUM_WORDS) for step in ({"pause": 0.02}, f"w{number} ")]
SCRIPT: list[dict[str, Any]] = [
    {"name": "stall", "when": ["Wait"], "output": ["Hello ", {"stall": True}]},
    {"name": "words", "output": WORDS},
]
LONG_S, SHORT_S = 600.0, 0.3


@pytest.fixture
def server() -> Iterator[RunningServer]:
    with serve(SCRIPT, disconnect_grace=LONG_S) as running:
        yield running


def read_events(text: str) -> list[dict[str, Any]]:
    lines = [line for line in text.splitlines() if line.startswith("data: {")]
    return [json.loads(line.removeprefix("data: ")) for line in lines]


def begin_and_leave(server: RunningServer, text: str = "Hi", count: int = 5, **fields: Any) -> list[dict[str, Any]]:
    """Reads the first events of a response, and disconnects."""
    body = {"model": "scripted", "input": text, "stream": True} | fields
    events: list[dict[str, Any]] = []
    with httpx.stream("POST", f"{server.url}/responses", json=body, timeout=HANG_TIMEOUT_S) as reply:
        for line in reply.iter_lines():
            events += read_events(line)
            if len(events) >= count:
                return events
    raise AssertionError("the stream has ended")


def get_response(server: RunningServer, response_id: str, **query: Any) -> httpx.Response:
    return httpx.get(f"{server.url}/responses/{response_id}", params=query, timeout=HANG_TIMEOUT_S)


def wait_for_status(server: RunningServer, response_id: str, status: str) -> None:
    def has_status() -> bool:
        return bool(get_response(server, response_id).json()["status"] == status)

    wait_with_progress(has_status, f"the response is {status}")


def test_client_that_disconnects_reads_on(server: RunningServer) -> None:
    events = begin_and_leave(server)
    response_id, last = events[0]["response"]["id"], events[-1]["sequence_number"]
    time.sleep(0.1)
    events += read_events(get_response(server, response_id, stream="true", starting_after=last).text)
    response = check_stream(events)
    assert (response["status"], response["output"][0]["content"][0]["text"]) == ("completed", TEXT)


def test_client_that_comes_back_and_leaves_again_has_the_whole_time(server: RunningServer) -> None:
    events = begin_and_leave(server, "Wait", 4)
    response_id = events[0]["response"]["id"]
    with httpx.stream("GET", f"{server.url}/responses/{response_id}?stream=true", timeout=HANG_TIMEOUT_S) as reply:
        lines = reply.iter_lines()
        assert next(line for line in lines if "response.created" in line)
    assert get_response(server, response_id).json()["status"] == "in_progress"


@pytest.mark.parametrize(
    ("grace", "fields"),
    [(SHORT_S, {}), (0.0, {}), (LONG_S, {"store": False})],
    ids=["time is over", "no time", "not stored"],
)
def test_response_without_a_reader_is_cancelled(grace: float, fields: dict[str, Any]) -> None:
    with serve(SCRIPT, disconnect_grace=grace) as server:
        events = begin_and_leave(server, "Wait", 4, **fields)
        wait_with_progress(lambda: not server.context.turn_manager.num_running, "the turn ends")
        if not fields:
            wait_for_status(server, events[0]["response"]["id"], "cancelled")


def test_response_whose_client_does_not_know_its_id_is_cancelled(server: RunningServer) -> None:
    with pytest.raises(httpx.ReadTimeout):
        httpx.post(f"{server.url}/responses", json={"model": "scripted", "input": "Wait"}, timeout=0.5)
    wait_with_progress(lambda: not server.context.turn_manager.num_running, "the turn ends")


def test_client_that_leaves_before_the_first_commit_leaves_no_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    async def never_commit(_: object) -> None:
        await asyncio.Event().wait()

    monkeypatch.setattr(turn_groups, "wait_stored", never_commit)
    body = {"model": "scripted", "input": "Wait", "stream": True}
    with serve(SCRIPT, file_store=True, disconnect_grace=LONG_S) as server:
        with pytest.raises(httpx.ReadTimeout):
            httpx.post(f"{server.url}/responses", json=body, timeout=0.5)
        wait_with_progress(lambda: not server.context.turn_manager.num_running, "the turn ends")


@pytest.mark.parametrize("method", ["POST", "DELETE"])
def test_client_ends_a_response_that_it_has_left(server: RunningServer, method: str) -> None:
    response_id = begin_and_leave(server, "Wait", 4)[0]["response"]["id"]
    wait_with_progress(server.context.turn_manager._left.count, "the server sees that its client has left")
    url = f"{server.url}/responses/{response_id}"
    reply = httpx.request(method, f"{url}/cancel" if method == "POST" else url, timeout=HANG_TIMEOUT_S)
    assert reply.status_code == 200
    if method == "POST":
        assert reply.json()["status"] == "cancelled"
    wait_with_progress(lambda: not server.context.turn_manager.num_running, "the turn ends")


def test_response_that_is_read_cannot_be_cancelled(server: RunningServer) -> None:
    body = {"model": "scripted", "input": "Wait", "stream": True}
    with httpx.stream("POST", f"{server.url}/responses", json=body, timeout=HANG_TIMEOUT_S) as reply:
        lines = reply.iter_lines()  # a stream whose iterator is gone is closed
        [created] = read_events(next(line for line in lines if line.startswith("data: {")))
        url = f"{server.url}/responses/{created['response']['id']}/cancel"
        assert httpx.post(url, timeout=HANG_TIMEOUT_S).status_code == 400


def test_full_engine_ends_the_time_early() -> None:
    with serve(scripted_registry(SCRIPT, max_num_seqs=1, max_waiting=0), disconnect_grace=LONG_S) as server:
        left_id = begin_and_leave(server, "Wait", 4)[0]["response"]["id"]
        wait_with_progress(server.context.turn_manager._left.count, "the server sees that its client has left")
        body = {"model": "scripted", "input": "Hi"}
        reply = httpx.post(f"{server.url}/responses", json=body, timeout=HANG_TIMEOUT_S)
        assert (reply.status_code, reply.json().get("status")) == (200, "completed"), reply.text
        assert get_response(server, left_id).json()["status"] == "cancelled"


def test_response_of_a_key_with_few_places_is_cancelled_at_once() -> None:
    key = ApiKey(digest=key_digest("sk-one"), owner="me", limits=KeyLimits(max_concurrent=1))
    headers = {"authorization": "Bearer sk-one"}
    with serve(SCRIPT, api_keys=(key,), disconnect_grace=LONG_S) as server:
        body = {"model": "scripted", "input": "Wait", "stream": True}
        url = f"{server.url}/responses"
        with httpx.stream("POST", url, json=body, headers=headers, timeout=HANG_TIMEOUT_S) as reply:
            lines = reply.iter_lines()
            assert next(line for line in lines if "response.output_text.delta" in line)
        wait_with_progress(lambda: not server.context.turn_manager.num_running, "the turn ends")
        body = {"model": "scripted", "input": "Hi"}
        assert httpx.post(url, json=body, headers=headers, timeout=HANG_TIMEOUT_S).status_code == 200


def test_reader_at_another_server_keeps_the_response(place: StorePlace) -> None:
    options = {"disconnect_grace": 3.0, **place.settings()}
    with serve(SCRIPT, **options) as first, serve(SCRIPT, **options) as second:
        response_id = begin_and_leave(first, "Wait", 4)[0]["response"]["id"]
        with httpx.stream("GET", f"{second.url}/responses/{response_id}?stream=true", timeout=HANG_TIMEOUT_S) as reply:
            lines = reply.iter_lines()
            assert next(line for line in lines if "response.created" in line)
            time.sleep(4.0)
            assert get_response(first, response_id).json()["status"] == "in_progress"

        def is_cancelled() -> bool:  # refused until the server sees that the reader has left
            url = f"{second.url}/responses/{response_id}/cancel"
            return httpx.post(url, timeout=HANG_TIMEOUT_S).status_code == 200

        wait_with_progress(is_cancelled, "the response is cancelled")
