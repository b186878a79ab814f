"""Snapshots of every case, and checks that streamed and unstreamed replies of both endpoints agree."""

import json
from dataclasses import dataclass
from typing import Any

import pytest
from syrupy.assertion import SnapshotAssertion

from antiphon.app.errors import ApiError
from tests.invariants import check_stream
from tests.snapshots import event_lines
from tests.snapshots.cases import CASES, Case
from tests.snapshots.extra_cases import EXTRA_CASES
from tests.snapshots.run_case import CaseResult, read_chat, read_completion, read_message, read_responses
from tests.snapshots.snapshot_files import SNAPSHOT_FOLDER, CaseSnapshot

RESPONSES_CASES = [case for case in (*CASES, *EXTRA_CASES) if not case.refused and "responses" in case.faces]
CHAT_CASES = [case for case in (*CASES, *EXTRA_CASES) if not case.refused and "chat" in case.faces]


@pytest.fixture
def case_snapshot(snapshot: SnapshotAssertion) -> SnapshotAssertion:
    return snapshot.use_extension(CaseSnapshot)


@pytest.mark.parametrize("case", [*CASES, *EXTRA_CASES], ids=lambda case: case.name)
@pytest.mark.filterwarnings(r"ignore:\s*Can not relate snapshot name")  # files are named after cases, not after tests
async def test_case(case: Case, case_snapshot: SnapshotAssertion) -> None:
    through_responses = await read_responses(case) if "responses" in case.faces else None
    through_chat = await read_chat(case) if "chat" in case.faces else None
    text = _format_case(case, through_responses, through_chat)
    result = through_responses or through_chat
    if result is not None and result.log is not None:
        numbers = event_lines.IdNumbers()
        events = (await read_message(result)).events
        text += "\n".join(["\nMessages", *(event_lines.format_message_event(event, numbers) for event in events), ""])
    completion = await read_completion(case)
    chunks = map(event_lines.format_completion_chunk, completion.data)
    text += "\n".join(["\nCompletions", *chunks, *_format_error(completion), ""])
    assert text == case_snapshot(name=case.name)


def _format_case(case: Case, response_result: CaseResult | None, chat_result: CaseResult | None) -> str:
    lines = [
        f"# {case.name.replace('_', ' ')}" + (f": {case.comment}" if case.comment else ""),
        f"# the model ({case.dialect}):",
    ]
    lines += [f"#   {json.dumps(step, ensure_ascii=False)}" for step in case.output] or ["#   nothing"]
    if case.finish != "stop" or case.cancel:
        lines.append("#   and is cancelled" if case.cancel else "#   and is cut by the token limit")
    settings = case.request | (case.responses if "responses" in case.faces else case.chat)
    lines += [f"# the request: {json.dumps(settings)}"] if settings else []
    lines += [f"# reasoning is told as: {case.reasoning_output}"] if case.reasoning_output != "content" else []
    numbers = event_lines.IdNumbers()
    if response_result is not None:
        lines += [
            "",
            "Responses",
            *(event_lines.format_event(event, numbers) for event in response_result.data),
            *_format_error(response_result),
        ]
    if chat_result is not None:
        lines += [
            "",
            "Chat",
            *(event_lines.format_chunk(chunk, numbers) for chunk in chat_result.data),
            *_format_error(chat_result),
        ]
    return "\n".join(lines) + "\n"


def _format_error(result: CaseResult) -> list[str]:
    if not isinstance(result.reply, ApiError):
        return []
    return [f"HTTP {result.reply.status} {result.reply.encoded_body.decode()}"] if not result.frames else []


@pytest.mark.parametrize("case", RESPONSES_CASES, ids=lambda case: case.name)
async def test_what_was_streamed_is_what_is_returned(case: Case) -> None:
    result = await read_responses(case)
    response = check_stream(result.data)
    assert not isinstance(result.reply, ApiError)
    assert json.loads(result.reply) == response == result.data[-1]["response"]


@pytest.mark.parametrize("case", CHAT_CASES, ids=lambda case: case.name)
async def test_a_whole_chat_reply_is_the_sum_of_its_chunks(case: Case) -> None:
    result = await read_chat(case)
    chunks = result.data
    if isinstance(result.reply, ApiError):
        assert chunks[-1] == json.loads(result.reply.encoded_body)
        return
    completion = json.loads(result.reply)
    assert [choice["index"] for choice in completion["choices"]] == list(range(case.chat.get("n", 1)))
    for choice in completion["choices"]:
        check_choice(
            choice, [part for chunk in chunks for part in chunk["choices"] if part["index"] == choice["index"]]
        )
    assert chunks[-1]["choices"] == [] and chunks[-1]["usage"] == completion["usage"], "the last chunk has the usage"


