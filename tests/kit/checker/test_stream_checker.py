"""The checker: legal streams have no finding, and every broken one has the right finding."""

import json
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from antiphon.kit.checker.formats import find_schema_fault
from antiphon.kit.checker.grammar import BODIES
from antiphon.kit.checker.hosted import is_same_reading
from antiphon.kit.checker.schema import ITEM_SHAPES
from antiphon.kit.checker.stream import StreamChecker, check_events, check_sse
from antiphon.kit.checker.terminal import compare_responses
from antiphon.kit.findings import FindingList, load_codes
from tests.kit.checker.chat_mutants import CHAT_MUTANTS
from tests.kit.checker.frame_mutants import FRAME_MUTANTS
from tests.kit.checker.hosted_mutants import HOSTED_MUTANTS, KINDS
from tests.kit.checker.legal_streams import LEGAL
from tests.kit.checker.stream_changes import StreamMutant
from tests.kit.checker.stream_mutants import MUTANTS
from tests.kit.checker.stream_writer import encode_sse

GROUPS = ("framing", "sequence", "lifecycle", "items", "content", "terminal", "usage", "policy", "chat")
CODES_WITHOUT_MUTANTS = {
    "chat-differs": "tests/kit/checker/test_chat_checker.py compares a response with chat streams",
    "chat-usage-differs": "tests/kit/checker/test_chat_checker.py compares a response with chat streams",
    "schema-unchecked": "test_schemas_are_not_checked_without_jsonschema",
}


@pytest.mark.parametrize("name", LEGAL)
def test_legal_stream_has_no_finding(name: str) -> None:
    events = LEGAL[name]()
    assert [str(finding) for finding in check_events(events)] == []
    assert [str(finding) for finding in check_sse(encode_sse(events))] == []


def test_there_is_a_legal_stream_for_each_body() -> None:
    kinds = {event["item"]["type"] for build in LEGAL.values() for event in build() if "item" in event}
    assert len(LEGAL) >= 40
    assert set(BODIES) <= kinds
    bare = set(ITEM_SHAPES) - kinds
    assert bare <= {
        "computer_call_output",
        "local_shell_call_output",
        "apply_patch_call_output",
        "mcp_approval_response",
        "program",
        "program_output",
    }, "these items have no events of their own and differ in their fields only"


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_broken_stream_is_found(mutant: StreamMutant) -> None:
    events = mutant.build()
    if mutant.request is None:
        assert events != LEGAL[mutant.base](), "the mutant changes nothing"
    findings = {finding.code: finding for finding in check_events(events, mutant.request)}
    assert mutant.code in findings, f"found only {list(findings)}"
    finding = findings[mutant.code]
    assert finding.position is None or 0 <= finding.position < max(len(events), 1)
    assert finding.expected and finding.actual and finding.why and str(finding)


def test_mutants_are_distinct_and_cover_every_code() -> None:
    names = [mutant.name for mutant in (*MUTANTS, *FRAME_MUTANTS, *CHAT_MUTANTS)]
    streams = {json.dumps([mutant.build(), mutant.request], ensure_ascii=True) for mutant in MUTANTS}
    assert len(names) == len(set(names)) and len(streams) == len(MUTANTS) >= 120
    expected = {code.name for code in load_codes().values() if code.group in GROUPS}
    covered = {mutant.code for mutant in (*MUTANTS, *FRAME_MUTANTS, *CHAT_MUTANTS)}
    assert expected - covered == set(CODES_WITHOUT_MUTANTS)


@pytest.mark.parametrize("kind", KINDS)
def test_each_hosted_kind_is_broken_often(kind: str) -> None:
    mutants = [
        mutant
        for mutant in HOSTED_MUTANTS
        if kind in {str(event.get("item", {}).get("type")) for event in mutant.build()}
    ]
    assert len(mutants) >= 24 and len({mutant.code for mutant in mutants}) >= 12


def test_repeated_finding_is_counted() -> None:
    events = LEGAL["text"]()
    for event in events:
        if event["type"] == "response.output_text.delta":
            event["item_id"] = "msg_x"
    findings = [finding for finding in check_events(events) if finding.code == "item-id-changed"]
    assert [finding.count for finding in findings] == [2]


def test_numbered_keepalive_takes_a_number() -> None:
    events = LEGAL["text"]()
    events.insert(3, {"type": "keepalive"})
    for number, event in enumerate(events):
        event["sequence_number"] = number
    assert [finding.code for finding in check_events(events)] == ["keepalive-event"]
    assert [finding.code for finding in check_events(events, {"model": "m", "input": "x"})] == ["keepalive-event"]


@pytest.mark.parametrize(
    ("change", "codes"),
    [
        (lambda output: output.pop(1), ["output-item-missing"]),
        (lambda output: output.insert(0, output[1] | {"id": "msg_9"}), ["output-item-never-streamed"]),
        (lambda output: output[1].update(id="msg_9"), ["output-id-changed"]),
        (lambda output: output.insert(0, output.pop()), ["output-order"]),
        (lambda output: output.append(dict(output[0])), ["output-item-never-streamed"]),
        (lambda output: output.insert(1, "text"), ["output-item-never-streamed"]),
    ],
    ids=["message_lost", "one_more", "id_changed", "last_first", "first_twice", "no_object"],
)
def test_one_fault_of_the_output_is_one_finding(change: Callable[[list[Any]], Any], codes: list[str]) -> None:
    """Items belong together by id, so that the items after a fault are not reported as well."""
    events = LEGAL["reasoning_text_and_calls"]()
    change(events[-1]["response"]["output"])
    assert [finding.code for finding in check_events(events)] == codes


