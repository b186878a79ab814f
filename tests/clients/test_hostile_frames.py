"""Frames of a WebSocket that are meant to disturb other responses. Covers row 60 of the hard inputs."""

import socket
from functools import partial
from typing import Any

import pytest
from websockets.sync.client import connect

from tests.clients.lane_client import LaneClient, text_of
from tests.clients.sdk_helpers import wait_until
from tests.clients.steered_lanes import KEYS, begin, open_with_key, steer, take_failed
from tests.invariants import check_stream
from tests.progress import wait_with_progress
from tests.serving import RunningServer, scripted_registry, serve

SCRIPT: list[dict[str, Any]] = [
    {"name": "steered", "when": ["Turn left"], "output": ["Left."]},
    {"name": "endless", "when": ["Forever"], "output": ["On and on", {"stall": True}]},
    {"name": "silent", "when": ["Silence"], "output": [{"stall": True}]},
    {"name": "any", "output": ["Yes."]},
]
NUM_STEERS = 1000
MAX_STEERS = 16

SERVER = partial(serve, partial(scripted_registry, SCRIPT, max_num_seqs=64), api_keys=KEYS)


@pytest.mark.parametrize("key", KEYS, ids=["same key", "another key"])
def test_response_of_another_connection_cannot_be_steered(server: RunningServer, key: str) -> None:
    with open_with_key(server) as owner, open_with_key(server, key) as other:
        running = begin(owner, "Silence", store=True)
        steer(other, running)
        assert take_failed(other, None) == "response_not_found"
        other.create("a")
        assert text_of(other.finish("a")) == "Yes.", "its own responses go on"
        steer(owner, running)
        assert text_of(owner.finish("a", 2)) == "Left.", "the response runs, and its own connection can steer it"


def test_source_of_a_fork_that_runs_is_not_steered_by_the_id_of_another(server: RunningServer) -> None:
    """An unfinished fork is steered by its own id, in its lane. The id of its source, which has ended, comes too late."""
    with open_with_key(server) as client:
        client.create("main")
        source = client.finish("main")["id"]
        fork = begin(client, "Silence", "fork", previous_response_id=source)
        steer(client, source)
        assert take_failed(client, "main") == "response_already_completed"
        steer(client, fork)
        successor = client.finish("fork", 2)
        assert successor["previous_response_id"] == fork and text_of(successor) == "Left."
        assert len(client.ended["main"]) == 1


def test_fork_that_waits_cannot_be_steered(server: RunningServer) -> None:
    """It has no id yet, so that a guess is an id of nothing."""
    with open_with_key(server) as client:
        client.create("main")
        source = client.finish("main")["id"]
        begin(client, "Forever", "busy")
        client.create("busy", "Hi", previous_response_id=source)
        for guess in (f"{source}x", "fork", "", "resp_" + "0" * 48, {"id": source}, [source]):
            steer(client, guess)
            assert take_failed(client, None) == "response_not_found"


@pytest.mark.parametrize("size", [1 << 20, 300_000], ids=str)
def test_steer_of_a_megabyte_is_given_back(server: RunningServer, size: int) -> None:
    with open_with_key(server) as client:
        running = begin(client, "Forever", until="response.output_text.delta")
        for sent in (
            "x" * size,
            [{"role": "user", "content": "x" * size}],
            [{"role": "user", "content": "x"}] * 20_000,
        ):
            steer(client, running, sent)
            assert take_failed(client, "a") == "too_many_pending_steers"
        client.create("b")
        assert text_of(client.finish("b")) == "Yes."
        assert client.ended["a"] == []


def test_thousand_steers_of_one_response(server: RunningServer) -> None:
    """As many as may wait are accepted, the others come back, and the connection continues."""
    with open_with_key(server) as client:
        running = begin(client, "Forever", until="response.output_text.delta")
        for number in range(NUM_STEERS):
            steer(client, running, f"Turn left {number}")
        codes = [take_failed(client, "a") for _ in range(NUM_STEERS - MAX_STEERS)]
        assert set(codes) == {"too_many_pending_steers"}
        accepted = [event for event in client.events["a"] if event["type"] == "response.steer.accepted"]
        assert len(accepted) == len({event["steer"]["id"] for event in accepted}) == MAX_STEERS
        client.create("b")
        assert text_of(client.finish("b")) == "Yes."
        check_stream(client.streams("b")[0])


@pytest.mark.parametrize("key", KEYS, ids=["same key", "another key"])
def test_steers_of_a_response_take_no_place_of_another(server: RunningServer, key: str) -> None:
    """Another lane and another connection can still steer their responses."""
    with open_with_key(server) as many, open_with_key(server, key) as other:
        running = begin(many, "Forever", until="response.output_text.delta")
        for _ in range(MAX_STEERS + 1):
            steer(many, running)
        assert take_failed(many, "a") == "too_many_pending_steers"
        for client in (many, other):
            steer(client, begin(client, "Silence", "b"))
            assert text_of(client.finish("b", 2)) == "Left."


def test_client_that_stops_reading_with_sixteen_lanes_is_disconnected() -> None:
    """All of its turns end, and another client is served all the while."""
    flood = {"name": "flood", "when": ["Flood"], "output": ["x" * 1_000_000, {"stall": True}], "tokens_per_chunk": 4000}
    models = scripted_registry([flood, *SCRIPT], max_num_seqs=64)
    with serve(models, stall_timeout=1.0) as server, socket.socket() as raw:
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        raw.connect(("127.0.0.1", server.port))
        url = server.url.replace("http", "ws") + "/responses"
        with connect(url, sock=raw, max_size=None, max_queue=1, ping_interval=None, close_timeout=0.1) as websocket:
            lazy = LaneClient(websocket)
            for number in range(16):
                lazy.create(f"lane-{number}", "Flood")
            # On a busy machine the connection may have ended before the first look.
            wait_with_progress(
                lambda: server.context.turn_manager.num_running == 16 or server.access_records, "sixteen responses run"
            )
            with open_with_key(server) as other:
                for number in range(1, 6):
                    other.create("a")
                    assert text_of(other.finish("a", number)) == "Yes."
            assert wait_until(60, lambda: not server.context.turn_manager.num_running)
            assert server.engine.stats().running == 0
