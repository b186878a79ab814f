"""Streams that OpenAI and DeepSeek sent have no error: they are what clients are made for."""

import json
from pathlib import Path
from typing import Any

import pytest

from antiphon.kit.checker.stream import check_events, check_sse
from antiphon.kit.findings import Finding
from antiphon.kit.snapshot.sources import parse_sse
from antiphon.kit.testing import find_faults
from tests.kit.checker.hosted_streams import LISTED
from tests.kit.checker.openai_hosted_streams import ANSWER, OPENAI_STREAMS
from tests.kit.checker.stream_writer import StreamText

FOLDER = Path(__file__).parent / "recorded"
EARLY = {"response-key-absent", "sequence-absent"}
WARNINGS = {
    "deepseek_answer_after_a_tool": {"store-off"},
    "openai_background": {"store-off"},
    "openai_code_interpreter": {"response-key-absent"},
    "openai_conversation": set(),
    "openai_early_answer": EARLY | {"field-missing-early"},
    "openai_early_call": EARLY,
    "openai_file_search": {"response-key-absent"},
    "openai_logprobs": set(),
    "openai_mcp": {"response-key-absent"},
    "openai_moderation": set(),
    "openai_phase": set(),
    "openai_reasoning_and_call": {"response-key-absent"},
    "openai_web_search": {"response-key-absent"},
    "openai_web_search_with_citations": {"usage-hidden-reasoning"},
}
"""Codes of warnings by stream: what a strict client, or one that was made for another year, may stumble over."""


def read_stream(name: str) -> tuple[bytes, dict[str, Any]]:
    """Returns the bytes of a stream, and its request."""
    return (FOLDER / f"{name}.sse").read_bytes(), json.loads((FOLDER / f"{name}.json").read_text())


def list_codes(findings: list[Finding], *levels: str) -> set[str]:
    return {finding.code for finding in findings if finding.level in levels}


@pytest.mark.parametrize("name", WARNINGS)
def test_recorded_stream_has_no_error(name: str) -> None:
    data, request = read_stream(name)
    events = parse_sse(data)
    assert len(events) > 8
    for findings in (
        check_sse(data, request),
        check_sse(data),
        check_events(events, request),
        find_faults(data, request),
    ):
        assert [str(finding) for finding in findings if finding.level == "error"] == []
    assert list_codes(check_sse(data, request), "warning") == WARNINGS[name]


@pytest.mark.parametrize("name", OPENAI_STREAMS)
def test_stream_that_is_retold_has_no_finding(name: str) -> None:
    assert [str(finding) for finding in check_events(OPENAI_STREAMS[name]())] == []
    assert f"`{name}`" in (FOLDER / "README.md").read_text()


@pytest.mark.parametrize("missing", [None, 0, 1, 2])
def test_lists_that_openai_opens_together_are_notes(missing: int | None) -> None:
    """With three servers, OpenAI opens the three lists before one is done, and may leave out the end of one."""
    stream = StreamText().begin()
    items = [
        {"id": f"mcpl_{number}", "type": "mcp_list_tools", "server_label": "s", "tools": []} for number in range(3)
    ]
    whole = [item | {"tools": [LISTED]} for item in items]
    for state in ("in_progress", "completed"):
        for number, item in enumerate(items):
            place = {"output_index": number}
            if state == "in_progress":
                stream.emit("output_item.added", item=item, **place)
            stream.emit(f"mcp_list_tools.{state}", item_id=item["id"], **place)
    for number in (2, 0, 1):
        if number != missing:
            stream.emit("output_item.done", output_index=number, item=whole[number])
    stream.items = whole
    events = stream.message(ANSWER).end()
    findings = check_events(events)
    assert {finding.level for finding in findings} == {"note"}, [str(finding) for finding in findings]
    expected = {"items-together"} if missing is None else {"items-together", "together-never-done"}
    assert {finding.code for finding in findings} == expected


def test_each_recorded_stream_is_in_the_table() -> None:
    readme = (FOLDER / "README.md").read_text()
    assert (
        {path.stem for path in FOLDER.glob("*.sse")} == {path.stem for path in FOLDER.glob("*.json")} == set(WARNINGS)
    )
    assert all(f"| `{name}` |" in readme for name in WARNINGS) and "MIT License" in readme


@pytest.mark.parametrize(
    ("name", "changes", "code"),
    [
        ("openai_conversation", {"conversation": None}, "echo-uninvited"),
        ("openai_conversation", {"instructions": None}, "echo-uninvited"),
        ("openai_conversation", {"conversation": "conv_2"}, "echo-differs"),
        ("openai_logprobs", {"include": []}, "logprobs-unrequested"),
        ("openai_reasoning_and_call", {"tools": []}, "echo-differs"),
        ("openai_reasoning_and_call", {"tool_choice": "none"}, "tool-choice-none"),
        ("openai_web_search_with_citations", {"tool_choice": "none"}, "tool-choice-none"),
        ("openai_mcp", {"tool_choice": "none"}, "tool-choice-none"),
        ("openai_mcp", {"max_tool_calls": 0}, "too-many-calls"),
        ("openai_mcp", {"tools": [{"type": "mcp", "server_label": "other"}]}, "tool-unknown"),
        ("openai_mcp", {"tool_choice": {"type": "mcp", "server_label": "deepwiki", "name": "x"}}, "tool-not-allowed"),
        ("openai_code_interpreter", {"max_tool_calls": 2}, "too-many-calls"),
        ("openai_phase", {"max_output_tokens": 3}, "usage-limit"),
    ],
)
def test_request_is_the_measure_of_a_recorded_stream(name: str, changes: dict[str, Any], code: str) -> None:
    data, request = read_stream(name)
    assert code not in list_codes(check_sse(data, request), "error", "warning")
    assert code in list_codes(check_sse(data, request | changes), "error", "warning")
