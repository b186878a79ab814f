"""Runs a case through the whole server without a socket: through Responses, Chat, and as an Anthropic message."""

import asyncio
import functools
import itertools
import json
from collections.abc import Iterator
from typing import Any

import msgspec

from antiphon.app.errors import ApiError
from antiphon.app.http.stream_writer import StreamEncoder, pump
from antiphon.app.inspection.recorder import TurnRecorder
from antiphon.app.projections import responses
from antiphon.app.projections.chat.stream import ChatStream, final_completion
from antiphon.app.projections.completions.stream import CompletionStream, final_text_completion
from antiphon.app.projections.messages.stream import MessagesStream, final_message
from antiphon.app.registry.model_registry import ModelRegistry, ServedModel
from antiphon.app.requests.chat import request as chat_request
from antiphon.app.requests.completions.request import read_completion_request
from antiphon.app.requests.messages.request import read_messages_request
from antiphon.app.requests.responses import request as responses_request
from antiphon.app.store.store import ResponseStore
from antiphon.app.turn_types.encryption import SEAL_KEY_BYTES, Purpose, Sealer
from antiphon.app.turn_types.event_log import EventLog
from antiphon.app.turn_types.turn_stats import Api, TurnOrigin
from antiphon.app.turns.capacity import TurnCapacity
from antiphon.app.turns.manager import TurnManager
from antiphon.app.turns.timeouts import TurnTimeouts
from antiphon.harmony.detection.detect import bytes_format
from antiphon.harmony.format import ModelFormat, OutputReader, PromptInput
from antiphon.harmony.rendered_prompt import RenderedPrompt
from antiphon.state.drafts import OutputSettings
from antiphon.state.segments import Refuse, Say, Segment
from tests.log_store import make_log_store
from tests.numbered_dice import NumberedTurns
from tests.progress import HANG_TIMEOUT_S
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


class MessageResult:
    """A case as an Anthropic message: the frames of its stream, and its unstreamed reply."""

    def __init__(self, frames: bytes, reply: dict[str, Any] | ApiError) -> None:
        self.frames, self.reply = frames, reply

    @property
    def events(self) -> list[dict[str, Any]]:
        """The events; each frame's name is the type of its event."""
        events: list[dict[str, Any]] = []
        for frame in self.frames.decode().split("\n\n")[:-1]:
            name, data = frame.split("\n")
            events.append(json.loads(data.removeprefix("data: ")))
            assert name == f"event: {events[-1]['type']}"
        return events


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


def make_turn_manager(*, store: ResponseStore | None = None, **options: Any) -> TurnManager:
    """Returns a turn manager whose ids and time are the same in every run."""
    counter = itertools.count()
    return TurnManager(
        store or make_log_store(),
        TurnCapacity(()),
        clock=lambda: 1_700_000_000.0,
        new_id=lambda prefix: f"{prefix}_{next(counter)}",
        dice=NumberedTurns(),
        **options,
    )


class PlainSealer(Sealer):
    """Marks what would be encrypted, so that a snapshot shows it."""

    def seal(self, owner: str, purpose: Purpose, text: str, label: str) -> str:
        return f"<{purpose}: {text}>"


class RefusingFormat:
    """A model format whose readers turn text into a refusal, all but the first `num_chars` characters."""

    def __init__(self, model_format: ModelFormat, num_chars: int) -> None:
        self._format, self._num_chars = model_format, num_chars

    def __getattr__(self, name: str) -> Any:
        return getattr(self._format, name)

    def create_reader(self, prompt: RenderedPrompt, prompt_input: PromptInput) -> Any:
        return RefusingReader(self._format.create_reader(prompt, prompt_input), self._num_chars)


class RefusingReader:
    """An output reader that turns all text after the first `num_chars` characters into a refusal."""

    def __init__(self, reader: OutputReader, num_chars: int) -> None:
        self._reader, self._num_chars = reader, num_chars

    def __getattr__(self, name: str) -> Any:
        return getattr(self._reader, name)

    def feed(self, *args: Any) -> list[Segment]:
        return list(self._convert(self._reader.feed(*args)))

    def finish(self, *, natural: bool) -> list[Segment]:
        return list(self._convert(self._reader.finish(natural=natural)))

    def _convert(self, segments: list[Segment]) -> Iterator[Segment]:
        for segment in segments:
            if not isinstance(segment, Say):
                yield segment
                continue
            said, refused = segment.text[: self._num_chars], segment.text[self._num_chars :]
            self._num_chars -= len(said)
            yield from [Say(said)] if said else []
            yield from [Refuse(refused)] if refused else []


