"""Viewers at another server of the store: they list and follow a turn that runs elsewhere, and find its record."""

import json
import re
import threading
import time
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from antiphon.app.http import stream_writer
from antiphon.app.routes.inspection import turns
from tests.app.inspection.inspector import Inspector
from tests.app.store.store_helpers import StorePlace
from tests.progress import HANG_TIMEOUT_S, wait_with_progress
from tests.serving import RunningServer, serve

PAUSE_S = 0.05
NUM_WORDS = 20
WORDS = [step for number in range(NUM_WORDS) for step in ({"pause": PAUSE_S}, f"w{number} ")]
SCRIPT: list[dict[str, Any]] = [
    {"name": "slow stall", "when": ["Stall"], "output": [*WORDS, {"stall": True}]},
    {"name": "stall", "when": ["Wait"], "output": ["Hello ", {"stall": True}]},
    {"name": "any", "output": ["Hello."]},
]
BODY = {"model": "scripted", "input": "Hi", "stream": True}


@pytest.fixture
def servers(place: StorePlace) -> Iterator[tuple[RunningServer, RunningServer]]:
    options = {"inspect": "store", **place.settings()}
    with serve(SCRIPT, **options) as first, serve(SCRIPT, **options) as second:
        yield first, second


class TimedStream:
    """A response of a server, read in a thread: the time at which each event came."""

    def __init__(self, server: RunningServer, **fields: Any) -> None:
        self.times: dict[int, float] = {}
        self.turn_id = ""
        self._server, self._body = server, BODY | fields
        self._thread = threading.Thread(target=self._read)
        self._thread.start()
        wait_with_progress(lambda: self.turn_id, "the response begins")

    def join(self) -> None:
        self._thread.join(HANG_TIMEOUT_S)
        assert not self._thread.is_alive()

    def _read(self) -> None:
        url = f"{self._server.url}/responses"
        with httpx.stream("POST", url, json=self._body, timeout=HANG_TIMEOUT_S) as reply:
            for line in reply.iter_lines():
                if line.startswith("data: {"):
                    event = json.loads(line.removeprefix("data: "))
                    self.times[event["sequence_number"]] = time.monotonic()
                    self.turn_id = self.turn_id or event["response"]["id"]


class FollowedTurn:
    """The lines of a turn that a viewer follows in a thread, and when each came."""

    def __init__(self, viewer: Inspector, turn_id: str) -> None:
        self.lines: list[dict[str, Any]] = []
        self.times: dict[int, float] = {}
        self._viewer, self._path = viewer, f"/v1/inspect/turns/{turn_id}/events"
        self._thread = threading.Thread(target=self._read)
        self._thread.start()

    def join(self) -> list[dict[str, Any]]:
        self._thread.join(HANG_TIMEOUT_S)
        assert not self._thread.is_alive()
        return self.lines

    def _read(self) -> None:
        with self._viewer.client.stream("GET", self._path, params={"follow": "true"}) as reply:
            assert reply.status_code == 200
            for text in reply.iter_lines():
                if text:
                    self.lines.append(json.loads(text))
                    self.times[self.lines[-1]["n"]] = time.monotonic()


def read_text(lines: list[dict[str, Any]]) -> str:
    return "".join(line["event"].get("delta", "") for line in lines)


def test_running_turn_is_listed_and_followed_at_another_server(servers: tuple[RunningServer, RunningServer]) -> None:
    with Inspector(servers[0]) as here, Inspector(servers[1]) as viewer:
        began = time.monotonic()
        stream = TimedStream(servers[0], input="Stall", background=True)
        wait_with_progress(lambda: viewer.get("/turns").json()["data"], "the turn is listed")
        listed_after = time.monotonic() - began
        followed = FollowedTurn(viewer, stream.turn_id)
        [listed] = viewer.get("/turns", status="in_progress", model="scripted", api="responses").json()["data"]
        assert (listed["id"], listed["ending"], listed["recorded"]) == (stream.turn_id, None, False)
        assert viewer.get("/turns", status="completed").json()["data"] == []
        wait_with_progress(lambda: f"w{NUM_WORDS - 1}" in read_text(followed.lines), "the last word is seen")
        viewer.client.post(f"/v1/responses/{stream.turn_id}/cancel")
        stream.join()
        lines, first = followed.join(), min(followed.times.values())
        delays = sorted(followed.times[number] - at for number, at in stream.times.items() if at > first)
        print(f"listed after {listed_after:.3f} s; delays of {len(delays)} events: {delays[len(delays) // 2 :][::9]}")
        assert lines[-1]["event"]["response"]["status"] == "cancelled" and lines[-1]["state"] == "ENDED"
        assert [line["n"] for line in lines] == list(range(len(lines)))
        assert lines == here.lines(f"/turns/{stream.turn_id}/events"), "with times, states and inputs"
        [after] = viewer.get("/turns").json()["data"]
        assert after["ending"]["cause"] == "cancelled" and after["recorded"]
        assert viewer.get(f"/turns/{stream.turn_id}").json()["rounds"][0]["output_tokens"] > 0


