"""Memory of what connections keep between turns: those of an owner, and of all owners, keep a bounded part together."""

import asyncio
import json
from contextlib import ExitStack
from functools import partial
from typing import Any

import pytest

from antiphon.app.http.request_body import BodyMemory, BodyReservation
from antiphon.app.websocket.frames import CreateFrame
from antiphon.app.websocket.held_memory import ConnectionHold, HeldMemory, count_bytes
from antiphon.app.websocket.history import LaneResponse
from antiphon.app.websocket.lanes import LaneScheduler, WaitingTurn
from antiphon.events.inputs import InputMessage, InputText
from tests.clients.lane_client import LaneClient, open_lanes, text_of
from tests.serving import RunningServer, scripted_registry, serve

CALL = '<tool_call>\n{"name": "read", "arguments": {}}\n</tool_call>'
READ: Any = {"type": "function", "name": "read", "parameters": {"type": "object", "properties": {}}}
SCRIPT: list[dict[str, Any]] = [
    {"name": "word", "when": ["Which word?", "zebra"], "output": ["Zebra."]},
    {"name": "endless", "when": ["Forever"], "output": ["On and on", {"stall": True}]},
    {"name": "calling", "when": ["Call"], "output": [CALL[:30], {"pause": 0.2}, CALL[30:]]},
    {"name": "any", "output": ["Yes", "."]},
]
KEYS = ("sk-one", "sk-two", "sk-three")
MAX_BYTES = 100_000
"""An owner has half of it."""
NOT_FOUND = (400, "previous_response_not_found", "previous_response_id")

SERVER = partial(serve, partial(scripted_registry, SCRIPT, max_num_seqs=64), api_keys=KEYS)


@pytest.fixture(autouse=True)
def _limits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("antiphon.app.websocket.held_memory.MAX_HELD_BYTES", MAX_BYTES)


def remember(client: LaneClient, num_bytes: int, lane: str = "a", **fields: Any) -> str:
    """Runs a turn whose history has about this size. Returns the id of its response."""
    client.create(lane, "The word is zebra." + "x" * num_bytes, **fields)
    return str(finish_turn(client, lane)["id"])


def finish_turn(client: LaneClient, lane: str) -> dict[str, Any]:
    """Returns the next response of a lane once its history is counted: then the lane refuses the next request."""
    response = client.finish(lane, len(client.ended[lane]) + 1)
    client.create(lane, 5)
    client.receive_error(lane)
    return response


def ask(client: LaneClient, response_id: str, lane: str = "a") -> str:
    """Returns the answer of a turn that continues a response, which needs its history."""
    client.create(lane, "Which word?", previous_response_id=response_id)
    return text_of(finish_turn(client, lane))


def assert_dropped(client: LaneClient, response_id: str, lane: str = "a") -> None:
    """Asserts that a turn cannot continue a response, and learns why."""
    client.create(lane, "Which word?", previous_response_id=response_id)
    event = client.receive()
    assert event["type"] == "error", "the history was kept"
    assert "dropped" in event["error"]["message"]
    assert client.receive_error(lane) == NOT_FOUND


def test_history_used_longest_ago_by_an_owner_is_dropped_above_its_share(server: RunningServer) -> None:
    with ExitStack() as stack:
        other, *clients = (stack.enter_context(open_lanes(server, key)) for key in (KEYS[1], *[KEYS[0]] * 4))
        others = remember(other, 40_000)
        first, second, third = (remember(client, 15_000) for client in clients[:3])
        assert ask(clients[0], first, "fork") == "Zebra."
        assert_dropped(clients[1], second)
        assert ask(clients[0], first, "last") == "Zebra."
        assert ask(other, others) == "Zebra.", "another owner has its own share"
        assert_dropped(clients[2], third)
        assert ask(clients[2], remember(clients[2], 10)) == "Zebra.", "the lane lives on"


