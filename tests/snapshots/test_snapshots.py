"""Snapshots of every case, and checks that streamed and unstreamed replies of both endpoints agree."""

import json

import pytest
from syrupy.assertion import SnapshotAssertion

from antiphon.app.errors import ApiError
from antiphon.state.drafts import OutputSettings
from tests.invariants import check_stream
from tests.snapshots import event_lines
from tests.snapshots.builtin_cases import BUILTIN_CASES, COMPACTION_CASES
from tests.snapshots.cases import CASES, Case
from tests.snapshots.extra_cases import EXTRA_CASES
from tests.snapshots.run_case import CaseResult, read_chat, read_completion, read_message, read_responses
from tests.snapshots.snapshot_files import SNAPSHOT_FOLDER, CaseSnapshot


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


@pytest.mark.parametrize("case", [*BUILTIN_CASES, *COMPACTION_CASES], ids=lambda case: case.name)
@pytest.mark.filterwarnings(r"ignore:\s*Can not relate snapshot name")  # as above
async def test_builtin_case(case: Case, case_snapshot: SnapshotAssertion) -> None:
    result = await read_responses(case)
    check_stream(result.data)
    assert _format_case(case, result, None) == case_snapshot(name=case.name)


OLDER_SDK_FIELDS = {
    "response.function_call_arguments.done": {"name"},
    "response.output_text.annotation.added": {"annotation"},
}
"""Fields of events that openai 2.0 to 3.3 require and later versions do not."""


@pytest.mark.parametrize(
    "name", ["reasoning_text_and_two_calls", "namespaced_call", "call_without_arguments", "citation"]
)
async def test_events_have_the_fields_that_older_sdks_require(name: str) -> None:
    case = next(case for case in (*CASES, *EXTRA_CASES) if case.name == name)
    events = (await read_responses(case)).data
    checked = [event for event in events if event["type"] in OLDER_SDK_FIELDS]
    assert checked
    for event in checked:
        assert OLDER_SDK_FIELDS[event["type"]] <= event.keys()
    names = [event["name"] for event in checked if "arguments" in event]
    assert names == [item["name"] for item in events[-1]["response"]["output"] if item["type"] == "function_call"]


def _format_case(case: Case, response_result: CaseResult | None, chat_result: CaseResult | None) -> str:
    lines = [
        f"# {case.name.replace('_', ' ')}" + (f": {case.comment}" if case.comment else ""),
        f"# the model ({case.dialect}):",
    ]
    lines += [f"#   {json.dumps(step, ensure_ascii=False)}" for step in case.output] or ["#   nothing"]
    if case.finish != "stop" or case.cancel:
        lines.append("#   and is cancelled" if case.cancel else "#   and is cut by the token limit")
    lines += (
        ["# its summary:", *(f"#   {json.dumps(step)}" for step in case.summary)] if case.summary is not None else []
    )
    settings = case.request | (case.responses if "responses" in case.faces else case.chat)
    lines += [f"# the request: {json.dumps(settings)}"] if settings else []
    lines += ["# the server: --apply-patch-diffs"] if case.patch_diffs else []
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


@pytest.mark.parametrize("reasoning_output", ["summary", "both"])
@pytest.mark.parametrize("case", [case for case in CASES if "reasoning" in case.name], ids=lambda case: case.name)
async def test_reasoning_told_as_summaries(case: Case, reasoning_output: str) -> None:
    default = await read_chat(case)
    result = await read_responses(case, output_settings=OutputSettings(reasoning=reasoning_output))
    with_summaries = await read_chat(case, output_settings=OutputSettings(reasoning=reasoning_output))
    check_stream(result.data)
    assert not isinstance(default.reply, ApiError) and not isinstance(with_summaries.reply, ApiError)
    assert json.loads(default.reply)["choices"] == json.loads(with_summaries.reply)["choices"], (
        "chat completions have no summaries"
    )


def test_every_case_has_a_name_of_its_own() -> None:
    names = [case.name for case in (*CASES, *EXTRA_CASES, *BUILTIN_CASES, *COMPACTION_CASES)]
    assert len(set(names)) == len(names)
    assert {path.stem for path in SNAPSHOT_FOLDER.glob("*.txt")} == {*names, "endings_of_all_cases"}
