"""Runs a case through the whole house but the socket, twice: as Responses and as Chat."""

import asyncio
import itertools
import json
from typing import Any

from antiphon.app.errors import ApiError
from antiphon.app.event_log import EventLog
from antiphon.app.projections import chat, responses
from antiphon.app.http.stream_writer import StreamEncoder, pump
from antiphon.app.requests import chat as chat_request
from antiphon.app.requests import responses as responses_request
from antiphon.app.store.memory import MemoryStore
from antiphon.app.turns.manager import TurnManager
from tests.serving import scripted_registry
from tests.snapshots.cases import TOOLS, Case

USER = "Go on."


class Reading:
    """A case read once: its frames as they left, the whole reply, and the log both were read from."""

    def __init__(self, frames: bytes, whole: bytes | ApiError, log: EventLog | None) -> None:
        self.frames, self.whole, self.log = frames, whole, log

    @property
    def data(self) -> list[dict[str, Any]]:
        """What stands in the `data:` lines, the end mark left out."""
        lines = [line.removeprefix("data: ") for line in self.frames.decode().split("\n") if line.startswith("data: ")]
        assert lines[-1:] in ([], ["[DONE]"])
        return [json.loads(line) for line in lines[:-1]]


class Kept:
    """A pipe that keeps what is written, piece by piece; it is stuck while `free` is not set."""

    def __init__(self) -> None:
        self.pieces: list[bytes] = []
        self.free = asyncio.Event()
        self.free.set()

    @property
    def write_paused(self) -> bool:
        return not self.free.is_set()

    def write_chunk(self, piece: bytes) -> None:
        assert not self.write_paused
        self.pieces.append(piece)

    async def drain(self) -> None:
        await self.free.wait()


async def written(telling: StreamEncoder) -> bytes:
    """All that a telling writes."""
    pipe = Kept()
    await pump(telling, pipe)
    return b"".join(pipe.pieces)


def turns(**options: Any) -> TurnManager:
    """Turns whose ids and time are the same in every run."""
    count = itertools.count()
    return TurnManager(MemoryStore(), clock=lambda: 1_700_000_000.0, id_factory=lambda prefix: f"{prefix}_{next(count)}", **options)


def catalogue(case: Case):
    reply = {"name": case.name, "output": case.speak, "finish": case.finish, "tokens_per_chunk": case.step}
    return scripted_registry([reply], dialect=case.dialect)


async def read_responses(case: Case, **options: Any) -> Reading:
    """The case through `/v1/responses`."""
    body = {"model": "scripted", "input": USER, "tools": TOOLS, "stream": True} | case.request | case.responses
    asked = responses_request.read_responses_request(body, catalogue(case))
    home = turns(**options)
    try:
        log = await home.start_turn(asked.model, asked.spec)
    except ApiError as error:
        return Reading(b"", error, None)
    await _let_go(case, home, [log])
    frames = await written(responses.ResponsesStream(log))
    assert asked.model.engine.stats().running == 0
    return Reading(frames, await responses.final_response(log), log)


async def read_chat(case: Case, **options: Any) -> Reading:
    """The case through `/v1/chat/completions`."""
    tools = [_nested(tool) for tool in TOOLS if tool["type"] != "namespace"]
    body = {
        "model": "scripted",
        "messages": [{"role": "user", "content": USER}],
        "tools": tools,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    asked = chat_request.read_chat_request(body | case.request | case.chat, catalogue(case))
    home = turns(**options)
    try:
        logs = await home.start_choices(asked.model, asked.spec)
    except ApiError as error:
        return Reading(b"", error, None)
    await _let_go(case, home, logs)
    frames = await written(chat.ChatStream(logs, asked.spec))
    try:
        return Reading(frames, await chat.final_completion(logs, asked.spec), logs[0])
    except ApiError as error:
        return Reading(frames, error, logs[0])


def _nested(tool: dict[str, Any]) -> dict[str, Any]:
    kind = tool["type"]
    return {"type": kind, kind: {key: value for key, value in tool.items() if key != "type"}}


async def _let_go(case: Case, home: TurnManager, logs: list[EventLog]) -> None:
    """Cancel a stalled turn, once it has said all it will."""
    if not case.cancel:
        return
    await asyncio.sleep(0.05)
    for log in logs:
        home.cancel_turn(log)
