"""The checker: legal streams have no finding, and every broken one has the right finding."""

import json

import pytest

from antiphon.kit.checker.grammar import BODIES
from antiphon.kit.checker.shapes import ITEM_SHAPES
from antiphon.kit.checker.stream import StreamChecker, check_events, check_sse
from antiphon.kit.findings import load_codes
from tests.kit.checker.chat_mutants import CHAT_MUTANTS
from tests.kit.checker.frame_mutants import FRAME_MUTANTS
from tests.kit.checker.legal_streams import LEGAL, encode_sse
from tests.kit.checker.stream_mutants import MUTANTS, StreamMutant

GROUPS = ("framing", "sequence", "lifecycle", "items", "content", "terminal", "usage", "policy", "chat")
CODES_WITHOUT_MUTANTS = {
    "chat-differs": "tests/kit/checker/test_chat_checker.py compares a response with chat streams",
    "chat-usage-differs": "tests/kit/checker/test_chat_checker.py compares a response with chat streams",
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
    codes = [finding.code for finding in check_events(events, mutant.request)]
    assert mutant.code in codes, f"found only {codes}"


def test_mutants_are_distinct_and_cover_every_code() -> None:
    names = [mutant.name for mutant in (*MUTANTS, *FRAME_MUTANTS, *CHAT_MUTANTS)]
    streams = {json.dumps([mutant.build(), mutant.request], ensure_ascii=True) for mutant in MUTANTS}
    assert len(names) == len(set(names)) and len(streams) == len(MUTANTS) >= 120
    expected = {code.name for code in load_codes().values() if code.group in GROUPS}
    covered = {mutant.code for mutant in (*MUTANTS, *FRAME_MUTANTS, *CHAT_MUTANTS)}
    assert expected - covered == set(CODES_WITHOUT_MUTANTS)


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_first_finding_names_the_event(mutant: StreamMutant) -> None:
    """A finding about an event has its position, so that a person finds the place in a recorded stream."""
    events = mutant.build()
    finding = next(each for each in check_events(events, mutant.request) if each.code == mutant.code)
    assert finding.position is None or 0 <= finding.position < max(len(events), 1)
    assert finding.expected and finding.actual and finding.why and str(finding)


def test_repeated_finding_is_counted() -> None:
    events = LEGAL["text"]()
    for event in events:
        if event["type"] == "response.output_text.delta":
            event["item_id"] = "msg_x"
    findings = [finding for finding in check_events(events) if finding.code == "item-id-changed"]
    assert [finding.count for finding in findings] == [2]


def test_resumed_stream_begins_at_the_number_asked_for() -> None:
    checker = StreamChecker(first_sequence_number=4)
    for event in LEGAL["text"]()[4:]:
        checker.check_event(event)
    codes = {finding.code for finding in checker.finish()}
    assert "sequence-start" not in codes and "sequence-gap" not in codes