def check_choice(choice: dict[str, Any], choices: list[dict[str, Any]]) -> None:
    """Checks that a choice is the sum of its parts in the chunks."""
    assert "".join(part["delta"].get("refusal") or "" for part in choices) == (choice["message"]["refusal"] or "")
    scored = [entry for part in choices if part["logprobs"] for entry in part["logprobs"]["content"]]
    assert scored == ((choice["logprobs"] or {}).get("content") or [])
    assert "".join(part["delta"].get("content") or "" for part in choices) == (choice["message"]["content"] or "")
    reasoning = "".join(part["delta"].get("reasoning_content") or "" for part in choices)
    assert reasoning == choice["message"].get("reasoning_content", "")
    assert [part["finish_reason"] for part in choices if part["finish_reason"]] == [choice["finish_reason"]]
    calls: list[dict[str, str]] = []
    for fragment in (fragment for part in choices for fragment in part["delta"].get("tool_calls", [])):
        if "id" in fragment:
            assert fragment["index"] == len(calls), "indices count from 0 by 1"
            calls.append({"id": fragment["id"], "text": ""})
        inner = fragment.get("function") or fragment.get("custom")
        calls[fragment["index"]]["text"] += inner.get("arguments", inner.get("input", ""))
    expected_calls = choice["message"].get("tool_calls", [])
    assert [call["id"] for call in calls] == [call["id"] for call in expected_calls]
    assert [call["text"] for call in calls] == [
        call[call["type"]].get("arguments", call[call["type"]].get("input")) for call in expected_calls
    ]


@dataclass
class ToldTurn:
    """What a reply says, in any form: its text, reasoning, payloads of calls, and error."""

    text: str
    reasoning: str
    payloads: list[str]
    error: str | None = None


def read_told_response(result: CaseResult) -> ToldTurn:
    response = result.data[-1]["response"]
    output = response["output"]
    texts = [
        "".join(part.get("text", part.get("refusal")) for part in item["content"])
        for item in output
        if item["type"] == "message"
    ]
    thoughts = [
        part["text"]
        for item in output
        if item["type"] == "reasoning"
        for part in item.get("content") or item.get("summary")
    ]
    payloads = [item.get("arguments", item.get("input")) for item in output if item["type"].endswith("_call")]
    error = response["error"] and response["error"]["message"]
    return ToldTurn("\n\n".join(texts), "".join(thoughts), payloads, error)


def read_told_chat(result: CaseResult) -> ToldTurn:
    """Reads the chunks, because a turn that fails has no other form in a chat."""
    told = ToldTurn("", "", [])
    for chunk in result.data:
        if "error" in chunk:
            told.error = chunk["error"]["message"]
        for choice in chunk.get("choices", []):
            delta = choice["delta"]
            told.text += (delta.get("content") or "") + (delta.get("refusal") or "")
            told.reasoning += delta.get("reasoning_content") or ""
            for fragment in delta.get("tool_calls", []):
                inner = fragment.get("function") or fragment.get("custom")
                told.payloads += [""] * (fragment["index"] + 1 - len(told.payloads))
                told.payloads[fragment["index"]] += inner.get("arguments", inner.get("input", ""))
    return told


DIFFERENT_CHATS = {
    "call_beyond_max_tool_calls": lambda told: ToldTurn("", "", [*told.payloads, '{"city": "Oslo"}']),
}
"""Cases that a chat tells differently: it has no limit on calls. Maps a name to the chat's turn."""


@pytest.mark.parametrize("case", [case for case in CHAT_CASES if case in RESPONSES_CASES], ids=lambda case: case.name)
async def test_both_faces_tell_the_same(case: Case) -> None:
    """Text, reasoning, calls and error are the same in a chat completion and a response."""
    in_response, in_chat = read_told_response(await read_responses(case)), read_told_chat(await read_chat(case))
    expected = DIFFERENT_CHATS.get(case.name, lambda told: told)(in_response)
    assert in_chat == expected
    assert (in_response.error is not None) == case.fails


@pytest.mark.parametrize("reasoning_output", ["summary", "both"])
@pytest.mark.parametrize("case", [case for case in CASES if "reasoning" in case.name], ids=lambda case: case.name)
async def test_reasoning_told_as_summaries(case: Case, reasoning_output: str) -> None:
    default = await read_chat(case)
    result = await read_responses(case, reasoning_output=reasoning_output)
    with_summaries = await read_chat(case, reasoning_output=reasoning_output)
    check_stream(result.data)
    assert not isinstance(default.reply, ApiError) and not isinstance(with_summaries.reply, ApiError)
    assert json.loads(default.reply)["choices"] == json.loads(with_summaries.reply)["choices"], (
        "chat completions have no summaries"
    )


def test_every_case_has_a_name_of_its_own() -> None:
    names = [case.name for case in (*CASES, *EXTRA_CASES)]
    assert len(set(names)) == len(names)
    assert {path.stem for path in SNAPSHOT_FOLDER.glob("*.txt")} == set(names)
