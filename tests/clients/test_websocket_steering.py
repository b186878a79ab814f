"""Steering over a WebSocket: what becomes of a response and of its steers, in each state, and when they come too late."""

import random
from functools import partial
from typing import Any

import openai
import pytest

from tests.clients.lane_client import LaneClient, open_lanes, text_of
from tests.clients.steered_lanes import begin, steer, take
from tests.invariants import check_stream
from tests.serving import RunningServer, scripted_registry, serve

CALL = '<tool_call>\n{"name": "read", "arguments": {}}\n</tool_call>'
READ: Any = {"type": "function", "name": "read", "parameters": {"type": "object", "properties": {}}}
SCRIPT: list[dict[str, Any]] = [
    {"name": "both", "when": ["Turn left", "Turn right"], "output": ["Both ways."]},
    {"name": "left", "when": ["Turn left"], "output": ["Left", " it is."]},
    {"name": "silent", "when": ["Silence"], "output": [{"stall": True}]},
    {"name": "thinking", "when": ["Think"], "output": ["<think>\nHm.", {"pause": 0.2}, "\n</think>\n\nNever said."]},
    {"name": "talking", "when": ["Talk"], "output": ["One", {"pause": 0.2}, " two."]},
    {
        "name": "calling",
        "when": ["Call"],
        "output": [CALL[:30], {"pause": 0.2}, CALL[30:]],
    },
    {
        "name": "broken",
        "when": ["Break"],
        "output": ["Oh", {"pause": 0.2}, {"fault": "broken", "code": "server_error"}],
    },
    {"name": "short", "when": ["Cut"], "output": ["<think>\nA", {"pause": 0.1}, "</think>B"], "finish": "length"},
    {"name": "any", "output": ["Yes."]},
]

SERVER = partial(serve, partial(scripted_registry, SCRIPT, max_num_seqs=64))


def test_silent_response_ends_at_once_and_its_successor_reads_the_steer(server: RunningServer) -> None:
    with open_lanes(server) as client:
        parent = begin(client, "Silence", instructions="Be brief.", temperature=0.5)
        steer(client, parent)
        accepted = take(client, "accepted")
        assert (
            accepted["steer"]["previous_response_id"] == parent and len(accepted["steer"]["id"]) == len("steer_") + 32
        )
        assert accepted["sequence_number"] == 1
        ended, successor = client.finish("a"), client.finish("a", 2)
        assert (ended["status"], ended["incomplete_details"], ended["output"]) == (
            "incomplete",
            {"reason": "steered"},
            [],
        )
        assert successor["previous_response_id"] == parent and text_of(successor) == "Left it is."
        assert (successor["instructions"], successor["temperature"]) == ("Be brief.", 0.5)
        for stream in client.streams("a"):
            check_stream(stream)


def test_reasoning_ends_before_the_successor(server: RunningServer) -> None:
    with open_lanes(server) as client:
        steer(client, begin(client, "Think", until="response.reasoning_text.delta"))
        take(client, "accepted")
        ended = client.finish("a")
        assert ended["incomplete_details"] == {"reason": "steered"}
        assert [(item["type"], item["status"]) for item in ended["output"]] == [("reasoning", "completed")]
        assert text_of(client.finish("a", 2)) == "Left it is."
        for stream in client.streams("a"):
            check_stream(stream)


def test_message_continues_to_its_end(server: RunningServer) -> None:
    with open_lanes(server) as client:
        steer(client, begin(client, "Talk", until="response.output_text.delta"))
        take(client, "accepted")
        ended = client.finish("a")
        assert (ended["status"], text_of(ended)) == ("completed", "One two.")
        assert text_of(client.finish("a", 2)) == "Left it is."


def test_response_at_its_limit_has_a_successor(server: RunningServer) -> None:
    with open_lanes(server) as client:
        steer(client, begin(client, "Cut", until="response.reasoning_text.delta"))
        take(client, "accepted")
        assert client.finish("a")["status"] == "incomplete"
        assert text_of(client.finish("a", 2)) == "Left it is."


@pytest.mark.parametrize("own", ["outputs", "outputs and text"])
def test_call_is_not_interrupted_and_the_next_request_reads_the_steers(server: RunningServer, own: str) -> None:
    with open_lanes(server) as client:
        parent = begin(client, "Call", until="response.output_item.added", tools=[READ], store=True)
        for text in ("Turn left", "Turn right"):
            steer(client, parent, text)
            take(client, "accepted")
        ended = client.finish("a")
        assert ended["status"] == "completed"
        (call,) = [item for item in ended["output"] if item["type"] == "function_call"]
        stub = {"type": "function_call_output", "call_id": call["call_id"], "name": "read"}
        for _ in range(2):
            pending = take(client, "pending")
            assert (pending["reason"], pending["required_input"]) == ("waiting_for_required_input", [stub])
        items: list[Any] = [{"type": "function_call_output", "call_id": call["call_id"], "output": "text"}]
        items += [{"role": "user", "content": "Go on."}] if own == "outputs and text" else []
        client.create("a", 5, previous_response_id=parent, store=True)  # refused, and nothing is lost
        assert client.receive_error("a")[1] == "invalid_type"
        client.create("a", items, previous_response_id=parent, store=True, instructions="Mine.")
        successor = client.finish("a", 2)
        assert (text_of(successor), successor["instructions"]) == ("Both ways.", "Mine.")
        listed = sdk_items(server, successor["id"])
        assert listed == ["message", "message", "function_call_output"] + ["message"] * (own == "outputs and text")
        client.create("a", "Hi", previous_response_id=successor["id"], store=True)
        assert text_of(client.finish("a", 3)) == "Both ways.", "they are part of the conversation, once"