@pytest.mark.parametrize("path", ["/responses/{}?stream=true", "/inspect/turns/{}/events?follow=true"])
def test_events_arrive_while_the_turn_runs(
    servers: tuple[RunningServer, RunningServer], path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The turn never ends by itself, its last event comes after the reader has begun, and no ping wakes the reader."""
    for module in (stream_writer, turns):
        monkeypatch.setattr(module, "PING_INTERVAL_S", 10 * HANG_TIMEOUT_S)
    stream, found = TimedStream(servers[0], input="Stall", background=True), False
    with Inspector(servers[1]) as viewer:
        with viewer.client.stream("GET", f"/v1{path.format(stream.turn_id)}", timeout=HANG_TIMEOUT_S) as reply:
            deltas = []
            for line in reply.iter_lines():
                deltas += [line] if "output_text.delta" in line else []
                if found := f"w{NUM_WORDS - 1}" in "".join(re.findall(r'"delta":"([^"]*)"', "".join(deltas))):
                    break
        assert found
        assert viewer.client.get(f"/v1/responses/{stream.turn_id}").json()["status"] == "in_progress"
        viewer.client.post(f"/v1/responses/{stream.turn_id}/cancel")
        stream.join()


def test_parts_of_a_turn_that_runs_elsewhere_say_what_is_missing(servers: tuple[RunningServer, RunningServer]) -> None:
    with Inspector(servers[1]) as viewer:
        stream = TimedStream(servers[0], input="Wait", background=True)
        wait_with_progress(lambda: viewer.get(f"/turns/{stream.turn_id}").status_code == 200, "it is found")
        record = viewer.get(f"/turns/{stream.turn_id}").json()
        assert record["status"] == "in_progress" and "another server" in record["rounds"]["missing"]
        assert "another server" in viewer.get(f"/turns/{stream.turn_id}/prompt").json()["missing"]
        assert viewer.get("/turns", after=stream.turn_id).json()["data"] == []
        viewer.client.post(f"/v1/responses/{stream.turn_id}/cancel")
        stream.join()
        lines = FollowedTurn(viewer, stream.turn_id).join()
        assert lines[-1]["event"]["response"]["status"] == "cancelled"
        assert viewer.get(f"/turns/{stream.turn_id}").json()["ending"]["cause"] == "cancelled"
        assert viewer.get(f"/turns/{stream.turn_id}/prompt").status_code == 200


def test_viewer_elsewhere_keeps_no_turn_alive(servers: tuple[RunningServer, RunningServer]) -> None:
    with Inspector(servers[1]) as viewer:
        body = BODY | {"input": "Wait"}
        with httpx.stream("POST", f"{servers[0].url}/responses", json=body, timeout=HANG_TIMEOUT_S) as reply:
            lines = reply.iter_lines()
            created = json.loads(next(line for line in lines if line.startswith("data: ")).removeprefix("data: "))
            turn_id = created["response"]["id"]
            wait_with_progress(lambda: viewer.get(f"/turns/{turn_id}").status_code == 200, "it is found")
            watched = FollowedTurn(viewer, turn_id)
        followed = watched.join()
        assert followed[-1]["event"]["response"]["status"] == "cancelled"
        assert viewer.get(f"/turns/{turn_id}").json()["ending"]["cause"] == "client_left"


def test_turns_of_other_owners_are_not_listed(place: StorePlace) -> None:
    options = {"inspect": "store", "api_keys": ("first-key", "second-key"), **place.settings()}
    with (
        serve(SCRIPT, **options) as first,
        serve(SCRIPT, **options) as second,
        Inspector(first, "first-key") as here,
        Inspector(second, "first-key") as viewer,
        Inspector(second, "second-key") as other,
    ):
        turn_id = here.client.post("/v1/responses", json={**BODY, "stream": False, "input": "Wait", "background": True})
        turn_id = turn_id.json()["id"]
        assert [each["id"] for each in viewer.get("/turns").json()["data"]] == [turn_id]
        assert other.get("/turns").json()["data"] == [] and other.get(f"/turns/{turn_id}").status_code == 404
        assert other.get("/turns", after=turn_id).status_code == 400
