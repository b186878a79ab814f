"""Streams of chat and of messages in which the server runs tools. Their sums are the whole replies."""

import json
from typing import Any

import pytest
from syrupy.assertion import SnapshotAssertion

from antiphon.app.projections.chat.stream import ChatStream, final_completion
from antiphon.app.projections.messages.stream import MessagesStream, final_message
from tests.snapshots.event_lines import IdNumbers, format_chunk, format_message_event
from tests.snapshots.hosted_tool_turns import CASES, start_chat, start_message_turn
from tests.snapshots.run_case import (
    CaseResult,
    MessageResult,
    collect_frames,
)
from tests.snapshots.snapshot_files import SNAPSHOT_FOLDER, CaseSnapshot
from tests.snapshots.stream_sums import sum_chat_chunks, sum_message_events


class HostedToolSnapshot(CaseSnapshot):
    """One text file for each case: `snapshots/hosted_tools/NAME.txt`."""

    folder = SNAPSHOT_FOLDER / "hosted_tools"


async def _read_chat(script: list[dict[str, Any]]) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    logs, form, _ = await start_chat(script, None)
    frames = await collect_frames(ChatStream(logs, form))
    reply = await final_completion(logs, form)
    return CaseResult(frames, reply, logs[0]).data, json.loads(reply)


async def _read_message(script: list[dict[str, Any]]) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    [log], _ = await start_message_turn(script)
    frames = await collect_frames(MessagesStream(log))
    reply = json.loads(await final_message(log))
    return MessageResult(frames, reply).events, reply


@pytest.mark.parametrize("name", CASES)
@pytest.mark.filterwarnings(r"ignore:\s*Can not relate snapshot name")  # files are named after cases, not after tests
async def test_hosted_tools(name: str, snapshot: SnapshotAssertion) -> None:
    script = CASES[name]
    (chunks, completion), (events, message) = await _read_chat(script), await _read_message(script)
    numbers = IdNumbers()
    lines = ["Chat", *(format_chunk(chunk, numbers) for chunk in chunks), "", "Messages"]
    lines += [format_message_event(event, numbers) for event in events]
    said = sum_chat_chunks(chunks)["choices"][0]["message"]
    whole = {key: value for key, value in completion["choices"][0]["message"].items() if value not in (None, [])}
    assert {key: value for key, value in said.items() if value != ""} == whole
    streamed, unfinished = sum_message_events(events)
    streamed["content"] = [block for index, block in enumerate(streamed["content"]) if index not in unfinished]
    assert streamed == message
    assert "\n".join([*lines, ""]) == snapshot.use_extension(HostedToolSnapshot)(name=name)