def sdk_items(server: RunningServer, response_id: str) -> list[str]:
    """Returns the types of a response's stored input items, in order."""
    with openai.OpenAI(base_url=server.url, api_key="none") as client:
        return [item.type for item in client.responses.input_items.list(response_id, order="asc")]


def test_request_that_waits_already_needs_no_pending_event(server: RunningServer) -> None:
    with open_lanes(server) as client:
        parent = begin(client, "Call", until="response.output_item.added", tools=[READ])
        steer(client, parent)
        take(client, "accepted")
        output = {"type": "function_call_output", "call_id": "unknown", "output": "x"}
        client.create("a", [output], previous_response_id=parent)
        client.finish("a")
        assert client.receive_error("a")[0] == 400
        assert not [event for event in client.events["a"] if event["type"] == "response.steer.pending"]


def test_two_steers_are_read_by_one_successor(server: RunningServer) -> None:
    with open_lanes(server) as client:
        parent = begin(client, "Talk", until="response.output_text.delta")
        steer(client, parent, "Turn left")
        message = {"role": "user", "content": [{"type": "input_text", "text": "Turn right"}]}
        steer(client, parent, [message])
        assert take(client, "accepted")["steer"]["id"] != take(client, "accepted")["steer"]["id"]
        client.finish("a")
        assert text_of(client.finish("a", 2)) == "Both ways."


def test_successor_runs_before_requests_that_wait(server: RunningServer) -> None:
    with open_lanes(server) as client:
        parent = begin(client, "Talk", until="response.output_text.delta")
        client.create("a", "Something else")
        steer(client, parent)
        client.finish("a")
        assert [text_of(client.finish("a", number)) for number in (2, 3)] == ["Left it is.", "Yes."]


def test_successor_can_be_steered_and_is_the_latest_of_its_lane(server: RunningServer) -> None:
    with open_lanes(server) as client:
        parent = begin(client, "Silence", None)
        steer(client, parent, "Silence again")
        take(client, "accepted", None)
        client.finish(None)
        while len([e for e in client.events[None] if e["type"] == "response.in_progress"]) < 2:
            client.receive()
        successor = [e for e in client.events[None] if e["type"] == "response.created"][1]["response"]["id"]
        steer(client, successor, "Turn left")
        take(client, "accepted", None)
        last = client.finish(None, 3)
        assert last["previous_response_id"] == successor and text_of(last) == "Left it is."
        client.create(None, "And?", previous_response_id=last["id"])
        assert client.finish(None, 4)["status"] == "completed"


def test_failed_response_gives_the_steer_back(server: RunningServer) -> None:
    with open_lanes(server) as client:
        parent = begin(client, "Break", until="response.output_text.delta")
        sent = [{"role": "user", "content": "Turn left"}]
        steer(client, parent, sent)
        accepted = take(client, "accepted")
        failed = take(client, "failed")
        assert failed["error"]["code"] == "response_not_active"
        assert failed["steer"] == {**accepted["steer"], "input": sent}


def test_successor_that_cannot_be_created_gives_the_steer_back(server: RunningServer) -> None:
    with open_lanes(server) as client:
        parent = begin(client, "Talk", until="response.output_text.delta")
        steer(client, parent, "x" * 200_000)
        take(client, "accepted")
        failed = take(client, "failed")
        assert failed["error"]["code"] == "successor_creation_failed" and "context" in failed["error"]["message"]
        client.create("a")
        assert text_of(client.finish("a", 2)) == "Yes.", "the lane goes on"


def test_steer_that_comes_too_late_is_given_back_in_the_lane_of_its_response(server: RunningServer) -> None:
    with open_lanes(server) as client:
        for lane, text, code in (("a", "Hi", "response_already_completed"), ("b", "Break", "response_not_active"),
                                 (None, "Hi", "response_already_completed")):  # fmt: skip
            client.create(lane, text)
            steer(client, client.finish(lane)["id"])
            event = take(client, "failed", lane)
            assert event["error"]["code"] == code and "id" not in event["steer"]
            assert event["steer"]["input"] == "Turn left"
            assert event["sequence_number"] == client.events[lane][-1]["sequence_number"]
        for response_id in ("resp_x", None, 5):
            steer(client, response_id)
            event = take(client, "failed", None)
            assert event["error"]["code"] == "response_not_found" and "id" not in event["steer"]


