"""Lanes of a WebSocket: order within one, independence of others, forks, limits, and errors that name their lane."""

from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.clients.lane_client import open_lanes, text_of
from tests.invariants import check_stream
from tests.progress import wait_with_progress
from tests.serving import RunningServer, scripted_registry, serve

SCRIPT: list[dict[str, Any]] = [
    {"name": "endless", "when": ["Forever"], "output": ["On and on", {"stall": True}]},
    {"name": "fault", "when": ["Fail"], "output": ["Oh", {"fault": "broken", "code": "server_error"}]},
    {"name": "word", "when": ["Which word?", "zebra"], "output": ["Zebra."]},
    {"name": "many", "when": ["At length"], "output": ["word " * 200], "tokens_per_chunk": 10},
    {"name": "any", "output": ["Yes", "."]},
]

SERVER = partial(serve, partial(scripted_registry, SCRIPT, max_num_seqs=64))


def test_every_event_of_a_lane_names_it_and_those_of_the_default_lane_name_none(server: RunningServer) -> None:
    with open_lanes(server) as client:
        for lane in ("a", None, "B_.-9" * 51):
            client.create(lane)
            assert text_of(client.finish(lane)) == "Yes."
            check_stream(client.events[lane])
        assert set(client.events) == {"a", None, "B_.-9" * 51}


def test_lanes_run_at_once_and_requests_of_one_in_order(server: RunningServer) -> None:
    with open_lanes(server) as client:
        client.create("slow", "Forever")
        client.create("slow", "Never reached")
        for number in range(3):
            client.create("quick", f"Hi {number}")
        client.finish("quick", 3)
        assert len(client.streams("quick")) == 3
        assert len(client.streams("slow")) == 1, "the second request waits"
        for stream in client.streams("quick"):
            check_stream(stream)


def test_sixteen_lanes_of_twenty_turns(server: RunningServer) -> None:
    lanes = [f"lane-{number}" for number in range(16)]
    with open_lanes(server) as client:
        for lane in lanes:
            for _ in range(4):  # 16 run, 48 wait
                client.create(lane, f"I am {lane}. At length." if lane == lanes[3] else f"I am {lane}.")
        for turn in range(1, 21):
            for lane in lanes:
                client.finish(lane, turn)
                if turn <= 16:
                    client.create(lane, f"I am {lane}.")
        for lane in lanes:
            streams = client.streams(lane)
            assert len(streams) == 20
            for stream in streams:
                assert [event["sequence_number"] for event in stream] == list(range(len(stream)))
                check_stream(stream)
    assert len(set(client.order[:200])) > 1, "events of the lanes alternate"


def test_fork_continues_what_its_source_was_when_the_frame_arrived(server: RunningServer) -> None:
    with open_lanes(server) as client:
        client.create("main", "The word is zebra.")
        source = client.finish("main")["id"]
        client.create("main", "Forever", previous_response_id=source)
        client.create("main", "Hi", previous_response_id=source)
        for number in range(5):
            client.create(f"fork-{number}", "Which word?", previous_response_id=source)
        for number in range(5):
            fork = client.finish(f"fork-{number}")
            assert text_of(fork) == "Zebra." and fork["previous_response_id"] == source


def test_fork_that_waits_keeps_its_source(server: RunningServer) -> None:
    """The lane has continued when the fork starts, and nothing is stored."""
    with open_lanes(server) as client:
        client.create("main", "The word is zebra.")
        source = client.finish("main")["id"]
        client.create("other", "Forever")
        for number in range(15):
            client.create(f"busy-{number}", "Forever" if number else "Hi")
        client.finish("busy-0")
        client.create("busy-0", "Forever")  # all sixteen places are taken
        client.create("fork", "Which word?", previous_response_id=source)
        client.create("main", "Hi", previous_response_id=source)
        assert client.events["fork"] == []
        wait_with_progress(lambda: server.engine.stats().running == 16, "sixteen responses run")
    wait_with_progress(lambda: server.engine.stats().running == 0, "the end of the connection ends all")


def test_request_may_name_the_response_before_it_in_its_lane(server: RunningServer) -> None:
    with open_lanes(server) as client:
        client.create("a", "The word is zebra.")
        while not client.events["a"]:
            client.receive()
        created = client.events["a"][0]["response"]["id"]
        client.create("a", "Which word?", previous_response_id=created)
        assert text_of(client.finish("a", 2)) == "Zebra."


