"""Runs a case through the whole server without a socket, once through Responses and once through Chat."""

import asyncio
import itertools
import json
from typing import Any

from antiphon.app.errors import ApiError
from antiphon.app.event_log import EventLog
from antiphon.app.http.stream_writer import StreamEncoder, pump
from antiphon.app.projections import chat, responses
from antiphon.app.requests import chat as chat_request
from antiphon.app.requests import responses as responses_request
from antiphon.app.store.memory import MemoryStore
from antiphon.app.turns.capacity import TurnCapacity
from antiphon.app.turns.manager import TurnManager
from tests.serving import scripted_registry
from tests.snapshots.cases import TOOLS, Case

USER_TEXT = "Go on."


class CaseResult:
    """The result of one case: the frames of its stream, its unstreamed reply, and its event log."""

    def __init__(self, frames: bytes, reply: bytes | ApiError, log: EventLog | None) -> None:
        self.frames, self.reply, self.log = frames, reply, log

    @property
    def data(self) -> list[dict[str, Any]]:
        """The data of every frame, without the end mark."""
        lines = [line.removeprefix("data: ") for line in self.frames.decode().split("\n") if line.startswith("data: ")]
        assert lines[-1:] in ([], ["[DONE]"])
        return [json.loads(line) for line in lines[:-1]]


class RecordingStreamWriter:
    """A stream writer that records each write. Writes are paused while `free` is not set."""

    def __init__(self) -> None:
        self.writes: list[bytes] = []
        self.free = asyncio.Event()
        self.free.set()

    @property
    def write_paused(self) -> bool:
        return not self.free.is_set()

    def write_chunk(self, data: bytes) -> None:
        assert not self.write_paused
        self.writes.append(data)

    async def drain(self) -> None:
        await self.free.wait()


async def collect_frames(encoder: StreamEncoder) -> bytes:
    """Returns all frames of a stream."""
    writer = RecordingStreamWriter()
    await pump(encoder, writer)
    return b"".join(writer.writes)


def make_turn_manager(**options: Any) -> TurnManager:
    """Returns a turn manager whose ids and time are the same in every run."""
    counter = itertools.count()
    return TurnManager(
        MemoryStore(),
        TurnCapacity(()),
        clock=lambda: 1_700_000_000.0,
        id_factory=lambda prefix: f"{prefix}_{next(counter)}",
        **options,
    )


def make_single_case_registry(case: Case):
    reply = {"name": case.name, "output": case.output, "finish": case.finish, "tokens_per_chunk": case.step}
    return scripted_registry([reply], dialect=case.dialect)


async def read_responses(case: Case, **options: Any) -> CaseResult:
    """Runs the case through `/v1/responses`, streamed and unstreamed."""
    body = {"model": "scripted", "input": USER_TEXT, "tools": TOOLS, "stream": True} | case.request | case.responses
    parsed = responses_request.read_responses_request(body, make_single_case_registry(case))
    manager = make_turn_manager(**options)
    try:
        log = await manager.start_turn(parsed.model, parsed.spec)
    except ApiError as error:
        return CaseResult(b"", error, None)
    await _cancel_stalled_turn(case, manager, [log])
    frames = await collect_frames(responses.ResponsesStream(log))
    assert parsed.model.engine.stats().running == 0
    return CaseResult(frames, await responses.final_response(log), log)


async def read_chat(case: Case, **options: Any) -> CaseResult:
    """Runs the case through `/v1/chat/completions`, streamed and unstreamed."""
    tools = [_chat_tool(tool) for tool in TOOLS if tool["type"] != "namespace"]
    body = {
        "model": "scripted",
        "messages": [{"role": "user", "content": USER_TEXT}],
        "tools": tools,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    parsed = chat_request.read_chat_request(body | case.request | case.chat, make_single_case_registry(case))
    manager = make_turn_manager(**options)
    try:
        logs = await manager.start_choices(parsed.model, parsed.spec)
    except ApiError as error:
        return CaseResult(b"", error, None)
    await _cancel_stalled_turn(case, manager, logs)
    frames = await collect_frames(chat.ChatStream(logs, parsed.spec))
    try:
        return CaseResult(frames, await chat.final_completion(logs, parsed.spec), logs[0])
    except ApiError as error:
        return CaseResult(frames, error, logs[0])


def _chat_tool(tool: dict[str, Any]) -> dict[str, Any]:
    tool_type = tool["type"]
    return {"type": tool_type, tool_type: {key: value for key, value in tool.items() if key != "type"}}


async def _cancel_stalled_turn(case: Case, manager: TurnManager, logs: list[EventLog]) -> None:
    """Cancels a stalled turn after it has sent all its output."""
    if not case.cancel:
        return
    await asyncio.sleep(0.05)
    for log in logs:
        manager.cancel_turn(log)
