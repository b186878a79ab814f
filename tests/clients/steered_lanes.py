"""Lanes whose turns are steered at random moments: the plan for a client, the script, and checks of what it saw."""

import asyncio
import json
import random
import re
from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from websockets.sync.client import connect

from antiphon.engine.protocol import Chunk
from tests.clients.lane_client import LaneClient
from tests.clients.sdk_helpers import Json
from tests.invariants import check_stream
from tests.serving import RunningServer

ENDINGS = ("response.completed", "response.incomplete", "response.failed")
CALL = '<tool_call>\n{"name": "read", "arguments": {}}\n</tool_call>'
READ: Json = {
    "type": "function",
    "name": "read",
    "parameters": {"type": "object", "properties": {}},
    "strict": False,
}
PAUSE = {"pause": 0.005}
OUTPUTS: tuple[list[Any], ...] = (
    ["One", PAUSE, " two", PAUSE, " three."],
    ["<think>\nHm", PAUSE, " so.", "\n</think>\n\n", PAUSE, "Said."],
    [PAUSE, PAUSE, PAUSE, "Late."],
    [CALL[:30], PAUSE, CALL[30:]],
    ["I read.\n", PAUSE, CALL],
    ["<think>\nHm.\n</think>\n\n", PAUSE, CALL, PAUSE, CALL],
    ["Yes", "."],
)
"""Outputs of the turns. The last one is often over before its steer arrives."""
FORK = {"lane": "fork", "source": "lane-00", "turn": 3}
FORKED, STEERED, LOST = "A fork.", "Steered.", "The prompt lacks what came before."
MAX_MOMENT = 14
TAIL = 600
"""Number of bytes at the end of a prompt that hold its last turn."""
AWAITED = 0
"""Moment of a steer that the turn's output waits for, so that it arrives in time on any machine."""
Plan = dict[str, list[list[int]]]
"""By lane and turn, the numbers of events after which steers are sent."""


def plan_lanes(num_lanes: int, num_turns: int, num_steers: int, seed: int) -> Plan:
    """Returns random moments for all steers. The last turn of a lane has none."""
    dice = random.Random(seed)
    turns = {f"lane-{number:02}": [list[int]() for _ in range(num_turns)] for number in range(num_lanes)}
    for number in range(num_steers):
        turn = turns[dice.choice(list(turns))][dice.randrange(num_turns - 1)]
        is_awaited = number % 2 == 0 and AWAITED not in turn
        moments = [moment for moment in range(1, MAX_MOMENT) if moment not in turn]
        turn.append(AWAITED if is_awaited else dice.choice(moments))
    return turns