def test_owner_with_the_most_loses_a_history_above_the_limit(server: RunningServer) -> None:
    with ExitStack() as stack:
        clients = [stack.enter_context(open_lanes(server, key)) for key in KEYS]
        sizes = (30_000, 45_000, 30_000)
        ids = [remember(client, size) for client, size in zip(clients, sizes, strict=True)]
        assert ask(clients[0], ids[0]) == "Zebra."
        assert_dropped(clients[1], ids[1])
        assert ask(clients[2], ids[2]) == "Zebra."


def test_dropped_history_of_a_stored_response_is_read_from_the_store(server: RunningServer) -> None:
    with open_lanes(server, KEYS[0]) as client:
        stored = remember(client, 60_000, store=True)
        assert ask(client, stored) == "Zebra."


def test_connection_that_has_ended_keeps_nothing(server: RunningServer) -> None:
    with open_lanes(server, KEYS[0]) as client:
        with open_lanes(server, KEYS[0]) as ended:
            remember(ended, 45_000)
        kept = remember(client, 20_000)
        assert ask(client, kept, "fork") == "Zebra."


def test_source_of_a_fork_that_waits_counts_until_the_fork_runs() -> None:
    """The lane has continued, and its earlier response is kept for the fork only."""

    async def run() -> None:
        memory, is_over = HeldMemory(), asyncio.Event()

        async def run_turn(turn: WaitingTurn) -> None:
            if turn.frame.body.get("waits"):
                await is_over.wait()
            else:
                turn.lane.latest = LaneResponse(str(turn.frame.body["id"]), False, (), 1000)

        async def settle() -> None:
            while lanes.find_lane("a").is_running:
                await asyncio.sleep(0)

        reservation, hold = BodyReservation(BodyMemory(1000)), ConnectionHold(memory, "me")
        lanes = LaneScheduler(run_turn, lambda: None, reservation, hold, lambda _: None)
        lanes.add(lanes.find_lane("b"), make_frame(waits=True))
        lanes.add(lanes.find_lane("a"), make_frame(id="first"))
        await settle()
        lanes.add(lanes.find_lane("b"), make_frame(id="fork", previous_response_id="first"))
        lanes.add(lanes.find_lane("a"), make_frame(id="second"))
        await settle()
        assert memory.num_bytes == 2000, "the source of the fork, and the latest response"
        is_over.set()
        while not lanes.is_idle:
            await asyncio.sleep(0)
        assert memory.num_bytes == 2000, "the latest responses of both lanes"
        await lanes.cancel_all()
        assert memory.num_bytes == 0

    asyncio.run(run())


def test_size_of_a_history_is_that_of_all_its_items() -> None:
    """Those that the response before it has are not measured again, unless they are not all of its items."""

    async def run() -> None:
        items = tuple(InputMessage(role="user", content=(InputText(text="x" * number),)) for number in range(1000))
        first = LaneResponse("first", False, items[:400])
        await first.count_items(None, 0, 10)
        for previous, num_earlier in ((first, 400), (first, 300), (None, 400)):
            second = LaneResponse("second", False, items)
            await second.count_items(previous, num_earlier, 10)
            assert second.num_bytes == count_bytes(items)

    asyncio.run(run())


def make_frame(**body: Any) -> CreateFrame:
    return CreateFrame(body=body, stream_id=None, is_prefill=False, num_bytes=10)


def test_steers_that_wait_for_a_request_are_given_back_above_the_share(server: RunningServer) -> None:
    sent = "y" * 20_000
    with open_lanes(server, KEYS[0]) as client, open_lanes(server, KEYS[0]) as other:
        client.create("a", "Call", tools=[READ])
        while not any(event["type"] == "response.output_item.added" for event in client.events["a"]):
            client.receive()
        parent = client.events["a"][0]["response"]["id"]
        frame = {"type": "response.steer", "previous_response_id": parent, "input": sent}
        client.websocket.send(json.dumps(frame))
        while client.receive()["type"] != "response.steer.pending":
            pass
        remember(other, 40_000)
        event = client.receive()
        assert (event["type"], event["error"]["code"]) == ("response.steer.failed", "too_many_pending_steers")
        assert event["steer"]["input"] == sent