@pytest.mark.parametrize(
    "frame",
    [
        {"input": None}, {"input": []}, {"input": 5}, {"input": {}}, {"stream_id": "a"}, {"model": "scripted"},
        {"input": [{"role": "system", "content": "x"}]}, {"input": [{"type": "item_reference", "id": "msg_1"}]},
        {"input": [{"role": "user", "content": "x", "id": "msg_1"}]}, {"input": [{"role": "user", "content": 5}]},
        {"input": [{"role": "user", "content": [{"type": "output_text", "text": "x"}]}]},
        {"input": [{"type": "function_call_output", "call_id": "c", "output": "x"}]}, {"input": ["x"]},
    ],
    ids=str,
)  # fmt: skip
def test_bad_input_is_given_back_and_changes_nothing(server: RunningServer, frame: dict[str, Any]) -> None:
    with open_lanes(server) as client:
        parent = begin(client, "Talk", until="response.output_text.delta")
        steer(client, parent, **frame) if "input" not in frame else steer(client, parent, frame["input"])
        failed = take(client, "failed")
        assert failed["error"]["code"] == "invalid_input"
        assert failed["steer"]["input"] == frame.get("input", "Turn left")
        assert text_of(client.finish("a")) == "One two."
        client.create("a")
        client.finish("a", 2)
        assert len(client.streams("a")) == 2, "there is no successor"


@pytest.mark.parametrize("fields", [{"generate": False}, {"context_management": [{"type": "compaction"}]}])
def test_responses_that_cannot_be_steered(server: RunningServer, fields: dict[str, Any]) -> None:
    with open_lanes(server) as client:
        client.create("a", "Silence", **fields)
        while not client.events["a"]:
            client.receive()
        steer(client, client.events["a"][0]["response"]["id"])
        code = take(client, "failed")["error"]["code"] if "generate" not in fields else None
        assert code in ("steering_not_supported", None)


def test_too_many_steers_are_given_back(server: RunningServer) -> None:
    with open_lanes(server) as client:
        parent = begin(client, "Call", until="response.output_item.added", tools=[READ])
        for _ in range(17):
            steer(client, parent)
        assert take(client, "failed")["error"]["code"] == "too_many_pending_steers"
        for _ in range(16):
            take(client, "accepted")
        steer(client, parent, "x" * 300_000)
        assert take(client, "failed")["error"]["code"] in ("too_many_pending_steers", "response_already_completed")


def test_steers_at_random_moments_end_in_exactly_one_place(server: RunningServer) -> None:
    dice = random.Random(11)
    with open_lanes(server) as client:
        num_sent = 60
        for number in range(num_sent):
            lane, text = f"lane-{number % 8}", dice.choice(["Think", "Talk", "Silence", "Call", "Hi"])
            parent = begin(client, f"{text} {number}", lane, tools=[READ])
            for _ in range(dice.randrange(4) if text != "Silence" else 0):
                if client.events[lane][-1]["type"] not in ENDED:
                    client.receive()
            steer(client, parent, f"Turn left {number}")
            wait_settled(client, lane, parent)
        events = [event for lane in client.events.values() for event in lane]
        by_kind = {
            kind: [e for e in events if e["type"] == f"response.steer.{kind}"]
            for kind in ("accepted", "pending", "failed")
        }
        successors = {e["response"]["previous_response_id"] for e in events if e["type"] == "response.created"} - {None}
        for event in by_kind["accepted"]:
            parent = event["steer"]["previous_response_id"]
            places = [parent in successors, any(e["steer"].get("id") == event["steer"]["id"] for e in by_kind["pending"]),
                      any(e["steer"].get("id") == event["steer"]["id"] for e in by_kind["failed"])]  # fmt: skip
            assert sum(places) == 1
        assert len(by_kind["accepted"]) + len([e for e in by_kind["failed"] if "id" not in e["steer"]]) == num_sent
        assert by_kind["accepted"] and by_kind["pending"]


ENDED = ("response.completed", "response.incomplete", "response.failed")


def wait_settled(client: LaneClient, lane: str, parent: str) -> None:
    """Waits until a steer of a response has ended in one place, and the lane is free."""
    while True:
        events = [event for each in client.events.values() for event in each]
        about = [
            e
            for e in events
            if e["type"].startswith("response.steer.") and e["steer"]["previous_response_id"] == parent
        ]
        kinds = {event["type"].rsplit(".", 1)[1] for event in about}
        ended = [e["response"] for e in client.events[lane] if e["type"] in ENDED]
        has_successor = any(response["previous_response_id"] == parent for response in ended)
        if any(response["id"] == parent for response in ended) and (kinds & {"pending", "failed"} or has_successor):
            return
        client.receive()