def build_script(plan: Plan, seed: int) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Returns the replies, and by turn the starts of those that wait for a steer.

    Each turn demands the one before it in its prompt, and what follows a steer demands its text.
    """
    dice = random.Random(seed)
    script: list[dict[str, Any]] = [{"name": "fork", "when": ["Fork.", "Turn lane-00-02."], "output": [FORKED]}]
    starts: dict[str, Any] = {}
    num_turns = len(next(iter(plan.values())))
    for number in range(num_turns - 1, -1, -1):
        for lane, turns in plan.items():
            key, before = f"{lane}-{number:02}", [f"Turn {lane}-{number - 1:02}."] if number else []
            output = ["Last."] if number == num_turns - 1 else dice.choice(OUTPUTS)
            if AWAITED in turns[number]:
                starts[key], *output = output
            script.append({"name": f"steer {key}", "when": [f"Steer {key} "], "output": ["Ste", PAUSE, "ered."]})
            script.append({"name": f"turn {key}", "when": [f"Turn {key}.", *before], "output": output})
    return [{"tokens_per_chunk": 0, **reply} for reply in [*script, {"name": "lost", "output": [LOST]}]], starts


def hold_until_steered(server: RunningServer, starts: dict[str, Any]) -> None:
    """Lets outputs continue after their starts when the steer has arrived."""
    manager, engine, model_format = server.context.turn_manager, server.engine, server.context.models.served[0].format
    steer_turn, generate = manager.steer_turn, engine.generate
    arrived: defaultdict[str, asyncio.Event] = defaultdict(asyncio.Event)

    def report_steer(response_id: str) -> None:
        arrived[response_id].set()
        steer_turn(response_id)

    async def generate_later(job: Any, on_chunk: Any) -> None:
        key = re.findall(r"(?:Turn|Steer) (lane-\d+-\d+(?: |\.))", model_format.decode(job.tokens[-TAIL:]))[-1]
        if key[:-1] in starts and key.endswith("."):
            start = starts[key[:-1]]
            on_chunk(Chunk())
            on_chunk(Chunk(tokens=tuple(model_format.encode(start)) if isinstance(start, str) else ()))
            await arrived[job.id].wait()
        await generate(job, on_chunk)

    setattr(manager, "steer_turn", report_steer)  # noqa: B010 - a method
    engine.generate = generate_later


def check_lanes(seen: Json, num_lanes: int, num_turns: int, num_steers: int) -> Counter[str]:
    """Checks all that a client saw. Returns how many steers there are of each kind."""
    assert len(seen["lanes"]) == num_lanes and len(seen["steers"]) == num_steers
    assert seen["unnamed"] == [], "every event names the lane of its response"
    counts: Counter[str] = Counter()
    terminal: dict[str, Json] = {}
    for lane, events in seen["lanes"].items():
        assert {event.pop("stream_id") for event in events} == {lane}
        streams = _split_streams(events)
        for stream in streams:
            check_stream(stream)
            assert LOST not in str(stream[-1]["response"]["output"])
            terminal[stream[-1]["response"]["id"]] = stream[-1]["response"]
        chain = [stream[0]["response"] for stream in streams]
        assert [each["previous_response_id"] for each in chain] == [None, *(each["id"] for each in chain[:-1])]
        assert len(seen["finals"][lane]) == num_turns
        assert all([terminal[final[0]]["status"]] == final[1:2] for final in seen["finals"][lane])
        assert seen["finals"][lane][-1][2] == "Last."
        counts += count_places(events)
    counts += check_inputs(seen, terminal)
    source, text = seen["fork"]
    assert source == seen["finals"][FORK["source"]][int(FORK["turn"]) - 1][0] and text == FORKED
    return counts


def count_places(events: list[Json]) -> Counter[str]:
    """Checks that each steer of a lane is in exactly one place. Returns how many are in each."""
    about = {kind: _list_steers(events, kind) for kind in ("accepted", "pending", "failed")}
    accepted = [event["steer"]["id"] for event in about["accepted"]]
    assert len(set(accepted)) == len(accepted)
    created = [event["response"]["previous_response_id"] for event in events if event["type"] == "response.created"]
    counts = Counter({"rejected": sum("id" not in event["steer"] for event in about["failed"])})
    for event in about["accepted"]:
        places = {kind: sum(_matches(event, other) for other in about[kind]) for kind in ("pending", "failed")}
        places["successor"] = 0 if sum(places.values()) else created.count(event["steer"]["previous_response_id"])
        assert sorted(places.values()) == [0, 0, 1], (event, places)
        counts += Counter(places)
    assert {event["error"]["code"] for event in about["failed"]} <= {"response_already_completed"}
    return counts


def check_inputs(seen: Json, terminal: dict[str, Json]) -> Counter[str]:
    """Checks that each steer is in one input or came back, and that what is stored is what was streamed."""
    inputs: Counter[str] = Counter()
    steered = 0
    for response_id, stored in seen["stored"].items():
        assert stored["response"] == terminal[response_id]
        texts = [part["text"] for item in stored["input"] if item["type"] == "message" for part in item["content"]]
        inputs.update(texts)
        steered += (terminal[response_id]["incomplete_details"] or {}).get("reason") == "steered"
        if not any(text.startswith("Turn ") for text in texts):
            assert _text_of(terminal[response_id]) == STEERED
            assert [text for text in texts if text.startswith("Steer ")] == texts
    events = [event for lane in seen["lanes"].values() for event in lane]
    inputs.update(event["steer"]["input"] for event in _list_steers(events, "failed"))
    assert {steer["text"]: inputs[steer["text"]] for steer in seen["steers"]} == {
        steer["text"]: 1 for steer in seen["steers"]
    }
    return Counter({"ended early": steered, "stored": len(seen["stored"])})


def _split_streams(events: list[Json]) -> list[list[Json]]:
    streams: list[list[Json]] = []
    for event in events:
        if event["type"].startswith("response.steer."):
            continue
        if event["type"] == "response.created":
            streams.append([])
        streams[-1].append(event)
    return streams


def _list_steers(events: list[Json], kind: str) -> list[Json]:
    return [event for event in events if event["type"] == f"response.steer.{kind}"]


def _matches(event: Json, other: Json) -> bool:
    return bool(event["steer"]["id"] == other["steer"].get("id"))


def _text_of(response: Json) -> str:
    parts = [part for item in response["output"] if item["type"] == "message" for part in item["content"]]
    return "".join(part["text"] for part in parts)


KEYS = ("sk-one", "sk-two")


@contextmanager
def open_with_key(server: RunningServer, key: str = KEYS[0]) -> Iterator[LaneClient]:
    url, headers = server.url.replace("http", "ws") + "/responses", {"authorization": f"Bearer {key}"}
    with connect(url, additional_headers=headers, max_size=None, max_queue=None) as websocket:
        yield LaneClient(websocket)


def begin(
    client: LaneClient, text: Any, lane: str | None = "a", until: str = "response.in_progress", **fields: Any
) -> str:
    """Starts a response, and waits for an event of it. Returns its id."""
    client.create(lane, text, **fields)
    start = len(client.events[lane])
    while not any(event["type"] == until for event in client.events[lane][start:]):
        client.receive()
    created = next(event for event in client.events[lane][start:] if event["type"] == "response.created")
    return str(created["response"]["id"])


def steer(client: LaneClient, response_id: Any, sent: Any = "Turn left", **fields: Any) -> None:
    frame = {"type": "response.steer", "previous_response_id": response_id, "input": sent, **fields}
    client.websocket.send(json.dumps(frame))


def take(client: LaneClient, kind: str, lane: str | None = "a") -> dict[str, Any]:
    """Returns the next event about a steer, and removes it from the lane."""
    name = f"response.steer.{kind}"
    while not (found := [event for event in client.events[lane] if event["type"] == name]):
        client.receive()
    client.events[lane].remove(found[0])
    return found[0]


def take_failed(client: LaneClient, lane: str | None) -> str:
    """Returns the code of the next refusal of a steer."""
    return str(take(client, "failed", lane)["error"]["code"])