BLOCKER = {"name": "blocker", "when": ["[block]"], "output": [{"stall": True}]}
KEEPALIVE_AFTER_S = 0.3
"""Time until the keepalive of a case that waits. A second one would need the event loop to stand still as long."""


def make_single_case_registry(case: Case) -> ModelRegistry:
    reply = {
        "name": case.name,
        "output": case.output,
        "finish": case.finish,
        "tokens_per_chunk": case.step,
        "cached_tokens": case.cached_tokens,
    }
    engine = {"max_num_seqs": 1} if case.waits else {}
    summary = {
        "name": "summary",
        "when": ["about to be cut short"],
        "output": case.summary,
        "tokens_per_chunk": case.step,
    }
    registry = scripted_registry(
        [BLOCKER, *([summary] if case.summary is not None else []), reply],
        model_format=load_case_format(case.dialect),
        **engine,
    )
    if case.chars_before_refusal is None:
        return registry
    (model,) = registry.served
    model_format: Any = RefusingFormat(model.format, case.chars_before_refusal)
    return ModelRegistry([msgspec.structs.replace(model, format=model_format)])


load_case_format = functools.cache(bytes_format)
"""The format of a dialect, which all cases of the dialect share."""


def make_case_manager(case: Case, options: dict[str, Any]) -> TurnManager:
    timeouts = {"timeouts": TurnTimeouts(keepalive_after_s=KEEPALIVE_AFTER_S)} if case.waits else {}
    settings = OutputSettings(reasoning=case.reasoning_output, patch_diffs=case.patch_diffs)
    return make_turn_manager(
        **{"output_settings": settings, "sealer": PlainSealer(b"x" * SEAL_KEY_BYTES)} | timeouts | options
    )


def make_origin(api: Api, body: dict[str, Any]) -> TurnOrigin:
    """Returns the origin of a turn that a request with this body starts."""
    return TurnOrigin(api=api, body=json.dumps(body).encode())


async def read_responses(case: Case, **options: Any) -> CaseResult:
    """Runs the case through `/v1/responses`, streamed and unstreamed."""
    body = {"model": "scripted", "input": USER_TEXT, "tools": TOOLS, "stream": True} | case.request | case.responses
    parsed = responses_request.read_responses_request(body, make_single_case_registry(case))
    manager = make_case_manager(case, options)
    blocker = await _start_blocker(parsed.model, manager) if case.waits else None
    try:
        log = await manager.start_turn(parsed.model, parsed.spec, "", make_origin("responses", body))
    except ApiError as error:
        return CaseResult(b"", error, None)
    if blocker is not None:
        await _unblock_after_keepalive(log, blocker, manager)
    await _cancel_stalled_turn(case, manager, [log])
    frames = await collect_frames(responses.ResponsesStream(log))
    assert parsed.model.engine.stats().running == 0
    return CaseResult(frames, await responses.final_response(log), log)


async def read_message(result: CaseResult, **options: Any) -> MessageResult:
    """Reads a case's log as an Anthropic message, streamed and unstreamed."""
    assert result.log is not None
    frames = await collect_frames(MessagesStream(result.log, **options))
    try:
        return MessageResult(frames, json.loads(await final_message(result.log, **options)))
    except ApiError as error:
        return MessageResult(frames, error)


