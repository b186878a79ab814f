"""The WebSocket session of OpenAI's SDK: lanes whose turns are steered, and a fork of one of them.

The program is run as `python PROGRAM TASK`. The task is a JSON object: `url`, `model`, `tools`, `fork`, and for each lane its turns. A turn
is the list of the moments of its steers: numbers of events of its response after which they are sent. It prints the
events of each lane, the steers, and the stored forms of steered responses and of those that follow them.
"""

import asyncio
import json
import sys
from typing import Any

from openai import AsyncOpenAI
from openai.lib.responses_websocket import AsyncResponsesWebSocketSession, ResponsesWebSocketLimits

TASK = json.loads(sys.argv[1])
ENDINGS = ("response.completed", "response.incomplete", "response.failed")
LIMITS = ResponsesWebSocketLimits(
    max_lanes=40, max_events_per_lane=10_000, max_events=100_000, max_bytes_per_lane=1 << 28, max_bytes=1 << 28
)


class LaneRun:
    """The turns of one lane, one after the other."""

    def __init__(self, session: AsyncResponsesWebSocketSession, name: str, before_turn: Any = None) -> None:
        self.lane, self.name, self.before_turn = session.lane(name), name, before_turn
        self.events: list[dict[str, Any]] = []
        self.steers: list[dict[str, str]] = []
        self.finals: list[list[Any]] = []
        self.latest: dict[str, Any] = {"id": None, "output": []}
        self.ended: set[str] = set()

    async def run(self, turns: list[list[int]]) -> None:
        """Runs all turns."""
        for number, moments in enumerate(turns):
            if self.before_turn is not None:
                await self.before_turn(number, self.latest["id"])
            await self.run_turn(f"{self.name}-{number:02}", sorted(moments))
            final = await self.lane.get_final_response()
            self.finals.append([final.id, final.status, final.output_text])

    async def run_turn(self, key: str, moments: list[int]) -> None:
        """Runs one turn and the responses that its steers cause."""
        calls = [item["call_id"] for item in self.latest["output"] if item["type"] == "function_call"]
        outputs = [{"type": "function_call_output", "call_id": call, "output": "text"} for call in calls]
        await self.lane.send(make_create([*outputs, say(f"Turn {key}.")], self.latest["id"]))
        response_id, num_own = (await self.receive())["response"]["id"], 1
        while moments or not self.is_settled():
            if moments and (response_id in self.ended or moments[0] <= num_own):
                await self.steer(response_id, f"Steer {key} at {moments.pop(0)}.")
            else:
                num_own += not (await self.receive())["type"].startswith("response.steer.")

    async def steer(self, response_id: str, text: str) -> None:
        """Steers a response."""
        self.steers.append({"parent": response_id, "text": text})
        await self.lane.send({"type": "response.steer", "previous_response_id": response_id, "input": text})

    async def receive(self) -> dict[str, Any]:
        """Returns the next event, and keeps it."""
        event = (await self.lane.recv()).to_dict(mode="json")
        self.events.append(event)
        if event["type"] in ENDINGS:
            self.latest = event["response"]
            self.ended.add(self.latest["id"])
        return event

    def is_settled(self) -> bool:
        """Tells whether all responses have ended, and all steers are in their places."""
        kinds: dict[str, list[dict[str, Any]]] = {}
        for event in self.events:
            kinds.setdefault(event["type"], []).append(event)
        created = kinds.get("response.created", [])
        accepted, failed = kinds.get("response.steer.accepted", []), kinds.get("response.steer.failed", [])
        rejected = [event for event in failed if "id" not in event["steer"]]
        followed = {event["response"]["previous_response_id"] for event in created}
        placed = {event["steer"].get("id") for event in failed + kinds.get("response.steer.pending", [])}
        return (
            len(created) == sum(len(kinds.get(ending, [])) for ending in ENDINGS)
            and len(accepted) + len(rejected) == len(self.steers)
            and all(
                event["steer"]["id"] in placed or event["steer"]["previous_response_id"] in followed
                for event in accepted
            )
        )


def say(text: str) -> dict[str, Any]:
    """Returns a message of the user."""
    return {"type": "message", "role": "user", "content": text}


def make_create(items: list[dict[str, Any]], previous: str | None) -> Any:
    """Returns a request."""
    settings = {"model": TASK["model"], "tools": TASK["tools"], "store": True, "previous_response_id": previous}
    return {"type": "response.create", "input": items, **settings}


async def read_stored(client: AsyncOpenAI, runs: list[LaneRun]) -> dict[str, Any]:
    """Returns what is stored of the steered responses, and of all that follow them."""
    steered = {steer["parent"] for run in runs for steer in run.steers}
    created = [event["response"] for run in runs for event in run.events if event["type"] == "response.created"]
    stored: dict[str, Any] = {}
    for response in created:
        if response["id"] in steered or response["previous_response_id"] in steered:
            found = await client.responses.retrieve(response["id"])
            items = client.responses.input_items.list(response["id"], order="asc")
            stored[response["id"]] = {
                "response": found.to_dict(mode="json"),
                "input": [item.to_dict(mode="json") async for item in items],
            }
    return stored


async def main() -> None:
    """Runs all lanes at once, then prints what they saw."""
    unnamed: list[Any] = []
    async with AsyncOpenAI(base_url=TASK["url"], api_key="none", max_retries=0) as client:
        async with (
            client.responses.connect(websocket_connection_options={"max_size": None}) as connection,
            AsyncResponsesWebSocketSession(connection, limits=LIMITS) as session,
        ):
            fork = session.lane(TASK["fork"]["lane"])

            async def send_fork(number: int, latest: str | None) -> None:
                if number == TASK["fork"]["turn"]:
                    await fork.send(make_create([say("Fork.")], latest))

            async def watch_default() -> None:
                while True:
                    unnamed.append((await session.default.recv()).to_dict(mode="json"))

            watch = asyncio.create_task(watch_default())
            runs = {
                name: LaneRun(session, name, send_fork if name == TASK["fork"]["source"] else None)
                for name in TASK["lanes"]
            }
            await asyncio.gather(*(runs[name].run(turns) for name, turns in TASK["lanes"].items()))
            forked = await fork.get_final_response()
            watch.cancel()
        results = {
            "lanes": {name: run.events for name, run in runs.items()},
            "steers": [steer for run in runs.values() for steer in run.steers],
            "finals": {name: run.finals for name, run in runs.items()},
            "fork": [forked.previous_response_id, forked.output_text],
            "unnamed": unnamed,
            "stored": await read_stored(client, list(runs.values())),
        }
    json.dump(results, sys.stdout)


asyncio.run(main())