def test_unknown_and_unfinished_sources_are_refused_and_the_lane_lives_on(server: RunningServer) -> None:
    with open_lanes(server) as client:
        client.create("running", "Forever")
        while not client.events["running"]:
            client.receive()
        running = client.events["running"][0]["response"]["id"]
        for source in (running, "resp_unknown"):
            client.create("a", "Hi", previous_response_id=source)
            assert client.receive_error("a") == (400, "previous_response_not_found", "previous_response_id")
        client.create("a")
        assert text_of(client.finish("a")) == "Yes."


def test_failed_turn_of_a_lane_changes_no_other(server: RunningServer) -> None:
    with open_lanes(server) as client:
        client.create("bad", "Fail")
        client.create("bad", 5)
        client.create("good")
        assert client.finish("bad")["status"] == "failed"
        assert client.receive_error("bad") == (400, "invalid_type", "input")
        assert text_of(client.finish("good")) == "Yes."


@pytest.mark.parametrize("stream_id", ["", "x" * 257, 5, "a b", "é", "a\n", [], True])
def test_bad_stream_id_is_an_error_without_a_lane(server: RunningServer, stream_id: Any) -> None:
    with open_lanes(server) as client:
        client.create(None, stream_id=stream_id)
        assert client.receive_error(None) == (400, "invalid_stream_id", "stream_id")
        client.create(None, stream_id=None)
        assert text_of(client.finish(None)) == "Yes."


def test_bad_frames_between_those_of_lanes_end_nothing(server: RunningServer) -> None:
    with open_lanes(server) as client:
        client.create("a", "At length")
        for frame in ("{", "[]", '{"stream_id": "a"}', '{"type": "response.inject", "stream_id": "a"}'):
            client.websocket.send(frame)
        codes = [client.receive_error(lane)[1] for lane in (None, None, "a", "a")]
        assert codes == ["invalid_json", "invalid_json", "missing_required_parameter", "invalid_value"]
        check_stream(client.streams("a")[0]) if client.finish("a") else None


def test_thirty_third_lane_is_refused(server: RunningServer) -> None:
    with open_lanes(server) as client:
        for number in range(32):
            client.create(f"lane-{number}")
            client.finish(f"lane-{number}")
        client.create("one-more")
        assert client.receive_error("one-more") == (400, "websocket_stream_limit_reached", "stream_id")
        for lane in (None, "lane-0"):
            client.create(lane)
            assert text_of(client.finish(lane, 1 if lane is None else 2)) == "Yes."


def test_seventeenth_response_waits(server: RunningServer) -> None:
    with open_lanes(server) as client:
        for number in range(17):
            client.create(f"lane-{number}", "Forever")
        wait_with_progress(lambda: server.engine.stats().running == 16, "sixteen responses run")
        client.create("lane-16", "Hi")
        while len(client.order) < 16 * 3:
            client.receive()
        assert "lane-16" not in client.events


def test_request_beyond_sixty_four_waiting_ones_is_refused(server: RunningServer) -> None:
    with open_lanes(server) as client:
        for _ in range(1 + 64 + 2):
            client.create("a", "Forever")
        for _ in range(2):
            assert client.receive_error("a") == (429, "rate_limit_exceeded", None)
        client.create("b")
        assert text_of(client.finish("b")) == "Yes.", "another lane is free"


def test_waiting_requests_have_a_limit_of_bytes(server: RunningServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("antiphon.app.websocket.lanes.MAX_WAITING_BYTES", 10_000)
    with open_lanes(server) as client:
        client.create("a", "Forever")
        client.create("a", "x" * 9000)
        client.create("a", "y" * 9000)
        assert client.receive_error("a") == (429, "rate_limit_exceeded", None)
        client.create("a", "small")
        client.create("b", "z" * 20_000)
        assert text_of(client.finish("b")) == "Yes.", "it need not wait"


def test_items_of_a_lane_can_be_referred_to(server: RunningServer, tmp_path: Path) -> None:
    assert tmp_path
    with open_lanes(server) as client:
        client.create("a", "The word is zebra.")
        item = client.finish("a")["output"][0]["id"]
        reference = {"type": "item_reference", "id": item}
        client.create("a", [{"role": "user", "content": "Hi"}, reference, {"role": "user", "content": "And?"}])
        assert client.finish("a", 2)["status"] == "completed"