async def run_messages_request(case: Case, **options: Any) -> EventLog:
    """Runs the case through the decoder of `/v1/messages`. Returns its log, which has ended. Raises `ApiError`."""
    body = {
        "model": "scripted",
        "max_tokens": 10_000,
        "messages": [{"role": "user", "content": USER_TEXT}],
        "tools": [_anthropic_tool(tool) for tool in TOOLS if tool["type"] != "namespace"],
        "stream": True,
    }
    body = body | _anthropic_fields(case.request) | case.messages
    parsed = read_messages_request(body, make_single_case_registry(case), lambda _: None)
    manager = make_case_manager(case, options)
    log = await manager.start_turn(parsed.model, parsed.spec, "", make_origin("messages", body))
    await _cancel_stalled_turn(case, manager, [log])
    await log.wait_finished()
    return log


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
    body = body | case.request | case.chat
    parsed = chat_request.read_chat_request(body, make_single_case_registry(case))
    manager = make_case_manager(case, options)
    try:
        logs = await manager.start_prompts(parsed.model, (parsed.spec,), origin=make_origin("chat", body))
    except ApiError as error:
        return CaseResult(b"", error, None)
    await _cancel_stalled_turn(case, manager, logs)
    frames = await collect_frames(ChatStream(logs, parsed.form))
    try:
        return CaseResult(frames, await final_completion(logs, parsed.form), logs[0])
    except ApiError as error:
        return CaseResult(frames, error, logs[0])


async def read_completion(case: Case, recorder: TurnRecorder | None = None, **fields: Any) -> CaseResult:
    """Runs the output of a case as a text completion, streamed and unstreamed."""
    body = {"model": "scripted", "prompt": USER_TEXT, "max_tokens": 10_000, "stream": True}
    body = body | {"stream_options": {"include_usage": True}} | fields
    parsed = read_completion_request(body, make_single_case_registry(case))
    manager = make_case_manager(case, {"recorder": recorder})
    try:
        logs = await manager.start_prompts(parsed.model, parsed.specs, origin=make_origin("completions", body))
    except ApiError as error:
        return CaseResult(b"", error, None)
    await _cancel_stalled_turn(case, manager, logs)
    frames = await collect_frames(CompletionStream(logs, parsed.form))
    try:
        return CaseResult(frames, await final_text_completion(logs, parsed.form), logs[0])
    except ApiError as error:
        return CaseResult(frames, error, logs[0])


def _anthropic_fields(request: dict[str, Any]) -> dict[str, Any]:
    """Returns the shared request fields of a case in the words of Messages, which has no log-probabilities."""
    fields: dict[str, Any] = {"stop_sequences": request["stop"]} if "stop" in request else {}
    if "tool_choice" in request:
        fields["tool_choice"] = {"type": request["tool_choice"]}
    if request.get("parallel_tool_calls") is False:
        fields["tool_choice"] = {"type": "auto", "disable_parallel_tool_use": True}
    return fields


def _anthropic_tool(tool: dict[str, Any]) -> dict[str, Any]:
    """Returns a tool for Messages: one that takes raw text has the schema of an object with that text."""
    schema = {"type": "object", "properties": {"input": {"type": "string"}}}
    return {"name": tool["name"], "input_schema": tool.get("parameters", schema)}


def _chat_tool(tool: dict[str, Any]) -> dict[str, Any]:
    tool_type = tool["type"]
    return {"type": tool_type, tool_type: {key: value for key, value in tool.items() if key != "type"}}


async def _start_blocker(model: ServedModel, manager: TurnManager) -> EventLog:
    """Starts a turn that takes the only place of the engine."""
    registry = ModelRegistry([model])
    body = {"model": model.names[0], "input": "[block]", "stream": True}
    parsed = responses_request.read_responses_request(body, registry)
    return await manager.start_turn(parsed.model, parsed.spec)


async def _unblock_after_keepalive(log: EventLog, blocker: EventLog, manager: TurnManager) -> None:
    """Frees the engine's place after the first keepalive of a waiting turn."""
    async with asyncio.timeout(HANG_TIMEOUT_S):
        while len(log.entries) < len(("created", "queued", "keepalive")):
            await asyncio.sleep(0)
    manager.cancel_turn(blocker.id)


async def _cancel_stalled_turn(case: Case, manager: TurnManager, logs: list[EventLog]) -> None:
    """Cancels a stalled turn after it has sent all its output."""
    if not case.cancel:
        return
    await asyncio.sleep(0.05)
    for log in logs:
        manager.cancel_turn(log.id)