def test_request_decides_how_many_calls_there_may_be() -> None:
    """A response that says something else than its request has one fault, not two."""
    request = {"model": "m", "input": "x", "parallel_tool_calls": True}
    events = LEGAL["two_calls"]()
    for event in events:
        event.get("response", {})["parallel_tool_calls"] = False
    assert [finding.code for finding in check_events(events, request)] == ["echo-differs"]
    assert [finding.code for finding in check_events(events, {"model": "m", "input": "x"})] == []
    assert [finding.code for finding in check_events(events)] == ["parallel-calls"]


def test_number_in_single_precision_is_the_one_asked_for() -> None:
    events = LEGAL["text"]()
    for event in events:
        event.get("response", {})["temperature"] = 0.699999988079071
    assert check_events(events, {"temperature": 0.7}) == []
    assert [finding.code for finding in check_events(events, {"temperature": 0.70001})] == ["echo-differs"]


def test_rounded_logprobs_of_the_item_are_the_same() -> None:
    events = LEGAL["text_with_logprobs"]()
    for event in events[-2:]:
        item = event["item"] if "item" in event else event["response"]["output"][0]
        item["content"][0]["logprobs"][1]["logprob"] = -0.5000004
    assert check_events(events) == []


def test_schemas_are_not_checked_without_jsonschema(monkeypatch: pytest.MonkeyPatch) -> None:
    events = LEGAL["function_call"]()
    assert check_events(events) == []
    monkeypatch.setitem(sys.modules, "jsonschema", None)
    (finding,) = check_events(events)
    assert (finding.code, finding.level) == ("schema-unchecked", "note") and "antiphon[kit]" in finding.expected


@pytest.mark.parametrize(
    "schema",
    [
        {"type": 5},
        {"$ref": "https://127.0.0.1:9/schema.json"},
        {"$ref": "#/$defs/none"},
        {"pattern": "("},
        {"$ref": "#"},
    ],
    ids=["no_schema", "other_document", "no_target", "no_pattern", "endless"],
)
def test_faults_of_a_schema_are_not_the_streams(schema: dict[str, Any]) -> None:
    assert find_schema_fault("text", schema) is None


@pytest.mark.parametrize("name", ["two_calls", "failed", "text_with_logprobs", "shell_call"])
def test_no_change_of_a_value_stops_the_checker(name: str) -> None:
    """Each value of each event is replaced by one of another type, and each key is deleted."""
    events = LEGAL[name]()
    for number, event in enumerate(events):
        for path in list_paths(event):
            for value in (None, -1, [1], {"a": 1}):
                changed = replace_at(event, path, value)
                check_events([*events[:number], changed, *events[number + 1 :]])


def list_paths(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yields the places in a JSON value, those of the first entry of each list."""
    if path:
        yield path
    keys = list(value) if isinstance(value, dict) else range(min(len(value), 1)) if isinstance(value, list) else ()
    for key in keys:
        yield from list_paths(value[key], (*path, key))


def replace_at(value: Any, path: tuple[Any, ...], new: Any) -> Any:
    """Returns a copy of a JSON value with another value at a place."""
    if not path:
        return new
    copied = dict(value) if isinstance(value, dict) else list(value)
    copied[path[0]] = replace_at(value[path[0]], path[1:], new)
    return copied


CODE: dict[str, Any] = {"type": "code_interpreter_call", "id": "ci_1", "outputs": [{"type": "logs", "logs": "1"}]}
FILES: dict[str, Any] = {"type": "file_search_call", "id": "fs_1", "results": [{"file_id": "f"}]}
WEB: dict[str, Any] = {"type": "web_search_call", "id": "ws_1", "action": {"type": "search", "sources": [{"url": "u"}]}}


@pytest.mark.parametrize(
    ("streamed", "other", "is_same"),
    [
        *((item, item, True) for item in (CODE, FILES, WEB)),
        (CODE, CODE | {"outputs": None}, True),
        (CODE | {"outputs": None}, CODE, True),
        (CODE, {"type": "code_interpreter_call", "id": "ci_1"}, True),
        (CODE, CODE | {"outputs": []}, False),
        (CODE, CODE | {"outputs": None, "id": "ci_2"}, False),
        (CODE, CODE | {"outputs": None, "results": None}, False),
        (FILES, FILES | {"results": None}, True),
        (FILES, FILES | {"results": [{"file_id": "g"}]}, False),
        (WEB, WEB | {"action": {"type": "search"}}, True),
        (WEB, WEB | {"action": None}, False),
        ({"type": "message", "outputs": [1]}, {"type": "message", "outputs": None}, False),
    ],
)
def test_readings_may_include_other_outputs(streamed: Any, other: Any, *, is_same: bool) -> None:
    findings = FindingList()
    compare_responses({"output": [streamed]}, {"output": [other]}, "get-differs", findings)
    assert (not findings.list_findings()) is is_same
    assert is_same_reading([streamed], [streamed, streamed]) is False


def test_resumed_stream_begins_at_the_number_asked_for() -> None:
    checker = StreamChecker(first_sequence_number=4)
    for event in LEGAL["text"]()[4:]:
        checker.check_event(event)
    codes = {finding.code for finding in checker.finish()}
    assert "sequence-start" not in codes and "sequence-gap" not in codes
